"""The all-reduce of a step's gradients, for tapes and optimizers.

Each gradient is submitted by its name as soon as it has been computed, and the step waits for all of them once: ranks
may compute them in any order, and communication overlaps the rest of the backward pass. In a graph, gradients are
submitted from the last variable to the first, the order in which a backward pass computes them, a few at a time.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.errors import JobError
from paceline.hvd import timeline
from paceline.hvd.arrays import Array, gathered, reduced
from paceline.hvd.handles import Handle
from paceline.hvd.members import Members
from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet
from paceline.hvd.world import members_of
from paceline.job.elastic_member import membership
from paceline.tensorflow.compression import Compressor
from paceline.tensorflow.execution import Tensor, eager, on_host, to_tensor, told_as_tensorflow, traced, view
from paceline.tensorflow.operations import check_slices

Variable = Any
"""A `tf.Variable`, a variable of Keras, or a tensor that a tape watches."""
Gradient = Any
"""A tensor, `tf.IndexedSlices`, or None."""
Groups = int | Sequence[Sequence[Variable]] | None
CHUNK = 1 << 20
"""Bytes of gradients that one node of a graph submits, at least: each node takes Python's lock."""

_steps: weakref.WeakKeyDictionary[Members, dict[tuple[str, ...], str]] = weakref.WeakKeyDictionary()
"""The coordinator's names of optimizers, by the names of their gradients."""


def identity(variable: Variable) -> int:
    """Return what tells a variable from others; one of Keras is the same as its `tf.Variable`."""
    return id(getattr(variable, "_value", variable))


@dataclass(frozen=True)
class _Item:
    """A tensor to exchange: a dense gradient, or the values or indices of a sparse one."""

    name: str
    tensor: Tensor
    how: str
    """dense, values or indices"""
    group: int
    """Items of one group start together."""


@dataclass
class _Step:
    """The operations of one step that are in flight."""

    op: Operator
    prescale: float
    postscale: float
    process_set: ProcessSet
    names: tuple[str, ...]
    """Of the dense gradients."""
    handles: dict[str, Handle[Array]] = field(default_factory=dict)
    began: int = 0
    """When the first gradient was submitted, if a timeline is recorded."""

    def submit(self, items: Sequence[tuple[str, str]], arrays: Sequence[Array], *, in_place: bool = False) -> None:
        """Start operations of one group, given by their name and kind."""
        members = members_of(self.process_set)
        if not self.handles:
            self.began = timeline.moment()
        for before in (self.handles.pop(name, None) for name, _ in items):
            if before is not None:  # The last step was cut short.
                before.settle()
        dense = [(name, array) for (name, how), array in zip(items, arrays, strict=True) if how == "dense"]
        if dense:
            pending = []
            for name, array in dense:
                with members.naming("allreduce", name) as full:
                    begun = reduced(members, full, array, self.op, self.prescale, self.postscale, in_place=in_place)
                pending.append((name, begun))
            operations = [begun.operation for _, begun in pending]
            members.coordinator.submit_step(self._optimizer(members), operations)
            for name, begun in pending:
                self.handles[name] = Handle(name, [begun.operation], partial(begun.finish, begun.operation))
        for (name, how), array in zip(items, arrays, strict=True):
            if how != "dense":
                self.handles[name] = members.begin("allgather", name, partial(self._rows, members, array, how))

    def _rows(self, members: Members, array: Array, how: str, full: str) -> Any:  # noqa: ANN401
        averages = how == "values" and self.op is Operator.Average
        return gathered(members, full, array).then(
            lambda rows: rows.array / np.asarray(members.size, array.dtype) if averages else rows.array
        )

    def _optimizer(self, members: Members) -> str:
        known = _steps.setdefault(members, {})
        if self.names not in known:
            # Gradients are listed from the last variable to the first.
            members.create(reversed(self.names))
            known[self.names] = members.optimizer(self.names)
        return known[self.names]

    def finish(self, names: Sequence[str]) -> list[Array]:
        """Wait for all, even if some fail, so that this rank and the others are in the same step."""
        members = members_of(self.process_set)
        began = timeline.moment()
        failed: JobError | None = None
        if self.names:
            members.coordinator.flush(self._optimizer(members))
        finished: list[Array] = []
        for name in names:
            try:
                array = self.handles.pop(name).take()
            except JobError as error:
                failed = failed or error
            else:
                assert array is not None
                finished.append(array)
        try:
            if self.names:
                members.coordinator.ended(self._optimizer(members))
        except JobError as error:
            failed = failed or error
        if failed is not None:
            raise failed
        # The doctor takes for backward what lies between a forward pass and the optimizer.
        timeline.span("forward", self.began, self.began + 1)
        timeline.waited(began)
        return finished


class Reducer:
    """Reduces lists of gradients."""

    def __init__(
        self,
        label: str,
        *,
        op: Operator,
        compression: type[Compressor],
        sparse_as_dense: bool,
        predivide: float,
        groups: Groups,
        process_set: ProcessSet,
        scale_local: bool,
    ) -> None:
        """`label` begins the names of its operations."""
        self.label, self.op, self.compression = label, op, compression
        self.sparse_as_dense, self.predivide, self.groups = sparse_as_dense, predivide, groups
        self.process_set, self.scale_local = process_set, scale_local
        self._local: dict[int, Variable] = {}

    def register_local(self, variable: Variable) -> None:
        """Leave the gradients of a variable to this rank."""
        self._local[identity(variable)] = variable

    def is_local(self, variable: Variable) -> bool:
        """Return whether a variable's gradients are left to this rank."""
        return identity(variable) in self._local

    def alone(self) -> bool:
        """Return whether there are no other ranks to reduce with, which may change in an elastic job."""
        return membership() is None and not (self.process_set.included() and len(self.process_set.ranks) > 1)

    def __call__(self, grads: Sequence[Gradient], variables: Sequence[Variable]) -> list[Gradient]:
        """Return the gradients reduced, those of local variables divided by the number of ranks."""
        gradients = list(grads)
        shared = [place for place, one in enumerate(variables) if not self.is_local(one)]
        if not self.alone():
            reduced_grads = self._reduce([gradients[place] for place in shared], [variables[place] for place in shared])
            for place, grad in zip(shared, reduced_grads, strict=True):
                gradients[place] = grad
        if self.scale_local and self._local and self.process_set.included():
            size = len(self.process_set.ranks)
            for place, variable in enumerate(variables):
                if self.is_local(variable) and gradients[place] is not None:
                    gradients[place] = _divided(gradients[place], size)
        return gradients

    def _reduce(self, grads: list[Gradient], variables: Sequence[Variable]) -> list[Gradient]:
        if self.sparse_as_dense:
            grads = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in grads]
        factors = (1.0 / self.predivide, self.predivide) if self.op is Operator.Average else (1.0, 1.0)
        prefix = self.prefix(grads)
        items: list[_Item] = []
        contexts: dict[int, Any] = {}
        grouped = self._grouped(grads, variables)
        for place in sorted(grouped, reverse=True):
            grad, name = grads[place], f"{prefix}/{place}{_readable_name(variables[place])}"
            if isinstance(grad, tf.IndexedSlices):
                check_slices(self.op, 1.0, 1.0)
                items.append(_Item(f"{name}.values", grad.values, "values", grouped[place]))
                items.append(_Item(f"{name}.indices", grad.indices, "indices", grouped[place]))
            else:
                small, contexts[place] = self.compression.compress(tf.convert_to_tensor(grad))
                items.append(_Item(name, small, "dense", grouped[place]))
        if not items:
            return grads
        dense = tuple(item.name for item in items if item.how == "dense")
        step = _Step(self.op, *factors, self.process_set, dense)
        tensors = iter(_exchanged(step, items))
        for place in sorted(grouped, reverse=True):
            if isinstance(grads[place], tf.IndexedSlices):
                values, indices = next(tensors), next(tensors)
                grads[place] = tf.IndexedSlices(values, indices, dense_shape=grads[place].dense_shape)
            else:
                grads[place] = self.compression.decompress(next(tensors), contexts[place])
        return grads

    def prefix(self, grads: Sequence[Gradient]) -> str:
        """Return what tells these gradients from those of another model: the same on all ranks."""
        shapes = repr([(list(one.shape), one.dtype.name) for one in grads if isinstance(one, tf.Tensor)])
        prefix = f"{self.label}.{hashlib.blake2s(shapes.encode(), digest_size=3).hexdigest()}"
        if eager():
            return prefix
        with tf.compat.v1.name_scope(None):
            return str(tf.compat.v1.get_default_graph().unique_name(prefix))

    def _grouped(self, grads: Sequence[Gradient], variables: Sequence[Variable]) -> dict[int, int]:
        """Return the group of each gradient that exists, by its place."""
        places = [place for place, grad in enumerate(grads) if grad is not None]
        if self.groups is None:
            return {place: place for place in places}
        if isinstance(self.groups, int):
            each, more = divmod(len(places), self.groups)
            ends = [each * count + min(count, more) for count in range(1, self.groups + 1)]
            return {
                place: next(group for group, end in enumerate(ends) if index < end)
                for index, place in enumerate(places)
            }
        named = {identity(one): number for number, group in enumerate(self.groups) for one in group}
        return {place: named.get(identity(variables[place]), len(self.groups) + place) for place in places}


def _readable_name(variable: Variable) -> str:
    """Return a variable's name for people, without the numbers by which Keras tells layers apart: ranks may differ."""
    name = getattr(variable, "path", None)
    if name is None:
        try:
            name = variable.name
        except AttributeError:  # An eager tensor.
            return ""
    return "." + re.sub(r"_\d+(?=/|$)", "", str(name).split(":")[0])


def _divided(grad: Gradient, size: int) -> Gradient:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values / tf.cast(size, grad.values.dtype), grad.indices, grad.dense_shape)
    return grad / tf.cast(size, grad.dtype)


def _exchanged(step: _Step, items: Sequence[_Item]) -> list[Tensor]:
    """Return the results of all items, in their order."""
    names = [item.name for item in items]
    if eager():
        with told_as_tensorflow():
            return _exchanged_now(step, items)
    tickets: list[Tensor] = []
    for chunk in _chunks(items):
        submit = _submitting(step, [(item.name, item.how) for item in chunk])
        dense = [(item.name, item.tensor) for item in chunk if item.how == "dense"]
        tickets += traced(submit, [item.tensor for item in chunk], [tf.int32], [[]], reduces=dense)
    shapes = [
        item.tensor.shape if item.how == "dense" else tf.TensorShape([None, *item.tensor.shape[1:]]) for item in items
    ]
    dtypes = [item.tensor.dtype for item in items]
    summed = [item.name for item in items if item.how == "dense"]
    return traced(lambda _: step.finish(names), tickets, dtypes, shapes, awaits=summed)


def _exchanged_now(step: _Step, items: Sequence[_Item]) -> list[Tensor]:
    names = [item.name for item in items]
    whole: dict[str, tuple[Tensor, Array]] = {}
    for chunk in _chunks(items, grouped_only=True):
        copies = [on_host(item.tensor, copy=True) for item in chunk]
        arrays = [view(copy) for copy in copies]
        step.submit([(item.name, item.how) for item in chunk], arrays, in_place=True)
        whole.update({item.name: pair for item, pair in zip(chunk, zip(copies, arrays, strict=True), strict=True)})
    exchanged = step.finish(names)
    # What was reduced in place is a tensor already.
    return [
        whole[name][0] if array is whole[name][1] else to_tensor(array)
        for name, array in zip(names, exchanged, strict=True)
    ]


def _submitting(step: _Step, items: Sequence[tuple[str, str]]) -> Callable[[list[Array]], list[Array]]:
    def submit(arrays: list[Array]) -> list[Array]:
        step.submit(items, arrays)
        return [np.array(len(items), np.int32)]

    return submit


def _chunks(items: Iterable[_Item], *, grouped_only: bool = False) -> Iterator[list[_Item]]:
    """Yield items that are submitted together: whole groups, of CHUNK bytes or more unless `grouped_only`."""
    by_group: dict[int, list[_Item]] = {}
    for item in items:
        by_group.setdefault(item.group, []).append(item)
    chunk: list[_Item] = []
    size = 0
    for several in by_group.values():
        chunk += several
        size += sum((item.tensor.shape.num_elements() or 0) * item.tensor.dtype.size for item in several)
        if grouped_only or size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
