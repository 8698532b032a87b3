"""A process group for torchft: it can be configured again after a failure, in the same process.

torchft (https://github.com/meta-pytorch/torchft) replaces failed replicas at the next step. For that it needs process
groups that can be ended at any time and joined again with other ranks. Each configuration is a job of its own: its
connections and memory are made anew and belong to no earlier one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup, Work

from paceline.errors import InvalidArgumentError
from paceline.torch.backend.job import Job
from paceline.torch.backend.process_group import PacelineProcessGroup

try:
    from torchft.process_group import ProcessGroupWrapper
    from torchft.work import _DummyWork
except ImportError as error:
    raise InvalidArgumentError(f"paceline.torch.torchft needs torchft ({error}): pip install torchft") from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["ProcessGroupPaceline"]

_KEPT = 32
"""Operations in flight that are kept to be asked for errors before finished ones are dropped."""


class ProcessGroupPaceline(ProcessGroupWrapper):  # type: ignore[misc]  # torchft need not be installed
    """Paceline as torchft's `Manager` takes it: `Manager(pg=ProcessGroupPaceline(), …)`.

    It implements `torchft.process_group.ProcessGroup`. `configure` leaves the current job, if there is one, and joins
    the one of the given store; it returns when all ranks have. A failure ends the job on every rank: operations raise
    `paceline.JobError`, which names the rank that is missing, and `errored` returns it until the next `configure`.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        """Make a group that is not configured.

        Args:
            timeout: How long ranks wait for each other in `configure`, and an operation for a rank that makes no
                progress.
        """
        super().__init__(timeout)
        self._works: list[Work] = []
        self._error: Exception | None = None

    def getBackendName(self) -> str:
        """Return "torchft-paceline"."""
        return "torchft-paceline"

    def rank(self) -> int:
        """Return this process's rank in the current configuration."""
        return int(self.parent.rank())

    def errored(self) -> Exception | None:
        """Return the first error of an operation since the last `configure`, if there is one."""
        self._forget_finished()
        return self._error

    def abort(self, errored: bool = True) -> None:
        """End the current job at once, if there is one: its operations fail, here and on the other ranks."""
        super().abort(errored)
        self._works, self._error = [], None

    def shutdown(self) -> None:
        """Leave the current job, if there is one. Afterwards the group can be configured again."""
        self.abort(errored=False)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of `configure` and of operations."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def allreduce(self, tensors: Sequence[Tensor], opts: object) -> Work:
        """Reduce in place on every rank."""
        work: Work | None = super().allreduce(tensors, opts)
        # Small tensors are reduced at once if the options want no handle; torchft waits for one all the same.
        return work if work is not None else _DummyWork(tensors)

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ProcessGroup:
        limit_s = self._timeout.total_seconds()
        job = Job.start(store, rank, world_size, limit_s)
        return PacelineProcessGroup(store, job, job.world, f"quorum {self._quorum_id}", limit_s, owns_job=True)

    def _wrap_work(self, work: Any, opts: object) -> Any:  # noqa: ANN401 - None for an operation that has ended
        if work is not None:
            if len(self._works) >= _KEPT:
                self._forget_finished()
            self._works.append(work)
        return work

    def _forget_finished(self) -> None:
        running = []
        for work in self._works:
            if not work.is_completed():
                running.append(work)
            elif self._error is None and (error := work.exception()) is not None:
                self._error = error if isinstance(error, Exception) else RuntimeError(str(error))
        self._works = running
