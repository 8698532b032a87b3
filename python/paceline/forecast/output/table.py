"""The table of forecasts: fastest first within each configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline.catalog.libraries import UNLIMITED
from paceline.forecast import compression
from paceline.forecast.result import Result
from paceline.forecast.verdict.bottleneck import MIN_GAIN
from paceline.forecast.verdict.groups import Group
from paceline.forecast.wording import terms
from paceline.forecast.wording.rows import (
    base_trace,
    chunk_text,
    is_against_linear,
    is_alone,
    named,
    sharding_label,
    varies,
    whose,
)
from paceline.forecast.wording.sharding import legend, memory_text

Cell = Callable[[Result, "Group"], str]
_PLURALS = {"row": "rows", "strategy": "strategies"}


def listed(group: Group, most: int | None) -> list[Result]:
    """Return the rows of a configuration: the fastest, and what the library runs by itself, which the verdict is about.

    That alone where the others are as fast: of a model whose exchanges are hidden, and of one GPU.
    """
    if most is None:
        return group.fastest_first()
    ranked = group.ranked()
    runs = group.library_default()
    fastest = [result for place, result in enumerate(ranked) if place < most or result is runs]
    return [runs or ranked[0]] if _is_even(group, fastest) else fastest


def _is_even(group: Group, results: Sequence[Result]) -> bool:
    """Whether rows, fastest first, differ in their strategies and in nothing that matters."""
    if results[-1].iteration_s > MIN_GAIN * results[0].iteration_s:
        return False
    if varies([(sharding_label(one), one.coordinator, one.compression, one.sync_every) for one in results]):
        return False
    return all(map(is_alone, results)) or (group.is_of_model and group.differs_in_strategy)


def table(groups: Sequence[Group], most: int | None = None) -> list[str]:
    """Return table, legend, and how many rows are left out, as lines; nothing for a single row.

    `most`: rows of a configuration; then parameter servers are left out, too, unless they are meant.
    """
    results = [result for group in groups for result in group.results]
    ranked = [listed(group, most) for group in groups]
    every = [result for group in ranked for result in group]
    # One GPU has no strategy.
    pairs = [(group, own) for group, own in zip(groups, ranked, strict=True) if not is_alone(own[0]) or len(own) > 1]
    left_out = max((len(group.results) - len(own) for group, own in pairs), default=0)
    if len(every) == 1 and (not left_out or _is_even(groups[0], every)):
        return []
    shown = [*_swept_columns(every, groups[0].noun), *_figure_columns(groups, results, every)]
    rows = [
        [[cell(result, group) for _, cell in shown] for result in own]
        for group, own in zip(groups, ranked, strict=True)
    ]
    lines = render([column for column, _ in shown], rows)
    is_shown = varies([memory_text(result) for result in every])
    lines += legend(every) if is_shown else []
    noun = "row" if varies([(sharding_label(one), one.servers > 1, one.bucket_size) for one in every]) else "strategy"
    rest = f"{left_out} more {noun if left_out == 1 else _PLURALS[noun]}: --all"
    return [*lines, rest] if left_out else lines


def _swept_columns(results: Sequence[Result], noun: str) -> list[tuple[Column, Cell]]:
    """Return the columns of requested values that differ between rows, and the strategy."""
    columns: list[tuple[Column, Cell]] = []
    if varies([base_trace(result) for result in results]):
        columns.append((Column("trace", left=True), lambda result, _: base_trace(result)))
    if varies([result.add_module for result in results]):
        columns.append((Column("modules", left=True), lambda result, _: result.add_module or "none"))
    if varies([result.send_order for result in results]):
        columns.append((Column("order", left=True), lambda result, _: result.send_order or "recorded"))
    if varies([result.gpu for result in results]):
        columns.append((Column("GPU", left=True), lambda result, _: result.gpu or ""))
    if varies([result.power_limit_w for result in results]):
        columns.append((Column("limit W"), lambda result, _: _optional(result.power_limit_w, "{:g}".format)))
    if varies([result.library for result in results]):
        columns.append((Column("library", left=True), lambda result, _: result.library))
    if varies([result.workers for result in results]):
        columns.append((Column(f"{noun}s"), lambda result, _: f"{_ranks(result, noun):,}"))
    links = [result for result in results if not is_alone(result)]
    if varies([result.bandwidth_bps for result in links]):
        of = (
            "\nper " + units.listed(sorted({whose(result) for result in results}), "or")
            if any(result.gpus_per_node > 1 for result in results)
            else ""
        )
        columns.append((Column(f"bandwidth{of}"), lambda result, _: units.rate(result.bandwidth_bps)))
    if varies([result.gpus_per_node for result in links]):
        columns.append((Column("GPUs per\nnode"), lambda result, _: f"{result.gpus_per_node:,}"))
    if varies([result.latency_s for result in links]):
        columns.append((Column("latency"), lambda result, _: units.duration(result.latency_s, 4)))
    if varies([result.compute_speedup for result in results]):
        columns.append((Column("compute\nspeedup"), lambda result, _: f"{result.compute_speedup:g}x"))
    if varies([sharding_label(result) for result in results]):
        columns.append((Column("sharding", left=True), _sharding))
    if varies([result.compression for result in results]) or any(compression.changes_row(result) for result in results):
        columns += [
            *([(Column("compression", left=True), _compression)] if any(it.compression for it in results) else []),
            *([(Column("sync\nevery"), _every)] if any(it.sync_every for it in results) else []),
        ]
    if not all(map(is_alone, results)):
        columns.append((Column("strategy", left=True), _strategy))
    if any(result.coordinator for result in results):
        columns.append((Column("coordinator", left=True), lambda result, _: result.coordinator or "none"))
    if varies([result.servers for result in results if result.servers]):
        columns.append((Column("servers"), lambda result, _: str(result.servers) if result.servers else "-"))
    if varies([result.bucket_size for result in results]):
        columns.append((Column("bucket\nsize"), lambda result, _: _bucket_size(result)))
    if varies([result.chunk for result in results if result.chunk is not None]):
        columns.append((Column("chunk", left=True), lambda result, _: chunk_text(result.chunk)))
    if varies([result.placement for result in results if result.placement is not None]):
        columns.append((Column("placement", left=True), lambda result, _: result.placement or "-"))
    if varies([result.distribution for result in results if result.distribution is not None]):
        columns.append((Column("distri-\nbution", left=True), lambda result, _: result.distribution or "-"))
    return columns


def _ranks(result: Result, noun: str) -> int:
    """Return the workers of a result, or all GPUs where they are counted."""
    return result.workers * ((result.gpus_per_worker or 1) if noun == "GPU" else 1)


def _strategy(result: Result, group: Group) -> str:
    if is_alone(result):
        return "-"
    scenario = group.scenario(result)
    return terms.strategy(result.strategy, terms.collectives(scenario.cluster, scenario.workload))


def _sharding(result: Result, _: Group) -> str:
    return terms.sharding_cell(sharding_label(result))


def _compression(result: Result, _: Group) -> str:
    return result.compression or "none"


def _every(result: Result, _: Group) -> str:
    return str(result.sync_every or 1)


def _bucket_size(result: Result) -> str:
    if result.bucket_size is None:
        return "none"
    return "all" if result.bucket_size >= UNLIMITED else units.size(result.bucket_size, 4)


def _staleness(result: Result, _: Group) -> str:
    return "-" if result.asynchronous is None else f"{result.asynchronous.mean_staleness:.3g}"


def _figure_columns(
    groups: Sequence[Group], results: Sequence[Result], listed: Sequence[Result]
) -> list[tuple[Column, Cell]]:
    time = units.time_unit(result.iteration_s for result in results)
    exposed = units.time_unit(result.exposed_communication_s for result in results)
    columns: list[tuple[Column, Cell]] = [
        (Column(f"iter {time[1]}"), lambda result, _: units.in_unit(result.iteration_s, time))
    ]
    pairs = [(result, group) for group in groups for result in group.results if result in listed]
    computes = any(result.compute_s > 0 for result in results)
    if computes:
        columns += [
            (Column("samples/s", spare=1), lambda result, _: _optional(result.samples_per_s, units.digits)),
            *([(Column("scaling"), _scaling)] if any(_is_scaled(*pair) for pair in pairs) else []),
        ]
        if any(result.asynchronous is not None for result in results):
            columns.append((Column("mean\nstaleness"), _staleness))
        if any(result.tokens_per_s_per_gpu is not None for result in results):
            columns.append(
                (Column("tok/s/GPU"), lambda result, _: _optional(result.tokens_per_s_per_gpu, units.digits))
            )
        if any(result.mfu is not None for result in results):
            columns.append((Column("MFU", spare=2), lambda result, _: _optional(result.mfu, units.percent)))
    else:
        rates = [result.bus_bandwidth_bps or 0.0 for result in results]
        rate = units.rate_unit(rates)
        columns += [
            (
                Column(f"algbw {rate[1]}"),
                lambda result, _: _optional(result.algorithm_bandwidth_bps, lambda value: units.in_unit(value, rate)),
            ),
            (
                Column(f"busbw {rate[1]}"),
                lambda result, _: _optional(result.bus_bandwidth_bps, lambda value: units.in_unit(value, rate)),
            ),
        ]
    if baselines := {result.baseline for result in results if result.baseline is not None}:
        name = f"speed-up over\n{baselines.pop()}"
        columns.append((Column(name), lambda result, _: _optional(result.speedup, units.factor)))
    elif len(listed) > len(groups) or not all(_is_even(group, group.ranked()[:1]) for group in groups):
        columns.append((Column(f"vs {_first(groups[0])}"), _speedup))
    if computes and not all(map(is_alone, listed)):
        columns.append(
            (
                Column(f"exposed {exposed[1]}", spare=3),
                lambda result, _: units.in_unit(result.exposed_communication_s, exposed),
            )
        )
    if varies([memory_text(result) for result in listed]):
        columns.append((Column("memory GB"), lambda result, _: memory_text(result)))
    if any(result.coordinator for result in results):
        columns += [_part_column(name, time) for name in ("coordinator", "copy", "collective")]
    return columns


def _is_scaled(result: Result, group: Group) -> bool:
    return is_against_linear(result, group.scenario(result).workload)


def _scaling(result: Result, group: Group) -> str:
    if not is_alone(result) and not _is_scaled(result, group):
        return "-"
    return _optional(result.scaling_efficiency, units.percent)


def _first(group: Group) -> str:
    """Return the row that others are compared with, without what all have."""
    first = group.results[0]
    same = replace(group, results=[replace(one, sharded=None) for one in group.results])
    return (
        named(first, group) if varies([sharding_label(one) for one in group.results]) else named(same.results[0], same)
    )


def _part_column(name: str, time: units.Unit) -> tuple[Column, Cell]:
    """A part of an iteration under a coordinator; tenths of milliseconds are precise enough."""
    places = 4 if time[1] == "s" else 1
    return Column(f"{name}\n{time[1]}", spare=4 if name == "copy" else 0), lambda result, _: _optional(
        getattr(result, f"{name}_s"), lambda value: f"{value / time[0]:.{places}f}"
    )


def _speedup(result: Result, group: Group) -> str:
    first = group.results[0].iteration_s
    return units.factor(first / result.iteration_s) if result.iteration_s > 0 else "-"


def _optional(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)
