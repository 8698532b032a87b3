"""Timestamps of a step: of the host in eager execution, of nodes in graphs.

A node `Timestamp` runs once the tensors on which it depends have values, so it is exact to the microsecond wherever a
graph runs them. TensorFlow would run such nodes one after another in the order of the trace, hence each is declared
independent. The times of a group go to Python by one node, when all of them are known. Both clocks are the system's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Tensor = Any
_HOST = "/cpu:0"


def now() -> float:
    """Return seconds since the epoch, as `tf.timestamp` does."""
    return time.time()


def graph() -> Any:  # noqa: ANN401
    """Return the graph that is being traced; None in eager execution."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def tensors_in(structure: Any) -> list[Tensor]:  # noqa: ANN401
    """Return the tensors of a structure, those of sparse gradients included."""
    flat = tf.nest.flatten(structure, expand_composites=True)
    return [one for one in flat if isinstance(one, tf.Tensor) and not hasattr(one, "handle")]


def timestamp(after: Sequence[Tensor]) -> Tensor:
    """Return the time at which these tensors have values, as a scalar of the graph; without any, its start."""
    with tf.control_dependencies(list(after)), tf.device(_HOST):
        at = tf.timestamp()
    independent(at.op)
    return at


def independent(operation: Any) -> None:  # noqa: ANN401
    """Let an operation run whenever its inputs are there, not after other stateful ones of its graph."""
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(operation)


def deliver(values: Sequence[Tensor], take: Callable[[list[float]], None]) -> None:
    """Call a function with these scalars (float64) whenever the graph has computed all of them."""

    def call(array: np.ndarray) -> np.ndarray:
        take([float(value) for value in array])
        return np.array(0, np.int32)

    with tf.device(_HOST):
        done = tf.numpy_function(call, [tf.stack(list(values))], tf.int32)
    independent(done.op)
