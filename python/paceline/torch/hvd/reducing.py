"""The all-reduce of a tensor, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline._core import NamedOperation
from paceline.hvd.handles import Handle, PendingOperation
from paceline.hvd.members import Members, Step
from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet
from paceline.hvd.world import members_of
from paceline.torch.backend import on_device
from paceline.torch.backend.buffers import REDUCIBLE, Memory, dense_copy, region
from paceline.torch.backend.sparse import is_sparse
from paceline.torch.hvd.operators import combination
from paceline.torch.hvd.sparse import sparse_allreduce
from paceline.torch.hvd.tensors import checked, reachable, take, where

Context = Any
"""The values that torch keeps between forward and backward."""


@dataclass(frozen=True, slots=True)
class ReduceArgs:
    """The arguments of a call other than tensor and name."""

    op: Operator
    prescale: float
    postscale: float
    process_set: ProcessSet

    def begin(
        self, tensor: Tensor, name: str | None, *, in_place: bool, waits: bool = False, step: Step | None = None
    ) -> Handle[Tensor]:
        """Start to reduce one tensor."""
        members = members_of(self.process_set)
        if is_sparse(tensor):
            return sparse_allreduce(
                members, tensor, name, self.op, self.prescale * self.postscale, in_place=in_place, waits=waits
            )
        return members.begin(
            "allreduce",
            name,
            lambda full: self._pending(members, full, tensor, in_place=in_place),
            waits=waits,
            step=step,
        )

    def begin_group(
        self,
        tensors: Sequence[Tensor],
        name: str | None,
        *,
        in_place: bool,
        waits: bool = False,
        step: Step | None = None,
    ) -> Handle[list[Tensor]]:
        """Start to reduce several tensors together."""
        members = members_of(self.process_set)
        return members.begin_group(
            "grouped_allreduce",
            name,
            tensors,
            lambda full, tensor: self._pending(members, full, tensor, in_place=in_place),
            waits=waits,
            step=step,
        )

    def _pending(self, members: Members, full: str, tensor: Tensor, *, in_place: bool) -> PendingOperation[Tensor]:
        what = f"'{full}'"
        tensor = checked(what, tensor)
        values = reachable(tensor)
        if values is tensor and not in_place:
            values = dense_copy(tensor)
        reduction = combination(
            what, self.op, tensor.dtype, members.size, prescale=self.prescale, postscale=self.postscale
        )
        memory = Memory([tensor], tensor)
        dense = reduction.update(memory, values)
        place = on_device.place_of([dense])
        operation = members.coordinator.request(
            "all_reduce",
            full,
            inputs=[region(dense)],
            dtype=REDUCIBLE[dense.dtype],
            shape=list(dense.shape),
            op=reduction.op,
            prescale=reduction.prescale,
            postscale=reduction.postscale,
            keep=memory.keep,
            **where(place),
        )

        def finish(done: NamedOperation) -> Tensor:
            take(done, place)
            if memory.back:
                memory.copy_back()
            if not in_place:
                return values.to(tensor.device)
            if values is not tensor:
                with torch.no_grad():
                    tensor.copy_(values)
            return tensor

        return PendingOperation(operation, finish)


class AllReduce(torch.autograd.Function):
    """The gradient of an all-reduce is the same all-reduce of the gradients."""

    @staticmethod
    def forward(ctx: Context, tensor: Tensor, name: str | None, terms: ReduceArgs) -> Tensor:
        """Return the reduced tensor as a new one."""
        ctx.terms = terms
        return terms.begin(tensor, name, in_place=False, waits=True)()

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the tensor."""
        return AllReduce.apply(grads[0], None, ctx.terms), None, None


class GroupedAllReduce(torch.autograd.Function):
    """Does the same for several tensors, which are reduced together."""

    @staticmethod
    def forward(ctx: Context, name: str | None, terms: ReduceArgs, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the reduced tensors as new ones."""
        ctx.terms = terms
        return tuple(terms.begin_group(tensors, name, in_place=False, waits=True)())

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors."""
        return None, None, *GroupedAllReduce.apply(None, ctx.terms, *grads)
