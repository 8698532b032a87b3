"""Reduce-scatter: reduces the tensors of all ranks and gives every rank some rows of the result."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from paceline._core import NamedOperation
from paceline.hvd.handles import Handle, PendingOperation
from paceline.hvd.members import Members
from paceline.hvd.operators import Operator, operator_of
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of
from paceline.torch.backend.buffers import REDUCIBLE, Memory, region
from paceline.torch.hvd.all_gather import allgather, grouped_allgather
from paceline.torch.hvd.compression import Compression, Compressor
from paceline.torch.hvd.operators import combination
from paceline.torch.hvd.tensors import checked, on_host, tensor_of

Context = Any
"""The values that torch keeps between forward and backward."""


@dataclass(frozen=True, slots=True)
class _ReduceScatterArgs:
    op: Operator
    prescale: float
    postscale: float
    process_set: ProcessSet

    def begin(self, tensor: Tensor, name: str | None, *, waits: bool = False) -> Handle[Tensor]:
        members = members_of(self.process_set)
        return members.begin("reducescatter", name, lambda full: self._pending(members, full, tensor), waits=waits)

    def begin_group(self, tensors: Sequence[Tensor], name: str | None, *, waits: bool = False) -> Handle[list[Tensor]]:
        members = members_of(self.process_set)
        return members.begin_group(
            "grouped_reducescatter",
            name,
            tensors,
            lambda full, tensor: self._pending(members, full, tensor),
            waits=waits,
        )

    def factor(self) -> float:
        """Return the factor by which Horovod multiplies the gradient."""
        size = members_of(self.process_set).size if self.op is Operator.Sum else 1
        return self.prescale * self.postscale * size

    def _pending(self, members: Members, full: str, tensor: Tensor) -> PendingOperation[Tensor]:
        what = f"'{full}'"
        tensor = checked(what, tensor)
        if tensor.dim() == 0:
            raise ValueError(f"{what}: has no dimension to scatter; use allreduce")
        reduction = combination(
            what, self.op, tensor.dtype, members.size, prescale=self.prescale, postscale=self.postscale
        )
        memory = Memory([tensor], [])
        dense = reduction.read(memory, on_host(tensor))
        operation = members.coordinator.request(
            "reduce_scatter",
            full,
            inputs=[region(dense)],
            dtype=REDUCIBLE[dense.dtype],
            shape=list(dense.shape),
            op=reduction.op,
            prescale=reduction.prescale,
            postscale=reduction.postscale,
            keep=memory.keep,
        )
        each, more = divmod(tensor.shape[0], members.size)
        rows = each + (members.rank < more)

        def finish(operation: NamedOperation) -> Tensor:
            own = tensor_of(operation.data(), dense.dtype, [rows, *dense.shape[1:]])
            if tensor.is_complex():
                own = torch.view_as_complex(own)
            return own.to(dtype=tensor.dtype, device=tensor.device)

        return PendingOperation(operation, finish)


class _ReduceScatter(torch.autograd.Function):
    """The gradient is the concatenation of all ranks' gradients (Horovod's: times the number of ranks for a sum)."""

    @staticmethod
    def forward(ctx: Context, tensor: Tensor, name: str | None, args: _ReduceScatterArgs) -> Tensor:
        ctx.args = args
        return args.begin(tensor, name, waits=True)()

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, None, None]:
        return allgather(grads[0] * ctx.args.factor(), process_set=ctx.args.process_set), None, None


class _GroupedReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, name: str | None, args: _ReduceScatterArgs, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.args = args
        return tuple(args.begin_group(tensors, name, waits=True)())

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [grad * ctx.args.factor() for grad in grads]
        return None, None, *grouped_allgather(scaled, process_set=ctx.args.process_set)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = Operator.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce the tensors of all ranks and return this rank's rows of the result; differentiable.

    Rows are shared as equally as possible; the first ranks have one more.

    Args:
        tensor: Tensor of at least one dimension, with the same shape and dtype on all ranks; dtypes as for `allreduce`.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        process_set: The ranks that take part; by default all.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.

    Returns:
        A new tensor with this rank's rows.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: The tensor is a scalar, `op` is unknown, or this rank is not in `process_set`.

    Example:
        >>> hvd.reducescatter(torch.ones(4, 2), op=hvd.Sum).shape
        torch.Size([4, 2])
    """
    args = _ReduceScatterArgs(operator_of(op), prescale_factor, postscale_factor, process_set)
    small, context = compression.compress(tensor)
    return compression.decompress(cast(Tensor, _ReduceScatter.apply(small, name, args)), context)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int | None = Operator.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Tensor]:
    """Start a `reducescatter` without waiting for it; not differentiable.

    Args:
        tensor: Tensor of at least one dimension, with the same shape and dtype on all ranks; dtypes as for `allreduce`.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        process_set: The ranks that take part; by default all.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.

    Returns:
        A handle; `hvd.synchronize(handle)` returns the new tensor.

    Raises:
        TypeError: A dtype has no such reduction.
        ValueError: A tensor is a scalar, `op` is unknown, or this rank is not in `process_set`.
    """
    return _ReduceScatterArgs(operator_of(op), prescale_factor, postscale_factor, process_set).begin(tensor, name)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = Operator.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce-scatter several tensors as one operation; differentiable.

    Args:
        tensors: One or more tensors, each as for `reducescatter`.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        compression: Applied before and undone after the operation: `hvd.Compression.none`, `.fp16` or `.bf16`.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        process_set: The ranks that take part; by default all.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        TypeError: The dtype has no such reduction; the message says how to convert it.
        ValueError: `tensors` is empty or has a scalar, `op` is unknown, or this rank is not in `process_set`.
    """
    args = _ReduceScatterArgs(operator_of(op), prescale_factor, postscale_factor, process_set)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = _GroupedReduceScatter.apply(name, args, *(small for small, _ in pairs))
    return [compression.decompress(small, pair[1]) for small, pair in zip(reduced, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int | None = Operator.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[Tensor]]:
    """Start a `grouped_reducescatter` without waiting for it; not differentiable.

    Args:
        tensors: One or more tensors, each as for `reducescatter`.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        op: `hvd.Average` (the default), `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        process_set: The ranks that take part; by default all.
        prescale_factor: Factor by which each tensor is multiplied before the reduction.
        postscale_factor: Factor by which the result is multiplied.

    Returns:
        A handle; `hvd.synchronize(handle)` returns the list of new tensors.

    Raises:
        TypeError: A dtype has no such reduction.
        ValueError: A tensor is a scalar, `op` is unknown, or this rank is not in `process_set`.
    """
    return _ReduceScatterArgs(operator_of(op), prescale_factor, postscale_factor, process_set).begin_group(
        tensors, name
    )
