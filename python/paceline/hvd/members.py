"""A member's view of a process set: its coordinator, the names of its operations, and starting them."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline._core import Coordinator, NamedOperation
from paceline.hvd.handles import Handle, PendingOperation, grouped_handle, single_handle

T = TypeVar("T")
Tensor = TypeVar("Tensor")
"""A framework's tensor."""
SLOTS = 64
"""Names for unnamed operations of one kind. They are reused, so that the runtime's response cache applies."""


@dataclass(frozen=True, slots=True)
class Step:
    """Marks a tensor as a gradient, whose position in each step may be planned."""

    optimizer: str
    late: bool = False
    """It was not computed in this step, but replaces one that was missing at its end."""


class Members:
    """The ranks of a process set, from the point of view of one of them."""

    def __init__(
        self,
        coordinator: Coordinator,
        ranks: Sequence[int],
        check: Callable[[], None],
        *,
        servers: int | None = None,
    ) -> None:
        """`check` raises if the job has ended. `servers`: among these, variables are placed in order of creation."""
        self.coordinator = coordinator
        self.ranks = tuple(ranks)
        """Ranks as numbered by `hvd.rank()`."""
        self.rank, self.size = coordinator.rank, coordinator.size
        self.names = Names()
        self._optimizers: Counter[str] = Counter()
        self._servers, self._created = servers, set[str]()
        self.check = check
        """Raises JobError if the job has ended, or this process was forked from the rank."""

    def optimizer(self, names: Iterable[str]) -> str:
        """Return a name that identifies an optimizer on all ranks: its parameters' names and order among equals."""
        digest = hashlib.blake2s("\0".join(sorted(names)).encode(), digest_size=6).hexdigest()
        self._optimizers[digest] += 1
        return f"{digest}.{self._optimizers[digest]}"

    def create(self, names: Iterable[str]) -> None:
        """Place variables, by the names of their gradients in the order of creation, if the job does so.

        Every rank names the same ones before it reduces any of them.
        """
        if self._servers is None:
            return
        new = [name for name in names if name not in self._created]
        first = len(self._created)
        self._created.update(new)
        places = enumerate(new, start=first)
        self.coordinator.place({f"allreduce.{name}": number % self._servers for number, name in places})

    def begin(
        self,
        call: str,
        name: str | None,
        make: Callable[[str], PendingOperation[T]],
        *,
        waits: bool = False,
        step: Step | None = None,
    ) -> Handle[T]:
        """Start an operation. `waits`: the caller will wait for it at once. `step`: it is a gradient of an optimizer.

        Raises JobError if the job has ended, and the exceptions of `make`.
        """
        with self.naming(call, name) as full:
            pending = make(full)
        return self.ask(name, single_handle(pending), [pending.operation], waits=waits, step=step)

    def begin_group(
        self,
        call: str,
        name: str | None,
        tensors: Sequence[Tensor],
        make: Callable[[str, Tensor], PendingOperation[T]],
        *,
        waits: bool = False,
        step: Step | None = None,
    ) -> Handle[list[T]]:
        """Start operations that begin together or not at all, one per tensor.

        Raises ValueError if there is no tensor, and otherwise like `begin`.
        """
        if not tensors:
            raise ValueError(f"{call}: the list of tensors is empty; give one or more")
        with self.naming(call, name) as full:
            names = [f"{full}_{index}of{len(tensors)}" for index in range(1, len(tensors) + 1)]
            pendings = [make(of, tensor) for of, tensor in zip(names, tensors, strict=True)]
        return self.ask(
            name, grouped_handle(full, pendings), [pending.operation for pending in pendings], waits=waits, step=step
        )

    @contextlib.contextmanager
    def naming(self, call: str, name: str | None) -> Iterator[str]:
        """Name an operation. It is not counted if the block raises, because it might not raise on other ranks."""
        self.check()
        full = self.names.of(call, name)
        try:
            yield full
        except BaseException:
            if name is None:
                self.names.take_back(call)
            raise

    def ask(
        self,
        name: str | None,
        handle: Handle[T],
        operations: Sequence[NamedOperation],
        *,
        waits: bool = False,
        step: Step | None = None,
    ) -> Handle[T]:
        """Submit operations together; `name` as the script gave it."""
        if step is None:
            self.coordinator.submit(operations, waits=waits)
        else:
            self.coordinator.submit_step(step.optimizer, operations, late=step.late)
        if name is None:
            self.names.hold(handle.name, handle)
        return handle


class Names:
    """The names of operations in one process set: given by the script, or a number that counts calls."""

    def __init__(self) -> None:
        """Start without calls."""
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._last: dict[str, Handle[Any]] = {}

    def of(self, call: str, name: str | None) -> str:
        """Return the name of an operation, such as "allreduce.layer1.weight" or "allreduce.noname.7".

        An unnamed operation waits for the previous one with its name, if that is still in flight.
        """
        if name is not None:
            return f"{call}.{name}"
        with self._lock:
            count = self._counts.get(call, 0)
            self._counts[call] = count + 1
            full = f"{call}.noname.{count % SLOTS}"
            before = self._last.pop(full, None)
        if before is not None:
            before.settle()
        return full

    def hold(self, name: str, handle: Handle[Any]) -> None:
        """Record that an unnamed operation is in flight under this name."""
        with self._lock:
            self._last[name] = handle

    def take_back(self, call: str) -> None:
        """Do not count the last unnamed operation of this kind, which could not be submitted."""
        with self._lock:
            self._counts[call] -= 1

    def restart(self) -> None:
        """Reset the number of calls, which may differ between ranks, after all ranks have joined."""
        with self._lock:
            self._counts.clear()
