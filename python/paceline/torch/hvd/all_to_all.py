"""All-to-all: every rank sends some of its rows to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from paceline._core import NamedOperation
from paceline.hvd.handles import Handle, PendingOperation
from paceline.hvd.members import Members
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of
from paceline.torch.backend.buffers import Memory, region
from paceline.torch.hvd.tensors import checked, moved, on_host, tensor_of

Context = Any
"""The values that torch keeps between forward and backward."""
Splits = Tensor | Sequence[int] | None


class Exchanged(NamedTuple):
    """Rows from all ranks in rank order, and the number from each."""

    tensor: Tensor
    received_splits: Tensor


def _pending(members: Members, full: str, tensor: Tensor, splits: Splits) -> PendingOperation[Exchanged]:
    tensor = checked(f"'{full}'", tensor)
    sent = _splits(f"'{full}'", tensor, splits, members.size)
    memory = Memory([tensor], [])
    dtype, more, scale = moved(tensor.dtype)
    dense = memory.read(on_host(tensor[: sum(sent)]))
    operation = members.coordinator.request(
        "all_to_all",
        full,
        inputs=[region(dense, scale)],
        dtype=dtype,
        shape=[*tensor.shape[1:], *more],
        own=sent,
        keep=memory.keep,
    )

    def finish(operation: NamedOperation) -> Exchanged:
        rows = [own[members.rank] if own else 0 for own in operation.own()]
        output = tensor_of(operation.data(), tensor.dtype, [sum(rows), *tensor.shape[1:]]).to(tensor.device)
        if isinstance(splits, Tensor):
            return Exchanged(output, torch.tensor(rows, dtype=splits.dtype, device=splits.device))
        return Exchanged(output, torch.tensor(rows, dtype=torch.int32))

    return PendingOperation(operation, finish)


def _pair(exchanged: Exchanged) -> tuple[Tensor, Tensor]:
    return exchanged.tensor, exchanged.received_splits


def _splits(what: str, tensor: Tensor, splits: Splits, size: int) -> list[int]:
    """Return the number of rows for each rank. Raises ValueError."""
    if tensor.dim() == 0:
        raise ValueError(f"{what}: has no dimension to split; give one row for each rank, or splits")
    rows = tensor.shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(f"{what}: {rows} rows cannot be split equally among {size} ranks; give splits")
        return [rows // size] * size
    given = splits.tolist() if isinstance(splits, Tensor) else [int(rows) for rows in splits]
    if not isinstance(given, list) or len(given) != size or any(not isinstance(n, int) or n < 0 for n in given):
        raise ValueError(f"{what}: splits {given!r:.80}; give {size} whole numbers of rows, one for each rank")
    if sum(given) > rows:
        raise ValueError(f"{what}: splits {given} are {sum(given)} rows, the tensor has {rows}")
    return given


class _AllToAll(torch.autograd.Function):
    """The gradients go back to the ranks that the rows came from."""

    @staticmethod
    def forward(
        ctx: Context, tensor: Tensor, splits: Splits, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        members = members_of(process_set)
        exchanged = members.begin("alltoall", name, lambda full: _pending(members, full, tensor, splits), waits=True)()
        ctx.received, ctx.rows, ctx.process_set = exchanged.received_splits.tolist(), tensor.shape[0], process_set
        ctx.mark_non_differentiable(exchanged.received_splits)
        return exchanged.tensor, exchanged.received_splits

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        members = members_of(ctx.process_set)
        grad, splits = grads[0], ctx.received
        back = members.begin("alltoall", None, lambda full: _pending(members, full, grad, splits), waits=True)().tensor
        # Rows that the splits left out were not sent.
        rest = ctx.rows - back.shape[0]
        return torch.cat([back, back.new_zeros((rest, *back.shape[1:]))]) if rest else back, None, None, None


@overload
def alltoall(
    tensor: Tensor, splits: None = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor: ...
@overload
def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, Tensor]: ...
def alltoall(
    tensor: Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor | tuple[Tensor, Tensor]:
    """Send rows of a tensor to every rank and receive rows from every rank; differentiable.

    Args:
        tensor: Tensor of at least one dimension and any dtype; ranks may differ in the first dimension only.
        splits: Number of rows for each rank of the set; rows beyond their sum are not sent. By default all rows, shared
            equally.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        The rows from all ranks, in rank order. If `splits` was given, also the number of rows from each rank: a tensor
        like `splits`, of dtype int32 if that was a list.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        ValueError: `splits` does not fit the tensor, or this rank is not in `process_set`.

    Example:
        >>> hvd.alltoall(torch.tensor([1, 2]), splits=[2])
        (tensor([1, 2]), tensor([2], dtype=torch.int32))
    """
    output, received = _AllToAll.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[tuple[Tensor, Tensor]]:
    """Start an `alltoall` without waiting for it; not differentiable.

    Args:
        tensor: Tensor of at least one dimension and any dtype; ranks may differ in the first dimension only.
        splits: Number of rows for each rank of the set; rows beyond their sum are not sent. By default all rows, shared
            equally.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)` returns rows and received splits, as in Horovod.

    Raises:
        ValueError: `splits` does not fit the tensor, or this rank is not in `process_set`.
    """
    members = members_of(process_set)
    return members.begin("alltoall", name, lambda full: _pending(members, full, tensor, splits).then(_pair))
