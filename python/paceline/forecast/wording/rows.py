"""Names of rows, ranks and networks, and the range of a forecast."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline.catalog.compression import NONE as UNCOMPRESSED
from paceline.catalog.libraries import ALL_AT_ONCE, NONE, UNLIMITED
from paceline.catalog.models.workload import Workload
from paceline.forecast import compression, sharding
from paceline.forecast.kinds import Ground
from paceline.forecast.result import Interval, Result
from paceline.forecast.verdict.groups import Group
from paceline.forecast.wording import terms

_WAITING = 0.2
"""Share of a step beside computation from which an assumed network is said."""
_OVER = 1.0005
"""An efficiency that is printed as more than 100.0 %."""


def varies(values: Sequence[object]) -> bool:
    """Return whether values differ."""
    return len(set(values)) > 1


def base_trace(result: Result) -> str:
    """Return the trace's name without the modules that were added to it."""
    return result.trace.rpartition("+")[0] if result.modules else result.trace


def sharding_label(result: Result) -> str:
    """Return the sharding of a result, or `-`."""
    return "-" if result.sharded is None else result.sharded.sharding


def display_name(result: Result, own: str) -> str:
    """Return framework, sharding and strategy of a result as one name: `DDP (NCCL)`, `zero3 (FSDP)`, `ring`.

    `own`: the strategy that its library runs by itself.
    """
    if result.sharded is None or result.sharded.sharding == NONE:
        return terms.framework(result.library, result.strategy, own)
    name = result.sharded.sharding
    if result.strategy == own and result.library != NONE:
        return terms.sharding(name)
    if result.library == NONE or name not in ("zero3", "hsdp"):
        return f"{name} ({result.strategy})"
    return f"{name} (FSDP, {result.strategy})"


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
        words.append("sync every iteration" if result.sync_every == 1 else f"sync every {result.sync_every} iterations")
    return ", ".join(words)


def buckets(result: Result) -> str:
    """Return how gradients are fused."""
    if result.bucket_size is None:
        return "no fusion"
    if result.bucket_size >= UNLIMITED:
        return ALL_AT_ONCE
    return f"buckets of {units.size(result.bucket_size)}"


def named(result: Result, group: Group) -> str:
    """Return what tells a row of a table from the others: its label, and its servers and bucket size if these vary."""
    name = label(result, group.results)
    same = [other for other in group.results if label(other, group.results) == name]
    return ", ".join([name, *_others(result, same)])


def spoken(result: Result, group: Group) -> str:
    """Return the name of a row for prose: `DDP (NCCL), gs`, with what else tells it from others of its name."""
    own = group.scenario(result).library.strategy
    name = display_name(result, own)
    words = [f"bare {name}" if name == result.strategy and result.compute_s > 0 else name]
    if way := compression_spoken(result):
        words.append(way)
    if result.coordinator is not None:
        words.append(result.coordinator)
    same = [other for other in group.results if display_name(other, group.scenario(other).library.strategy) == name]
    return ", ".join([*words, *_others(result, same)])


def _others(result: Result, same: Sequence[Result]) -> list[str]:
    words = []
    if varies([other.servers for other in same]):
        words.append(units.count(result.servers, "server"))
    if varies([other.bucket_size for other in same]):
        words.append(buckets(result))
    return [*words, *_knobs(result, same)]


def chunk_text(chunk: str | int | None) -> str:
    """Return `whole`, `per-worker` or a size; `-` of a strategy that has no chunks."""
    return "-" if chunk is None else chunk if isinstance(chunk, str) else units.size(chunk, 4)


def _knobs(result: Result, same: Sequence[Result]) -> list[str]:
    """Return a strategy's chunks, placement and distribution, those of which differ."""
    words = []
    if varies([other.chunk for other in same]) and result.chunk is not None:
        words.append(f"chunk {chunk_text(result.chunk)}")
    if varies([other.placement for other in same]) and result.placement is not None:
        words.append(f"{result.placement} placement")
    if varies([other.distribution for other in same]) and result.distribution is not None:
        words.append(f"{result.distribution} distribution")
    return words


def label(result: Result, among: Sequence[Result]) -> str:
    """Return what tells a result from others: compression, strategy, coordinator or sharding, or several of them."""
    ways = [compression_label(other) for other in among]
    if varies(ways) or compression.changes_row(result):
        name = compression_label(result)
        same = [other for other, way in zip(among, ways, strict=True) if way == name]
        rest = [(other.strategy, other.coordinator, sharding_label(other)) for other in same]
        alone = varies(ways) and not varies(rest)
        return name if alone else f"{name} with {_label(result, same)}"
    return _label(result, among)


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
    return ", ".join([*words, *_knobs(result, same)])


def _label(result: Result, among: Sequence[Result]) -> str:
    """Return the same of rows with one compression."""
    if result.sharded is not None:
        own = result.sharded.sharding
        alone = varies([sharding_label(other) for other in among]) and not varies([it.strategy for it in among])
        return own if alone else f"{own} with {result.strategy}"
    if not varies([other.coordinator for other in among]):
        return result.strategy
    coordinator = result.coordinator or "no coordinator"
    return f"{result.strategy}, {coordinator}" if varies([other.strategy for other in among]) else coordinator


def ranks(result: Result, workload: Workload | None, noun: str = "GPU") -> str:
    """Return `16 workers`, `64x H100`, or `64x H100 (TP 8 x PP 2 x DP 4)`."""
    if workload is None:
        return units.count(result.workers, noun)
    number = f"{result.workers * workload.gpus:,}x {workload.hardware.label}"
    ways = {"TP": workload.tensor, "CP": workload.context, "PP": workload.pipeline}
    product = [f"{name} {degree}" for name, degree in ways.items() if degree > 1]
    if not product:
        return number
    return f"{number} ({' x '.join([*product, f'DP {result.workers // workload.context}'])})"


def interval(result: Result) -> str:
    """Return `97.3-153 ms, 13,366-21,056 samples/s (80%, capped at linear)`, or why there is none."""
    known = result.interval
    if known is None:
        return result.evidence
    level = f"({known.level * 100:.0f}%{', capped at linear' if known.clipped else ''})"
    if result.samples_per_s is None or result.compute_s <= 0:
        return f"{range_of(known)} {level}"
    low, high = (result.samples_per_s * result.iteration_s / seconds for seconds in (known.high_s, known.low_s))
    return f"{range_of(known)}, {units.span(low, high)} samples/s {level}"


def is_forecast(result: Result) -> bool:
    """Whether more than the recording is in its time: an exchange, or computation that was computed."""
    return result.ground is None or result.ground.ground is not Ground.SILENT


def interval_basis(result: Result) -> list[str]:
    """Return `from 8 published errors (NCCL over RDMA: DDP, HVD16)`, or nothing without an interval."""
    known, ground = result.interval, result.ground
    if known is None:
        return []
    whose = "measured" if ground is not None and ground.ground is Ground.VALIDATED else "published"
    return [f"from {known.cases} {whose} errors ({known.basis})"]


def range_of(interval: Interval) -> str:
    """Return `97.3-153 ms`."""
    return units.durations(interval.low_s, interval.high_s)


def notes(results: Sequence[Result]) -> list[str]:
    """Return the notes of results, each once, and that on a channel that changes."""
    own = (note for result in results for note in result.notes)
    return list(dict.fromkeys([*own, *_channels(results)]))


def is_over_linear(result: Result) -> bool:
    """Whether sharding makes the scaling efficiency more than 100%."""
    return (result.scaling_efficiency or 0) >= _OVER and sharding_label(result) not in ("-", sharding.NONE)


OVER_LINEAR = "Each GPU updates only its shard; the 1-GPU baseline updates everything"
"""Why that is."""


def _channels(results: Sequence[Result]) -> list[str]:
    rates = {channel: [it.bandwidth_bps for it in results if it.channel == channel] for channel in ("tcp", "rdma")}
    if not (rates["tcp"] and rates["rdma"] and max(rates["tcp"]) < min(rates["rdma"])):
        return []
    slow, fast = units.rate(max(rates["tcp"])), units.rate(min(rates["rdma"]))
    return [f"Assumed TCP up to {slow} and RDMA from {fast} (--channel keeps one)"]


def rate_of(result: Result, workload: Workload | None = None) -> str:
    """Return `25 Gbps, TCP`; a bare schedule has no channel. Of several GPUs a node, it says whose rate it is."""
    over = "" if result.channel == "none" else f", {result.channel.upper()}"
    each = f" per {whose(result)}" if gpus_of_node(result, workload) > 1 else ""
    return f"{units.rate(result.bandwidth_bps)}{each}{over}"


def whose(result: Result) -> str:
    """Return what has the rate of a NIC: `node`, or with rails `GPU`, or the GPUs of a rank together."""
    if not result.has_rails:
        return "node"
    return "rank" if (result.tensor_parallel or 1) > 1 else "GPU"


def gpus_of_node(result: Result, workload: Workload | None) -> int:
    """Return the GPUs of a node; tensor-parallel ones are one rank of the cluster."""
    return result.gpus_per_node * (1 if workload is None else workload.tensor // workload.tensor_nodes)


def _batch(result: Result, workload: Workload | None, noun: str) -> str:
    """Return the samples of a worker in an iteration."""
    own = result.sharded
    is_piped = workload is not None and workload.pipeline > 1
    steps = f", {own.passes} accum steps" if own is not None and own.passes > 1 and not is_piped else ""
    return _samples(result, workload, noun) + steps


def _samples(result: Result, workload: Workload | None, noun: str) -> str:
    if workload is None or workload.gpus * workload.context == 1:
        return f"batch {result.batch} per {noun}"
    own = f"{workload.microbatches} microbatches of " if workload.microbatches > 1 else "batch "
    whose = "DP rank" if workload.context == 1 else f"{workload.context} CP ranks"
    return f"{own}{workload.batch} per {whose}"


def compute_alone(result: Result) -> str:
    """Return how long a rank computes by itself, and with what is offloaded if it waits for that."""
    if result.offload_s:
        return f"compute alone: {units.duration(result.gpu_s)}, {units.duration(result.compute_s)} with offload"
    return f"compute alone: {units.duration(result.compute_s)}"


def is_waiting(result: Result) -> bool:
    """Whether so much of a step is not computation that it depends on the network, which is said if it is assumed."""
    return result.compute_s > 0 and result.iteration_s > 0 and 1 - result.compute_s / result.iteration_s > _WAITING


def is_alone(result: Result) -> bool:
    """Whether it is of one GPU, which exchanges nothing with another."""
    return result.gpus == 1 and result.servers == 0


def is_against_linear(result: Result, workload: Workload | None) -> bool:
    """Whether its scaling says something: not of one GPU, and not where states are in the host's memory.

    There, the one GPU that it is compared with has all of them updated by its host, which several GPUs share.
    """
    return not is_alone(result) and (workload is None or workload.offload is None)


def setup(result: Result, workload: Workload | None, noun: str) -> list[str]:
    """Return the circumstances of a forecast: sizes, computation, network, a line each."""
    if is_alone(result) and result.compute_s > 0:
        made = [] if workload is None else computation(workload)
        speed = [f"{units.short(result.compute_speedup)}x compute speed"] if result.compute_speedup != 1 else []
        return [", ".join([_batch(result, workload, noun).replace(f" per {noun}", ""), *made, *speed])]
    stage = " of the slowest stage" if workload is not None and workload.pipeline > 1 else ""
    sizes = f"{units.size(result.gradient_bytes)} of gradients{stage} to sync"
    if result.compute_s <= 0:
        return [sizes, network(result, workload)]
    made = [] if workload is None else computation(workload)
    speed = [f"{units.short(result.compute_speedup)}x compute speed"] if result.compute_speedup != 1 else []
    return [", ".join([sizes, _batch(result, workload, noun), *made, *speed]), network(result, workload)]


def computation(workload: Workload) -> list[str]:
    """Return how a model is computed, the GPU last."""
    order = f"1F1B, {workload.virtual_stages} virtual stages" if workload.virtual_stages > 1 else "1F1B"
    return [
        f"{workload.tokens:,} {'tokens' if workload.is_text else 'patches'}",
        *workload.precision_words,
        f"{workload.attention_kernel} attention",
        f"{workload.kernels} kernels",
        *workload.graphs_words,
        workload.checkpointing_words,
        *([workload.experts_words] if workload.expert > 1 else []),
        *([order] if workload.pipeline > 1 else []),
        *workload.loss_words,
        *workload.passes_words,
        *workload.offload_words,
        *workload.trained_words,
        workload.optimizer_words,
        workload.hardware.under_limit,
    ]


def network(result: Result, workload: Workload | None) -> str:
    """Return `8 GPUs and 3.2 Tbps per node, RDMA, 2.54 us`."""
    sharing = gpus_of_node(result, workload)
    # The rate is that of a rank's nodes together.
    rate = units.rate(result.bandwidth_bps / (1 if workload is None else workload.tensor_nodes))
    if sharing == 1:
        words = [rate]
    elif result.has_rails:
        words = [f"{sharing} GPUs per node, {rate} per {whose(result)}"]
    else:
        words = [f"{sharing} GPUs and {rate} per node"]
    words += [result.channel.upper()] if result.channel != "none" else []
    words += [units.duration(result.latency_s)] if result.latency_s else []
    return ", ".join(words)


def differing(result: Result, results: Sequence[Result]) -> list[str]:
    """Return the bandwidth, latency and speed of a result, those of which differ from those of others."""
    words = []
    if not is_alone(result) and varies([other.bandwidth_bps for other in results]):
        words.append(units.rate(result.bandwidth_bps))
    if not is_alone(result) and varies([other.latency_s for other in results]):
        words.append(f"latency {units.duration(result.latency_s)}")
    if varies([other.compute_speedup for other in results]):
        words.append(f"{units.short(result.compute_speedup)}x compute speed")
    if not is_alone(result) and varies([other.gpus_per_node for other in results]):
        words.append(f"{units.count(result.gpus_per_node, 'GPU')} per node")
    if varies([other.send_order for other in results]) and result.send_order is not None:
        words.append(f"order {result.send_order}")
    if varies([other.gpu for other in results]) and result.gpu is not None and result.assumed is None:
        words.append(result.gpu)
    if varies([other.power_limit_w for other in results]) and result.power_limit_w is not None:
        words.append(f"{result.power_limit_w:g} W")
    return words
