"""A job as this process sees it: the native engine, the thread that completes futures, and the end of both."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import Store

from paceline._core import Communicator, Engine
from paceline.errors import InvalidArgumentError, JobError
from paceline.job import selection_log, timeline_files
from paceline.job.bootstrap import share_secret
from paceline.job.elastic_member import ADDRESS
from paceline.job.rank_environment import rank_environment
from paceline.job.settings import Settings
from paceline.torch.backend.store_exchange import StoreExchange
from paceline.torch.recorder.marks import Marks

if TYPE_CHECKING:
    from paceline.torch.backend.work import Work

NOT_ELASTIC = (
    "paceline run --elastic: torch.distributed keeps its ranks; use hvd.elastic.run instead of init_process_group "
    "(docs/how-to/elastic.md), or leave --elastic out"
)
NOTICE_WAIT_S = 1.0
"""How long the completer sleeps at most; the end of the engine wakes it."""


class Job:
    """The engine of one default process group (or of a group of its own), and who waits for its operations."""

    def __init__(self, engine: Engine, world: Communicator, timeout_s: float) -> None:
        """Use `start`."""
        self.engine, self.world, self.timeout_s = engine, world, timeout_s
        self.rank, self.size = world.rank, world.size
        self.broken: str | None = None
        """Why nothing can be begun any more."""
        self.timeline: str | None = None
        """Where what is recorded goes."""
        self.marks: Marks | None = None
        self.futures_wanted = False
        """Whether somebody has asked for a future: from then on asynchronous operations send notices."""
        self._tokens = itertools.count(1)
        self._expected: dict[int, Work] = {}
        self._completer: threading.Thread | None = None
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()
        _jobs.add(self)

    @classmethod
    def start(cls, store: Store, rank: int, size: int, timeout_s: float | None) -> Job:
        """Find the other ranks through `store` and connect; `timeout_s` is what init_process_group was told, if it was.

        Raises JobError naming the ranks that did not come, and InvalidArgumentError for a setting that cannot be.
        """
        settings = Settings.from_environment(timeout_s=timeout_s, start_timeout_s=timeout_s)
        settings.refuse_coordinator()
        if os.environ.get(ADDRESS):
            raise InvalidArgumentError(NOT_ELASTIC)
        if settings.placed():
            raise InvalidArgumentError(
                f"placement {settings.placement}: torch.distributed does not tell the names of tensors; take even, or "
                "paceline.torch's DistributedOptimizer"
            )
        if settings.server_processes:
            engine = _start_with_servers(rank, size, settings)
        else:
            exchange = StoreExchange(store, rank, size, settings.start_timeout_s)
            settings = replace(settings, secret=share_secret(exchange, settings.secret))
            engine = Engine.start(rank, size, settings.to_json(), exchange)
            exchange.finish()
        try:
            world = engine.world()
        except BaseException:
            engine.close()
            raise
        if settings.verbose and rank == 0:
            selection_log.tell(world.choices())
        job = cls(engine, world, settings.timeout_s)
        if settings.timeline is not None:
            timeline_files.begin(engine, settings.timeline)
            job.timeline, job.marks = settings.timeline, Marks(engine)
        return job

    def group(self, ranks: list[int], name: str) -> Communicator:
        """A communicator of these ranks of the job. Each of them calls this equally often with the same name."""
        self.check()
        again = self._names.get(name, 0)  # torch gives a destroyed group's name to the next one
        self._names[name] = again + 1
        return self.engine.group(ranks, f"{name}#{again}")

    def check(self) -> None:
        """Raise JobError if the job has ended, or if this process was forked from the one that began it."""
        if self.broken is not None:
            raise JobError(self.broken)

    # Futures.

    def token(self) -> int:
        """A number for the notice of the next operation."""
        return next(self._tokens)

    def expect(self, token: int, work: Work) -> None:
        """The notice `token` is for `work`."""
        self._expected[token] = work

    def forget(self, token: int) -> None:
        """Nobody needs the notice `token`."""
        self._expected.pop(token, None)

    def start_completer(self) -> None:
        """Begin to complete futures, if that has not begun."""
        self.futures_wanted = True
        if self._completer is None:
            with self._lock:
                if self._completer is None:
                    self._completer = threading.Thread(target=self._complete, name="paceline-completer", daemon=True)
                    self._completer.start()

    def complete_later(self, work: Work) -> None:
        """Complete the future of an operation that sends no notice, for it began before any future was asked for."""
        self.start_completer()

        def wait() -> None:
            work.exception_after_wait()
            work.settle()

        threading.Thread(target=wait, name="paceline-first-future", daemon=True).start()

    def _complete(self) -> None:
        while True:
            notice = self.engine.next_notice(NOTICE_WAIT_S)
            if notice is None:
                if self.broken is not None:
                    break
                continue
            self._settle(notice[0])
        for token in list(self._expected):
            self._settle(token)

    def _settle(self, token: int) -> None:
        # In a function of its own: the completer holds no tensor while it waits for the next notice.
        work = self._expected.pop(token, None)
        if work is not None:
            work.settle()

    # The end.

    def close(self) -> None:
        """Say goodbye to the other ranks and end the threads. May be called twice."""
        if self.broken is not None:
            return
        self.broken = "the process group has been destroyed; call init_process_group again"
        self.engine.close()
        if self.marks is not None:
            self.marks.remove()
        if self.timeline is not None:
            timeline_files.finish(self.engine, self.timeline)
        completer = self._completer
        if completer is not None and completer is not threading.current_thread():
            completer.join(5 * NOTICE_WAIT_S)

    def forked(self) -> None:
        """Called in a forked child: the engine's threads and connections are the parent's."""
        self.broken = (
            f"this process was forked from rank {self.rank} after init_process_group, and the connections are its "
            "parent's; start workers with the 'spawn' or 'forkserver' method, or call init_process_group in the child"
        )
        self.engine.forget_after_fork()


def _start_with_servers(rank: int, size: int, settings: Settings) -> Engine:
    """The servers know nothing of torch's store: all meet where `paceline run` said."""
    place = rank_environment()
    if (rank, size) != (place.rank, place.size):
        raise InvalidArgumentError(
            f"rank {rank} of {size} in a job of {place.size} with parameter servers: only the group of all ranks can "
            "use them; make it the default group, with backend paceline"
        )
    settings = replace(settings, rendezvous=settings.rendezvous or place.rendezvous)
    return Engine.start(rank, size + settings.helpers, settings.to_json(), None)


_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


def _close_all() -> None:
    for job in list(_jobs):
        job.close()


def _forked() -> None:
    for job in list(_jobs):
        job.forked()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
