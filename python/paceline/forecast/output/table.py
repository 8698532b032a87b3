"""The table of forecasts for people: fastest first within each configuration.

What competes within a configuration is what a user chooses: strategy, number of servers, bucket size. Everything else
that varies (trace, workers, network, compute speed-up) makes another configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline.catalog.libraries import DEFAULT, NONE
from paceline.catalog.models.workload import Workload
from paceline.catalog.strategies import SWITCHES, find_strategy
from paceline.forecast import compression, sharding
from paceline.forecast.result import Interval, Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.verdict import sharding_words

Cell = Callable[[Result, "Group"], str]
_OVER = 1.0005
"""An efficiency that is printed as more than 100.0 %."""


EXTRAS = (SERVERS, SWITCH) = ("servers", "switch")
"""What a strategy may need that not everybody has: parameter servers, and a switch that multicasts or aggregates."""


def extras(strategy: str) -> frozenset[str]:
    """Return which of them a strategy needs."""
    knobs = find_strategy(strategy).knobs
    return frozenset(([SERVERS] if "servers" in knobs else []) + ([SWITCH] if SWITCHES & knobs else []))


@dataclass(frozen=True)
class Group:
    """The scenarios of one configuration in the requested order; the others are compared with the first.

    `meant`: which of `EXTRAS` were asked for.
    """

    scenarios: list[Scenario]
    results: list[Result]
    meant: frozenset[str] = frozenset(EXTRAS)

    def fastest_first(self) -> list[Result]:
        """Return results by iteration time; those that look equal in the table stay in the requested order."""
        return sorted(self.results, key=lambda result: float(f"{result.iteration_s:.3e}"))

    def ranked(self) -> list[Result]:
        """Return results by iteration time, without those that need what was not asked for, unless all do."""
        ranked = self.fastest_first()
        return [result for result in ranked if extras(result.strategy) <= self.meant] or ranked


def grouped(
    scenarios: Sequence[Scenario], results: Sequence[Result], *, meant: frozenset[str] = frozenset(EXTRAS)
) -> list[Group]:
    """One group per trace, library, workers, bandwidth, latency and compute speed-up, in order."""
    groups: dict[tuple[int, str, int, float, float, float], Group] = {}
    for scenario, result in zip(scenarios, results, strict=True):
        circumstances = (result.workers, result.bandwidth_bps, result.latency_s, result.compute_speedup)
        group = groups.setdefault((id(scenario.trace), result.library, *circumstances), Group([], []))
        group.scenarios.append(scenario)
        group.results.append(result)
    return [replace(group, meant=meant) for group in groups.values()]


def _first_of(group: Group, most: int) -> list[Result]:
    """Return the fastest, and what the library runs by itself, which the verdict is about."""
    ranked = group.ranked()
    runs = own(group)
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
    lines = [*_title(groups[0], listed), "", *render([column for column, _ in shown], rows, highlight_first=several)]
    lines += sharding_words.legend(listed)
    left_out = max(len(group.results) - len(own) for group, own in zip(groups, ranked, strict=True))
    return [*lines, f"and {left_out} more with --all"] if left_out else lines


def _swept_columns(results: Sequence[Result]) -> list[tuple[Column, Cell]]:
    """Return the columns of requested values that differ between rows, and the strategy."""
    columns: list[tuple[Column, Cell]] = []
    if _varies([result.trace for result in results]):
        columns.append((Column("trace", left=True), lambda result, _: result.trace))
    if _varies([result.library for result in results]):
        columns.append((Column("library", left=True), lambda result, _: result.library))
    if _varies([result.workers for result in results]):
        columns.append((Column("workers"), lambda result, _: str(result.workers)))
    if _varies([result.bandwidth_bps for result in results]):
        of = (
            "\nper " + units.listed(sorted({_whose(result) for result in results}), "or")
            if any(result.gpus_per_node > 1 for result in results)
            else ""
        )
        columns.append((Column(f"bandwidth{of}"), lambda result, _: units.rate(result.bandwidth_bps)))
    if _varies([result.latency_s for result in results]):
        columns.append((Column("latency"), lambda result, _: units.duration(result.latency_s)))
    if _varies([result.compute_speedup for result in results]):
        columns.append((Column("compute\nspeed-up"), lambda result, _: f"{result.compute_speedup:g}"))
    if any(result.sharded is not None for result in results):
        columns.append((Column("sharding", left=True), lambda result, _: sharding_words.label(result)))
    if _varies([result.compression for result in results]) or any(
        compression.changes_row(result) for result in results
    ):
        columns += [
            *([(Column("compression", left=True), _compression)] if any(it.compression for it in results) else []),
            *([(Column("exchanged\nevery"), _every)] if any(it.sync_every for it in results) else []),
        ]
    columns.append((Column("strategy", left=True), lambda result, _: result.strategy))
    if any(result.coordinator for result in results):
        columns.append((Column("coordinator", left=True), lambda result, _: result.coordinator or "none"))
    if _varies([result.servers for result in results if result.servers]):
        columns.append((Column("servers"), lambda result, _: str(result.servers) if result.servers else "-"))
    if _varies([result.bucket_size for result in results]):
        columns.append((Column("bucket\nsize"), lambda result, _: _bucket_size(result)))
    return columns


def _compression(result: Result, _: Group) -> str:
    return result.compression or "none"


def _every(result: Result, _: Group) -> str:
    return str(result.sync_every or 1)


def _bucket_size(result: Result) -> str:
    return "none" if result.bucket_size is None else units.size(result.bucket_size)


def _buckets(result: Result) -> str:
    return "no fusion" if result.bucket_size is None else f"buckets of {units.size(result.bucket_size)}"


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
        columns.append((Column(f"speed-up\nover {first}"), _speedup))
    if any(result.compute_s > 0 for result in results):
        exposed = f"exposed comm.\n{time[1]}"
        columns.append((Column(exposed), lambda result, _: units.in_unit(result.exposed_communication_s, time)))
    if any(result.sharded is not None for result in results):
        columns.append((Column("memory\nper GPU"), lambda result, _: sharding_words.memory_text(result)))
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


def named(result: Result, group: Group, *, prose: bool = True) -> str:
    """Return the strategy, with its coordinator, servers and bucket size if the group has it with several of them.

    `prose`: for sentences, not for a table.
    """
    name = label(result, group.results, prose=prose)
    same = [other for other in group.results if label(other, group.results, prose=prose) == name]
    words = [name]
    if _varies([other.servers for other in same]):
        words.append(units.count(result.servers, "server"))
    if _varies([other.bucket_size for other in same]):
        words.append(_buckets(result))
    return ", ".join(words)


def label(result: Result, among: Sequence[Result], *, prose: bool = False) -> str:
    """Return what tells a result from others: compression, strategy, coordinator or sharding, or several of them."""
    ways = [compression.label(other) for other in among]
    if _varies(ways) or compression.changes_row(result):
        name = compression.spoken(result) if prose else compression.label(result)
        same = [other for other, way in zip(among, ways, strict=True) if way == compression.label(result)]
        rest = [(other.strategy, other.coordinator, sharding_words.label(other)) for other in same]
        alone = _varies(ways) and not _varies(rest)
        return name if alone else f"{name} with {_label(result, same, prose=prose)}"
    return _label(result, among, prose=prose)


def distinct(result: Result, among: Sequence[Result], *, servers: bool = True) -> str:
    """Return a label that names all that differs, also what has a column of its own in tables: for legends and axes.

    `servers`: whether their number counts, where it is not an axis.
    """
    name = label(result, among)
    same = [other for other in among if label(other, among) == name]
    words = [name]
    if servers and _varies([other.servers for other in same]):
        words.append(units.count(result.servers, "server"))
    if _varies([other.library for other in same]):
        words.append(result.library)
    if _varies([other.bucket_size for other in same]):
        words.append(_buckets(result))
    if _varies([other.latency_s for other in same]):
        words.append(f"latency {units.duration(result.latency_s)}")
    return ", ".join(words)


def _label(result: Result, among: Sequence[Result], *, prose: bool) -> str:
    """Return the same of rows with one compression."""
    if result.sharded is not None:
        own = sharding_words.spoken(result.sharded.sharding, result.library) if prose else result.sharded.sharding
        alone = _varies([sharding_words.label(other) for other in among]) and not _varies([it.strategy for it in among])
        return own if alone else f"{own} with {result.strategy}"
    if not _varies([other.coordinator for other in among]):
        return result.strategy
    coordinator = result.coordinator or "no coordinator"
    return f"{result.strategy}, {coordinator}" if _varies([other.strategy for other in among]) else coordinator


def ranks(result: Result, workload: Workload | None) -> str:
    """Return `16 workers`, or `1024 GPUs = 8 tensor x 8 pipeline x 16 data parallel`."""
    if workload is None or workload.gpus * workload.context == 1:
        return units.count(result.workers, "worker")
    ways = {"tensor": workload.tensor, "context": workload.context, "pipeline": workload.pipeline}
    product = [f"{number} {name}" for name, number in ways.items() if number > 1]
    replicas = f"{result.workers // workload.context} data parallel"
    return f"{result.workers * workload.gpus} GPUs = {' x '.join([*product, replicas])}"


def _batch(result: Result, workload: Workload | None) -> str:
    """Return what a worker trains in an iteration."""
    if workload is None or workload.gpus * workload.context == 1:
        return f"batch {result.batch} per worker"
    own = f"{workload.microbatches} microbatches of " if workload.microbatches > 1 else "batch "
    whose = "data-parallel rank" if workload.context == 1 else f"{workload.context} context-parallel ranks"
    return f"{own}{workload.batch} per {whose}"


def _title(group: Group, results: Sequence[Result]) -> list[str]:
    result = next((result for result in results if result.servers), results[0])
    several = _varies([other.trace for other in results])
    traces = list(dict.fromkeys(other.trace for other in results))
    workload = group.scenarios[0].workload
    whose = " of the slowest stage" if workload is not None and workload.pipeline > 1 else ""
    what = traces if several else [result.trace, f"{units.size(result.gradient_bytes)} of gradients{whose}"]
    if result.compute_s > 0 and not several:
        what += [_batch(result, workload)]
        if not _varies([other.compute_speedup for other in results]):
            what.append(f"{units.duration(result.compute_s)} of computation")
    where = []
    if not _varies([other.workers for other in results]):
        where.append(units.count(result.workers, "worker") if several else ranks(result, workload))
    if not _varies([other.servers for other in results if other.servers]) and result.servers:
        where.append(units.count(result.servers, "server"))
    one_rate = not _varies([other.bandwidth_bps for other in results])
    sharing = gpus_of_node(result, workload)
    if one_rate:
        where.append(units.rate(result.bandwidth_bps) + (f" per {_whose(result)}" if sharing > 1 else ""))
    if result.channel != "none" and not _varies([other.channel for other in results]):
        over = f"over {result.channel.upper()}"
        where = [*where[:-1], f"{where[-1]} {over}"] if one_rate else [*where, over]
    if sharing > 1:
        where.append(sharing_of(result, sharing) if one_rate else f"{sharing} GPUs per node")
    if not _varies([other.latency_s for other in results]) and result.latency_s:
        where.append(f"latency {units.duration(result.latency_s)}")
    assumed = [] if workload is None or several else [workload.assumed]
    return [", ".join(what), *assumed, *([", ".join(where)] if where else [])]


def own(group: Group) -> Result | None:
    """Return the fastest forecast of what the library runs by itself; None for bare schedules, or without one."""
    pairs = zip(group.scenarios, group.results, strict=True)
    runs = [result for it, result in pairs if not it.library.is_bare and result.strategy == it.library.strategy]
    return min(runs, key=lambda result: result.iteration_s, default=None)


def with_evidence(group: Group) -> Result:
    """Return the fastest forecast that has an interval; if none has one, the fastest, which says why."""
    ranked = group.ranked()
    return next((result for result in ranked if result.interval is not None), ranked[0])


def likely(result: Result, name: str = "") -> str:
    """Return a sentence with the interval of a forecast and its basis, or why there is none.

    `name`: what a reader who has not read its figures knows it by.
    """
    found = result.interval
    mean, rates = units.duration(result.iteration_s), ""
    if result.samples_per_s is not None and result.compute_s > 0:
        mean += f", {units.digits(result.samples_per_s)} samples/s"
        if name and result.scaling_efficiency is not None:
            mean += f", {units.percent(result.scaling_efficiency)} of linear scaling"
            mean += " (a rank updates only its share)" if _efficient([result]) else ""
    who = name or (result.strategy if result.sharded is None else label(result, [result], prose=True))
    if found is None:
        return (
            f"{library_with(result, who)} takes {mean}, with {result.evidence}."
            if name
            else f"{who} has {result.evidence}."
        )
    linear = " (linear scaling)" if found.clipped else ""
    if result.samples_per_s is not None and result.compute_s > 0:
        low, high = (result.samples_per_s * result.iteration_s / seconds for seconds in (found.high_s, found.low_s))
        rates = f", {units.digits(low)} to {units.digits(high)} samples/s{linear}"
    takes = f"{library_with(result, who)} takes {mean}"
    return (
        f"{takes}; with a probability of {found.level * 100:.0f} % it is {range_of(found)}{rates}: "
        f"{found.cases} comparable forecasts were off by as much ({found.basis})."
    )


def range_of(interval: Interval) -> str:
    """Return `139.2 ms to 178.9 ms`, saying where it ends at computation alone."""
    alone = " (computation alone)" if interval.clipped else ""
    return f"{units.duration(interval.low_s)}{alone} to {units.duration(interval.high_s)}"


def library_with(result: Result, name: str) -> str:
    """Return `ddp with native`, or the name alone for a bare schedule, and where `ddp` would be said of FSDP."""
    if result.sharded is not None and result.library == DEFAULT:
        return name
    return name if result.library == NONE else f"{result.library} with {name}"


def notes(results: Sequence[Result]) -> list[str]:
    """Return the notes of results, each once, and those on a channel that changes and on efficiency over 100 %."""
    own = (note for result in results for note in result.notes)
    return list(dict.fromkeys([*own, *_channels(results), *_efficient(results)]))


def _efficient(results: Sequence[Result]) -> list[str]:
    """Return why an efficiency is over 100 %, if sharding is why."""
    if not any(
        (it.scaling_efficiency or 0) >= _OVER and sharding_words.label(it) not in ("-", sharding.NONE) for it in results
    ):
        return []
    return [
        "scaling efficiency is over 100 % because a sharded rank updates its share of the parameters only, and the one "
        "GPU that it is compared with updates all of them"
    ]


def _channels(results: Sequence[Result]) -> list[str]:
    rates = {channel: [it.bandwidth_bps for it in results if it.channel == channel] for channel in ("tcp", "rdma")}
    if not (rates["tcp"] and rates["rdma"] and max(rates["tcp"]) < min(rates["rdma"])):
        return []
    slow, fast = units.rate(max(rates["tcp"])), units.rate(min(rates["rdma"]))
    return [f"the channel changes with the rate: TCP up to {slow}, RDMA from {fast}; --channel keeps one"]


def rate_of(result: Result, workload: Workload | None = None) -> str:
    """Return `25 Gbit/s over TCP`; a bare schedule has no channel. Of several GPUs a node, it says whose rate it is."""
    over = "" if result.channel == "none" else f" over {result.channel.upper()}"
    whose = f" per {_whose(result)}" if gpus_of_node(result, workload) > 1 else ""
    return f"{units.rate(result.bandwidth_bps)}{whose}{over}"


def sharing_of(result: Result, gpus: int) -> str:
    """Return how many GPUs share the rate of a node, or that each of a node's has its own."""
    return f"{gpus} GPUs per node" if result.has_rails else f"shared by {gpus} GPUs"


def _whose(result: Result) -> str:
    """Return what has the rate of a NIC: `node`, or with rails `GPU`, or the GPUs of a rank together."""
    if not result.has_rails:
        return "node"
    return "rank" if (result.tensor_parallel or 1) > 1 else "GPU"


def gpus_of_node(result: Result, workload: Workload | None) -> int:
    """Return the GPUs of a node; tensor-parallel ones are one rank of the cluster."""
    return result.gpus_per_node * (1 if workload is None else workload.tensor)


def _varies(values: Sequence[object]) -> bool:
    return len(set(values)) > 1
