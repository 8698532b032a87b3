"""Gradients between backward and step: computed, in flight, or not computed on this rank."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from paceline.errors import JobError
from paceline.hvd.handles import Handle
from paceline.hvd.members import Members, Step
from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet
from paceline.hvd.world import members_of
from paceline.torch.hvd.compression import Compressor
from paceline.torch.hvd.reducing import ReduceArgs


@dataclass(slots=True)
class _Reduced:
    """The gradient of a parameter, and the compressor's context."""

    parameter: Tensor
    grad: Tensor
    context: torch.dtype | None = None
    version: int = 0
    """torch's version counter of the gradient when it was sent."""


@dataclass(slots=True)
class PendingGradient:
    """Gradients in flight together."""

    handle: Handle[Tensor] | Handle[list[Tensor]]
    reduced: list[_Reduced]
    settled: bool = False


class Gradients:
    """The gradients of an optimizer's parameters between backward and step."""

    def __init__(
        self,
        names: dict[Tensor, str],
        *,
        compression: type[Compressor],
        op: Operator,
        factors: tuple[float, float],
        sparse_as_dense: bool,
        process_set: ProcessSet,
        passes: int,
    ) -> None:
        """`factors` multiply gradients before and after the reduction; a gradient takes `passes` backward passes."""
        self.names, self.process_set, self.passes = names, process_set, passes
        self._compression, self._op, self._sparse_as_dense = compression, op, sparse_as_dense
        self._terms = ReduceArgs(op, *factors, process_set)
        self._groups: dict[Tensor, tuple[Tensor, ...]] = {}
        self._left: dict[Tensor, int] = {}
        """Backward passes that each watched parameter still needs."""
        self._flying: dict[Tensor, list[PendingGradient]] = {}
        """By parameter; for a group, by its first one."""
        self._sparse: dict[Tensor, int] = {}
        """Sparse dimensions of gradients that were sparse once: a missing one is then sparse, too."""
        self._refuse: Callable[[Tensor, str], None] | None = None
        self._members: Members | None = None
        self._optimizer = ""
        self._taken = False
        """Whether gradients are reduced at all."""

    def enter(self, *, planned: bool) -> None:
        """Enter a world. `planned`: the order of gradients may be planned, because each step waits for all."""
        self._taken = True
        if self.process_set.included():
            members_of(self.process_set).create(self.names.values())
        if planned:
            self._members = members_of(self.process_set)
            self._optimizer = self._members.optimizer(self.names.values())

    def leave(self) -> None:
        """Leave a world that has ended, dropping operations in flight; until `enter`, gradients stay local."""
        self._land(self.passes)
        self._taken, self._members, self._optimizer = False, None, ""

    def watch(self, parameter: Tensor) -> None:
        """Reduce the parameter's gradient from now on as soon as backward has computed it."""
        if parameter in self._left:
            return
        self._left[parameter] = self.passes
        mine = weakref.ref(self)

        def computed(parameter: Tensor) -> None:
            gradients = mine()
            if gradients is not None:
                gradients._computed(parameter)

        parameter.register_post_accumulate_grad_hook(computed)  # type: ignore[no-untyped-call]

    def watches(self, parameter: Tensor) -> bool:
        """Return whether the parameter's gradient is reduced."""
        return parameter in self._left

    def group(self, groups: Iterable[tuple[Tensor, ...]]) -> None:
        """Reduce the parameters of each group together."""
        self._groups = {parameter: group for group in groups for parameter in group}

    def restart(self, passes: int) -> None:
        """Set the number of backward passes per gradient. Waits for operations in flight, and drops the sums."""
        flights = self._land(passes)
        if flights:
            self._wait([flight.handle.settle for flight in flights])

    def _land(self, passes: int) -> list[PendingGradient]:
        """Return the operations in flight, and clear them."""
        flights = [flight for several in self._flying.values() for flight in several]
        self.passes = passes
        self._flying.clear()
        self._left = dict.fromkeys(self._left, passes)
        return flights

    def _wait(self, waits: Iterable[Callable[[], None]]) -> None:
        """End the step: wait for all, even if some fail, so that this rank and the others are in the same step."""
        if self._members is not None:
            self._members.coordinator.flush(self._optimizer)
        failed: JobError | None = None
        for wait in waits:
            try:
                wait()
            except JobError as error:
                failed = failed or error
        try:
            if self._members is not None:
                self._members.coordinator.ended(self._optimizer)
        except JobError as error:
            failed = failed or error
        if failed is not None:
            raise failed

    def begun(self) -> bool:
        """Return whether backward has computed gradients that nothing has waited for yet."""
        return bool(self._flying) or any(left != self.passes for left in self._left.values())

    def _computed(self, parameter: Tensor) -> None:
        if not self._taken:
            return
        if self._refuse is not None:
            self._refuse(parameter, self.name(parameter))
        if self._left[parameter] <= 0:
            raise AssertionError(
                f"the gradient of '{self.name(parameter)}' was computed more than {self.passes} times before step(); "
                "increase backward_passes_per_step to accumulate gradients on each rank"
            )
        self._left[parameter] -= 1
        group = self._groups.get(parameter, (parameter,))
        if all(self._left[member] == 0 for member in group if needed(member)):
            self._begin(group)

    def finish(self, parameters: Iterable[Tensor]) -> None:
        """Reduce the remaining gradients, missing ones as zeros, and wait for all; they are then in `grad`.

        Raises JobError naming tensor and ranks.
        """
        for parameter in parameters:
            group = self._groups.get(parameter, (parameter,))
            if group[0] not in self._flying:
                self._begin(group, late=True)
        self._wait([partial(self.settle, flight) for flight in self._land(self.passes)])

    def release(self, parameters: Sequence[Tensor]) -> dict[Tensor, list[PendingGradient]]:
        """Reduce the remaining gradients, missing ones as zeros, and return the pending operations."""
        for flight in (flight for flights in self._flying.values() for flight in flights):
            self._check_unchanged(flight)
        pending: dict[Tensor, list[PendingGradient]] = {}
        for parameter in parameters:
            group = self._groups.get(parameter, (parameter,))
            if group[0] not in self._flying:
                self._begin(group)
            pending[parameter] = self._flying[group[0]]
        self._land(self.passes)
        return pending

    def _check_unchanged(self, flight: PendingGradient) -> None:
        """Raise RuntimeError if a gradient was changed after it was sent, which its sum would not have."""
        for reduced in flight.reduced:
            if reduced.grad._version != reduced.version:
                raise RuntimeError(
                    f"the gradient of '{self.name(reduced.parameter)}' was changed after it was sent, as clipping and "
                    "GradScaler do; call optimizer.synchronize() before, and step() within skip_synchronize()"
                )

    def settle(self, flight: PendingGradient) -> None:
        """Wait for it. Its gradients are written in place, unless they have been replaced."""
        if flight.settled:
            return
        flight.settled = True
        summed = flight.handle()
        for reduced, tensor in zip(flight.reduced, summed if isinstance(summed, list) else [summed], strict=True):
            self._write(reduced, tensor)

    def reduced(self, parameter: Tensor, flights: Iterable[PendingGradient]) -> Tensor | None:
        """Return the gradient of a parameter whose operations have finished."""
        for flight in flights:
            for reduced in flight.reduced:
                if reduced.parameter is parameter:
                    return reduced.grad
        return None

    def takes_part(self, parameter: Tensor) -> bool:
        """Return whether the optimizer uses its gradient, and it is reduced."""
        return parameter in self._left and needed(parameter)

    def refuse(self, check: Callable[[Tensor, str], None]) -> None:
        """Call this for each parameter whose gradient has been computed, with its name."""
        self._refuse = check

    def name(self, parameter: Tensor) -> str:
        """Return its name in messages."""
        return self.names[parameter]

    def _begin(self, group: Sequence[Tensor], *, late: bool = False) -> None:
        step = Step(self._optimizer, late) if self._members is not None else None
        flights: list[PendingGradient] = []
        dense: list[_Reduced] = []
        small: list[Tensor] = []
        for parameter in filter(needed, group):
            grad = self._gradient(parameter)
            if grad.is_sparse and not self._sparse_as_dense:
                terms = ReduceArgs(self._op, 1.0, 1.0, self.process_set)
                handle = terms.begin(grad, self.name(parameter), in_place=False)
                flights.append(PendingGradient(handle, [_Reduced(parameter, grad, version=grad._version)]))
            else:
                tensor, context = self._compression.compress(grad.to_dense() if grad.is_sparse else grad)
                small.append(tensor)
                dense.append(_Reduced(parameter, grad, context, grad._version))
        if len(group) > 1 and dense:
            together = self._terms.begin_group(small, self.name(group[0]), in_place=True, step=step)
            flights.append(PendingGradient(together, dense))
        elif dense:
            alone = self._terms.begin(small[0], self.name(group[0]), in_place=True, step=step)
            flights.append(PendingGradient(alone, dense))
        self._flying[group[0]] = flights

    def _gradient(self, parameter: Tensor) -> Tensor:
        """Return its gradient; zeros if this rank has none, because others may have one."""
        grad = parameter.grad
        if grad is None:
            zeros = torch.zeros_like(parameter, requires_grad=False, memory_format=torch.contiguous_format)
            dims = self._sparse.get(parameter)
            parameter.grad = grad = zeros if dims is None else zeros.to_sparse(dims)
        assert not grad.requires_grad, f"the gradient of '{self.name(parameter)}' has a graph; leave create_graph out"
        if grad.is_sparse:
            self._sparse[parameter] = grad.sparse_dim()
        return grad

    def _write(self, reduced: _Reduced, result: Tensor) -> None:
        parameter, grad = reduced.parameter, reduced.grad
        if not grad.is_sparse:
            whole = self._compression.decompress(result, reduced.context)
            if whole is not grad:
                with torch.no_grad():
                    grad.copy_(whole)
        elif result.is_sparse:
            reduced.grad = result
        else:
            reduced.grad = self._compression.decompress(result, reduced.context).to_sparse(grad.sparse_dim())
        if parameter.grad is grad:  # Otherwise it has been replaced meanwhile.
            parameter.grad = reduced.grad


def needed(parameter: Tensor) -> bool:
    """Return whether the optimizer may use its gradient: not if it is frozen and has none."""
    return parameter.requires_grad or parameter.grad is not None
