"""Operations in flight, as the asynchronous calls hand them out, and waiting for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from paceline._core import NamedOperation
from paceline.errors import InvalidArgumentError, JobError

T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class Part(Generic[T]):
    """One operation, and what gives its result once it is over."""

    operation: NamedOperation
    finish: Callable[[NamedOperation], T]

    def then(self, change: Callable[[T], U]) -> Part[U]:
        """The same with another result."""
        finish = self.finish
        return Part(self.operation, lambda operation: change(finish(operation)))


class Handle(Generic[T]):
    """One operation, or several that are waited for as one: for `poll` and `synchronize`. Horovod's are numbers.

    It holds the tensors, so that it may be kept while they are dropped. Dropping it is no harm either: the runtime
    holds the memory until the operation is over.
    """

    __slots__ = ("__weakref__", "_finish", "_operations", "name")

    def __init__(self, name: str, operations: Sequence[NamedOperation], finish: Callable[[], T]) -> None:
        """`finish` gives the result once all operations are over."""
        self.name = name
        """Of the tensor, as it stands in messages."""
        self._operations: Sequence[NamedOperation] | None = operations
        self._finish: Callable[[], T] | None = finish

    def done(self) -> bool:
        """Whether it is over, well or not. Raises ValueError after `synchronize`, as Horovod does."""
        if self._operations is None:
            raise ValueError(f"'{self.name}' has been synchronized before, which cleared its handle")
        return all(operation.done() for operation in self._operations)

    def settle(self) -> None:
        """Wait until it is over, well or not; the result stays for whoever synchronizes."""
        for operation in self._operations or ():
            with contextlib.suppress(JobError, InvalidArgumentError):
                operation.wait()

    def take(self) -> T | None:
        """Wait, and give the result; None if it has been taken before. Raises JobError if an operation failed."""
        operations, finish = self._operations, self._finish
        if operations is None or finish is None:
            return None
        try:
            for operation in operations:
                operation.wait()
        except Exception:  # not Ctrl-C: then it may be waited for again
            self._operations = self._finish = None
            raise
        self._operations = self._finish = None
        return finish()

    def __call__(self) -> T:
        """As `synchronize(handle)`: Horovod's `sparse_allreduce_async` gives a function."""
        return synchronize(self)

    def __repr__(self) -> str:
        """Its name, and whether it is over."""
        state = "cleared" if self._operations is None else "over" if self.done() else "in flight"
        return f"<handle of {self.name}: {state}>"


def single(part: Part[T]) -> Handle[T]:
    """The handle of one operation."""
    return Handle(part.operation.name, [part.operation], lambda: part.finish(part.operation))


def together(name: str, parts: Sequence[Part[T]]) -> Handle[list[T]]:
    """The handle of several operations."""
    return Handle(name, [part.operation for part in parts], lambda: [part.finish(part.operation) for part in parts])


def _known(handle: object) -> Handle[object]:
    if not isinstance(handle, Handle):
        raise TypeError(f"{handle!r:.80} is no handle; give what an asynchronous call has returned")
    return handle


def poll(handle: Handle[T]) -> bool:
    """Whether an operation is over, so that `synchronize` will not wait.

    Raises ValueError for a handle that has been synchronized.
    """
    return _known(handle).done()


def synchronize(handle: Handle[T]) -> T:
    """Wait for an operation; what it gives. A second time it gives None, as Horovod does.

    Raises JobError (`hvd.HorovodInternalError`) naming the tensor and the ranks if the operation failed.
    """
    return cast(T, _known(handle).take())
