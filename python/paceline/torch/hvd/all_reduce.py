"""All-reduce: combines the tensors of all ranks and returns the result at all ranks."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from paceline.hvd.handles import Handle
from paceline.hvd.operators import operator_of
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.torch.backend.sparse import is_sparse
from paceline.torch.hvd.compression import Compression, Compressor
from paceline.torch.hvd.reducing import AllReduce, GroupedAllReduce, ReduceArgs


def _terms(
    op: int | None, average: bool | None, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> ReduceArgs:
    return ReduceArgs(operator_of(op, average), prescale_factor, postscale_factor, process_set)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce the tensors of all ranks; differentiable.

    Averages and multiples of integers are rounded toward zero.

    Args:
        tensor: Dense or sparse (COO) tensor of any shape and device, with the same shape and dtype on all ranks.
            `paceline.torch.backend.reductions` lists the dtypes.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.

    Returns:
        A new tensor with the shape, dtype and device of `tensor`, equal on all ranks.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: `op` is unknown, or this rank is not in `process_set`.

    Example:
        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum)
        tensor([1., 2.])
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    if is_sparse(tensor):
        return terms.begin(tensor, name, in_place=False, waits=True)()
    small, context = compression.compress(tensor)
    return compression.decompress(AllReduce.apply(small, name, terms), context)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Start an `allreduce` without waiting for it; not differentiable.

    Args:
        tensor: Dense or sparse (COO) tensor of any shape and device, with the same shape and dtype on all ranks.
            `paceline.torch.backend.reductions` lists the dtypes.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns the new tensor.

    Raises:
        TypeError: The dtype has no such reduction.
        ValueError: `op` is unknown, or this rank is not in `process_set`.

    Example:
        >>> handle = hvd.allreduce_async(torch.ones(2), name="loss")
        >>> hvd.synchronize(handle)
        tensor([1., 1.])
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin(tensor, name, in_place=False)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce the tensors of all ranks in place; not differentiable.

    Args:
        tensor: As for `allreduce`; it is overwritten with the result.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.

    Returns:
        `tensor`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: `op` is unknown, or this rank is not in `process_set`.

    Example:
        >>> gradient = torch.ones(2)
        >>> hvd.allreduce_(gradient) is gradient
        True
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin(tensor, name, in_place=True, waits=True)()


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Start an in-place `allreduce_` without waiting for it.

    The tensor must not be used until `synchronize` has returned it.

    Args:
        tensor: As for `allreduce`; it is overwritten with the result.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns `tensor`.

    Raises:
        TypeError: The dtype has no such reduction.
        ValueError: `op` is unknown, or this rank is not in `process_set`.
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin(tensor, name, in_place=True)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce several tensors as one operation; differentiable.

    No tensor is reduced until all ranks have all of them ready.

    Args:
        tensors: One or more dense tensors, each as for `allreduce`.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: `op` is unknown, `tensors` is empty, or this rank is not in `process_set`.

    Example:
        >>> hvd.grouped_allreduce([torch.ones(2), torch.zeros(1)])
        [tensor([1., 1.]), tensor([0.])]
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = cast("tuple[Tensor, ...]", GroupedAllReduce.apply(name, terms, *(small for small, _ in pairs)))
    return [compression.decompress(small, pair[1]) for small, pair in zip(reduced, pairs, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Start a `grouped_allreduce` without waiting for it; not differentiable.

    Args:
        tensors: One or more dense tensors, each as for `allreduce`.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns the list of new tensors.

    Raises:
        TypeError: A dtype has no such reduction.
        ValueError: `op` is unknown, `tensors` is empty, or this rank is not in `process_set`.
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin_group(tensors, name, in_place=False)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce several tensors as one operation, in place; not differentiable.

    Args:
        tensors: One or more dense tensors, each as for `allreduce`; they are overwritten with the results.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.

    Returns:
        `tensors`, as a list.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: `op` is unknown, `tensors` is empty, or this rank is not in `process_set`.
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin_group(tensors, name, in_place=True, waits=True)()


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Start an in-place `grouped_allreduce_` without waiting for it.

    Args:
        tensors: One or more dense tensors, each as for `allreduce`; they are overwritten with the results.
        average: Older form of `op`: `True` for Average, `False` for Sum.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns `tensors` as a list.

    Raises:
        TypeError: A dtype has no such reduction.
        ValueError: `op` is unknown, `tensors` is empty, or this rank is not in `process_set`.
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin_group(tensors, name, in_place=True)
