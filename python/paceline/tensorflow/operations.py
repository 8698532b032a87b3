"""Horovod's operations on tensors."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.hvd import process_sets, world
from paceline.hvd.arrays import Array, Gathered, exchanged, gathered
from paceline.hvd.arrays import broadcast as broadcast_array
from paceline.hvd.operators import Operator, operator_of
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of, root_in
from paceline.tensorflow.compression import Compression, Compressor
from paceline.tensorflow.execution import Tensor, eager, graph_name, run
from paceline.tensorflow.reducing import ReduceArgs, differentiable_group, differentiable_reduce


def _on(device: str) -> contextlib.AbstractContextManager[Any]:
    return tf.device(device) if device else contextlib.nullcontext()


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Reduce the tensors of all ranks; differentiable.

    Averages and multiples of integers are rounded toward zero.

    Args:
        tensor: `tf.Tensor` or `tf.Variable` of any shape, with the same shape and dtype on all ranks
            (`paceline.hvd.arrays` lists the dtypes); or `tf.IndexedSlices`, whose values and indices are gathered.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        device_dense: Device of a dense result; tensors on a GPU go through the memory of the host.
        device_sparse: Device of a sparse result.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls, and in graphs by the names of their tensors.
        process_set: The ranks that take part; by default all.
        ignore_name_scope: Whether the name does without the name scope of a graph.

    Returns:
        A new tensor with the shape and dtype of `tensor`, equal on all ranks; or `tf.IndexedSlices`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`. In a graph it reaches the caller as an error of TensorFlow's.
        NotImplementedError: `op` is Adasum, or slices are to be scaled or reduced other than by sum and average.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: `op` is unknown, or this rank is not in `process_set`.

    Example:
        >>> hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy()
        array([1., 2.], dtype=float32)
    """
    operator = operator_of(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        check_slices(operator, prescale_factor, postscale_factor)
        with _on(device_sparse):
            return _reduce_slices([tensor], operator, name, process_set, ignore_name_scope)[0]
    args = ReduceArgs(operator, prescale_factor, postscale_factor, process_set, ignore_name_scope)
    small, context = compression.compress(tf.convert_to_tensor(tensor))
    with _on(device_dense):
        return compression.decompress(_placed(differentiable_reduce(args, small, name), device_dense), context)


def _placed(tensor: Tensor, device: str) -> Tensor:
    return tf.identity(tensor) if device else tensor


def check_slices(op: Operator, prescale: float, postscale: float) -> None:
    """Raise NotImplementedError for a reduction that IndexedSlices do not have."""
    if op not in (Operator.Average, Operator.Sum):
        raise NotImplementedError(f"{op.name} of tf.IndexedSlices is not defined; use Sum, Average or sparse_as_dense")
    if (prescale, postscale) != (1.0, 1.0):
        raise NotImplementedError("tf.IndexedSlices are not scaled; leave prescale_factor and postscale_factor out")


def _reduce_slices(
    slices: Sequence[Any], op: Operator, name: str | None, process_set: ProcessSet, ignore_name_scope: bool
) -> list[Any]:
    """Gather values and indices of each."""
    tensors = [tf.convert_to_tensor(part) for one in slices for part in (one.values, one.indices)]
    full = graph_name(name, tensors, ignore_name_scope=ignore_name_scope)

    def call(arrays: Sequence[Array]) -> list[Array]:
        members = members_of(process_set)
        results = members.begin_group("sparse_allreduce", full, arrays, partial(gathered, members), waits=True)()
        return [*(one.array for one in results), np.array(members.size, np.int32)]

    shapes = [*(tf.TensorShape([None, *tensor.shape[1:]]) for tensor in tensors), []]
    *results, size = run(call, tensors, [*(tensor.dtype for tensor in tensors), tf.int32], shapes)
    if op is Operator.Average:
        # As in Horovod: the average of integers is a float.
        results[::2] = [values / tf.cast(size, values.dtype) for values in results[::2]]
    pairs = zip(slices, results[::2], results[1::2], strict=True)
    return [tf.IndexedSlices(values, indices, dense_shape=one.dense_shape) for one, values, indices in pairs]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """Reduce several tensors as one operation: none starts until all ranks have all of them ready. Differentiable.

    Args:
        tensors: Tensors, each as for `allreduce`; slices among them are reduced as one operation of their own.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        device_dense: Device of dense results.
        device_sparse: Device of sparse results.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.
        ignore_name_scope: Whether the name does without the name scope of a graph.
        name: Name by which the ranks match the operation, as for `allreduce`.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both.
        NotImplementedError: As for `allreduce`.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: `op` is unknown, or this rank is not in `process_set`.

    Example:
        >>> [tensor.numpy() for tensor in hvd.grouped_allreduce([tf.ones(2), tf.zeros(1)])]
        [array([1., 1.], dtype=float32), array([0.], dtype=float32)]
    """
    if not tensors:
        return list(tensors)
    operator = operator_of(op, average)
    results: dict[int, Tensor] = {}
    slices = {place: tensor for place, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)}
    if slices:
        check_slices(operator, prescale_factor, postscale_factor)
        sparse_name = None if name is None else f"{name}.slices"
        with _on(device_sparse):
            summed = _reduce_slices(list(slices.values()), operator, sparse_name, process_set, ignore_name_scope)
        results.update(zip(slices, summed, strict=True))
    dense = {place: tf.convert_to_tensor(one) for place, one in enumerate(tensors) if place not in slices}
    if dense:
        args = ReduceArgs(operator, prescale_factor, postscale_factor, process_set, ignore_name_scope)
        pairs = [compression.compress(tensor) for tensor in dense.values()]
        with _on(device_dense):
            reduced = differentiable_group(args, [small for small, _ in pairs], name)
            whole = [
                compression.decompress(_placed(small, device_dense), pair[1])
                for small, pair in zip(reduced, pairs, strict=True)
            ]
        results.update(zip(dense, whole, strict=True))
    return [results[place] for place in range(len(tensors))]


def allgather(
    tensor: Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Concatenate the tensors of all ranks along the first dimension; differentiable.

    Args:
        tensor: Tensor of any dtype but strings. Ranks may differ in the first dimension only; a scalar counts as one
            row.
        name: Name by which the ranks match the operation, as for `allreduce`.
        ignore_name_scope: Whether the name does without the name scope of a graph.
        process_set: The ranks that take part; by default all.

    Returns:
        A new tensor with the rows of all ranks, in rank order.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both.
        TypeError: The dtype has no fixed size.
        ValueError: This rank is not in `process_set`.

    Example:
        >>> hvd.allgather(tf.constant([[1, 2]])).numpy()
        array([[1, 2]], dtype=int32)
    """
    return _gather([tf.convert_to_tensor(tensor)], name, ignore_name_scope, process_set, grouped=False)[0]


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """All-gather several tensors as one operation; differentiable.

    Args:
        tensors: One or more tensors, each as for `allgather`.
        name: Name by which the ranks match the operation, as for `allreduce`.
        ignore_name_scope: Whether the name does without the name scope of a graph.
        process_set: The ranks that take part; by default all.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both.
        TypeError: A dtype has no fixed size.
        ValueError: `tensors` is empty, or this rank is not in `process_set`.
    """
    converted = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return _gather(converted, name, ignore_name_scope, process_set, grouped=True)


def _gather(
    tensors: list[Tensor], name: str | None, ignore_name_scope: bool, process_set: ProcessSet, *, grouped: bool
) -> list[Tensor]:
    """The gradient is this rank's rows of the average of the gradients (Horovod's: an average, not the sum)."""
    if not tensors:
        raise ValueError("grouped_allgather: the list of tensors is empty; give one or more")
    ranks = len(world.ranks_of(process_set)) if process_set.process_set_id is not None else None

    def call(full: str | None, arrays: Sequence[Array]) -> list[Array]:
        members = members_of(process_set)
        if grouped:
            outputs = members.begin_group("grouped_allgather", full, arrays, partial(gathered, members), waits=True)()
        else:
            only: Gathered = members.begin(
                "allgather", full, lambda each: gathered(members, each, arrays[0]), waits=True
            )()
            outputs = [only]
        return [one.array for one in outputs] + [np.array(one.rows, np.int64) for one in outputs]

    def forward(*tensors: Tensor) -> tuple[list[Tensor], object]:
        full = graph_name(name, tensors, ignore_name_scope=ignore_name_scope)
        shapes = [tf.TensorShape([None, *(tensor.shape[1:] if tensor.shape.rank else [])]) for tensor in tensors]
        if any(tensor.shape.rank is None for tensor in tensors):
            shapes = [tf.TensorShape(None) for _ in tensors]
        counts = [tf.TensorShape([ranks]) for _ in tensors]
        dtypes = [*(tensor.dtype for tensor in tensors), *(tf.int64 for _ in tensors)]
        outputs = run(partial(call, full), tensors, dtypes, [*shapes, *counts])
        results, rows = outputs[: len(tensors)], outputs[len(tensors) :]

        def grad(*grads: Tensor) -> list[Tensor]:
            args = ReduceArgs(Operator.Average, 1.0, 1.0, process_set)
            each = zip(tensors, grads, rows, strict=True)
            return [_own(args.reduce(tf.convert_to_tensor(grad), None), count, one) for one, grad, count in each]

        return results, grad

    def _own(grad: Tensor, rows: Tensor, tensor: Tensor) -> Tensor:
        begins, place = tf.cumsum(rows, exclusive=True), members_of(process_set).rank
        part = grad[begins[place] : begins[place] + rows[place]]
        return tf.reshape(part, tf.shape(tensor))

    outputs = tf.custom_gradient(forward)(*tensors)
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Copy the root's tensor to all ranks; differentiable.

    Args:
        tensor: Tensor of any dtype but strings, with the same shape and dtype on all ranks.
        root_rank: Rank whose tensor is copied: a rank of the job, also within a process set.
        name: Name by which the ranks match the operation, as for `allreduce`.
        ignore_name_scope: Whether the name does without the name scope of a graph.
        process_set: The ranks that take part; by default all.

    Returns:
        A new tensor with the values of the root's.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both.
        TypeError: The dtype has no fixed size.
        ValueError: `root_rank` or this rank is not in `process_set`.

    Example:
        >>> hvd.broadcast(tf.constant([3, 4]), root_rank=0).numpy()
        array([3, 4], dtype=int32)
    """
    root_in(members_of(process_set), root_rank, name, process_set)

    def call(full: str | None, arrays: Sequence[Array]) -> list[Array]:
        members = members_of(process_set)
        root = root_in(members, root_rank, full, process_set)
        begun = members.begin(
            "broadcast", full, lambda each: broadcast_array(members, each, arrays[0], root), waits=True
        )
        return [begun()]

    def forward(tensor: Tensor) -> tuple[Tensor, object]:
        full = graph_name(name, [tensor], ignore_name_scope=ignore_name_scope)
        result = run(partial(call, full), [tensor], [tensor.dtype], [tensor.shape])[0]

        def grad(grad: Tensor) -> Tensor:
            # Horovod's: an average, not the sum.
            mean = ReduceArgs(Operator.Average, 1.0, 1.0, process_set).reduce(grad, None)
            return mean if world.rank() == root_rank else tf.zeros_like(mean)

        return result, grad

    return tf.custom_gradient(forward)(tf.convert_to_tensor(tensor))


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Send rows of a tensor to every rank and receive rows from every rank; differentiable.

    Args:
        tensor: Tensor of at least one dimension and any dtype but strings; ranks may differ in the first dimension
            only.
        splits: Number of rows for each rank of the set; rows beyond their sum are not sent. By default all rows, shared
            equally.
        name: Name by which the ranks match the operation, as for `allreduce`.
        ignore_name_scope: Whether the name does without the name scope of a graph.
        process_set: The ranks that take part; by default all.

    Returns:
        The rows from all ranks, in rank order. If `splits` was given, also the number of rows from each rank: a tensor
        of the same dtype.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both.
        TypeError: The dtype has no fixed size.
        ValueError: `splits` does not fit the tensor, or this rank is not in `process_set`.

    Example:
        >>> [part.numpy() for part in hvd.alltoall(tf.constant([1, 2]), splits=[2])]
        [array([1, 2], dtype=int32), array([2], dtype=int32)]
    """
    given = tf.convert_to_tensor(splits) if splits is not None else None
    output, received = _all_to_all(tf.convert_to_tensor(tensor), given, name, ignore_name_scope, process_set)
    return output if given is None else (output, received)


def _all_to_all(
    tensor: Tensor, splits: Tensor | None, name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> tuple[Tensor, Tensor]:
    dtype = tf.int32 if splits is None else splits.dtype

    def call(full: str | None, arrays: Sequence[Array]) -> list[Array]:
        members = members_of(process_set)
        rows = arrays[1].tolist() if len(arrays) > 1 else None
        output: Gathered = members.begin(
            "alltoall", full, lambda each: exchanged(members, each, arrays[0], rows), waits=True
        )()
        return [output.array, np.array(output.rows, dtype.as_numpy_dtype)]

    def forward(tensor: Tensor) -> tuple[tuple[Tensor, Tensor], object]:
        full = graph_name(name, [tensor], ignore_name_scope=ignore_name_scope)
        sent = [tensor] if splits is None else [tensor, splits]
        shape = tf.TensorShape(None) if tensor.shape.rank is None else tf.TensorShape([None, *tensor.shape[1:]])
        output, received = run(partial(call, full), sent, [tensor.dtype, dtype], [shape, tf.TensorShape([None])])

        def grad(grad: Tensor, _: Tensor) -> Tensor:
            back, _received = _all_to_all(tf.convert_to_tensor(grad), received, None, False, process_set)
            # Rows that the splits left out were not sent.
            rest = tf.shape(tensor)[0] - tf.shape(back)[0]
            return tf.pad(back, [[0, rest], *[[0, 0]] * (tensor.shape.rank - 1)]) if splits is not None else back

        return (output, received), grad

    output, received = tf.custom_gradient(forward)(tensor)
    return output, received


def reducescatter(
    tensor: Tensor,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = Operator.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce the tensors of all ranks and return this rank's rows of the result; differentiable.

    Rows are shared as equally as possible; the first ranks have one more.

    Args:
        tensor: Tensor of at least one dimension, with the same shape and dtype on all ranks; dtypes as for `allreduce`.
        device_dense: Device of the result.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        name: Name by which the ranks match the operation, as for `allreduce`.
        process_set: The ranks that take part; by default all.
        ignore_name_scope: Whether the name does without the name scope of a graph.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.

    Returns:
        A new tensor with this rank's rows.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both.
        NotImplementedError: `op` is Adasum.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: The tensor is a scalar, `op` is unknown, or this rank is not in `process_set`.

    Example:
        >>> hvd.reducescatter(tf.ones([4, 2]), op=hvd.Sum).shape
        TensorShape([4, 2])
    """
    args = ReduceArgs(operator_of(op), prescale_factor, postscale_factor, process_set, ignore_name_scope)
    return _scatter([tensor], name, args, compression, device_dense, grouped=False)[0]


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = Operator.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Tensor]:
    """Reduce-scatter several tensors as one operation; differentiable.

    Args:
        tensors: Tensors, each as for `reducescatter`.
        device_dense: Device of the results.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        process_set: The ranks that take part; by default all.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        name: Name by which the ranks match the operation, as for `allreduce`.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both.
        NotImplementedError: `op` is Adasum.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: A tensor is a scalar, `op` is unknown, or this rank is not in `process_set`.
    """
    if not tensors:
        return list(tensors)
    args = ReduceArgs(operator_of(op), prescale_factor, postscale_factor, process_set)
    return _scatter(tensors, name, args, compression, device_dense, grouped=True)


def _scatter(
    tensors: Sequence[Tensor],
    name: str | None,
    args: ReduceArgs,
    compression: type[Compressor],
    device: str,
    *,
    grouped: bool,
) -> list[Tensor]:
    """The gradient is the concatenation of all ranks' gradients (Horovod's: times the number of ranks for a sum)."""

    def forward(*tensors: Tensor) -> tuple[list[Tensor], object]:
        def grad(*grads: Tensor) -> list[Tensor]:
            factor = args.scatter_factor()
            scaled = [grad * tf.cast(factor, grad.dtype) for grad in map(tf.convert_to_tensor, grads)]
            return [allgather(grad, process_set=args.process_set) for grad in scaled]

        return args.scatter(tensors, name, grouped=grouped), grad

    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    with _on(device):
        outputs = tf.custom_gradient(forward)(*(small for small, _ in pairs))
        parts = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        return [compression.decompress(_placed(part, device), pair[1]) for part, pair in zip(parts, pairs, strict=True)]


def join() -> Tensor:
    """Contribute zeros to reductions of other ranks until all have joined: this rank has no more data.

    Sums, averages and all-gathers of the other ranks continue meanwhile; averages still divide by the number of all
    ranks.

    Returns:
        A scalar of dtype int32: the rank that joined last.

    Raises:
        JobError: A rank is gone.

    Example:
        >>> int(hvd.join())
        0
    """
    if eager():
        return tf.constant(process_sets.join(), tf.int32)
    return run(lambda _: [np.array(process_sets.join(), np.int32)], [], [tf.int32], [[]])[0]
