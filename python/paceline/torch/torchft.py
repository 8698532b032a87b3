"""A process group for torchft: it can be configured again after a failure, in the same process.

torchft (https://github.com/meta-pytorch/torchft) replaces failed replicas at the next step. For that it needs process
groups that can be ended at any time and joined again with other ranks. Each configuration is a job of its own: its
connections and memory are made anew and belong to no earlier one.
"""

from __future__ import annotations

import json
import socket
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import ProcessGroup, Work

from paceline.errors import InvalidArgumentError
from paceline.torch.backend.job import ProcessGroupJob
from paceline.torch.backend.process_group import PacelineProcessGroup

try:
    from torchft.process_group import ProcessGroupWrapper, create_store_client
    from torchft.work import _DummyWork
except ImportError as error:
    raise InvalidArgumentError(
        f"paceline.torch.torchft needs torchft ({error})", remedy="pip install torchft"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["ProcessGroupPaceline"]

_KEPT = 32
"""Operations in flight that are kept to be asked for errors before finished ones are dropped."""


class ProcessGroupPaceline(ProcessGroupWrapper):  # type: ignore[misc]  # torchft need not be installed
    """Paceline as torchft's `Manager` takes it: `Manager(pg=ProcessGroupPaceline(), …)`.

    It implements `torchft.process_group.ProcessGroup`: `configure` of torchft's releases and `reconfigure` of its
    nightly builds, both with each of them. They leave the current job, if there is one, and join the next; they return
    when all ranks have. A failure ends the job on every rank: operations raise `paceline.JobError`, which names the
    rank that is missing, and `errored` returns it until the next configuration.
    """

    supports_reconfigure = True

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        """Make a group that is not configured.

        Args:
            timeout: How long ranks wait for each other in a configuration, and an operation for a rank that makes no
                progress.
        """
        super().__init__(timeout)
        self._works: list[Work] = []
        self._error: Exception | None = None
        self._handle = uuid.uuid4().hex
        self._own_store: TCPStore | None = None
        self._configuration: int | None = None

    def getBackendName(self) -> str:
        """Return "torchft-paceline"."""
        return "torchft-paceline"

    def rank(self) -> int:
        """Return this process's rank in the current configuration."""
        return int(self.parent.rank())

    def configure(  # noqa: PLR0917 - torchft's
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Join the job of a store, as torchft 0.2 calls it.

        Args:
            store_addr: `HOST:PORT/PREFIX`, with another prefix for each configuration.
            replica_id: Of torchft's logs.
            rank: This process's rank.
            world_size: Number of ranks.
            quorum_id: The job's name in messages.
            group_rank: Of torchft's logs.
            group_world_size: Of torchft's logs.
            global_ranks: Of torchft's logs.

        Raises:
            JobError: A rank has not come within the time limit; the message says which.
        """
        self._replica_id, self._group_rank, self._group_world_size = replica_id, group_rank, group_world_size
        self._rank, self._global_ranks = rank, global_ranks
        self._join(store_addr, rank, world_size, quorum_id)

    def get_reconfigure_handle(self) -> str:
        """Return what the other ranks need for `reconfigure`: this group's name, and a store that it hosts."""
        if self._own_store is None:
            self._own_store = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
        store = f"{socket.gethostname()}:{self._own_store.port}"
        return json.dumps({"id": self._handle, "store": store, "global_rank": getattr(self, "_global_rank", None)})

    def reconfigure(self, opts: Any) -> Work:  # noqa: ANN401 - torch's, or torchft's own where torch has none
        """Join the job of the ranks whose handles are given, as torchft's nightly builds call it.

        Args:
            opts: `ReconfigureOptions`: `handles`, of all ranks in their order, and `uuid`, the same number on all.

        Returns:
            A handle of an operation that has ended.

        Raises:
            JobError: A rank has not come within the time limit; the message says which.
            ValueError: The handles are not in order, or this group's is not among them.
        """
        if not isinstance(opts.handles, list):
            raise ValueError("reconfigure: the handles have no order, which gives the ranks; give a list")
        peers = [json.loads(handle) for handle in opts.handles]
        names = [peer["id"] for peer in peers]
        if self._handle not in names:
            raise ValueError(f"reconfigure: none of the {len(names)} handles is this group's; exchange them again")
        self._rank = names.index(self._handle)
        self._join(f"{peers[0]['store']}/torchft/{opts.uuid}", self._rank, len(peers), opts.uuid)
        done: Work = _DummyWork(None)
        return done

    def _join(self, address: str, rank: int, size: int, configuration: int | None) -> None:
        self.abort(errored=False)
        self._configuration = self._quorum_id = self._uuid = configuration
        self._pg = self._create_pg(create_store_client(address, timeout=self._timeout), rank, size)

    def errored(self) -> Exception | None:
        """Return the first error of an operation since the last configuration, if there is one."""
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
        """Set the time limit of configurations and of operations."""
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
        job = ProcessGroupJob.start(store, rank, world_size, limit_s)
        return PacelineProcessGroup(store, job, job.world, f"quorum {self._configuration}", limit_s, owns_job=True)

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
