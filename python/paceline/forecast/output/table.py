"""The table of forecasts for people: fastest first within each configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline.forecast import compression
from paceline.forecast.result import Result
from paceline.forecast.verdict.groups import Group
from paceline.forecast.wording.rows import named, sharding_label, title, varies, whose
from paceline.forecast.wording.sharding import legend, memory_text

Cell = Callable[[Result, "Group"], str]


def _first_of(group: Group, most: int) -> list[Result]:
    """Return the fastest, and what the library runs by itself, which the verdict is about."""
    ranked = group.ranked()
    runs = group.own()
    return [result for place, result in enumerate(ranked) if place < most or result is runs]


def table(groups: Sequence[Group], most: int | None = None) -> list[str]:
    """Return title, table, and what was left out, as lines.

    `most`: rows of a configuration; then parameter servers are left out, too, unless they are meant.
    """
    results = [result for group in groups for result in group.results]
    ranked = [group.fastest_first() if most is None else _first_of(group, most) for group in groups]
    listed = [result for group in ranked for result in group]
    shown = [*_swept_columns(listed), *_figure_columns(groups, results)]
    rows = [
        [[cell(result, group) for _, cell in shown] for result in own]
        for group, own in zip(groups, ranked, strict=True)
    ]
    several = any(len(group) > 1 for group in ranked)
    lines = [*title(groups[0], listed), "", *render([column for column, _ in shown], rows, highlight_first=several)]
    lines += legend(listed)
    left_out = max(len(group.results) - len(own) for group, own in zip(groups, ranked, strict=True))
    return [*lines, f"and {left_out} more with --all"] if left_out else lines


def _swept_columns(results: Sequence[Result]) -> list[tuple[Column, Cell]]:
    """Return the columns of requested values that differ between rows, and the strategy."""
    columns: list[tuple[Column, Cell]] = []
    if varies([result.trace for result in results]):
        columns.append((Column("trace", left=True), lambda result, _: result.trace))
    if varies([result.library for result in results]):
        columns.append((Column("library", left=True), lambda result, _: result.library))
    if varies([result.workers for result in results]):
        columns.append((Column("workers"), lambda result, _: str(result.workers)))
    if varies([result.bandwidth_bps for result in results]):
        of = (
            "\nper " + units.listed(sorted({whose(result) for result in results}), "or")
            if any(result.gpus_per_node > 1 for result in results)
            else ""
        )
        columns.append((Column(f"bandwidth{of}"), lambda result, _: units.rate(result.bandwidth_bps)))
    if varies([result.latency_s for result in results]):
        columns.append((Column("latency"), lambda result, _: units.duration(result.latency_s)))
    if varies([result.compute_speedup for result in results]):
        columns.append((Column("compute\nspeedup"), lambda result, _: f"{result.compute_speedup:g}"))
    if any(result.sharded is not None for result in results):
        columns.append((Column("sharding", left=True), lambda result, _: sharding_label(result)))
    if varies([result.compression for result in results]) or any(compression.changes_row(result) for result in results):
        columns += [
            *([(Column("compression", left=True), _compression)] if any(it.compression for it in results) else []),
            *([(Column("exchanged\nevery"), _every)] if any(it.sync_every for it in results) else []),
        ]
    columns.append((Column("strategy", left=True), lambda result, _: result.strategy))
    if any(result.coordinator for result in results):
        columns.append((Column("coordinator", left=True), lambda result, _: result.coordinator or "none"))
    if varies([result.servers for result in results if result.servers]):
        columns.append((Column("servers"), lambda result, _: str(result.servers) if result.servers else "-"))
    if varies([result.bucket_size for result in results]):
        columns.append((Column("bucket\nsize"), lambda result, _: _bucket_size(result)))
    return columns


def _compression(result: Result, _: Group) -> str:
    return result.compression or "none"


def _every(result: Result, _: Group) -> str:
    return str(result.sync_every or 1)


def _bucket_size(result: Result) -> str:
    return "none" if result.bucket_size is None else units.size(result.bucket_size)


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
        if any(result.tokens_per_s_per_gpu is not None for result in results):
            tokens = Column("tokens/s\nper GPU")
            columns.append((tokens, lambda result, _: _optional(result.tokens_per_s_per_gpu, units.digits)))
        if any(result.mfu is not None for result in results):
            columns.append((Column("MFU"), lambda result, _: _optional(result.mfu, units.percent)))
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
        first = named(groups[0].results[0], groups[0], prose=False)
        columns.append((Column(f"speedup\nover {first}"), _speedup))
    if any(result.compute_s > 0 for result in results):
        exposed = f"exposed comm.\n{time[1]}"
        columns.append((Column(exposed), lambda result, _: units.in_unit(result.exposed_communication_s, time)))
    if any(result.sharded is not None for result in results):
        columns.append((Column("memory\nper GPU"), lambda result, _: memory_text(result)))
    if any(result.coordinator for result in results):
        columns += [_part_column(name, time) for name in ("coordinator", "copy", "collective")]
    return columns


def _part_column(name: str, time: units.Unit) -> tuple[Column, Cell]:
    """A part of an iteration under a coordinator; tenths of milliseconds are precise enough."""
    places = 4 if time[1] == "s" else 1
    return Column(f"{name}\n{time[1]}"), lambda result, _: _optional(
        getattr(result, f"{name}_s"), lambda value: f"{value / time[0]:.{places}f}"
    )


def _speedup(result: Result, group: Group) -> str:
    first = group.results[0].iteration_s
    return units.digits(first / result.iteration_s, 3) if result.iteration_s > 0 else "-"


def _optional(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)
