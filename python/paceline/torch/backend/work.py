"""The handle of an operation in flight, as torch.distributed returns it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work as C10dWork
from torch.futures import Future

from paceline.errors import JobError
from paceline.torch.backend import on_device
from paceline.torch.backend.buffers import Memory
from paceline.torch.backend.completion import Lineage, callbacks

if TYPE_CHECKING:
    from paceline._core import Operation
    from paceline.torch.backend.completion import Completion
    from paceline.torch.backend.estimate import Estimated
    from paceline.torch.backend.on_device import Place


_LOOK_S = 20e-6
"""How often to look whether another thread has completed a future."""


class Work(C10dWork):
    """One operation of the runtime. It may be dropped without waiting: the runtime keeps the memory."""

    def __init__(
        self,
        completion: Completion,
        operation: Operation | Estimated,
        label: str,
        memory: Memory,
        *,
        token: int | None,
        lineage: Lineage,
        place: Place | None = None,
    ) -> None:
        """`token` if the operation sends a notice at its end; operations started by its callbacks join `lineage`.

        `place`: the CUDA device of its tensors.
        """
        super().__init__()
        self.token, self.lineage = token, lineage
        self._completion = completion
        self._operation = operation
        self._place = place
        self._label = label
        self._value = memory.value
        self._memory = memory if memory.back else None
        self._copied: torch.cuda.Event | None = None
        """When the result of a device has been copied back."""
        self._refused: Exception | None = None
        self._lock = threading.Lock()
        self._future: Future[list[Tensor] | Tensor] | None = None
        self._over: Future[Exception | None] | None = None
        self._settled = False
        if token is not None:
            completion.expect(token, self)
            if operation.ready():  # The notice may have arrived before it was expected.
                completion.forget(token)
                self.land()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait, and return True. Raises JobError if the operation failed or the time limit has passed (0: no limit).

        What the current stream of a device is told from then on sees the result.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        began = self._completion.wait_begins()
        if not self._operation.wait(seconds if seconds > 0 else None):
            raise JobError(
                f"{self._label}: has not finished within {seconds:g} s, and is still in flight",
                remedy="a longer timeout",
            )
        self._hold()
        self._completion.waited(self._label, began)
        return True

    def _hold(self) -> None:
        """Make the current stream wait for the result of a finished operation, which is copied back if need be."""
        if self._place is not None:
            self._operation.hold(on_device.current_stream(self._place.device))
        if self._memory is not None or self._refused is not None:
            self._copy_back()
        if self._place is not None and self._copied is not None:
            on_device.wait_for(self._copied, self._place)

    def is_completed(self) -> bool:
        """Return whether it has finished or failed; the results are then in their tensors."""
        if not self._operation.done():
            return False
        self.exception()
        return True

    def is_success(self) -> bool:
        """Return whether it has finished without error."""
        return self._operation.done() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error with which it failed, if it has."""
        return self.exception_after_wait() if self._operation.done() else None

    def exception_after_wait(self) -> Exception | None:
        """Wait, and return the error with which it failed, if it has: the job's, or torch's when it takes the result.

        A tensor may refuse its result, for example because it was resized while the operation was in flight.
        """
        try:
            self.wait()
        except Exception as error:  # a future that is never completed would be waited for without a limit
            return error
        return None

    def synchronize(self) -> None:
        """Wait: the host takes part in the exchange."""
        self.wait()

    def block_current_stream(self) -> None:
        """Do the same as `synchronize`."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Return the output tensors."""
        return [self._value] if isinstance(self._value, Tensor) else self._value

    def source_rank(self) -> int:
        """Return the rank, in the group, from which a finished receive came."""
        return self._operation.source()

    _source_rank = source_rank

    def get_future(self) -> Future[list[Tensor] | Tensor]:
        """Return a future of the output tensors.

        Its callbacks run in a thread of `completion`, or at once if the operation has finished; they may wait for
        others.
        """
        if callbacks.in_order:
            self.exception_after_wait()
        with self._lock:
            if self._future is not None:
                return self._future
            self._over = on_device.future_of(self._place)
            # The only way to pass an error to torch's C++ code from Python is a callback that raises: to C++, the
            # result of `set_exception` is a value, which DDP would take for a tensor and crash.
            self._future = future = self._over.then(self._outcome)
        completion = self._completion
        if not (self._operation.ready() or completion.ended):
            if self.token is None:
                completion.later(self)
                return future
            completion.start()
        # The notice may have arrived before there was a future; without listeners there is none.
        if self._operation.ready() or completion.ended:
            self._be_settled(future)
        return future

    def land(self) -> None:
        """Have the result of a finished operation copied to its device, whether or not anybody waits for it."""
        if self._place is not None:
            self._landed()  # Whoever waits gets the error.

    def _landed(self) -> Exception | None:
        """Return the error of a finished operation on a device, if there is one; no stream of this thread waits."""
        try:
            self._operation.wait(None)
        except Exception as error:  # as in `exception_after_wait`
            return error
        return None

    def has_future(self) -> bool:
        """Return whether a future has been requested."""
        with self._lock:
            return self._over is not None

    def _be_settled(self, future: Future[list[Tensor] | Tensor]) -> None:
        """Complete the future of a finished operation, even if another thread is just completing it."""
        self.settle()
        # Its own `wait` would make the current stream of a device wait for the result.
        while not future.done():
            time.sleep(_LOOK_S)

    def get_future_of(self, value: Tensor) -> Future[Tensor]:
        """Return a future of one tensor, as a DDP communication hook returns it."""
        self._value = value
        return self.get_future()  # type: ignore[return-value]  # of the value just set

    def settle(self) -> None:
        """Complete the future, if there is one that is not complete.

        The operation has finished, or the job has ended.
        """
        error: Exception | None
        if not self._operation.ready():
            error = JobError(f"{self._label}: was in flight when the process group was destroyed")
        elif self._place is None:
            error = self.exception_after_wait()
        else:
            error = self._landed()
        with self._lock:
            over = self._over
            if over is None or self._settled:
                return
            self._settled = True
        # Outside the lock, because this runs the callbacks.
        over.set_result(error)

    def _outcome(self, over: Future[Exception | None]) -> list[Tensor] | Tensor:
        error = over.value()
        if error is not None:
            raise error
        # torch runs callbacks in streams of their own, which wait for the tensors with which a future was completed.
        # `over` has none.
        self._hold()
        return self._value

    def _copy_back(self) -> None:
        with self._lock:
            if self._refused is not None:
                raise self._refused
            if self._memory is not None:
                try:
                    self._memory.copy_back()
                except Exception as error:
                    self._refused = error
                    raise
                finally:
                    if self._place is not None:
                        self._copied = on_device.mark(self._place)
                    # Only now: another thread that waits must not find that there is nothing to copy.
                    self._memory = None


class CoalescedWork(C10dWork):
    """Several operations as one."""

    def __init__(self, works: Sequence[C10dWork]) -> None:
        """Each of them may be in flight or finished."""
        super().__init__()
        self._works = list(works)
        places = (work._place for work in works if isinstance(work, Work))
        self._place = next((place for place in places if place is not None), None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all; the limit applies to each."""
        for work in self._works:
            work.wait(timeout if timeout is not None else timedelta(0))
        return True

    def is_completed(self) -> bool:
        """Return whether all have finished or failed."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all have finished without error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first error."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def synchronize(self) -> None:
        """Wait for all."""
        self.wait()

    def block_current_stream(self) -> None:
        """Do the same as `synchronize`."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Return the output tensors of all, in order."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of the output tensors of all, in order."""
        futures = [work.get_future() for work in self._works]
        # That of `collect_all` knows no device, and so does not make streams wait for the tensors.
        over = on_device.future_of(self._place)

        def gathered(_over: Future[None]) -> list[Tensor]:
            for future in futures:
                future.wait()
            return self.result()

        gathering = over.then(gathered)
        torch.futures.collect_all(futures).add_done_callback(lambda done: over.set_result(None))
        return gathering


class CombinedWork(CoalescedWork):
    """Several operations, whose results are combined once all have finished."""

    def __init__(self, works: Sequence[C10dWork], combine: Callable[[], list[Tensor]]) -> None:
        """`combine` returns the output tensors; it is called once, by whichever thread comes first."""
        super().__init__(works)
        self._combine = combine
        self._combined: list[Tensor] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all, and combine them; the limit applies to each."""
        super().wait(timeout)
        self.result()
        return True

    def is_completed(self) -> bool:
        """Return whether all have finished or failed; the result is then in its tensor."""
        if not super().is_completed():
            return False
        if self.is_success():
            self.result()
        return True

    def result(self) -> list[Tensor]:
        """Return the output tensors; all operations must have finished."""
        with self._lock:
            if self._combined is None:
                self._combined = self._combine()
            return self._combined

    def get_future_of(self, value: Tensor) -> Future[Tensor]:
        """Return a future of one tensor, as a DDP communication hook returns it."""

        def take(done: Future[list[Tensor]]) -> Tensor:
            done.value()
            return value

        return self.get_future().then(take)
