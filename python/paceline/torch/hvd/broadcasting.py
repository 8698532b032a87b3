"""Broadcast: copies one rank's tensor to all ranks."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from paceline._core import NamedOperation
from paceline.hvd.handles import Handle, PendingOperation
from paceline.hvd.members import Members
from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of, rank, root_in
from paceline.torch.backend import on_device
from paceline.torch.backend.buffers import Memory, dense_copy, region
from paceline.torch.hvd.reducing import ReduceArgs
from paceline.torch.hvd.tensors import checked, moved, reachable, take, where

Context = Any
"""The values that torch keeps between forward and backward."""


def _begin(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, in_place: bool, waits: bool = False
) -> Handle[Tensor]:
    members = members_of(process_set)
    root_in(members, root_rank, name, process_set)
    return members.begin(
        "broadcast", name, lambda full: _pending(members, full, tensor, root_rank, in_place=in_place), waits=waits
    )


def _pending(
    members: Members, full: str, tensor: Tensor, root_rank: int, *, in_place: bool
) -> PendingOperation[Tensor]:
    tensor = checked(f"'{full}'", tensor)
    root = members.ranks.index(root_rank)
    own = members.rank == root
    values = reachable(tensor)
    if values is tensor and not in_place:
        values = dense_copy(tensor) if own else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    memory = Memory([tensor], tensor)
    dense = memory.read(values) if own else memory.write(values)
    place = on_device.place_of([dense])
    dtype, more, scale = moved(tensor.dtype)
    operation = members.coordinator.request(
        "broadcast",
        full,
        inputs=[region(dense, scale)],
        dtype=dtype,
        shape=[*tensor.shape, *more],
        root=root,
        keep=memory.keep,
        **where(place),
    )

    def finish(done: NamedOperation) -> Tensor:
        take(done, place)
        if memory.back:
            memory.copy_back()
        if not in_place:
            return values.to(tensor.device)
        if values is not tensor and not own:
            with torch.no_grad():
                tensor.copy_(values)
        return tensor

    return PendingOperation(operation, finish)


class _Broadcast(torch.autograd.Function):
    """The gradient is the average of the gradients at the root, zero elsewhere (Horovod's: an average, not the sum)."""

    @staticmethod
    def forward(ctx: Context, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return _begin(tensor, root_rank, name, process_set, in_place=False, waits=True)()

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        terms = ReduceArgs(Operator.Average, 1.0, 1.0, ctx.process_set)
        mean = terms.begin(grads[0], None, in_place=False, waits=True)()
        return mean if rank() == ctx.root_rank else torch.zeros_like(mean), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Copy the root's tensor to all ranks; differentiable.

    Args:
        tensor: Tensor of any dtype and device, with the same shape and dtype on all ranks.
        root_rank: Rank whose tensor is copied: a rank of the job, also within a process set.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        A new tensor with the values of the root's.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        ValueError: `root_rank` or this rank is not in `process_set`.

    Example:
        >>> hvd.broadcast(torch.tensor([3, 4]), root_rank=0)
        tensor([3, 4])
    """
    return cast(Tensor, _Broadcast.apply(tensor, root_rank, name, process_set))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Start a `broadcast` without waiting for it; not differentiable.

    Args:
        tensor: Tensor of any dtype and device, with the same shape and dtype on all ranks.
        root_rank: Rank whose tensor is copied: a rank of the job, also within a process set.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns the new tensor.

    Raises:
        ValueError: `root_rank` or this rank is not in `process_set`.
    """
    return _begin(tensor, root_rank, name, process_set, in_place=False)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Copy the root's tensor to all ranks, in place; not differentiable.

    Args:
        tensor: As for `broadcast`; it is overwritten except at the root.
        root_rank: Rank whose tensor is copied: a rank of the job, also within a process set.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        `tensor`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        ValueError: `root_rank` or this rank is not in `process_set`.
    """
    return _begin(tensor, root_rank, name, process_set, in_place=True, waits=True)()


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Start an in-place `broadcast_` without waiting for it.

    The tensor must not be used until `synchronize` has returned it.

    Args:
        tensor: As for `broadcast`; it is overwritten except at the root.
        root_rank: Rank whose tensor is copied: a rank of the job, also within a process set.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns `tensor`.

    Raises:
        ValueError: `root_rank` or this rank is not in `process_set`.
    """
    return _begin(tensor, root_rank, name, process_set, in_place=True)
