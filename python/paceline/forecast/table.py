"""The table of forecasts for people: fastest first within each configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline.forecast.simulate import Result, Scenario

Cell = Callable[[Result, "Group"], str]


@dataclass(frozen=True)
class Group:
    """The scenarios of one configuration in the requested order; the others are compared with the first."""

    scenarios: list[Scenario]
    results: list[Result]

    def fastest_first(self) -> list[Result]:
        """Return results by iteration time; those that look equal in the table stay in the requested order."""
        return sorted(self.results, key=lambda result: float(f"{result.iteration_s:.3e}"))


def grouped(scenarios: Sequence[Scenario], results: Sequence[Result]) -> list[Group]:
    """One group per workers, bandwidth and compute speed-up, in order."""
    groups: dict[tuple[int, float, float], Group] = {}
    for scenario, result in zip(scenarios, results, strict=True):
        key = (result.workers, result.bandwidth_bps, result.compute_speedup)
        group = groups.setdefault(key, Group([], []))
        group.scenarios.append(scenario)
        group.results.append(result)
    return list(groups.values())


def table(groups: Sequence[Group]) -> list[str]:
    """Title and table, as lines."""
    results = [result for group in groups for result in group.results]
    shown = [*_swept_columns(results), *_figure_columns(groups, results)]
    rows = [[[cell(result, group) for _, cell in shown] for result in group.fastest_first()] for group in groups]
    several = any(len(group.results) > 1 for group in groups)
    return [*_title(groups[0], results), "", *render([column for column, _ in shown], rows, highlight_first=several)]


def _swept_columns(results: Sequence[Result]) -> list[tuple[Column, Cell]]:
    """Return the columns of requested values that differ between rows, and the strategy."""
    columns: list[tuple[Column, Cell]] = []
    if _varies([result.workers for result in results]):
        columns.append((Column("workers"), lambda result, _: str(result.workers)))
    if _varies([result.bandwidth_bps for result in results]):
        columns.append((Column("bandwidth"), lambda result, _: units.rate(result.bandwidth_bps)))
    if _varies([result.compute_speedup for result in results]):
        columns.append((Column("compute\nspeed-up"), lambda result, _: f"{result.compute_speedup:g}"))
    columns.append((Column("strategy", left=True), lambda result, _: result.strategy))
    if _varies([result.servers for result in results if result.servers]):
        columns.append((Column("servers"), lambda result, _: str(result.servers) if result.servers else "-"))
    return columns


def _figure_columns(groups: Sequence[Group], results: Sequence[Result]) -> list[tuple[Column, Cell]]:
    time = units.time_unit(result.iteration_s for result in results)
    columns: list[tuple[Column, Cell]] = [
        (Column(f"iteration\n{time[1]}"), lambda result, _: units.in_unit(result.iteration_s, time))
    ]
    if any(result.compute_s > 0 for result in results):
        columns += [
            (Column("samples/s"), lambda result, _: _optional(result.samples_per_s, units.digits)),
            (Column("scaling\nefficiency"), lambda result, _: _optional(result.scaling_efficiency, units.percent)),
        ]
    else:
        rates = [result.bus_bandwidth_bps or 0.0 for result in results]
        rate = units.rate_unit(rates)
        columns += [
            (
                Column(f"algorithm bandwidth\n{rate[1]}"),
                lambda result, _: _optional(result.algorithm_bandwidth_bps, lambda value: units.in_unit(value, rate)),
            ),
            (
                Column(f"bus bandwidth\n{rate[1]}"),
                lambda result, _: _optional(result.bus_bandwidth_bps, lambda value: units.in_unit(value, rate)),
            ),
        ]
    if any(len(group.results) > 1 for group in groups):
        first = named(groups[0].results[0], groups[0])
        columns.append((Column(f"speed-up\nover {first}"), _speedup))
    if any(result.compute_s > 0 for result in results):
        exposed = f"exposed comm.\n{time[1]}"
        columns.append((Column(exposed), lambda result, _: units.in_unit(result.exposed_communication_s, time)))
    return columns


def _speedup(result: Result, group: Group) -> str:
    first = group.results[0].iteration_s
    return units.digits(first / result.iteration_s, 3) if result.iteration_s > 0 else "-"


def _optional(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def named(result: Result, group: Group) -> str:
    """Return the strategy, with its servers if the group has it with several numbers of servers."""
    same = [other for other in group.results if other.strategy == result.strategy]
    return f"{result.strategy}, {units.count(result.servers, 'server')}" if len(same) > 1 else result.strategy


def _title(group: Group, results: Sequence[Result]) -> list[str]:
    result = next((result for result in group.results if result.servers), group.results[0])
    cluster = json.loads(group.scenarios[0].cluster.to_json())
    what = [result.trace, f"{units.size(result.gradient_bytes)} of gradients"]
    if result.compute_s > 0:
        what += [f"batch {result.batch} per worker"]
        if not _varies([other.compute_speedup for other in results]):
            what.append(f"{units.duration(result.compute_s)} of computation")
    where = []
    if not _varies([other.workers for other in results]):
        where.append(units.count(result.workers, "worker"))
    if not _varies([other.servers for other in results if other.servers]) and result.servers:
        where.append(units.count(result.servers, "server"))
    if not _varies([other.bandwidth_bps for other in results]):
        where.append(units.rate(result.bandwidth_bps))
    if cluster["gpus_per_node"] > 1:
        where.append(f"{cluster['gpus_per_node']} GPUs per node")
    if not cluster["latency"].startswith("0"):
        where.append(f"latency {cluster['latency']}")
    return [", ".join(what), ", ".join(where)] if where else [", ".join(what)]


def with_evidence(group: Group) -> Result:
    """Return the fastest forecast that has an interval; if none has one, the fastest, which says why."""
    ranked = group.fastest_first()
    return next((result for result in ranked if result.interval is not None), ranked[0])


def likely(result: Result) -> str:
    """Return a sentence with the interval of a forecast and its basis, or why there is none."""
    found = result.interval
    if found is None:
        return f"{result.strategy} has {result.evidence}."
    times = f"{units.duration(found.low_s)} to {units.duration(found.high_s)}"
    rates = ""
    if result.samples_per_s is not None and result.compute_s > 0:
        low, high = (result.samples_per_s * result.iteration_s / seconds for seconds in (found.high_s, found.low_s))
        rates = f", {units.digits(low)} to {units.digits(high)} samples/s"
    return (
        f"With a probability of {found.level:.0%} {result.strategy} takes {times}{rates}: so far off have "
        f"{found.cases} comparable forecasts been ({found.basis})."
    )


def notes(results: Sequence[Result]) -> list[str]:
    """Return the notes of results, each once."""
    return list(dict.fromkeys(note for result in results for note in result.notes))


def _varies(values: Sequence[object]) -> bool:
    return len(set(values)) > 1
