"""Operations on values: numbers, arrays, and what else becomes a tensor."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

from typing import Any

import tensorflow as tf

from paceline.hvd.operators import Operator
from paceline.tensorflow import operations
from paceline.tensorflow.compression import Compression, Compressor
from paceline.tensorflow.execution import Tensor

Value = Any
"""A number, an array or a tensor."""


def allreduce(
    value: Value,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Tensor:
    """Reduce the values of all ranks.

    Args:
        value: A value of the same shape and dtype on all ranks.
        name: Name by which the ranks match the operation, also used in error messages.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        prescale_factor: Factor by which each value is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.

    Returns:
        A tensor.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the value; the message names both.
        NotImplementedError: `op` is Adasum.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: `op` is unknown.

    Example:
        >>> hvd.allreduce([1.0, 2.0], op=hvd.Sum).numpy()
        array([1., 2.], dtype=float32)
    """
    return operations.allreduce(
        tf.convert_to_tensor(value),
        average=average,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
        name=name,
    )


def allgather(value: Value, name: str | None = None) -> Tensor:
    """Concatenate the values of all ranks along the first dimension.

    Args:
        value: A value; ranks may differ in the first dimension only.
        name: Name by which the ranks match the operation, also used in error messages.

    Returns:
        A tensor with the rows of all ranks, in rank order.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the value; the message names both.
        TypeError: The dtype has no fixed size.
    """
    return operations.allgather(tf.convert_to_tensor(value), name=name)


def broadcast(value: Value, root_rank: int, name: str | None = None) -> Tensor:
    """Copy the root's value to all ranks.

    Args:
        value: A value of the same shape and dtype on all ranks.
        root_rank: Rank whose value is copied.
        name: Name by which the ranks match the operation, also used in error messages.

    Returns:
        A tensor with the root's values.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the value; the message names both.
        TypeError: The dtype has no fixed size.
        ValueError: `root_rank` is no rank.
    """
    return operations.broadcast(tf.convert_to_tensor(value), root_rank, name=name)


def reducescatter(value: Value, name: str | None = None, op: int | None = Operator.Average) -> Tensor:
    """Reduce the values of all ranks and return this rank's rows of the result.

    Args:
        value: A value of at least one dimension, with the same shape and dtype on all ranks.
        name: Name by which the ranks match the operation, also used in error messages.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.

    Returns:
        A tensor with this rank's rows.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the value; the message names both.
        NotImplementedError: `op` is Adasum.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: The value is a scalar, or `op` is unknown.
    """
    return operations.reducescatter(tf.convert_to_tensor(value), name=name, op=op)
