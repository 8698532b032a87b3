"""What a row, its ranks and its network are called, and what is said of its time."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline.catalog.compression import NONE as UNCOMPRESSED
from paceline.catalog.libraries import DEFAULT, NONE
from paceline.catalog.models.workload import Workload
from paceline.forecast import compression, sharding
from paceline.forecast.result import Interval, Result
from paceline.forecast.verdict.groups import Group

_OVER = 1.0005
"""An efficiency that is printed as more than 100.0 %."""


def varies(values: Sequence[object]) -> bool:
    """Return whether values differ."""
    return len(set(values)) > 1


def capital(sentence: str) -> str:
    """Return a sentence that does not begin with a small `no sharding`; names of shardings and strategies stay."""
    return f"N{sentence[1:]}" if sentence.startswith("no sharding") else sentence


def sharding_label(result: Result) -> str:
    """Return the sharding of a result, or `-`."""
    return "-" if result.sharded is None else result.sharded.sharding


def spoken(sharding: str, library: str = "") -> str:
    """Return a sharding for prose, in which `none` would be read as a word: `no sharding`, of `ddp` with its name."""
    if sharding != NONE:
        return sharding
    return "no sharding (DDP)" if library == DEFAULT else "no sharding"


def compression_label(result: Result) -> str:
    """Return what tells a row from others: `powersgd:4, every 16`; empty if neither was asked for."""
    words = [] if result.compression is None else [result.compression]
    return ", ".join([*words, *([] if result.sync_every is None else [f"every {result.sync_every}"])])


def compression_spoken(result: Result) -> str:
    """Return the same for prose, in which `none` would be read as a word."""
    words = (
        []
        if result.compression is None
        else ["no compression" if result.compression == UNCOMPRESSED else result.compression]
    )
    if result.sync_every is not None:
        words.append("in every iteration" if result.sync_every == 1 else f"every {result.sync_every} iterations")
    return " ".join(words)


def buckets(result: Result) -> str:
    """Return how gradients are fused."""
    return "no fusion" if result.bucket_size is None else f"buckets of {units.size(result.bucket_size)}"


def named(result: Result, group: Group, *, prose: bool = True) -> str:
    """Return the strategy, with its coordinator, servers and bucket size if the group has it with several of them.

    `prose`: for sentences, not for a table.
    """
    name = label(result, group.results, prose=prose)
    same = [other for other in group.results if label(other, group.results, prose=prose) == name]
    words = [name]
    if varies([other.servers for other in same]):
        words.append(units.count(result.servers, "server"))
    if varies([other.bucket_size for other in same]):
        words.append(buckets(result))
    return ", ".join(words)


def label(result: Result, among: Sequence[Result], *, prose: bool = False) -> str:
    """Return what tells a result from others: compression, strategy, coordinator or sharding, or several of them."""
    ways = [compression_label(other) for other in among]
    if varies(ways) or compression.changes_row(result):
        name = compression_spoken(result) if prose else compression_label(result)
        same = [other for other, way in zip(among, ways, strict=True) if way == compression_label(result)]
        rest = [(other.strategy, other.coordinator, sharding_label(other)) for other in same]
        alone = varies(ways) and not varies(rest)
        return name if alone else f"{name} with {_label(result, same, prose=prose)}"
    return _label(result, among, prose=prose)


def distinct(result: Result, among: Sequence[Result], *, servers: bool = True) -> str:
    """Return a label that names all that differs, also what has a column of its own in tables: for legends and axes.

    `servers`: whether their number counts, where it is not an axis.
    """
    name = label(result, among)
    same = [other for other in among if label(other, among) == name]
    words = [name]
    if servers and varies([other.servers for other in same]):
        words.append(units.count(result.servers, "server"))
    if varies([other.library for other in same]):
        words.append(result.library)
    if varies([other.bucket_size for other in same]):
        words.append(buckets(result))
    if varies([other.latency_s for other in same]):
        words.append(f"latency {units.duration(result.latency_s)}")
    return ", ".join(words)


def _label(result: Result, among: Sequence[Result], *, prose: bool) -> str:
    """Return the same of rows with one compression."""
    if result.sharded is not None:
        own = spoken(result.sharded.sharding, result.library) if prose else result.sharded.sharding
        alone = varies([sharding_label(other) for other in among]) and not varies([it.strategy for it in among])
        return own if alone else f"{own} with {result.strategy}"
    if not varies([other.coordinator for other in among]):
        return result.strategy
    coordinator = result.coordinator or "no coordinator"
    return f"{result.strategy}, {coordinator}" if varies([other.strategy for other in among]) else coordinator


def ranks(result: Result, workload: Workload | None) -> str:
    """Return `16 workers`, or `1024 GPUs = 8 tensor x 8 pipeline x 16 data parallel`."""
    if workload is None or workload.gpus * workload.context == 1:
        return units.count(result.workers, "worker")
    ways = {"tensor": workload.tensor, "context": workload.context, "pipeline": workload.pipeline}
    product = [f"{number} {name}" for name, number in ways.items() if number > 1]
    replicas = f"{result.workers // workload.context} data parallel"
    return f"{result.workers * workload.gpus} GPUs = {' x '.join([*product, replicas])}"


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
        (it.scaling_efficiency or 0) >= _OVER and sharding_label(it) not in ("-", sharding.NONE) for it in results
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
    each = f" per {whose(result)}" if gpus_of_node(result, workload) > 1 else ""
    return f"{units.rate(result.bandwidth_bps)}{each}{over}"


def sharing_of(result: Result, gpus: int) -> str:
    """Return how many GPUs share the rate of a node, or that each of a node's has its own."""
    return f"{gpus} GPUs per node" if result.has_rails else f"shared by {gpus} GPUs"


def whose(result: Result) -> str:
    """Return what has the rate of a NIC: `node`, or with rails `GPU`, or the GPUs of a rank together."""
    if not result.has_rails:
        return "node"
    return "rank" if (result.tensor_parallel or 1) > 1 else "GPU"


def gpus_of_node(result: Result, workload: Workload | None) -> int:
    """Return the GPUs of a node; tensor-parallel ones are one rank of the cluster."""
    return result.gpus_per_node * (1 if workload is None else workload.tensor)


def _batch(result: Result, workload: Workload | None) -> str:
    """Return what a worker trains in an iteration."""
    if workload is None or workload.gpus * workload.context == 1:
        return f"batch {result.batch} per worker"
    own = f"{workload.microbatches} microbatches of " if workload.microbatches > 1 else "batch "
    whose = "data-parallel rank" if workload.context == 1 else f"{workload.context} context-parallel ranks"
    return f"{own}{workload.batch} per {whose}"


def title(group: Group, results: Sequence[Result]) -> list[str]:
    """Return what the rows of a table are about, in lines."""
    result = next((result for result in results if result.servers), results[0])
    several = varies([other.trace for other in results])
    traces = list(dict.fromkeys(other.trace for other in results))
    workload = group.scenarios[0].workload
    stage = " of the slowest stage" if workload is not None and workload.pipeline > 1 else ""
    what = traces if several else [result.trace, f"{units.size(result.gradient_bytes)} of gradients{stage}"]
    if result.compute_s > 0 and not several:
        what += [_batch(result, workload)]
        if not varies([other.compute_speedup for other in results]):
            what.append(f"{units.duration(result.compute_s)} of computation")
    where = []
    if not varies([other.workers for other in results]):
        where.append(units.count(result.workers, "worker") if several else ranks(result, workload))
    if not varies([other.servers for other in results if other.servers]) and result.servers:
        where.append(units.count(result.servers, "server"))
    one_rate = not varies([other.bandwidth_bps for other in results])
    sharing = gpus_of_node(result, workload)
    if one_rate:
        where.append(units.rate(result.bandwidth_bps) + (f" per {whose(result)}" if sharing > 1 else ""))
    if result.channel != "none" and not varies([other.channel for other in results]):
        over = f"over {result.channel.upper()}"
        where = [*where[:-1], f"{where[-1]} {over}"] if one_rate else [*where, over]
    if sharing > 1:
        where.append(sharing_of(result, sharing) if one_rate else f"{sharing} GPUs per node")
    if not varies([other.latency_s for other in results]) and result.latency_s:
        where.append(f"latency {units.duration(result.latency_s)}")
    assumed = [] if workload is None or several else [workload.assumed]
    return [", ".join(what), *assumed, *([", ".join(where)] if where else [])]
