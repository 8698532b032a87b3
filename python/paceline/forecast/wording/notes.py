"""Notes on what a request was made into: what was left out, assumed, or does not compare."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units

NATIVE_IS_MEASURED = (
    "native takes as long as NCCL, whose latencies were measured; the other strategies are messages alone, without "
    "what a library and its kernels cost, and look faster for it where buffers are small"
)


def ranks(tensor: int, stages: int) -> str:
    """Return what a worker is, if it is several GPUs."""
    what = [f"{tensor} tensor-parallel"] * (tensor > 1) + [f"{stages} stages"] * (stages > 1)
    note = f"a worker is a data-parallel rank of {tensor * stages} GPUs ({' x '.join(what)})"
    if stages == 1:
        return note
    return f"{note}; the slowest stage is simulated, and memory is that of a GPU of the stage that needs most"


def shared_samples(ways: int) -> str:
    """Return that context-parallel ranks train the same samples."""
    return f"{ways} neighboring workers share every sample; batches are theirs together"


def two_libraries(without: str, under: str, option: str) -> str:
    """Return that rows without a coordinator are of another library than those under one."""
    same = f"{option} {under} compares the same library"
    return f"rows without a coordinator are of {without}, the others of {under}: {same}"


def unmeasured(cluster: str, why: str, option: str) -> str:
    """Return that a cluster's rate between nodes is the one inside them; `option` gives another."""
    return f"{cluster}: {why}; its rate inside the host is used between nodes: give {option}"


def unsupported(strategies: Sequence[str], cluster: str) -> str:
    """Return which strategies were left out because switches cannot do what they need."""
    return f"left out {units.listed([*strategies])}: the switch of cluster '{cluster}' does not support them"


def unreachable(strategies: Sequence[str]) -> str:
    """Return which strategies were left out because their exchanges are too large."""
    return f"left out {units.listed([*strategies])}: too many messages, and no closed form at this size"


def without_small(workers: Sequence[int], rank: int) -> str:
    """Return which of the usual numbers of workers were left out, as they do not have a slow rank."""
    return f"left out {units.listed([*map(str, workers)])} workers: the cluster's stragglers include rank {rank}"


def unknown_library(trace: str, named: str, library: str, option: str) -> str:
    """Return that a trace names a library which is not known."""
    return (
        f"{trace}: was recorded with '{units.printable(named[:80])}', which is not among the libraries; forecast as "
        f"{library} ({option})"
    )
