"""What a training through the object store gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """A step of one rank; times in seconds."""

    step_s: float
    """From the input to the end of the optimizer."""
    input_s: float
    forward_s: float
    backward_s: float
    exchange_s: float
    """From the end of the backward pass until the means are there: nothing is sent before."""
    optimizer_s: float
    cpu_s: float
    """Of all threads of the process."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How long the steps took, and what came out."""

    steps: Sequence[Sequence[StepTimes]]
    """By rank, then by step."""
    weights: Mapping[str, np.ndarray]
    """Of rank 0 at the end, float32, by the names of `named_parameters`."""
    workers: int
    nodes: int
    """On which there are workers."""
    servers: int
