"""Figures by which an author knows a model: its weights, its FLOPs, and how much it computes for what it sends.

M. A. Chang et al., "How to Train your DNN: The Network Operator Edition", tables 2 and 3.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline._core import Trace
from paceline.catalog.dtypes import DTYPE_BYTES

_FLOPS = Path(__file__).parent / "flops.json"
BANDWIDTH_BPS = 25e9
"""The rate of table 3."""


@lru_cache(maxsize=1)
def _all_flops() -> dict[str, tuple[int, str]]:
    rows = json.loads(_FLOPS.read_text(encoding="utf-8"))
    return {row["model"]: (row["flops"], row["source"]) for row in rows}


@dataclass(frozen=True)
class Characteristics:
    """A model's sizes, and what its backward pass computes and sends. Rates are bits per second."""

    parameters: int
    """Weights, of trained and frozen tensors."""
    flops_per_sample: int | None
    """Of the forward pass, 2 per multiply-add; None: unknown."""
    flops_source: str | None
    first_gradient_s: float
    """From the start of the backward pass to the first gradient."""
    backward_after_first_s: float
    """From the first gradient to the last: the backward pass without its first layer."""
    bandwidth_bps: float
    network_s: float
    """Bytes of all gradients at that rate."""
    ratio: float | None
    """The two above, one over the other; None without gradients."""

    @classmethod
    def of(cls, trace: Trace, bandwidth_bps: float = BANDWIDTH_BPS) -> Characteristics:
        """Return those of a trace."""
        element = DTYPE_BYTES[trace.dtype]
        ready = [gradient.ready_s for gradient in trace.workers[0].gradients]
        first, after = (min(ready), max(ready) - min(ready)) if ready else (0.0, 0.0)
        network_s = 8 * trace.gradient_bytes / bandwidth_bps
        flops, source = _all_flops().get(trace.name, (None, None))
        return cls(
            parameters=(trace.gradient_bytes + trace.frozen_bytes) // element,
            flops_per_sample=flops,
            flops_source=source,
            first_gradient_s=first,
            backward_after_first_s=after,
            bandwidth_bps=bandwidth_bps,
            network_s=network_s,
            ratio=after / network_s if network_s > 0 else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        own = dict(vars(self))
        own["computation_to_network"] = own.pop("ratio")
        return own
