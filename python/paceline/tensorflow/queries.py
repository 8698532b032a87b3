"""Rank and size as tensors, which a graph reads when it runs, not when it is traced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from paceline.hvd import world
from paceline.tensorflow.execution import Tensor, run


def _number(read: Callable[[], int]) -> Tensor:
    return run(lambda _: [np.array(read(), np.int32)], [], [tf.int32], [[]])[0]


def _ranks(process_set_id: int) -> tuple[int, ...]:
    known = world.current().sets.get(process_set_id)
    if known is None:
        raise ValueError(f"process set {process_set_id} is unknown: it has not been added, or was removed")
    return known.ranks


def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Return the number of ranks of a process set as a tensor.

    Args:
        process_set_id: The number of the set; 0: all ranks.
        name: Accepted for compatibility with Horovod, and ignored.

    Returns:
        A scalar of dtype int32.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
        ValueError: The set is unknown.

    Example:
        >>> int(hvd.size_op())
        1
    """
    return _number(lambda: len(_ranks(process_set_id)))


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Return whether this rank is in a process set as a tensor.

    Args:
        process_set_id: The number of the set; 0: all ranks.
        name: Accepted for compatibility with Horovod, and ignored.

    Returns:
        A scalar of dtype int32: 0 or 1.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
        ValueError: The set is unknown.
    """
    return _number(lambda: int(world.rank() in _ranks(process_set_id)))


def rank_op(name: str | None = None) -> Tensor:
    """Return the rank of this process as a tensor.

    Args:
        name: Accepted for compatibility with Horovod, and ignored.

    Returns:
        A scalar of dtype int32.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
    """
    return _number(world.rank)


def local_rank_op(name: str | None = None) -> Tensor:
    """Return the rank of this process among those of its node as a tensor.

    Args:
        name: Accepted for compatibility with Horovod, and ignored.

    Returns:
        A scalar of dtype int32.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
    """
    return _number(world.local_rank)


def local_size_op(name: str | None = None) -> Tensor:
    """Return the number of ranks on this node as a tensor.

    Args:
        name: Accepted for compatibility with Horovod, and ignored.

    Returns:
        A scalar of dtype int32.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
    """
    return _number(world.local_size)
