"""What is known of NCCL: the tables with which it chooses (nccl-tuning.json), what it then takes (nccl.json)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from paceline.catalog.constants import Constant, checked_constants, read_document, value_of
from paceline.catalog.library import COLLECTIVES

_FILE = Path(__file__).parent / "nccl.json"
_TUNING = Path(__file__).parent / "nccl-tuning.json"
"""Compiled into the native module as well, for the strategy `native`."""
RELEASE = "2.30"
"""Of NCCL: forecasts follow its tables."""
Kind = Literal["allreduce", "allgather", "reducescatter", "broadcast", "reduce"]
Algorithm = Literal["ring", "tree", "nvls", "nvls-tree", "pat"]
Protocol = Literal["LL", "LL128", "Simple"]
KINDS: tuple[Kind, ...] = COLLECTIVES
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "nvls", "nvls-tree", "pat")
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
"""In the order of NCCL's tables."""

_LINK, _NIC, _TIME = "share of the link", "share of the NICs", "s"
_UNITS = {
    "ring.share.volta": _LINK,
    "ring.share.ampere": _LINK,
    "ring.share.hopper": _LINK,
    "ring.share.blackwell": _LINK,
    "nvls.share.hopper": _LINK,
    "nvls.share.blackwell": _LINK,
    "pci.share": _LINK,
    "fill": _TIME,
    "fill.half": "bytes",
    "call.torch": _TIME,
    "call.torch.blackwell": _TIME,
    "call.nccl-tests": _TIME,
    "network.share": _NIC,
    "nvls-tree.share": _NIC,
    "hop.factor": "times",
    "tree.slowdown": "times",
    "ll.slowdown": "times",
    "overlap.slowdown": "share of the hidden time",
}


@dataclass(frozen=True)
class Generation:
    """GPUs that NCCL treats alike."""

    name: str
    gpus: tuple[str, ...]
    """Parts of the names of its GPUs, in lower case."""
    channels: int
    """Rings inside a node, each with a share of the links."""
    nvls_share: float
    """What NCCL's model assumes that NVLS gets of the links; 0 without it."""
    plateau: float
    """By what rings of large buffers over several nodes have longer latencies."""


@dataclass(frozen=True)
class Tables:
    """NCCL's own figures: microseconds and GB/s, in the order of `PROTOCOLS`, or for one, two and more nodes."""

    base_us: Mapping[str, Sequence[float]]
    step_us: Mapping[str, Mapping[str, Sequence[float]]]
    ll_most: Mapping[str, Mapping[str, float]]
    tree_most_per_channel: Mapping[str, Mapping[str, Sequence[float]]]
    ring_ll128_most_per_channel: Mapping[str, float]
    nvls_tree_most_per_channel: Mapping[str, Sequence[float]]
    tree_share_by_size: Mapping[str, Sequence[float]]


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    return read_document(_FILE, "nccl")


@lru_cache(maxsize=1)
def tables() -> Tables:
    """Return NCCL's tables of `RELEASE`."""
    figures = read_document(_TUNING, "nccl-tuning")["releases"][RELEASE]
    return Tables(**{name: figures[name] for name in Tables.__dataclass_fields__})


@lru_cache(maxsize=1)
def generations() -> tuple[Generation, ...]:
    """Return the generations, oldest first."""
    return tuple(Generation(**{**entry, "gpus": tuple(entry["gpus"])}) for entry in _document()["generations"])


def generation_of(gpu: str) -> Generation | None:
    """Return the generation of a GPU by its name (`H100 80GB`); None if the name does not tell."""
    words = gpu.lower().replace("-", " ")
    return next((it for it in reversed(generations()) if any(name in words for name in it.gpus)), None)


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """Return the constants by name, in the order of the file."""
    return checked_constants(_document()["constants"], _FILE.name, _UNITS)


def constant(name: str) -> float:
    """Return a constant: seconds, bytes, or a share."""
    return value_of(all_constants()[name])


@dataclass(frozen=True)
class Checked:
    """Mean errors of `paceline study collectives`, on one node."""

    rows: int
    mean: float
    without_source: float
    """With constants that were fitted without the source of a row."""


@lru_cache(maxsize=1)
def checked() -> Checked:
    """Return how far forecasts have been from published bandwidths on one node."""
    return Checked(**_document()["checked"])


def overlap_slowdown() -> float:
    """Return by which share of the time that a collective is hidden the computation beside it takes longer.

    Its kernels take streaming multiprocessors and memory bandwidth from the computation.
    """
    return constant("overlap.slowdown")
