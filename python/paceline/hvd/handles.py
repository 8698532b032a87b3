"""Handles of operations in flight, as asynchronous calls return them."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from paceline._core import NamedOperation
from paceline.errors import InvalidArgumentError, JobError

T = TypeVar("T")
U = TypeVar("U")
_DRAIN_S = 10.0
"""For so long a process that ends waits for what it has begun and not awaited."""


@dataclass(slots=True)
class PendingOperation(Generic[T]):
    """An operation in flight, and the function that computes its result."""

    operation: NamedOperation
    finish: Callable[[NamedOperation], T]

    def then(self, change: Callable[[T], U]) -> PendingOperation[U]:
        """Return the same operation with another result."""
        finish = self.finish
        return PendingOperation(self.operation, lambda operation: change(finish(operation)))


class Handle(Generic[T]):
    """One operation in flight, or several that are awaited as one; for `poll` and `synchronize`. Horovod's are numbers.

    It keeps the tensors, which the script may drop meanwhile. The handle may be dropped as well: the runtime keeps the
    memory until the operation has finished.
    """

    __slots__ = ("__weakref__", "_finish", "_operations", "name")

    def __init__(self, name: str, operations: Sequence[NamedOperation], finish: Callable[[], T]) -> None:
        """Made by asynchronous calls; `finish` computes the result once all operations have finished."""
        self.name = name
        """The tensor's name in messages."""
        self._operations: Sequence[NamedOperation] | None = operations
        self._finish: Callable[[], T] | None = finish
        _handles.add(self)

    def done(self) -> bool:
        """Return whether it has finished or failed. Raises ValueError after `synchronize`, as Horovod does."""
        if self._operations is None:
            raise ValueError(f"'{self.name}' has already been synchronized, which cleared its handle")
        return all(operation.done() for operation in self._operations)

    def settle(self) -> None:
        """Wait until it has finished or failed; the result stays for `synchronize`."""
        for operation in self._operations or ():
            with contextlib.suppress(JobError, InvalidArgumentError):
                operation.wait()

    def drain(self, until: float) -> None:
        """Wait until it has finished or failed, or until then (`time.monotonic`)."""
        for operation in self._operations or ():
            with contextlib.suppress(JobError, InvalidArgumentError):
                operation.wait(max(0.0, until - time.monotonic()))

    def take(self) -> T | None:
        """Wait and return the result, or None if already returned. Raises JobError if an operation failed."""
        operations, finish = self._operations, self._finish
        if operations is None or finish is None:
            return None
        try:
            for operation in operations:
                operation.wait()
        except Exception:  # Not for Ctrl-C, after which it may be waited for again.
            self._operations = self._finish = None
            raise
        self._operations = self._finish = None
        return finish()

    def __call__(self) -> T:
        """Do the same as `synchronize(handle)`: Horovod's `sparse_allreduce_async` returns a function."""
        return synchronize(self)

    def __repr__(self) -> str:
        """Return its name and state."""
        state = "cleared" if self._operations is None else "over" if self.done() else "in flight"
        return f"<handle of {self.name}: {state}>"


_handles: weakref.WeakSet[Handle[Any]] = weakref.WeakSet()


def drain() -> None:
    """Wait for operations that nobody has awaited: other ranks, which have begun them as well, may.

    Not after an error: others wait for what comes next, too, and are to learn that it does not come.
    """
    if getattr(sys, "last_value", None) is not None:
        return
    until = time.monotonic() + _DRAIN_S
    for handle in list(_handles):
        handle.drain(until)


def single_handle(pending: PendingOperation[T]) -> Handle[T]:
    """Return the handle of one operation."""
    return Handle(pending.operation.name, [pending.operation], lambda: pending.finish(pending.operation))


def grouped_handle(name: str, pendings: Sequence[PendingOperation[T]]) -> Handle[list[T]]:
    """Return the handle of several operations."""
    return Handle(
        name,
        [pending.operation for pending in pendings],
        lambda: [pending.finish(pending.operation) for pending in pendings],
    )


def _known(handle: object) -> Handle[object]:
    if not isinstance(handle, Handle):
        raise TypeError(f"{handle!r:.80} is not a handle; give the result of an asynchronous call")
    return handle


def poll(handle: Handle[T]) -> bool:
    """Return whether an operation has finished or failed, so that `synchronize` will not wait.

    Args:
        handle: The result of an asynchronous call.

    Returns:
        Whether it has finished or failed.

    Raises:
        TypeError: It is not a handle.
        ValueError: It has already been synchronized.

    Example:
        >>> handle = hvd.allreduce_async(torch.ones(1))
        >>> hvd.poll(handle) in (False, True)
        True
    """
    return _known(handle).done()


def synchronize(handle: Handle[T]) -> T:
    """Wait for an operation and return its result.

    Args:
        handle: The result of an asynchronous call.

    Returns:
        The result; None the second time, as in Horovod.

    Raises:
        JobError: The operation failed; the message names the tensor and the ranks. Horovod scripts catch it as
            `hvd.HorovodInternalError`.
        TypeError: It is not a handle.

    Example:
        >>> hvd.synchronize(hvd.broadcast_async(torch.tensor([5]), root_rank=0))
        tensor([5])
    """
    return cast(T, _known(handle).take())
