"""Completes the futures of a job's operations, and runs their callbacks.

torch runs a future's callbacks in the thread that completes it, and they may wait for other operations' futures, as
those of PowerSGD and quantization do. As long as callbacks do not wait, one thread completes futures, which is
cheapest. Once a callback requests a future, or does not return, there is always another thread that listens for
finished operations, no matter how many are in callbacks.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from paceline._core import Engine
from paceline.errors import InvalidArgumentError, JobError

P = ParamSpec("P")
R = TypeVar("R")

NOTICE_WAIT_S = 1.0
"""How long a listener sleeps at most; the end of the engine wakes it."""
SPARE = 1
"""Listeners that are kept in addition to the one that is needed, once callbacks wait."""
WaitListener = Callable[[str, int], None]
PATIENCE_S = 0.1
"""After this time a callback is assumed to be waiting. At most twice this time is lost, once per job."""


class Lineage:
    """An operation, and those of its group that its callbacks and theirs start."""

    __slots__ = ("group", "last")

    def __init__(self, group: str, last: int | None) -> None:
        """`group` is the group's name."""
        self.group = group
        self.last = last
        """The number of the last operation begun."""


class _Callbacks(threading.local):
    """State of this thread about the callbacks that it runs."""

    lineage: Lineage | None = None
    in_order: int = 0
    """Number of running functions created by `in_order`."""


callbacks = _Callbacks()


def in_order(hook: Callable[P, R]) -> Callable[P, R]:
    """Wrap a DDP communication hook whose callbacks start collectives: all ranks then start them in the same order.

    Such callbacks run in a separate thread when a bucket has been reduced, while backward starts to reduce the next
    bucket; which happens first may differ by rank. Here each bucket is finished, including callbacks, before the hook
    returns: in the same order on every rank, without overlap of communication and backward. With one bucket
    (`bucket_cap_mb`) this is not needed.

    Args:
        hook: A DDP communication hook, such as torch's `powerSGD_hook`.

    Returns:
        The hook to register instead.

    Raises:
        InvalidArgumentError: The hook cannot be called.

    Example:
        >>> model.register_comm_hook(state, in_order(powerSGD_hook))  # doctest: +SKIP
    """
    if not callable(hook):
        raise InvalidArgumentError(f"in_order: {hook!r:.80} is not a communication hook", remedy="a function")

    @functools.wraps(hook)
    def ordered(*args: P.args, **kwargs: P.kwargs) -> R:
        callbacks.in_order += 1
        try:
            return hook(*args, **kwargs)
        finally:
            callbacks.in_order -= 1

    return ordered


def _alive(threads: set[threading.Thread]) -> set[threading.Thread]:
    return {thread for thread in threads if thread.is_alive()}


class Awaited(Protocol):
    """An operation in flight, whose notice is awaited."""

    lineage: Lineage

    def land(self) -> None:
        """Have the result copied to its device."""

    def has_future(self) -> bool:
        """Return whether a future has been requested."""
        ...

    def settle(self) -> None:
        """Complete the future."""

    def exception_after_wait(self) -> Exception | None:
        """Wait, and return the error with which the operation failed, if it has."""
        ...


class Completion:
    """The threads that complete futures."""

    def __init__(self, engine: Engine) -> None:
        """Start without threads; they start when a future is requested."""
        self.wanted = False
        """Whether a future has been requested: from then on asynchronous operations send notices."""
        self.ended = False
        """Whether futures can only be completed with an error any more."""
        self.wait_listeners: list[WaitListener] = []
        """Called after each wait for an operation of this job, in the thread that has waited, with the operation's name
        and when the wait began, by time.monotonic_ns()."""
        self._engine = engine
        self._numbers = itertools.count(1)
        self._expected: dict[int, Awaited] = {}
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._waiting: set[threading.Thread] = set()
        """Threads that wait for one operation each."""
        self._listening = 0
        self._callbacks_wait = False
        self._busy_since: float | None = None
        """Since when the only listener has been in callbacks, if it is."""
        self._end = threading.Event()
        self._last: dict[str, int] = {}
        """The last operation begun in each group, once futures are in use."""

    def wait_begins(self) -> int:
        """Return the moment for `waited`, or 0 if nobody listens."""
        return time.monotonic_ns() if self.wait_listeners else 0

    def waited(self, name: str, began: int) -> None:
        """Tell listeners that this thread has waited for an operation since `began`; nothing if that is 0."""
        for listener in tuple(self.wait_listeners) if began else ():
            listener(name, began)

    def expect(self, token: int, work: Awaited) -> None:
        """Expect the notice `token` for `work`."""
        self._expected[token] = work

    def forget(self, token: int) -> None:
        """Ignore the notice `token`, which is no longer needed."""
        self._expected.pop(token, None)

    def start(self) -> None:
        """Start completing futures, unless already started.

        Raises JobError if no thread is left to complete any: a wait for one would then never end.
        """
        self.wanted = True
        if callbacks.lineage is not None:
            self._callbacks_wait = True
        if self._threads and not self._callbacks_wait:
            return
        with self._lock:
            if self.ended:
                return
            try:
                if not self._threads:
                    self._thread(self._watch)
                self._listen()
            except RuntimeError as error:
                raise JobError(
                    f"cannot complete a future: no thread can be started for it ({error})",
                    remedy="ulimit -u (the most threads)",
                ) from error

    def later(self, work: Awaited) -> None:
        """Complete the future of an operation that started before any future was requested, and so sends no notice."""
        self.start()

        def wait() -> None:
            work.exception_after_wait()
            self._settle(work)

        thread = threading.Thread(target=wait, name="paceline-first-future", daemon=True)
        with self._lock:
            thread.start()
            self._waiting = _alive(self._waiting) | {thread}

    def begin(self, group: str) -> tuple[int, Lineage | None]:
        """Return the number of an operation about to start in a group, and the lineage it belongs to, if any.

        Raises JobError in a callback if another thread has started an operation of the group since the one to which the
        callback belongs: on other ranks the order may be the opposite, and unrelated data would be reduced together.
        """
        lineage = callbacks.lineage
        if lineage is not None and lineage.group != group:
            lineage = None
        if lineage is not None and self._last.get(group) != lineage.last:
            raise JobError(
                "a future's callback begins an operation, and another thread has begun one of the same group since",
                remedy="paceline.torch.in_order(hook), or a larger bucket_cap_mb",
            )
        number = self._last[group] = next(self._numbers)
        if lineage is not None:
            lineage.last = number
        return number, lineage

    def close(self) -> None:
        """Prepare for the end of the engine and of the listeners."""
        self.ended = True
        self._end.set()

    def finish(self) -> None:
        """Complete the remaining futures after the engine has ended; those of unfinished operations with an error."""
        # Before waiting for the threads, because some may be waiting for these futures.
        self._settle_all()
        # A thread that is still in torch's code when the interpreter ends would end the process with SIGABRT. That code
        # may be what frees a tensor when the thread's function has returned: so threads stay in these sets until they
        # are dead.
        with self._lock:
            threads = [*self._threads, *self._waiting]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(5 * NOTICE_WAIT_S)
        self._settle_all()

    def forked(self) -> None:
        """Fail all operations in a forked child, where these threads do not exist."""
        self.ended, self._lock, self._threads, self._waiting = True, threading.Lock(), set(), set()

    def _listen(self) -> None:
        """Make sure that a thread is listening. The caller holds the lock."""
        if self._listening == 0:
            self._thread(self._complete)
            self._listening += 1

    def _thread(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"paceline{target.__name__}", daemon=True)
        thread.start()
        self._threads = _alive(self._threads) | {thread}

    def _watch(self) -> None:
        """Check whether a callback is waiting, until one is known to."""
        while not (self._callbacks_wait or self._end.wait(PATIENCE_S)):
            since = self._busy_since
            if since is not None and time.monotonic() - since > PATIENCE_S:
                self._callbacks_wait = True
                with self._lock, contextlib.suppress(RuntimeError):  # as in `_complete`
                    self._listen()

    def _complete(self) -> None:
        while True:
            notice = self._engine.next_notice(NOTICE_WAIT_S)
            if notice is None:
                if self.ended:
                    break
                continue
            work = self._expected.pop(notice[0], None)
            if work is not None:
                work.land()
            if work is None or not work.has_future():
                del work  # A listener must not keep a tensor alive.
                continue
            with self._lock:
                self._listening -= 1
                self._busy_since = time.monotonic()
                if self._callbacks_wait:
                    # Without another thread, callbacks that request futures get an error from `start`.
                    with contextlib.suppress(RuntimeError):
                        self._listen()
            self._settle(work)
            del work
            with self._lock:
                self._busy_since = None
                if self._listening > SPARE:
                    break
                self._listening += 1

    def _settle(self, work: Awaited) -> None:
        callbacks.lineage = work.lineage
        try:
            work.settle()
        finally:
            callbacks.lineage = None

    def _settle_all(self) -> None:
        for token in list(self._expected):
            work = self._expected.pop(token, None)
            if work is not None:
                work.settle()
