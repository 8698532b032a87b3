"""Notes: assumptions, skipped strategies, and figures that do not compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline._internal import units

NATIVE_IS_MEASURED = (
    "native has NCCL's measured latencies; others are messages alone and look faster where buffers are small"
)

RCCL = "RCCL is forecast by NCCL's model, with the rates of Infinity Fabric"


def ranks(tensor: int, stages: int) -> list[str]:
    """Return that a rank is several GPUs."""
    product = [f"TP {tensor}"] * (tensor > 1) + [f"PP {stages}"] * (stages > 1)
    notes = [f"A data-parallel rank is {tensor * stages} GPUs ({' x '.join(product)})"]
    if stages > 1:
        notes.append("The slowest stage is simulated; memory is that of the stage that needs most")
    return notes


def tensor_between_nodes(ways: int, nodes: int, exchange_s: float, slower: float) -> str:
    """Return that tensor-parallel GPUs on several nodes wait for the network, and by how much longer."""
    return (
        f"TP {ways} spans {nodes} nodes: its all-reduces take {units.duration(exchange_s)} of an iteration, "
        f"{slower:.1f}x what they would in one node"
    )


def shared_samples(ways: int) -> str:
    """Return that context-parallel ranks train the same samples."""
    return f"{ways} neighboring ranks share every sample (CP {ways}), so a batch is theirs together"


def two_libraries(without: str, under: str, option: str) -> str:
    """Return that rows without a coordinator are of another library than those under one."""
    return f"Rows without a coordinator are of {without}, the others of {under} ({option} {under} compares the same)"


def unmeasured(cluster: str, why: str, option: str) -> str:
    """Return that a cluster's rate between nodes is the one inside them; `option` gives another."""
    return f"Assumed the rate inside {cluster} between nodes: {why} ({option} takes another)"


def unsupported(strategies: Sequence[str], cluster: str) -> str:
    """Return which strategies were skipped because switches cannot do what they need."""
    several = "strategy" if len(strategies) == 1 else "strategies"
    return f"Skipped {len(strategies)} {several} that {cluster} switches do not support: {', '.join(strategies)}"


def unreachable(strategies: Sequence[str]) -> str:
    """Return which strategies were skipped because their exchanges are too large."""
    return f"Skipped {', '.join(strategies)}: too many messages to simulate, and no closed form"


def without_small(workers: Sequence[int], rank: int) -> str:
    """Return which of the usual numbers of workers were skipped, as they do not have a slow rank."""
    return f"Skipped {', '.join(map(str, workers))} GPUs: the cluster's stragglers include rank {rank}"


def usual_numbers(counts: Sequence[int], option: str) -> str:
    """Return which numbers of ranks are forecast because none was given; `option` gives one."""
    return f"Assumed {counts[0]} to {counts[-1]} GPUs; give yours with {option}"


def unknown_library(trace: str, named: str, library: str, option: str) -> str:
    """Return that a trace names a library which is not known."""
    name = units.printable(named[:80])
    return f"Assumed {library}: {trace} was recorded with '{name}', which is no known library ({option})"


def recorded_over_gloo(library: str) -> str:
    """Return that a forecast is over gloo; `library`: what forecasts NCCL."""
    return f"Assumed Gloo, as it was recorded ({library} forecasts NCCL, which GPUs use)"


def computed_again(setting: str, recorded: str, title: str) -> str:
    """Return that a trace's times are not those that it was recorded with."""
    return f"{setting}: operators recorded for {recorded} are timed on {title}"


def scaled_batch(setting: str, batch: int) -> str:
    """Return that a recording's passes were scaled to another batch."""
    return f"{setting}: both passes of the recording, of batch {batch}, are scaled; record it again to be exact"


def one_rank_a_node(rate: str, settings: Mapping[str, str]) -> str:
    """Return that every rank has a node, because only the rate of one is known."""
    more = f"{settings['gpus_per_node']} or {settings['cluster']}"
    return f"Assumed one rank per node: {rate} names no GPU ({more} says how many share one)"


def other_gpus(computing: str, cluster: str, linked: str) -> str:
    """Return that a model is computed by other GPUs than the cluster's nodes have."""
    return f"Compute and memory are those of the {computing}, links those of {cluster}, which has the {linked}"


def limit_without_effect(watts: float, gpu: str) -> str:
    """Return that a power limit is above what a GPU's products draw."""
    return f"A power limit of {watts:g} W has no effect on products: those of the {gpu} draw no more"


def last_node(gpus: str, used: int, of: int, fewer: int, more: int) -> str:
    """Return that nodes whose GPUs have NICs of their own are not all full."""
    return (
        f"{gpus}: the last node uses {used} of {of} NICs, which slows all down; {fewer} or {more} GPUs fill all nodes"
    )


def whole_groups(used: int, of: int, option: str) -> str:
    """Return how many GPUs of a node are used where groups do not divide them."""
    return f"Assumed {used} of the {of} GPUs of a node, so that no group has parts of two; say otherwise with {option}"


def last_pass(trace: str) -> str:
    """Return that a recording with several passes a step exchanges gradients after the last."""
    return f"{trace} has several passes per step; gradients are exchanged after the last, as with no_sync()"


def too_few_exchanges(trace: str, accumulate: str) -> list[str]:
    """Return that a recording with several passes a step cannot tell what every pass exchanges."""
    return [
        f"{trace} has several passes per step, and only the last one's exchanges are forecast, too few of them",
        f"To forecast all, record steps of one pass and use {accumulate}",
    ]


def asynchronous() -> str:
    """Return what a forecast of asynchronous workers does not say."""
    return "Asynchronous updates may need more iterations to converge, which is not modeled"


def compression_costs(method: str, origin: str) -> str:
    """Return where the costs of a compression come from."""
    return f"Time to compress with {method}: {origin}"


def out_of_step(strategy: str) -> str:
    """Return that a strategy's forecast is one of ranks that keep step."""
    return f"{strategy} is forecast for ranks in step; out of step it took up to 1.8x as long on 8 ranks (ring 1.06x)"


def balanced_coordinator(cluster: str, option: str) -> str:
    """Return that nobody measured how late the ranks of a cluster are."""
    return f"Assumed balanced ranks and Horovod's defaults: lateness on {cluster} is unmeasured ({option} summit)"


def fused(size: int, option: str) -> str:
    """Return how many bytes a coordinator fuses."""
    return f"Assumed: ready tensors are fused up to {units.size(size)} ({option})"


def contention(share: float, *, is_published: bool) -> str:
    """Return for how much of an iteration input pipeline and graph scheduling compete."""
    source = "published for this network" if is_published else "median of published networks"
    return (
        f"Assumed: input pipeline and graph scheduling overlap for {units.percent(share, 0)} of an iteration ({source})"
    )


def scaled(scale: float, gpus: Sequence[int], text: str, of: Sequence[str]) -> str:
    """Return that computation was scaled to what was measured; `of`: values of which several are forecast."""
    counts = units.listed([f"{count:,}" for count in dict.fromkeys(gpus)])
    number = "GPU" if len(gpus) == 1 and gpus[0] == 1 else "GPUs"
    number += f" ({', '.join(of)})" if of else ""
    return (
        f"Compute takes {units.factor(scale)} as long as forecast, so that {counts} {number} are as measured ({text})"
    )


def as_forecast(texts: Sequence[str]) -> str:
    """Return that measurements tell nothing of computation, which other parts of a step hide."""
    return f"{units.listed(texts)}: as forecast, and other parts of a step hide computation, which is not scaled"


def implausible_scale(scale: float, command: str, offload_s: float | None, forecast_s: float) -> str:
    """Return that a scale is more than differences of software explain, and the command that looks for what is.

    `offload_s`: what of a forecast of `forecast_s` is offloaded, which no scale changes.
    """
    own = ""
    if offload_s:
        of = f"{units.duration(offload_s)} of the forecast's {units.duration(forecast_s)}"
        own = f" (it leaves offload as it is, {of})"
    return f"{units.factor(scale)} is more than software explains{own}; what would: {command}"


def of_all_gpus(text: str, number: str, gpus: int) -> str:
    """Return that a rate was taken as that of all GPUs together, as it does not say."""
    return f"{text} is taken as that of all {gpus:,} GPUs together (a rate of each: {number}/GPU)"
