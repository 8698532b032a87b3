"""Anchors: measured steps to which a forecast is scaled (`--measured 2.8s@8`).

The computation of a forecast is lengthened or shortened by one factor, so that the forecast for as many GPUs as were
measured takes as long as measured; of several measurements, the factor is the geometric mean. What a measurement on few
GPUs tells is mostly how fast they compute; the network's part of the forecast stays as it is. The interval of a scaled
forecast is that of published steps whose computation a step on fewer GPUs has set (`evidence.scaled_interval`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, stdev

from paceline._internal import units
from paceline.catalog.builtin import load_trace
from paceline.catalog.models.spec import is_file
from paceline.errors import InvalidArgumentError, naming
from paceline.forecast.evidence import forecast_spread, scaled_interval
from paceline.forecast.likeness import QUANTILE
from paceline.forecast.measured import Measured, parse
from paceline.forecast.prepare import Prepared, prepare
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.forecast.typed import words
from paceline.forecast.wording import notes
from paceline.settings.table import EACH, SWEPT

_STEPS = 36
_EXACT = 1e-4
"""Of a time: a scale is not looked for more exactly."""
PLAUSIBLE = (0.5, 2.0)
"""Scales of computation that a difference of software explains; beyond, something else is different."""
_MOST = 100.0
"""No scale is further from 1: computation that is a hundred times as fast takes no time beside communication."""


@dataclass(frozen=True)
class Anchored:
    """Scaled scenarios, and how the intervals of their results follow."""

    prepared: Prepared
    scale: float | None = None
    """Computation takes so many times as long as forecast; None: nothing was measured."""
    gpus: tuple[int, ...] = ()
    """Those of the measurements."""
    spread: float = 0.0
    """The standard deviation of the logarithm of the measurements' scales."""

    def results(self, results: Sequence[Result]) -> list[Result]:
        """Return the results of the scenarios with the intervals of scaled forecasts."""
        if self.scale is None:
            return list(results)
        return [self._with_interval(result) for result in results]

    def _with_interval(self, result: Result) -> Result:
        gpus = result.gpus
        nearest = min(self.gpus, key=lambda count: abs(math.log(count / gpus)))
        own = scaled_interval(result.iteration_s, gpus, nearest, self.spread, result.interval)
        evidence = result.evidence if own is None or own is result.interval else own.basis
        return replace(result, interval=own, evidence=evidence, measured_scale=self.scale)


def anchored(sweep: Sweep) -> Anchored:
    """Prepare a request, and scale its scenarios to what was measured. Raises InvalidArgumentError."""
    prepared = prepare(sweep)
    text = sweep.get("measured")
    if text is None:
        return Anchored(prepared)
    with naming(sweep.sources):
        _check(sweep, prepared)
        anchors = [_anchor(sweep, prepared, word) for word in _words(text)]
    within = [one.text for one in anchors if one.scale is None]
    hidden = [notes.as_forecast(within)] if within else []
    scales = [one.scale for one in anchors if one.scale is not None]
    if not scales:
        return Anchored(replace(prepared, notes=[*hidden, *prepared.notes]))
    scale = geometric_mean(scales)
    scenarios = [_scaled(scenario, scale) for scenario in prepared.scenarios]
    counts = tuple(one.gpus for one in anchors if one.scale is not None)
    said = [
        *hidden,
        notes.scaled(scale, counts, text, _first_of_several(sweep)),
        *(note for one in anchors for note in one.notes),
    ]
    if not _is_plausible(scale):
        command = _comparison(sweep, counts[0], anchors[0].number)
        forecast = result_of(prepared.scenarios[0])
        said.append(notes.implausible_scale(scale, command, forecast.offload_s, forecast.iteration_s))
    spread = stdev(map(math.log, scales)) if len(scales) > 1 else 0.0
    return Anchored(replace(prepared, scenarios=scenarios, notes=[*said, *prepared.notes]), scale, counts, spread)


def _first_of_several(sweep: Sweep) -> list[str]:
    """Return the values that a measurement is of, of settings with several."""
    first = [str(sweep.get(name)) for name in sweep.each]
    shardings = sweep.get("sharding") or ()
    return [*first, *(shardings[:1] if len(shardings) > 1 else ())]


def _words(text: str) -> list[str]:
    """Return the measurements of a text; `12,000tokens/s` is one."""
    words: list[str] = []
    for word in text.split(","):
        if words and words[-1].isdigit():
            words[-1] += f",{word}"
        else:
            words.append(word.strip())
    return words


def _check(sweep: Sweep, prepared: Prepared) -> None:
    if any(scenario.trace.computes is False for scenario in prepared.scenarios):
        raise InvalidArgumentError(
            "scales computation, and this computes nothing", setting="measured", remedy="drop {this}"
        )
    for name in ("compute_speedup", "samples_per_s", "coordinator"):
        if sweep.get(name) is not None:
            raise InvalidArgumentError(
                f"sets the computation, as {sweep.spelling(name)} does", setting="measured", remedy=f"drop {{{name}}}"
            )
    if len(sweep.traces) > 1:
        raise InvalidArgumentError("is of one workload", setting="measured", remedy="one workload")


@dataclass(frozen=True)
class _Anchor:
    """A measurement on a number of GPUs, and the scale with which the forecast for them is as measured."""

    gpus: int
    scale: float | None
    """None: other parts hide computation, and the measurement is as far from the forecast as usual."""
    number: str
    """The measurement, without the GPUs."""
    text: str
    notes: tuple[str, ...] = ()


def _is_plausible(scale: float | None) -> bool:
    return scale is not None and PLAUSIBLE[0] <= scale <= PLAUSIBLE[1]


def _anchor(sweep: Sweep, prepared: Prepared, word: str) -> _Anchor:
    if is_file(word.rpartition("@")[0] or word) or is_file(word):
        return _of_recording(prepared, word)
    measured = parse(word)
    counts = list(dict.fromkeys(_gpus(scenario) for scenario in prepared.scenarios))
    count = measured.gpus or (counts[0] if len(counts) == 1 else None)
    if count is None:
        raise InvalidArgumentError(
            f"'{word:.80}' does not say on how many GPUs", setting="measured", remedy=f"{{this={word:.40}@{counts[0]}}}"
        )
    scenario = _on(sweep, count)
    scale = _scale(scenario, measured)
    said: tuple[str, ...] = ()
    if measured.is_assumed_of_all and count > 1:
        if not _is_plausible(scale) and _is_plausible(each := _scale(scenario, replace(measured, per_gpu=True))):
            raise _of_which(measured, count, scale, each)
        said = (notes.of_all_gpus(measured.text, measured.number, count),)
    if not _is_plausible(scale) and _is_as_forecast(scenario, measured):
        scale = None
    elif scale is None:
        raise _beyond_computation(sweep, scenario, measured)
    return _Anchor(count, scale, measured.number, word, said)


def _is_as_forecast(scenario: Scenario, measured: Measured) -> bool:
    """Whether what was measured is as far from the forecast as usual."""
    forecast = result_of(scenario)
    spread = forecast_spread(forecast.interval, forecast.ground)
    return abs(math.log(measured.seconds(forecast, _peak(scenario)) / forecast.iteration_s)) <= QUANTILE * spread


def _of_which(measured: Measured, gpus: int, of_all: float | None, of_each: float | None) -> InvalidArgumentError:
    """Return the error about a rate that is plausible of each GPU only, and does not say so."""
    assert of_each is not None
    all_of_them = "beyond computation" if of_all is None else f"{units.factor(of_all)} the forecast's computation"
    return InvalidArgumentError(
        f"'{measured.text:.80}' does not say whether it is of each GPU: of all {gpus:,} together it is {all_of_them}, "
        f"of each {units.factor(of_each)}",
        setting="measured",
        remedy=f"{{this={measured.number:.40}/GPU@{gpus}}} (of each), or {measured.number:.40}/all@{gpus}",
    )


def _of_recording(prepared: Prepared, word: str) -> _Anchor:
    """Return the scale of computation that a recording on one GPU tells, of the same batch."""
    path, at, count = word.rpartition("@")
    path = path if at and is_file(path) else word
    try:
        trace = load_trace(Path(path))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{error.reason}; a file has to be a recording of one GPU",
            setting="measured",
            remedy="paceline record -o mine.json -- python train.py, or the time of a step: {this=2.8s@8}",
        ) from None
    scenario = prepared.scenarios[0]
    own = scenario.trace
    if not trace.computes:
        raise InvalidArgumentError(f"{path}: computes nothing", setting="measured", remedy="{this=2.8s@8}")
    if trace.batch != own.batch:
        raise InvalidArgumentError(
            f"{path}: has batch {trace.batch}, the forecast {own.batch}",
            setting="measured",
            remedy=f"{{batch={trace.batch}}}",
        )
    recorded, forecast = (it.forward_s + it.backward_s + it.optimizer_s for it in (trace, own))
    return _Anchor(int(count) if at and count.isdigit() else 1, recorded / forecast, path, word)


def _on(sweep: Sweep, gpus: int) -> Scenario:
    """Return the first scenario of the request on so many GPUs. Raises InvalidArgumentError."""
    changed = sweep.changed({"measured": None, "workers": [gpus]})
    return prepare(replace(changed, timeline=None, plot=None, one_strategy=True)).scenarios[0]


def _gpus(scenario: Scenario) -> int:
    return scenario.workers * (1 if scenario.workload is None else scenario.workload.gpus)


def _scaled(scenario: Scenario, scale: float) -> Scenario:
    timeline = scenario.timeline
    return replace(scenario.changed(compute_speedup=1 / scale), timeline=timeline)


def _scale(scenario: Scenario, measured: Measured) -> float | None:
    """Return how many times as long computation takes, by bisection of the logarithm; None if no scale is as measured.

    Raises InvalidArgumentError if the forecast has no such quantity.
    """
    forecast = result_of(scenario)
    wanted = measured.seconds(forecast, _peak(scenario))
    measured.check_peak(wanted, forecast, None if scenario.workload is None else scenario.workload.hardware)
    low, high, scale = -math.log(_MOST), math.log(_MOST), math.log(wanted / forecast.iteration_s)
    for step in range(_STEPS):
        scale = min(high, max(low, scale))
        seconds = result_of(_scaled(scenario, math.exp(scale))).iteration_s
        if abs(seconds / wanted - 1) < _EXACT:
            return math.exp(scale)
        low, high = (scale, high) if seconds < wanted else (low, scale)
        share = forecast.gpu_s * math.exp(scale)
        # As if all that is not computation stayed: Newton's step, if it is within the bracket.
        better = math.log(max(share + wanted - seconds, share / _MOST) / forecast.gpu_s)
        # Where other parts hide computation, such steps are short: every third halves the bracket.
        scale = better if low < better < high and step % 3 < 2 else (low + high) / 2
        if high - low < _EXACT:
            break
    if abs(result_of(_scaled(scenario, math.exp(scale))).iteration_s / wanted - 1) > 100 * _EXACT:
        return None
    return math.exp(scale)


def _peak(scenario: Scenario) -> float | None:
    return None if scenario.workload is None else scenario.workload.peak_flops


def _beyond_computation(sweep: Sweep, scenario: Scenario, measured: Measured) -> InvalidArgumentError:
    """Return the error about a measurement that no scale of computation meets."""
    gpus, forecast = _gpus(scenario), result_of(scenario)
    wanted, forecast_s = measured.seconds(forecast, _peak(scenario)), forecast.iteration_s
    said = f"'{measured.text:.80}' is {units.duration(wanted)} per step on {units.count(gpus, 'GPU')}, and the forecast"
    if wanted > forecast_s:
        own = f", {units.duration(forecast.offload_s)} of it offload" if forecast.offload_s else ""
        gap = f"{said} is {units.duration(forecast_s)}{own}: {units.factor(wanted / forecast_s)} is beyond computation"
    else:
        rest_s = result_of(_scaled(scenario, 1 / _MOST)).iteration_s
        rest = "communication" if forecast.offload_s is None else "offloading and communication"
        gap = f"{said} has {units.duration(rest_s)} of {rest} alone, so no computation is as fast"
    return InvalidArgumentError(gap, setting="measured", remedy=_comparison(sweep, gpus, measured.number))


def _comparison(sweep: Sweep, gpus: int, number: str) -> str:
    """Return the command that compares a measurement with the first scenario of a request on so many GPUs."""
    settings = {name: _first(value) if name in (*SWEPT, *EACH) else value for name, value in sweep.typed.items()}
    if settings.get("strategy") == "all":
        del settings["strategy"]
    workload = sweep.trace if sweep.file is None else sweep.file.path
    settings = {name: value for name, value in settings.items() if name not in ("workers", "measured")}
    return shlex.join(["paceline", "compare", str(workload), *words({**settings, "workers": gpus, "measured": number})])


def _first(values: object) -> object:
    """Return the first of several values of a setting, as they were given."""
    if isinstance(values, str):
        return values.partition(",")[0].strip()
    return values[0] if isinstance(values, Sequence) else values
