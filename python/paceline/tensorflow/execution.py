"""Runs named operations when a tensor has a value, and puts them into graphs when it has none yet.

Nothing is compiled against TensorFlow. In eager execution an operation works on the memory of a tensor. A graph gets a
`tf.numpy_function`: TensorFlow lends it the memory of its inputs and takes over that of its results, so an all-reduce
costs one copy, from the input to the buffer that is reduced in place. Two things follow: XLA cannot compile such a
node (auto-clustering leaves it alone, `jit_compile=True` is refused), and a graph works only in the process that
traced it. Within a function, TensorFlow runs these nodes one after another, in the order in which they were traced.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from paceline._internal import tensorflow_marks as marks
from paceline.errors import InvalidArgumentError, JobError, PacelineError
from paceline.hvd.arrays import Array

Tensor = Any
"""A `tf.Tensor`, or what converts to one."""
_HOST = "/cpu:0"
_failed: list[JobError] = []


class FailedOperationError(JobError, tf.errors.FailedPreconditionError):  # type: ignore[misc]
    """A JobError in eager execution, which is an error of TensorFlow's as well: scripts catch either."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        """Take the message of the error, and what to type instead."""
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)
        self.args = (message,)
        self._remedy = remedy
        self._show_remedy()

    def __str__(self) -> str:
        """Return the message."""
        return str(self.args[0])


class InvalidOperationError(ValueError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """A ValueError in eager execution, which is an error of TensorFlow's as well."""

    def __init__(self, message: str) -> None:
        """Take the message of the error."""
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)
        self.args = (message,)

    def __str__(self) -> str:
        """Return the message."""
        return str(self.args[0])


@contextlib.contextmanager
def told_as_tensorflow() -> Iterator[None]:
    """Raise errors of operations as errors of TensorFlow's as well, like Horovod's."""
    try:
        yield
    except JobError as error:
        if type(error) is not JobError:
            raise
        raise FailedOperationError(str(error), remedy=error.remedy) from None
    except ValueError as error:
        if isinstance(error, PacelineError | tf.errors.OpError):
            raise
        raise InvalidOperationError(str(error)) from None


def eager() -> bool:
    """Return whether tensors have values here."""
    return bool(tf.executing_eagerly())


def view(tensor: Tensor) -> Array:
    """Return the memory of an eager tensor on the CPU as an array. It must not be written, but by its only owner.

    Raises TypeError for a dtype without a fixed size.
    """
    if tensor.dtype == tf.bfloat16:
        # The buffer protocol has no code for it.
        return view(tf.bitcast(tensor, tf.uint16)).view(tf.bfloat16.as_numpy_dtype)
    if not tensor.dtype.is_numpy_compatible or tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(f"a tensor of dtype {tensor.dtype.name} has no memory to send; use broadcast_object")
    try:
        return np.asarray(memoryview(tensor))
    except (ValueError, TypeError, BufferError):
        array: Array = tensor.numpy()
        return array


def on_host(tensor: Tensor, *, copy: bool = False) -> Tensor:
    """Return an eager tensor in the memory of the CPU: a new one, if `copy`."""
    with tf.device(_HOST):
        return tf.raw_ops.DeepCopy(x=tensor) if copy else tf.identity(tensor)


def to_tensor(array: Array) -> Tensor:
    """Return an eager tensor with these values."""
    return tf.constant(array)


def traced(
    call: Callable[[list[Array]], Sequence[Array]],
    tensors: Sequence[Tensor],
    dtypes: Sequence[Any],
    shapes: Sequence[Any],
    *,
    reduces: Sequence[tuple[str, Tensor]] = (),
    awaits: Sequence[str] = (),
) -> list[Tensor]:
    """Put a call of Python into the graph that is being traced. `shapes` may be unknown in part.

    The node is marked for the planner: it `reduces` these tensors, by their names among ranks, and `awaits` the sums of
    those with these names.

    Raises InvalidArgumentError if it is traced for XLA, which cannot call Python.
    """
    refuse_xla()

    def run(*arrays: Array) -> list[Array]:
        try:
            return list(call(list(arrays)))
        except JobError as error:
            # TensorFlow makes an error of its own of it, which keeps only the message.
            _failed[:] = [error]
            raise

    with tf.device(_HOST):
        outputs = tf.numpy_function(run, list(tensors), list(dtypes), name="PacelineAllReduce" if reduces else None)
    results = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    _mark(results[0].op, reduces, awaits)
    for tensor, shape in zip(results, shapes, strict=True):
        tensor.set_shape(shape)
    return results


def _mark(operation: Any, reduces: Sequence[tuple[str, Tensor]], awaits: Sequence[str]) -> None:  # noqa: ANN401
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    def listed(name: str, **values: Any) -> None:  # noqa: ANN401
        operation._set_attr(name, AttrValue(list=AttrValue.ListValue(**values)))

    if reduces:
        sizes = [tensor.shape.num_elements() for _, tensor in reduces]
        listed(marks.ALL_REDUCES, s=[name.encode() for name, _ in reduces])
        listed(marks.DTYPES, type=[tensor.dtype.as_datatype_enum for _, tensor in reduces])
        listed(
            marks.BYTES,
            i=[
                marks.UNKNOWN if size is None else size * tensor.dtype.size
                for size, (_, tensor) in zip(sizes, reduces, strict=True)
            ],
        )
    if awaits:
        listed(marks.AWAITS, s=[name.encode() for name in awaits])


def compiled_by_xla() -> str | None:
    """Return whether a model of Keras ("model") or a function ("function") is being traced for XLA; None if neither."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if getattr(owner, "compiled", False) is True and getattr(owner, "jit_compile", False) is True:
            return "model"
        if type(owner).__name__ == "Function" and getattr(owner, "_jit_compile", False) is True:
            return "function"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def refuse_xla() -> None:
    """Raise InvalidArgumentError if a model of Keras or a function is being traced for XLA."""
    owner = compiled_by_xla()
    if owner == "model":
        raise InvalidArgumentError(
            "the model is compiled by XLA, which cannot exchange gradients",
            remedy="model.compile(..., jit_compile=False)",
        )
    if owner == "function":
        raise InvalidArgumentError(
            "the function is compiled by XLA, which cannot exchange tensors",
            remedy="tf.function without jit_compile=True, or with it around the loss alone",
        )


def run(
    call: Callable[[list[Array]], Sequence[Array]],
    tensors: Sequence[Tensor],
    dtypes: Sequence[Any],
    shapes: Sequence[Any],
) -> list[Tensor]:
    """Call it now on the tensors' values, or put the call into the graph that is being traced."""
    if not eager():
        return traced(call, tensors, dtypes, shapes)
    with told_as_tensorflow():
        return [to_tensor(array) for array in call([view(on_host(tensor)) for tensor in tensors])]


def take_failure() -> JobError | None:
    """Return the error that a node of a graph has raised since the last call, and forget it."""
    return _failed.pop() if _failed else None


def graph_name(name: str | None, tensors: Sequence[Tensor], *, ignore_name_scope: bool = False) -> str | None:
    """Return the name by which ranks match an operation: in a graph, the first name like it that is free there.

    Unnamed operations are named after their tensors in graphs, and counted otherwise: None.
    """
    if eager():
        return name
    if name is None:
        ends = dict.fromkeys((tensors[0].name, tensors[-1].name))
        name = re.sub(r"[^\w.]", "_", "_".join(ends))
    graph = tf.compat.v1.get_default_graph()
    if not ignore_name_scope:
        return str(graph.unique_name(name))
    with tf.compat.v1.name_scope(None):
        return str(graph.unique_name(name))
