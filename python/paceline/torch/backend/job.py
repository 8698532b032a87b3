"""This process's view of a job: the native engine, the completion of futures, and the end of both."""

from __future__ import annotations

import atexit
import os
import weakref
from dataclasses import replace

import torch
from torch._C._distributed_c10d import Store

from paceline._core import Communicator, Engine
from paceline.errors import InvalidArgumentError, JobError
from paceline.job import selection_log, timeline_files
from paceline.job.bootstrap import share_secret
from paceline.job.elastic_member import ADDRESS
from paceline.job.failure import joining
from paceline.job.rank_environment import rank_environment
from paceline.job.settings import Settings
from paceline.settings.table import naming_core_errors
from paceline.torch.backend.completion import Completion
from paceline.torch.backend.store_exchange import StoreExchange
from paceline.torch.recorder.marks import Marks

NOT_ELASTIC = (
    "paceline run --elastic: torch.distributed has fixed ranks; use hvd.elastic.run instead of init_process_group "
    "(docs/how-to/elastic.md), or leave --elastic out"
)


class Job:
    """The engine of one default process group (or of a group of its own), and the operations in flight."""

    def __init__(self, engine: Engine, world: Communicator, timeout_s: float) -> None:
        """Use `start`."""
        self.engine, self.world, self.timeout_s = engine, world, timeout_s
        self.rank, self.size = world.rank, world.size
        self.broken: str | None = None
        """Why no operation can start any more."""
        self.timeline: str | None = None
        """The file of the timeline."""
        self.marks: Marks | None = None
        self.completion = Completion(engine)
        self.beside: dict[torch.device, torch.cuda.Stream] = {}
        """By device: the stream in which operations begin that are not waited for at once."""
        self._names: dict[str, int] = {}
        _jobs.add(self)

    @classmethod
    def start(cls, store: Store, rank: int, size: int, timeout_s: float | None) -> Job:
        """Find the other ranks through `store` and connect; `timeout_s` is the timeout of init_process_group, if given.

        Raises JobError naming the missing ranks, and InvalidArgumentError for an invalid setting.
        """
        settings = Settings.from_environment(timeout_s=timeout_s, start_timeout_s=timeout_s)
        settings.refuse_coordinator()
        if os.environ.get(ADDRESS):
            raise InvalidArgumentError(NOT_ELASTIC)
        if settings.placed():
            raise InvalidArgumentError(
                f"{settings.placement}: torch.distributed does not pass the names of tensors; use even, or "
                "paceline.torch's DistributedOptimizer",
                setting="placement",
            )
        with joining(size):
            if settings.server_processes:
                engine = _start_with_servers(rank, size, settings)
            else:
                exchange = StoreExchange(store, rank, size, settings.start_timeout_s)
                settings = replace(settings, secret=share_secret(exchange, settings.secret))
                with naming_core_errors():
                    engine = Engine.start(rank, size, settings.to_json(), exchange)
                exchange.finish()
        try:
            with naming_core_errors():
                world = engine.world()
        except BaseException:
            engine.close()
            raise
        if settings.verbose and rank == 0:
            selection_log.log_choices(world.choices())
        job = cls(engine, world, settings.timeout_s)
        _keep(store)
        if settings.timeline is not None:
            timeline_files.begin(engine, settings.timeline)
            job.timeline, job.marks = settings.timeline, Marks(engine, job.completion)
        return job

    def group(self, ranks: list[int], name: str) -> Communicator:
        """Return a communicator of these ranks of the job. Each of them calls this equally often with the same name."""
        self.check()
        again = self._names.get(name, 0)  # torch reuses a destroyed group's name for the next one.
        self._names[name] = again + 1
        return self.engine.group(ranks, f"{name}#{again}")

    def check(self) -> None:
        """Raise JobError if the job has ended, or if this process was forked from the one that started it."""
        if self.broken is not None:
            raise JobError(self.broken)

    # The end.

    def close(self) -> None:
        """Leave the job and end the threads. Idempotent."""
        if self.broken is not None:
            return
        self.broken = "the process group has been destroyed; call init_process_group again"
        self.completion.close()
        self.engine.close()
        if self.marks is not None:
            self.marks.remove()
        if self.timeline is not None:
            timeline_files.finish(self.engine, self.timeline)
        self.completion.finish()

    def forked(self) -> None:
        """Release the engine in a forked child: its threads and connections belong to the parent."""
        self.broken = (
            f"this process was forked from rank {self.rank} after init_process_group, and the connections are its "
            "parent's; start workers with the 'spawn' or 'forkserver' method, or call init_process_group in the child"
        )
        self.completion.forked()
        self.engine.forget_after_fork()


def _start_with_servers(rank: int, size: int, settings: Settings) -> Engine:
    """Use the rendezvous of `paceline run`, because the servers do not know torch's store."""
    place = rank_environment()
    if (rank, size) != (place.rank, place.size):
        raise InvalidArgumentError(
            f"rank {rank} of {size} in a job of {place.size} with parameter servers: only the group of all ranks can "
            "use them; make it the default group, with backend paceline"
        )
    settings = replace(settings, rendezvous=settings.rendezvous or place.rendezvous)
    with naming_core_errors():
        return Engine.start(rank, size + settings.helpers, settings.to_json(), None)


_jobs: weakref.WeakSet[Job] = weakref.WeakSet()
_stores: list[Store] = []


def _keep(store: Store) -> None:
    """Keep the store of the latest job until this process ends.

    Rank 0 may serve it. Others that begin their next group while it is still ending this one find the store of this
    one, which would be gone before they have used it; as it is kept, the next group uses it, too, as under torchrun.
    """
    _stores[:] = [store]


def _close_all() -> None:
    for job in list(_jobs):
        job.close()


def _forked() -> None:
    for job in list(_jobs):
        job.forked()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
