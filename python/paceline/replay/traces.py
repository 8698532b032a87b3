"""Traces for networks that are slower than those meant: fewer bytes, the same tensors and times."""

from __future__ import annotations

import json
from typing import Any

from paceline._core import Trace, UserError
from paceline.job_arrays import DTYPES
from paceline.replay import abilities


def shrunk(trace: Trace, divisor: float) -> Trace:
    """The trace with all bytes divided, to whole elements and at least one. Raises UserError."""
    if divisor == 1:
        return trace
    if not 1 <= divisor <= 1e6:
        raise UserError(f"shrink: {divisor:g} is not between 1 and 1000000; 4 means a quarter of the bytes")
    fields = json.loads(trace.to_json())
    element = DTYPES[fields["dtype"]]
    for sized in _sized(fields):
        sized["bytes"] = max(1, round(sized["bytes"] / divisor / element)) * element
    return _trace(fields)


def as_run(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace without tensors that have no gradient, unless the runtime's servers distribute them; their names."""
    if abilities.PULL_ONLY:
        return trace, []
    fields = json.loads(trace.to_json())
    known = {gradient["tensor"] for gradient in fields["workers"][0]["gradients"]}
    names = [_name(entry) for entry in fields.get("distribution", []) if _name(entry) not in known]
    if not names:
        return trace, []
    fields["distribution"] = [entry for entry in fields["distribution"] if _name(entry) in known]
    for worker in fields["workers"]:
        for layer in worker["forward"]:
            if "tensors" in layer:
                layer["tensors"] = [tensor for tensor in layer["tensors"] if tensor in known]
    return _trace(fields), names


def _name(entry: str | dict[str, Any]) -> str:
    return entry if isinstance(entry, str) else str(entry["tensor"])


def _sized(fields: dict[str, Any]) -> list[dict[str, Any]]:
    gradients = [gradient for worker in fields["workers"] for gradient in worker["gradients"]]
    return gradients + [entry for entry in fields.get("distribution", []) if isinstance(entry, dict)]


def _trace(fields: dict[str, Any]) -> Trace:
    return Trace.from_json(json.dumps(fields).encode(), fields["name"])
