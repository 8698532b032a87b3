"""The positions of the sliders: every field has limits, so that no request takes longer than a few seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from paceline._internal.json_objects import loads
from paceline._internal.nearest import nearest
from paceline.catalog.libraries import library_names
from paceline.catalog.library import cluster_names, trace_names
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError

MOST_WORKERS = 128
_MOST = 1e15
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


def parse(text: bytes) -> State:
    """Parse JSON. Raises InvalidArgumentError naming the field."""
    try:
        values = loads(text)
        # RFC 7493: a lone surrogate, which json.loads accepts, is not a character, and no answer could contain it.
        json.dumps(values, ensure_ascii=False).encode()
    except InvalidArgumentError:
        raise
    except (ValueError, RecursionError):
        raise InvalidArgumentError("the request is not JSON") from None
    if not isinstance(values, dict):
        raise InvalidArgumentError("the request is not a JSON object")
    return checked(values)


def checked(values: Mapping[str, Any]) -> State:
    """Return the state if every field is known and within its limits. Raises InvalidArgumentError naming the field."""
    known = {entry.name: entry for entry in fields(State)}
    made: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            near = nearest(str(name), list(known))
            raise InvalidArgumentError(
                f"unknown field '{str(name)[:80]}'" + (f"; did you mean '{near}'?" if near else "")
            )
        made[name] = _value(name, value)
    return State(**made)


def _value(name: str, value: object) -> object:
    if name in ("multicast", "aggregation"):
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name}: is neither true nor false")
        return value
    if name in ("bucket_mb", "servers") and value is None:
        return None
    if name in LIMITS:
        return _number(name, value)
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name}: is not text")
    if name == "strategy":
        return find_strategy(value).name if value else ""
    known: dict[str, Callable[[], Sequence[str]]] = {
        "trace": trace_names,
        "cluster": cluster_names,
        "library": library_names,
    }
    names = known[name]()
    if value not in names:
        raise InvalidArgumentError(f"{name}: '{value[:80]}' is none of {', '.join(names)}")
    return value


def _number(name: str, value: object) -> float | int:
    least, most = LIMITS[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 (not a number)
        raise InvalidArgumentError(f"{name}: is not a number")
    if abs(value) > _MOST:
        raise InvalidArgumentError(f"{name}: is not from {least:g} to {most:g}")
    if not least <= value <= most:
        raise InvalidArgumentError(f"{name}: {value:g} is not from {least:g} to {most:g}")
    if name in ("workers", "servers", "gpus_per_node"):
        if value != int(value):
            raise InvalidArgumentError(f"{name}: {value:g} is not a whole number")
        return int(value)
    return float(value)
