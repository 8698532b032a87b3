"""The memory of one GPU that trains a model: of its share of a rank, and of the pipeline's stage that needs most."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline import _core
from paceline.catalog.models.workload import Workload
from paceline.forecast.sharded import Memory
from paceline.forecast.sharding import NONE


def of_gpu(memory: Memory, workload: Workload) -> Memory:
    """Return the memory of one GPU, from that of a data-parallel rank's stage.

    Tensor-parallel GPUs share the state evenly.
    """
    if workload.tensor == 1:
        return memory
    shares = {name: None if size is None else -(-size // workload.tensor) for name, size in vars(memory).items()}
    return Memory(**shares)  # type: ignore[arg-type]  # only activations may be None


def of_workload(workload: Workload, options: Mapping[str, Any]) -> Memory:
    """Return the peak on the GPU of the stage that needs most, as if exchanges took no time.

    Args:
        workload: The model.
        options: Those of the native module.

    Raises:
        InvalidArgumentError: Options that do not fit.
    """
    if workload.microbatches > 1:
        # The trace is that of the last microbatch, which finds the gradients of the others.
        options = {**options, "iteration": {"sharding": NONE, **options.get("iteration", {}), "accumulated": True}}
    found = []
    for stage in range(workload.pipeline):
        peak = _core.iteration_memory(workload.trace(stage), json.dumps(options))
        found.append(of_gpu(Memory.of(peak), workload))
    return max(found, key=lambda memory: memory.peak_bytes)
