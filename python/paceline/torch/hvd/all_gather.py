"""All-gather: concatenates the rows of all ranks in rank order and returns them at all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from paceline.hvd.handles import Handle
from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of
from paceline.torch.hvd.gathering import Gathered, gathered
from paceline.torch.hvd.reducing import ReduceArgs

Context = Any
"""The values that torch keeps between forward and backward."""


def _own(grad: Tensor, rows: list[int], rank: int, shape: torch.Size) -> Tensor:
    """This rank's rows of the gathered tensor."""
    return grad.narrow(0, sum(rows[:rank]), rows[rank]).reshape(shape)


def _rows(received: Gathered) -> Tensor:
    return received.tensor


class _AllGather(torch.autograd.Function):
    """The gradient is this rank's rows of the average of the gradients (Horovod's: an average, not the sum)."""

    @staticmethod
    def forward(ctx: Context, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.shape, ctx.process_set = tensor.shape, process_set
        members = members_of(process_set)
        received = members.begin("allgather", name, lambda full: gathered(members, full, tensor), waits=True)()
        ctx.rows = received.rows
        return received.tensor

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, None, None]:
        terms = ReduceArgs(Operator.Average, 1.0, 1.0, ctx.process_set)
        mean = terms.begin(grads[0], None, in_place=False, waits=True)()
        return _own(mean, ctx.rows, members_of(ctx.process_set).rank, ctx.shape), None, None


class _GroupedAllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.shapes, ctx.process_set = [tensor.shape for tensor in tensors], process_set
        members = members_of(process_set)
        received = members.begin_group("grouped_allgather", name, tensors, partial(gathered, members), waits=True)()
        ctx.rows = [each.rows for each in received]
        return tuple(each.tensor for each in received)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rank = members_of(ctx.process_set).rank
        terms = ReduceArgs(Operator.Average, 1.0, 1.0, ctx.process_set)
        means = terms.begin_group(grads, None, in_place=False, waits=True)()
        parts = zip(means, ctx.rows, ctx.shapes, strict=True)
        return None, None, *(_own(mean, rows, rank, shape) for mean, rows, shape in parts)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Concatenate the tensors of all ranks along the first dimension; differentiable.

    Args:
        tensor: Tensor of any dtype and device. Ranks may differ in the first dimension only; a scalar counts as one
            row.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        A new tensor with the rows of all ranks, in rank order.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        ValueError: This rank is not in `process_set`.

    Example:
        >>> hvd.allgather(torch.tensor([[1, 2]]))
        tensor([[1, 2]])
    """
    return cast(Tensor, _AllGather.apply(tensor, name, process_set))


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Start an `allgather` without waiting for it; not differentiable.

    Args:
        tensor: Tensor of any dtype and device. Ranks may differ in the first dimension only; a scalar counts as one
            row.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns the new tensor.

    Raises:
        ValueError: This rank is not in `process_set`.
    """
    members = members_of(process_set)
    return members.begin("allgather", name, lambda full: gathered(members, full, tensor).then(_rows))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """All-gather several tensors as one operation; differentiable.

    Args:
        tensors: One or more tensors, each as for `allgather`.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        ValueError: `tensors` is empty, or this rank is not in `process_set`.
    """
    return list(_GroupedAllGather.apply(name, process_set, *tensors))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[Tensor]]:
    """Start a `grouped_allgather` without waiting for it; not differentiable.

    Args:
        tensors: One or more tensors, each as for `allgather`.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns the list of new tensors.

    Raises:
        ValueError: `tensors` is empty, or this rank is not in `process_set`.
    """
    members = members_of(process_set)
    return members.begin_group(
        "grouped_allgather", name, tensors, lambda full, tensor: gathered(members, full, tensor).then(_rows)
    )
