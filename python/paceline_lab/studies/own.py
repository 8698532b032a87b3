"""The systems of a study on workers, rates and traces of your own: the same tables, without published values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from paceline._core import Trace, parse_rate
from paceline._internal import units
from paceline.catalog.builtin import load_trace
from paceline.errors import InvalidArgumentError
from paceline.forecast.execute import execute
from paceline.forecast.scenario import Scenario
from paceline.settings.table import SETTINGS, SWEEP

from paceline_lab.studies.report import Prediction, Study


@dataclass(frozen=True)
class Comparison:
    """The systems of a study by their names there, the first of which others are compared with; and its usual setup."""

    systems: Sequence[str]
    scenario: Callable[[str, Trace, int, str | None], Scenario]
    """The forecast of a system on a trace, workers, and a rate instead of the study's: that of the study's tables."""
    traces: Sequence[str]
    step: Callable[[str], Trace]
    """The study's own trace by its name."""
    workers: Sequence[int]
    bandwidth: Sequence[str] | None = None


@dataclass(frozen=True)
class Own:
    """Values that replace those of a study; empty ones stand for the study's."""

    workers: Sequence[int] = ()
    bandwidth: Sequence[str] = ()
    traces: Sequence[str] = ()

    @classmethod
    def of(cls, workers: Sequence[str] | None, bandwidth: Sequence[str] | None, traces: Sequence[str]) -> Own | None:
        """Check what was typed; None if nothing was. Raises InvalidArgumentError, which names the option."""
        if workers is None and bandwidth is None and not traces:
            return None
        counts = () if workers is None else SETTINGS["workers"].check(workers, None, SWEEP)
        rates = () if bandwidth is None else SETTINGS["bandwidth"].check(bandwidth, None, SWEEP)
        return cls(counts, rates, traces)


def run(
    study: str,
    title: str,
    what: Comparison,
    own: Own,
    *,
    plots: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Forecast the systems of a study with other values; draw a figure if a folder is given."""
    words = own.traces or what.traces
    traces = [what.step(word) if word in what.traces else load_trace(word) for word in words]
    _check_names(words, traces)
    workers = list(own.workers or what.workers)
    rates: list[str | None] = [*(own.bandwidth or what.bandwidth or [])] or [None]
    cases = list(product(traces, rates, workers, what.systems))
    scenarios = [what.scenario(system, trace, count, rate) for trace, rate, count, system in cases]
    seconds = [result.iteration_s for result in execute(scenarios, progress)]
    times = {
        (trace.name, rate, count, system): iteration_s
        for (trace, rate, count, system), iteration_s in zip(cases, seconds, strict=True)
    }
    first = what.systems[0]
    values: list[Prediction] = []
    for is_gain in (False, True):
        table, unit = (f"speed-up over {first}", "x") if is_gain else ("iteration time", "s")
        for (trace, rate, count, system), iteration_s in times.items():
            where = trace if rate is None else f"{trace}, {units.rate(parse_rate(rate))}"
            figure = times[trace, rate, count, first] / iteration_s if is_gain else iteration_s
            values.append(Prediction(f"{where}: {table}", system, f"{count} GPUs", figure, unit))
    drawn: list[str] = []
    if plots is not None:
        from paceline_lab.studies.curves import Panel, draw

        tables = list(dict.fromkeys(it.table for it in values))
        panels = {
            table: Panel(
                table.partition(":")[0], "workers", table.partition(": ")[2] + (" (s)" if "time" in table else "")
            )
            for table in tables
        }
        drawn = [str(draw(values, plots / f"{study}-own.png", f"{study}, with values of your own", panels))]
    note = "Workers, rates or traces are your own: nothing is published for them, and no claim is tested."
    return Study(title, [], [], drawn, simulations=len(times), notes=(note,), forecasts=values)


def _check_names(words: Sequence[str], traces: Sequence[Trace]) -> None:
    """Raise InvalidArgumentError if two traces have one name, which tells their rows apart."""
    named: dict[str, str] = {}
    for word, trace in zip(words, traces, strict=True):
        if trace.name in named:
            both = f"{units.shown(named[trace.name])} and {units.shown(word)}"
            raise InvalidArgumentError(
                f"--trace: {both} have the same name, '{units.shown(trace.name)}'",
                remedy='another "name" in one of them',
            )
        named[trace.name] = word
