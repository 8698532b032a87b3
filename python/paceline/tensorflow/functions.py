"""Variables and Python objects, broadcast and gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from paceline.hvd import objects
from paceline.hvd.arrays import Array
from paceline.hvd.arrays import broadcast as broadcast_array
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of, root_in
from paceline.tensorflow.execution import Tensor, graph_name, run
from paceline.tensorflow.gradients import Variable

Picklable = Any
"""Any object that can be pickled."""


def broadcast_variables(
    variables: Sequence[Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:  # noqa: ANN401
    """Copy the root's variables to all ranks: all at once, in the order of the list.

    Args:
        variables: Variables of TensorFlow or Keras, with the same shapes and dtypes in the same order on all ranks.
        root_rank: Rank whose variables are copied: a rank of the job, also within a process set.
        process_set: The ranks that take part; by default all.
        inplace: Accepted for compatibility with Horovod: variables are assigned either way.

    Returns:
        None in eager execution and within `tf.function`; in a graph of TensorFlow 1, the operation to run.

    Raises:
        JobError: A rank is gone, or the ranks disagree about a variable; the message names both.
        ValueError: `root_rank` or this rank is not in `process_set`.

    Example:
        >>> hvd.broadcast_variables([tf.Variable(1.0)], root_rank=0)
    """
    variables = list(variables)
    if not variables:
        return None
    assigned = [
        variable.assign(value)
        for variable, value in zip(variables, _broadcast(variables, root_rank, None, process_set), strict=True)
    ]
    graph = tf.compat.v1.get_default_graph()
    in_function = tf.executing_eagerly() or graph.building_function
    return None if in_function else tf.group(*assigned)


def broadcast_(
    variables: Sequence[Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Copy the root's variables to all ranks, as one operation.

    Args:
        variables: As for `broadcast_variables`.
        root_rank: Rank whose variables are copied: a rank of the job, also within a process set.
        name: Name by which the ranks match the operation, as for `allreduce`.
        process_set: The ranks that take part; by default all.

    Returns:
        The variables' new values.

    Raises:
        JobError: A rank is gone, or the ranks disagree about a variable; the message names both.
        ValueError: `root_rank` or this rank is not in `process_set`.
    """
    variables = list(variables)
    values = _broadcast(variables, root_rank, name, process_set) if variables else []
    return [
        tf.convert_to_tensor(variable.assign(value)) if not tf.executing_eagerly() else _assigned(variable, value)
        for variable, value in zip(variables, values, strict=True)
    ]


def _assigned(variable: Variable, value: Tensor) -> Tensor:
    variable.assign(value)
    return tf.convert_to_tensor(variable)


def _broadcast(
    variables: Sequence[Variable], root_rank: int, name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    root_in(members_of(process_set), root_rank, name, process_set)
    tensors = [tf.convert_to_tensor(variable) for variable in variables]
    full = graph_name(name or "broadcast_variables", tensors) if not tf.executing_eagerly() else name

    def call(arrays: Sequence[Array]) -> list[Array]:
        members = members_of(process_set)
        root = root_in(members, root_rank, full, process_set)
        return members.begin_group(
            "broadcast", full, arrays, lambda each, array: broadcast_array(members, each, array, root), waits=True
        )()

    return run(call, tensors, [tensor.dtype for tensor in tensors], [tensor.shape for tensor in tensors])


def broadcast_global_variables(root_rank: int) -> Any:  # noqa: ANN401
    """Broadcast all variables of a graph of TensorFlow 1.

    Args:
        root_rank: Rank whose variables are copied.

    Returns:
        The operation to run.

    Raises:
        RuntimeError: In eager execution, which has no list of all variables.
        JobError: A rank is gone, when the operation runs.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Picklable,
    root_rank: int = 0,
    session: Any = None,  # noqa: ANN401
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Picklable:
    """Copy the root's object to all ranks.

    Args:
        obj: The object; ignored except at the root.
        root_rank: Rank whose object is copied: a rank of the job, also within a process set.
        session: Accepted for compatibility with Horovod, and ignored.
        name: Name by which the ranks match the operation, also used in error messages.
        process_set: The ranks that take part; by default all.

    Returns:
        `obj` itself at the root, a copy elsewhere.

    Raises:
        Exception: The error that pickle raises for an object that it cannot serialize.
        JobError: A rank is gone, or the ranks disagree about the operation; the message names both.
        ValueError: `root_rank` or this rank is not in `process_set`.

    Example:
        >>> hvd.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,  # noqa: ANN401
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # noqa: ANN401
    """Return a function that broadcasts an object.

    Args:
        root_rank: Rank whose object is copied.
        session: Accepted for compatibility with Horovod, and ignored.
        name: Name by which the ranks match the operation.
        process_set: The ranks that take part; by default all.

    Returns:
        A function of the object, like `broadcast_object`.
    """
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Picklable,
    session: Any = None,  # noqa: ANN401
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Picklable]:
    """Gather the objects of all ranks at all ranks.

    Args:
        obj: Any object that pickle, or cloudpickle if installed, can serialize.
        session: Accepted for compatibility with Horovod, and ignored.
        name: Name by which the ranks match the operation, also used in error messages.
        process_set: The ranks that take part; by default all.

    Returns:
        Copies of the objects in rank order. Ranks that have called `hvd.join` contribute none.

    Raises:
        Exception: The error that pickle raises for an object that it cannot serialize.
        JobError: A rank is gone, or the ranks disagree about the operation; the message names both.

    Example:
        >>> hvd.allgather_object(("rank", hvd.rank()))
        [('rank', 0)]
    """
    return objects.allgather_object(obj, name, process_set)
