"""The positions of both pages' sliders: every field has limits, so that no request takes longer than a few seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from paceline._internal.json_objects import loads
from paceline._internal.nearest import nearest
from paceline._internal.units import binary_count
from paceline.catalog.builtin_names import cluster_names, trace_names
from paceline.catalog.gpus import all_hardware
from paceline.catalog.libraries import library_names
from paceline.catalog.models.config import built_in_configs
from paceline.catalog.names import Checkpointing, Kernels, Precision
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError

MOST_WORKERS = 128
MOST_GPUS = 4096
_MOST = 1e15
SHARDINGS = ("none", "zero1", "zero2", "zero3", "hsdp")
# Field → least and most.
LIMITS: dict[str, tuple[float, float]] = {
    "workers": (1, MOST_WORKERS),
    "servers": (1, 32),
    "bandwidth_gbps": (0.1, 60_000),
    "latency_us": (0, 1000),
    "compute_speedup": (0.1, 20),
    "bucket_mb": (0, 1024),
    "gpus_per_node": (1, 72),
    "straggler": (1, 10),
}
LIMITS_OF_MODELS: dict[str, tuple[float, float]] = {
    "gpus": (1, MOST_GPUS),
    "bandwidth_gbps": (1, 60_000),
    "seq": (64, 2**20),
    "batch": (1, 256),
    "accumulate": (1, 64),
    "tensor_parallel": (1, 72),
}
_OPTIONAL = ("bucket_mb", "servers", "bandwidth_gbps", "seq")
"""Numbers that may be left to the library, the nodes or the model."""
_WHOLE = ("workers", "servers", "gpus_per_node", "gpus", "seq", "batch", "accumulate", "tensor_parallel")


@dataclass(frozen=True)
class State:
    """The state of the page. None: as the library has it; `bucket_mb` 0: no fusion; `straggler`: rank 0's slowdown."""

    trace: str = "resnet-50"
    cluster: str = "flat"
    library: str = "ddp"
    workers: int = 32
    servers: int | None = None
    bandwidth_gbps: float = 25.0
    latency_us: float = 0.0
    compute_speedup: float = 1.0
    bucket_mb: float | None = None
    gpus_per_node: int = 1
    straggler: float = 1.0
    multicast: bool = False
    aggregation: bool = False
    strategy: str = ""
    """Whose timeline is drawn; empty: the fastest's."""


@dataclass(frozen=True)
class ModelState:
    """The state of the page of models on GPUs. None: as the GPU's nodes, or the model, have it."""

    model: str = "llama-3-8b"
    gpu: str = "h100"
    gpus: int = 64
    bandwidth_gbps: float | None = None
    seq: int | None = None
    batch: int = 1
    accumulate: int = 1
    tensor_parallel: int = 1
    dtype: str = ""
    """Empty: the GPU's usual one."""
    checkpointing: str = "none"
    kernels: str = "fused"
    sharding: str = ""
    """Whose timeline is drawn; empty: that of the fastest that fits."""


def choices() -> dict[str, Sequence[str]]:
    """Return the values of the fields that are one of several."""
    return {
        "trace": trace_names(),
        "cluster": cluster_names(),
        "library": library_names(),
        "model": list(built_in_configs()),
        "gpu": [one.name for one in all_hardware()],
        "dtype": ["", *get_args(Precision)],
        "checkpointing": get_args(Checkpointing),
        "kernels": get_args(Kernels),
        "sharding": ["", *SHARDINGS],
    }


def parse(text: bytes) -> State:
    """Parse JSON. Raises InvalidArgumentError naming the field."""
    return checked(_object(text))


def parse_of_model(text: bytes) -> ModelState:
    """Parse JSON. Raises InvalidArgumentError naming the field."""
    return checked_of_model(_object(text))


def _object(text: bytes) -> dict[str, Any]:
    try:
        values = loads(text)
        # RFC 7493: a lone surrogate, which json.loads accepts, is not a character, and no answer could contain it.
        json.dumps(values, ensure_ascii=False).encode()
    except InvalidArgumentError:
        raise
    except (ValueError, RecursionError):
        raise InvalidArgumentError("the request is not JSON", remedy='{"workers": 8}') from None
    if not isinstance(values, dict):
        raise InvalidArgumentError("the request is not a JSON object", remedy='{"workers": 8}')
    return values


def checked(values: Mapping[str, Any]) -> State:
    """Return the state if every field is known and within its limits. Raises InvalidArgumentError naming the field."""
    return State(**_values(State, LIMITS, values))


def checked_of_model(values: Mapping[str, Any]) -> ModelState:
    """Return the state if every field is known and within its limits. Raises InvalidArgumentError naming the field."""
    return ModelState(**_values(ModelState, LIMITS_OF_MODELS, values))


def _values(
    kind: type[State | ModelState], limits: Mapping[str, tuple[float, float]], values: Mapping[str, Any]
) -> dict[str, Any]:
    known = {entry.name: entry.default for entry in fields(kind)}
    made: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            near = nearest(str(name), list(known))
            raise InvalidArgumentError(
                f"unknown field '{str(name)[:80]}'",
                remedy=f'"{near}"' if near else "the fields of docs/how-to/explore.md",
            )
        if value is None and name in _OPTIONAL and known[name] is None:
            made[name] = None
        else:
            made[name] = _number(name, value, limits[name]) if name in limits else _word(name, value)
    return made


def _word(name: str, value: object) -> object:
    if name in ("multicast", "aggregation"):
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name}: must be true or false", remedy="true")
        return value
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name}: is not text", remedy="text")
    if name == "strategy":
        return find_strategy(value).name if value else ""
    names = choices()[name]
    if value not in names:
        raise InvalidArgumentError(
            f"{name}: unknown value '{value[:80]}'", remedy=f"one of {', '.join(filter(None, names))}"
        )
    return value


def _number(name: str, value: object, limits: tuple[float, float]) -> float | int:
    least, most = limits
    if name in _WHOLE and isinstance(value, str) and (number := binary_count(value)) is not None:
        value = number
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 (not a number)
        raise InvalidArgumentError(f"{name}: is not a number", remedy=f"{least:g}")
    if abs(value) > _MOST:
        raise InvalidArgumentError(f"{name}: must be {least:g}-{most:g}", remedy=f"{least:g}")
    if not least <= value <= most:
        raise InvalidArgumentError(
            f"{name}: must be {least:g}-{most:g}, not {value:g}", remedy=f"{min(max(value, least), most):g}"
        )
    if name in _WHOLE:
        if value != int(value):
            raise InvalidArgumentError(f"{name}: must be a whole number, not {value:g}", remedy=f"{round(value)}")
        return int(value)
    return float(value)
