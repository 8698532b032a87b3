"""Traces for slower networks: fewer bytes, the same tensors and times."""

from __future__ import annotations

import json
from typing import Any

from paceline._core import Trace
from paceline.errors import InvalidArgumentError
from paceline.job.arrays import DTYPES

MOST_SHRINK = 1_000_000
"""The largest divisor of bytes."""


def shrunk(trace: Trace, divisor: float) -> Trace:
    """Return the trace with all bytes divided, to whole elements and at least one. Raises InvalidArgumentError."""
    if divisor == 1:
        return trace
    if not 1 <= divisor <= MOST_SHRINK:
        raise InvalidArgumentError(
            f"shrink: {divisor:g} is not between 1 and {MOST_SHRINK}; 4 means a quarter of the bytes"
        )
    fields = json.loads(trace.to_json())
    element = DTYPES[fields["dtype"]]
    for sized in _sized(fields):
        sized["bytes"] = max(1, round(sized["bytes"] / divisor / element)) * element
        sized.pop("shape", None)  # That of the whole.
    return _trace(fields)


def _sized(fields: dict[str, Any]) -> list[dict[str, Any]]:
    gradients = [gradient for worker in fields["workers"] for gradient in worker["gradients"]]
    others = [entry for entry in fields.get("distribution", []) if isinstance(entry, dict)]
    return [*gradients, *others, *fields.get("frozen", [])]


def _trace(fields: dict[str, Any]) -> Trace:
    return Trace.from_json(json.dumps(fields).encode(), fields["name"])
