"""NCCL's generations of GPUs, and the constants of its times, from `crates/nccl/data`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from paceline import _core
from paceline._core import NcclGeneration as Generation
from paceline.catalog.constants import Constant, assumed, value_of

__all__ = ["ALGORITHMS", "KINDS", "PROTOCOLS", "RELEASE", "RELEASES", "Algorithm", "Checked", "Generation", "Kind"]
__all__ += ["Protocol", "all_constants", "assumed_values", "checked", "constant", "generation_of"]
__all__ += ["overlap_slowdown"]

RELEASE = _core.NCCL_RELEASE
"""The newest one that is known: forecasts follow its tables."""
RELEASES = tuple(_core.NCCL_RELEASES)
"""All that are known, the oldest first."""
Kind = Literal["allreduce", "allgather", "reducescatter", "broadcast", "reduce"]
Algorithm = Literal["ring", "tree", "nvls", "nvls-tree", "pat"]
Protocol = Literal["LL", "LL128", "Simple"]
KINDS: tuple[Kind, ...] = tuple(_core.NCCL_KINDS)
ALGORITHMS: tuple[Algorithm, ...] = tuple(_core.NCCL_ALGORITHMS)
PROTOCOLS: tuple[Protocol, ...] = tuple(_core.NCCL_PROTOCOLS)
"""In the order of NCCL's tables."""


def generation_of(gpu: str) -> Generation | None:
    """Return the generation of a GPU by its name (`H100 80GB`); None if the name does not tell."""
    return _core.nccl_generation_of(gpu)


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """Return the constants by name, in the order of their file."""
    return {
        it.name: Constant(it.name, it.value, it.unit, it.uncertainty, it.source, it.calibrated, it.prior)
        for it in _core.nccl_constants()
    }


def constant(name: str) -> float:
    """Return a constant: seconds, bytes, or a share."""
    return value_of(all_constants()[name])


def assumed_values() -> dict[str, float]:
    """Return the constants that have other values in this block (`constants.assuming`), by name."""
    own = all_constants()
    return {it.name: value for it, value in assumed().items() if own.get(it.name) == it}


@dataclass(frozen=True)
class Checked:
    """Mean errors of `paceline study collectives`, on one node."""

    rows: int
    mean: float
    without_source: float
    """With constants that were fitted without the source of a row."""


def checked() -> Checked:
    """Return how far forecasts have been from published bandwidths on one node."""
    return Checked(*_core.nccl_evidence())


def overlap_slowdown() -> float:
    """Return by which share of the time that a collective is hidden the computation beside it takes longer.

    Its kernels take streaming multiprocessors and memory bandwidth from the computation.
    """
    return constant("overlap.slowdown")
