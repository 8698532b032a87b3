"""The answer of `paceline compare` as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render, width, wrapped
from paceline.catalog.causes import PARTS
from paceline.catalog.gpus import find_hardware
from paceline.compare.explain import Explained, Explanation, explain
from paceline.compare.files import read
from paceline.compare.forecaster import Forecast, Forecaster
from paceline.compare.hypotheses import Question
from paceline.errors import InvalidArgumentError
from paceline.forecast.measured import RATES, Measured, Quantity
from paceline.forecast.result import Result

FIVE = 5
"""Causes that are listed, unless all are asked for."""
_FEWEST = 3
_UNLIKELY = 0.01
"""Probability below which a cause is listed only among the `_FEWEST`, or if all are."""
_OPEN = 0.5
"""Probability of an unlisted cause from which it is said that none of the listed ones explains a gap."""
_NO_PART = 1e-9
"""Share of a step below which a part is the rounding of a difference."""
_MOST_OF_IT = 0.9
"""Share of a gap from which a cause explains it."""


def answer(workload: str, options: Mapping[str, Any], measured: str, *, without: str = "") -> Explanation:
    """Compare a forecast with a measurement. Raises InvalidArgumentError.

    `without`: the address of an issue that does not count in how common its cause is.
    """
    forecaster = Forecaster([workload], options)
    if not forecaster.is_of_nccl:
        forecaster.prepared  # noqa: B018 - what is wrong with the forecast is said first
    try:
        measurement = read(measured, forecaster)
    except InvalidArgumentError as error:
        raise error.at("measured") from None
    forecast = forecaster.base
    _check_gpus(measurement, forecaster)
    seconds = _seconds(measurement, forecaster)
    if forecast.result is not None:
        measurement.check_peak(seconds, forecast.result, forecaster.hardware)
    question = Question(forecaster, forecast, measurement, seconds, without)
    return explain(question)


def _check_gpus(measured: Measured, forecaster: Forecaster) -> None:
    """Refuse a measurement that was made on another number of GPUs. Raises InvalidArgumentError."""
    gpus = _gpus_of(forecaster)
    if measured.gpus not in (None, gpus):
        raise InvalidArgumentError(
            f"'{measured.text:.80}' was measured on {measured.gpus} GPUs, and the forecast has {gpus}",
            setting="measured",
            remedy=f"{{gpus={measured.gpus}}}",
        )


def _seconds(measured: Measured, forecaster: Forecaster) -> float:
    """Return the measured time of a step, or of a collective. Raises InvalidArgumentError."""
    result = forecaster.base.result
    if measured.quantity is Quantity.BUS and forecaster.is_collective:
        return forecaster.bus_over_bytes * forecaster.bytes / measured.value
    if result is not None:
        return measured.seconds(result, forecaster.peak_flops)
    if measured.quantity is not Quantity.STEP:
        raise InvalidArgumentError(
            f"'{measured.text:.80}': a collective has no {measured.quantity.value}",
            setting="measured",
            remedy=f"{{this=5GB/s}} (busbw), 340ms, or a log of {forecaster.library.lower()}-tests",
        )
    return measured.value


def lines(explanation: Explanation, *, everything: bool = False) -> list[str]:
    """Return the answer for people."""
    made = [*block.headline(_headline(explanation)), "", *block.block(_facts(explanation))]
    for table in (_parts(explanation), _sizes(explanation)):
        made += ["", *table] if table else []
    made += _causes(explanation, everything=everything)
    return [*made, *block.notes(_notes(explanation))]


def _headline(explanation: Explanation) -> str:
    question = explanation.question
    name = _name(question)
    measured, forecast = units.duration(question.seconds), units.duration(question.forecast.seconds)
    if explanation.is_as_forecast:
        return f"{name}: as forecast ({measured} measured, {forecast} forecast)"
    ratio = explanation.ratio
    words = f"{units.factor(ratio)} as long as" if ratio > 1 else f"{units.factor(1 / ratio)} faster than"
    return f"{name}: {words} forecast ({measured} measured, {forecast} forecast)"


def _gpus(question: Question) -> int:
    return _gpus_of(question.forecaster)


def _gpus_of(forecaster: Forecaster) -> int:
    result = forecaster.base.result
    return forecaster.answer.group.ranks if result is None else result.gpus


def _name(question: Question) -> str:
    forecaster = question.forecaster
    if forecaster.is_of_nccl:
        return f"{forecaster.words[0]}, {units.count(_gpus(question), 'GPU')}"
    result = question.forecast.result
    assert result is not None
    gpus, hardware = _gpus(question), forecaster.hardware
    where = units.count(gpus, forecaster.noun) if hardware is None else f"{gpus:,}x {hardware.title}"
    return f"{result.trace}, {where}"


def _facts(explanation: Explanation) -> list[Fact]:
    question = explanation.question
    forecast, gap = question.forecast, question.seconds - question.forecast.seconds
    low, high = units.durations(forecast.low_s, forecast.high_s), "80% of usual runs"
    if not forecast.has_interval:
        high = "80%, by forecasts of other conditions: this one has no interval of its own"
    of = f" of all {_gpus(question):,} {question.forecaster.noun}s together" if _is_of_all(question) else ""
    seconds = f"{units.duration(question.seconds)}{_per_step(question)}"
    facts = [Fact("Measured", f"{question.measured.text}{of}: {seconds}")]
    facts.append(Fact("Forecast", f"{units.duration(forecast.seconds)}, likely {low} ({high})"))
    if not question.measured.parts_s and forecast.result is not None and forecast.result.compute_s > 0:
        made = _made_of(forecast, forecast.result, question.forecaster.library)
        if forecast.result.offload_s:
            made.append(f"of which offload beyond the GPU's compute: {units.duration(forecast.result.offload_s)}")
        facts.append(Fact("Made of", ", ".join(made)))
    facts.append(Fact("Gap", _gap(gap)))
    return facts


def _made_of(forecast: Forecast, result: Result, library: str) -> list[str]:
    """Return the parts of a forecast as `paceline simulate` tells them: what a library's kernels slow is exposed."""
    slowed_s = 0.0 if result.sharded is None else result.sharded.slowed_s
    parts_s = dict(forecast.parts_s)
    parts_s["computation"] -= slowed_s
    parts_s["communication"] += slowed_s
    made = [
        (name, f"{units.duration(seconds)} {_WORDS[name]}")
        for name, seconds in sorted(parts_s.items(), key=lambda item: -item[1])
        if seconds > _NO_PART * forecast.seconds
    ]
    slowed = ""
    if slowed_s > _NO_PART * forecast.seconds:
        slowed = f" ({units.duration(slowed_s)} of it compute slowed by {library} kernels)"
    return [f"{words}{slowed if name == 'communication' else ''}" for name, words in made]


def _per_step(question: Question) -> str:
    """Return what follows a time: that it is of a step, unless it is of a collective."""
    result = question.forecast.result
    return "" if result is None or result.compute_s == 0 else " per step"


def _is_of_all(question: Question) -> bool:
    measured = question.measured
    return measured.quantity in RATES and not measured.per_gpu and _gpus(question) > 1


_WORDS = {
    "computation": "forward and backward",
    "communication": "exposed communication",
    "input": "input",
    "optimizer": "optimizer",
    "launches": "idle between kernels",
    "stragglers": "waiting for stragglers",
}


def _gap(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{units.duration(abs(seconds))}"


def _sizes(explanation: Explanation) -> list[str]:
    """Return the table of a log's sizes, if it has several."""
    rows = explanation.question.measured.sizes
    if len(rows) < 2:
        return []
    answer = explanation.question.forecaster
    columns = [Column("size B"), Column("forecast us"), Column("measured us"), Column("ratio"), Column("busbw GB/s")]
    ratio = answer.bus_over_bytes
    return render(
        columns,
        [
            [
                [
                    f"{one.size:,}",
                    units.digits(one.forecast_s * 1e6),
                    units.digits(one.measured_s * 1e6),
                    units.factor(one.measured_s / one.forecast_s),
                    units.digits(ratio * one.size / one.measured_s / 1e9, 3),
                ]
                for one in rows
            ]
        ],
    )


def _parts(explanation: Explanation) -> list[str]:
    """Return the table of parts, if the measurement tells them."""
    question = explanation.question
    measured, forecast = question.measured.parts_s, question.forecast.parts_s
    if not measured:
        return []
    factor, unit = units.time_unit([question.seconds])
    rows = [
        [
            _WORDS[name],
            units.digits(forecast.get(name, 0.0) / factor),
            units.digits(measured[name] / factor) if name in measured else "-",
            f"{(measured[name] - forecast.get(name, 0.0)) / factor:+,.3g}" if name in measured else "-",
        ]
        for name in PARTS
        if name in measured or forecast.get(name)
    ]
    columns = [Column(f"part ({unit})", left=True), Column("forecast"), Column("measured"), Column("gap")]
    return render(columns, [rows])


def _causes(explanation: Explanation, *, everything: bool) -> list[str]:
    """Return the causes, each with its value, evidence, check and remedy."""
    shown = explanation.causes
    if explanation.is_as_forecast and not everything:
        shown = tuple(one for one in shown if one.in_forecast)
        if not shown:
            return []
    is_open = explanation.unknown > _OPEN and not explanation.is_as_forecast
    if not everything and not explanation.is_as_forecast:
        likely = sum(one.probability >= _UNLIKELY for one in shown)
        shown = shown[: FIVE if is_open else min(FIVE, max(_FEWEST, likely))]
    if not shown:
        return ["", "No cause of the catalog explains it with these options."]
    title = "What would explain it, most likely first"
    if explanation.question.measured.parts_s:
        title = "What would explain the gaps of parts, most likely first"
    elif is_open:
        title = "No single cause explains all of it; the nearest"
    if explanation.is_as_forecast and not everything:
        title = "What keeps it from being faster"
    made = ["", title]
    columns = width()
    for place, one in enumerate(shown, 1):
        probability = "" if one.in_forecast else f" ({units.percent(one.probability, 0)})"
        head = f"{place}. {one.hypothesis.cause.title}{probability}: {one.words}"
        made += wrapped(head, columns, "   ")
        for fact in (*_explains(explanation, one), *(f"for: {fact}" for fact in one.hypothesis.facts)):
            made += wrapped(f"   {fact}", columns, "   ")
        made += wrapped(f"   check: {one.hypothesis.cause.check}", columns, "          ")
        made += wrapped(f"   try: {one.hypothesis.cause.remedy}", columns, "        ")
    rest = len(explanation.causes) - len(shown)
    if rest and not explanation.is_as_forecast:
        made += ["", f"{units.count(rest, 'less likely cause')}: --all"]
    return made


def _explains(explanation: Explanation, one: Explained) -> list[str]:
    """Return the part whose gap a cause explains, and how much of it, where that is not all."""
    forecast, measured = explanation.question.forecast.parts_s, explanation.question.measured.parts_s
    made: list[str] = []
    if one.in_forecast:
        return made
    if one.part is not None:
        gap = measured[one.part] - forecast.get(one.part, 0.0)
        made.append(f"for: {_WORDS[one.part]} has {_gap(gap)}")
    if abs(one.share - 1) <= 1 - _MOST_OF_IT:
        return made
    seconds = f"{units.duration(one.seconds)}{_per_step(explanation.question)}"
    if one.share > 1:
        return [*made, f"against: it would take more, {seconds}"]
    return [*made, f"against: it explains {units.percent(one.share, 0)} of that, {seconds}"]


def _notes(explanation: Explanation) -> list[str]:
    question = explanation.question
    forecaster = question.forecaster
    made = [] if forecaster.is_of_nccl else list(forecaster.prepared.notes)
    if not explanation.is_as_forecast:
        made.append(
            "Percentages: how common a cause is in public issues, times how well it meets the measured time; "
            f"a cause that is not listed: {units.percent(explanation.unknown, 0)}"
        )
        if not question.measured.parts_s and not forecaster.is_of_nccl:
            made.append("A file tells in which part the gap is: --measured PROFILE.json (torch.profiler), or run.json")
    result = question.forecast.result
    if result is not None and result.sharded is not None and result.sharded.fits is False:
        made.append("The forecast does not fit in the GPU's memory, so the run has other settings than these")
    gpus = _gpus(question)
    if question.measured.ranks not in (None, gpus):
        made.append(
            f"{question.measured.text} has {units.count(question.measured.ranks or 0, 'rank')}, the forecast {gpus}"
        )
    return [*made, *_other_gpu(question), *question.measured.notes]


def _other_gpu(question: Question) -> list[str]:
    """Return a note if the measurement is of another GPU than the forecast."""
    own, named = question.forecaster.computes_on, question.measured.device
    if own is None or not named:
        return []
    try:
        measured = find_hardware(named)
    except InvalidArgumentError:
        return []  # A CPU, or a GPU without a data sheet.
    if measured.name == own.name:
        return []
    return [f"{question.measured.text} was measured on the {measured.title}, and the forecast is of the {own.title}"]
