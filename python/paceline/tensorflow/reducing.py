"""The all-reduce and the reduce-scatter of tensors, eager and in graphs, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from paceline.hvd.arrays import Array, reduced, scattered
from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet
from paceline.hvd.world import members_of
from paceline.tensorflow.execution import (
    Tensor,
    eager,
    graph_name,
    on_host,
    run,
    to_tensor,
    told_as_tensorflow,
    traced,
    view,
)


@dataclass(frozen=True)
class ReduceArgs:
    """The arguments of a call other than tensors and name."""

    op: Operator
    prescale: float
    postscale: float
    process_set: ProcessSet
    ignore_name_scope: bool = False

    def reduce(self, tensor: Tensor, name: str | None) -> Tensor:
        """Return the all-reduced tensor."""
        full = graph_name(name, [tensor], ignore_name_scope=self.ignore_name_scope)
        if not eager():
            assert full is not None  # In graphs, every operation is named.
            return traced(
                lambda arrays: [self._wait(full, arrays[0])],
                [tensor],
                [tensor.dtype],
                [tensor.shape],
                reduces=[(full, tensor)],
                awaits=[full],
            )[0]
        copy = on_host(tensor, copy=True)
        own = view(copy)
        with told_as_tensorflow():
            reduced = self._wait(full, own, in_place=True)
        return copy if reduced is own else to_tensor(reduced)

    def _wait(self, name: str | None, array: Array, *, in_place: bool = False) -> Array:
        members = members_of(self.process_set)

        return members.begin(
            "allreduce",
            name,
            lambda full: reduced(members, full, array, self.op, self.prescale, self.postscale, in_place=in_place),
            waits=True,
        )()

    def reduce_group(self, tensors: Sequence[Tensor], name: str | None) -> list[Tensor]:
        """Return the tensors all-reduced as one operation."""
        full = graph_name(name, tensors, ignore_name_scope=self.ignore_name_scope)
        dtypes, shapes = [tensor.dtype for tensor in tensors], [tensor.shape for tensor in tensors]
        call = partial(self._wait_group, full)
        if eager():
            return run(call, tensors, dtypes, shapes)
        names = [f"{full}_{index}of{len(tensors)}" for index in range(1, len(tensors) + 1)]
        reduces = list(zip(names, tensors, strict=True))
        return traced(call, tensors, dtypes, shapes, reduces=reduces, awaits=names)

    def _wait_group(self, name: str | None, arrays: Sequence[Array]) -> list[Array]:
        members = members_of(self.process_set)

        return members.begin_group(
            "grouped_allreduce",
            name,
            arrays,
            lambda full, array: reduced(members, full, array, self.op, self.prescale, self.postscale),
            waits=True,
        )()

    def scatter(self, tensors: Sequence[Tensor], name: str | None, *, grouped: bool) -> list[Tensor]:
        """Return this rank's rows of the reduced tensors."""
        full = graph_name(name, tensors, ignore_name_scope=self.ignore_name_scope)
        shapes = [_rows_unknown(tensor) for tensor in tensors]
        call = partial(self._scatter_now, full, grouped=grouped)
        return run(call, tensors, [tensor.dtype for tensor in tensors], shapes)

    def _scatter_now(self, name: str | None, arrays: Sequence[Array], *, grouped: bool) -> list[Array]:
        members = members_of(self.process_set)
        make = partial(_scatter, members, args=self)
        if grouped:
            return members.begin_group("grouped_reducescatter", name, arrays, make, waits=True)()
        return [members.begin("reducescatter", name, lambda full: make(full, arrays[0]), waits=True)()]

    def scatter_factor(self) -> float:
        """Return the factor by which Horovod multiplies the gradient of a reduce-scatter."""
        size = members_of(self.process_set).size if self.op is Operator.Sum else 1
        return self.prescale * self.postscale * size


def _scatter(members, full, array, args):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    return scattered(members, full, array, args.op, args.prescale, args.postscale)


def _rows_unknown(tensor: Tensor) -> Tensor:
    shape = tensor.shape
    return shape if shape.rank is None or shape.rank == 0 else tf.TensorShape([None, *shape[1:]])


def differentiable_reduce(args: ReduceArgs, tensor: Tensor, name: str | None) -> Tensor:
    """All-reduce; the gradient is the same all-reduce of the gradients."""

    def forward(tensor: Tensor) -> tuple[Tensor, object]:
        return args.reduce(tensor, name), lambda grad: differentiable_reduce(args, grad, None)

    return tf.custom_gradient(forward)(tensor)


def differentiable_group(args: ReduceArgs, tensors: Sequence[Tensor], name: str | None) -> list[Tensor]:
    """Do the same for several tensors, which are reduced together."""

    def forward(*tensors: Tensor) -> tuple[list[Tensor], object]:
        return args.reduce_group(tensors, name), lambda *grads: differentiable_group(args, grads, None)

    return list(tf.custom_gradient(forward)(*tensors))
