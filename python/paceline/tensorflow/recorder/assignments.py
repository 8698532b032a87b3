"""Updates without an optimizer: the script assigns to each variable what it makes of its gradient.

`variable.assign_sub(rate * gradient)`, `assign`, `assign_add` and `scatter_…` count, of variables whose gradients a
tape has computed. Such an update is over when every one of them has been assigned; later assignments, such as those
that clip weights, belong to no update. In a graph all of them wait for all gradients, as an optimizer does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from paceline.tensorflow.recorder import marks
from paceline.tensorflow.recorder.marks import Tensor, now, tensors_in, timestamp
from paceline.tensorflow.recorder.recorder import Recorder
from paceline.tensorflow.recorder.steps import Update

OWNER = ResourceVariable
METHODS = (
    *("assign", "assign_sub", "assign_add", "scatter_sub", "scatter_add", "scatter_update"),
    *("scatter_nd_sub", "scatter_nd_add", "scatter_nd_update"),
)


@dataclass
class _Awaited:
    """Variables with gradients, by number, that are to be assigned; and those that are."""

    tape: weakref.ref[Any] | None
    """The computer of the gradients, which nothing here keeps alive: a persistent tape holds activations."""
    numbers: frozenset[int]
    graph: Any
    """That in which the gradients were computed; None in eager execution."""
    gradients: list[Tensor]
    assigned: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """When each assignment began and ended: seconds, or tensors of `place`."""
    place: Any = None
    """The graph of the assignments."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.awaited: _Awaited | None = None
        self.used: weakref.ref[Any] | None = None
        """The tape whose variables were assigned last."""
        self.quiet = False


class Assignments:
    """Marks a script's own updates."""

    def __init__(
        self, recorder: Recorder, may_mark: Callable[[Sequence[Any]], bool], deliver: Callable[..., None]
    ) -> None:
        """Take what hooks have: whether nodes may be added, and how marks of a graph reach the recorder."""
        self._recorder, self._may_mark, self._deliver = recorder, may_mark, deliver
        self._thread = _Thread()

    @contextmanager
    def by_optimizer(self) -> Iterator[None]:
        """Ignore assignments: an optimizer makes them."""
        before, self._thread.quiet = self._thread.quiet, True
        try:
            yield
        finally:
            self._thread.quiet, self._thread.awaited = before, None

    def await_all(self, tape: Any, numbers: Sequence[int], gradients: Sequence[Tensor]) -> None:  # noqa: ANN401
        """Note the variables that a tape has computed gradients of."""
        graph, before = marks.graph(), self._thread.awaited
        used = self._thread.used
        if used is not None and used() is tape:
            self._recorder.give_up(
                "a tape computes gradients after variables of others were assigned, so a step has no one end",
                remedy="tape.gradient(loss, variables) for all variables before the first is assigned",
            )
        awaited = _Awaited(weakref.ref(tape), frozenset(numbers), graph, list(gradients) if graph is not None else [])
        if before is not None and before.graph is graph and not before.assigned:
            awaited.numbers |= before.numbers
            awaited.gradients += before.gradients
        self._thread.awaited = awaited

    def assign(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Assign, and mark it if the variable is awaited."""
        thread, recorder = self._thread, self._recorder
        awaited = thread.awaited
        if awaited is None or thread.quiet or not recorder.marking or recorder.table.has_optimizer:
            return original(variable, *args, **kwargs)
        number, graph = recorder.table.known(variable), marks.graph()
        if number not in awaited.numbers or number in awaited.assigned or not self._may_mark([variable]):
            return original(variable, *args, **kwargs)
        assert number is not None
        if not awaited.assigned:
            awaited.place = graph
        elif awaited.place is not graph:
            return original(variable, *args, **kwargs)
        thread.quiet = True
        try:
            if graph is None:
                begin: Any = now()
                result = original(variable, *args, **kwargs)
                awaited.assigned[number] = begin, now()
            else:
                begin = timestamp(tensors_in((args, kwargs)) + (awaited.gradients if awaited.graph is graph else []))
                before = len(graph.get_operations())
                with tf.control_dependencies([begin]):
                    result = original(variable, *args, **kwargs)
                awaited.assigned[number] = begin, timestamp(graph.get_operations()[before:])
        finally:
            thread.quiet = False
        recorder.table.assigned = max(recorder.table.assigned, len(awaited.assigned))
        if len(awaited.assigned) == len(awaited.numbers):
            self._updated(awaited)
        return result

    def _updated(self, awaited: _Awaited) -> None:
        # Gradients of a graph that is called for them alone are computed again without being traced.
        again = awaited.graph is not None and awaited.place is None
        self._thread.awaited = _Awaited(None, awaited.numbers, awaited.graph, []) if again else None
        self._thread.used = awaited.tape
        recorder = self._recorder
        optimizer = recorder.table.own_updates(awaited.numbers)
        begins, ends = zip(*awaited.assigned.values(), strict=True)
        if awaited.place is None:
            recorder.take(Update(optimizer, min(begins), max(ends)))
            recorder.stepped()
            return

        def take(values: list[float]) -> None:
            half = len(values) // 2
            # The last one has all gradients.
            recorder.take(Update(optimizer, max(values[:half]), max(values[half:])))

        self._deliver([*begins, *ends], take)
