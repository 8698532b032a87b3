"""This process's view of a job: the native engine, the completion of futures, and the end of both."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import weakref
from dataclasses import replace

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from paceline._core import Communicator, Engine
from paceline.errors import InvalidArgumentError, JobError
from paceline.job import selection_log, timeline_files
from paceline.job.bootstrap import share_secret
from paceline.job.elastic_member import ADDRESS
from paceline.job.failure import joining, patience_s
from paceline.job.rank_environment import rank_environment
from paceline.job.settings import Settings
from paceline.torch.backend.completion import Completion
from paceline.torch.backend.store_exchange import StoreExchange
from paceline.torch.recorder.marks import Marks

NOT_ELASTIC = "paceline run --elastic: torch.distributed has fixed ranks"
INSTEAD_OF_ELASTIC = "hvd.elastic.run instead of init_process_group, or drop --elastic"


class ProcessGroupJob:
    """The engine of one default process group (or of a group of its own), and the operations in flight."""

    def __init__(
        self, engine: Engine, world: Communicator, timeout_s: float, store: Store, life: int | None = None
    ) -> None:
        """Use `start`."""
        self.engine, self.world, self.timeout_s = engine, world, timeout_s
        self.rank, self.size = world.rank, world.size
        self.broken: str | None = None
        """Why no operation can start any more."""
        self._forked = False
        self._root = _root(store)
        self._life = life
        """How many jobs have been found through its store before it; None if it was not found through a store."""
        self.timeline: str | None = None
        """The file of the timeline."""
        self.marks: Marks | None = None
        self.completion = Completion(engine)
        self.beside: dict[torch.device, torch.cuda.Stream] = {}
        """By device: the stream in which operations begin that are not waited for at once."""
        self._names: dict[str, int] = {}
        _jobs.add(self)

    @classmethod
    def start(
        cls, store: Store, rank: int, size: int, timeout_s: float | None, group: str | None = None
    ) -> ProcessGroupJob:
        """Find the other ranks through `store` and connect; `timeout_s` is the timeout of init_process_group, if given.

        `group`: the name of a group with a store of its own, beside the default group. Its ranks are not those of the
        launcher, which is therefore not told that they join.

        Raises JobError naming the missing ranks, and InvalidArgumentError for an invalid setting.
        """
        settings = Settings.from_environment(timeout_s=timeout_s, start_timeout_s=timeout_s)
        settings.refuse_coordinator()
        settings.refuse_no_barrier(
            "torch.distributed's callers, such as DDP, wait for all sums before the optimizer's step",
            "paceline.torch's DistributedOptimizer, or drop {this}",
        )
        settings.refuse_asynchronous("a process group")
        if os.environ.get(ADDRESS):
            raise InvalidArgumentError(NOT_ELASTIC, remedy=INSTEAD_OF_ELASTIC)
        if settings.placed() or settings.places_names:
            raise InvalidArgumentError(
                f"{settings.placement}: torch.distributed does not pass the names of tensors",
                setting="placement",
                remedy="{this=even}, or paceline.torch's DistributedOptimizer",
            )
        if group is not None:
            settings = _of_own(group, settings)
        life: int | None = None
        with joining(size) if group is None else contextlib.nullcontext():
            if settings.server_processes:
                engine = _start_with_servers(rank, size, settings)
            else:
                exchange = StoreExchange(store, rank, size, settings.start_limit_s, group)
                life = exchange.life
                secret = share_secret(exchange, settings.secret, among_strangers=group is not None)
                settings = replace(settings, secret=secret)
                engine = Engine.start(rank, size, settings.to_json(), exchange)
                exchange.finish()
        try:
            world = engine.world(group)
        except BaseException:
            engine.close()
            raise
        if settings.verbose and rank == 0:
            selection_log.log_choices(world.choices())
        job = cls(engine, world, settings.timeout_s, store, life)
        if group is None:
            _keep(store)
        if settings.timeline is not None:
            timeline_files.begin(engine, settings.timeline)
            job.timeline, job.marks = settings.timeline, Marks(engine, job.completion)
        return job

    def takes(self, store: Store) -> bool:
        """Return whether a group of some of its ranks, which has this store, belongs to this job.

        So does every group in a child of this process that was forked from it, where `group` says why it cannot be.
        """
        return _root(store) is self._root and (self.broken is None or self._forked)

    def group(self, ranks: list[int], name: str, store: Store | None = None) -> Communicator:
        """Return a communicator of these ranks of the job. Each of them calls this equally often with the same name.

        `store`: that of the group, in which the ranks see whether they make the same one.

        Raises JobError if another rank makes a group of other ranks under this name: torch numbers the groups, which
        all ranks make in the same order.
        """
        self.check()
        if store is not None and self._life is not None:
            self._compare(ranks, name, PrefixStore(f"paceline/{self._life}", store))
        again = self._names.get(name, 0)  # torch reuses a destroyed group's name for the next one.
        self._names[name] = again + 1
        return self.engine.group(ranks, f"{name}#{again}")

    def _compare(self, ranks: list[int], name: str, store: Store) -> None:
        mine = json.dumps([self.rank, ranks])
        first, theirs = json.loads(store.compare_set("ranks", "", mine))
        if set(theirs).isdisjoint(ranks):
            # Parts of a group may each make a group of this number: new_subgroups(group=…).
            first, theirs = json.loads(store.compare_set(f"ranks from {min(ranks)}", "", mine))
        if theirs != ranks:
            text = (
                f"ranks make groups in different orders: rank {self.rank} makes group {name} of ranks {ranks}, rank "
                f"{first} has made group {name} of ranks {theirs}"
            )
            self.engine.note_cause(text)
            raise JobError(text, remedy="new_group in the same order on all ranks, also on those outside the group")

    def check(self) -> None:
        """Raise JobError if the job has ended, or if this process was forked from the one that started it."""
        if self.broken is not None:
            raise JobError(self.broken)

    # The end.

    def close(self, patience_s: float | None = None) -> None:
        """Leave the job and end the threads. Idempotent.

        What this rank has begun is completed first; it waits for other ranks to begin it for so long (None: as long as
        an operation would).
        """
        if self.broken is not None:
            return
        self.broken = "the process group has been destroyed; call init_process_group again"
        self.completion.close()
        self.engine.close(patience_s)
        if self.marks is not None:
            self.marks.remove()
        if self.timeline is not None:
            timeline_files.finish(self.engine, self.timeline)
        self.completion.finish()

    def forked(self) -> None:
        """Release the engine in a forked child: its threads and connections belong to the parent."""
        self._forked = True
        self.broken = (
            f"this process was forked from rank {self.rank} after init_process_group, and the connections are its "
            "parent's; start it with the 'spawn' or 'forkserver' method (DataLoader(multiprocessing_context='spawn')), "
            "and call init_process_group there with a store of its own"
        )
        self.completion.forked()
        self.engine.forget_after_fork()


def _of_own(group: str, settings: Settings) -> Settings:
    """Return the settings of a group with a store of its own: servers and the timeline belong to the launcher's ranks.

    Raises InvalidArgumentError if the strategy needs server processes.
    """
    if settings.helpers:
        raise InvalidArgumentError(
            f"group {group} has a store of its own, and the servers of {settings.strategy} belong to the default group",
            setting="strategy",
            remedy="{strategy=ring}, or new_group(…)",
        )
    return replace(settings, timeline=None)


def _root(store: Store) -> Store:
    """Return the store below all prefixes."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _start_with_servers(rank: int, size: int, settings: Settings) -> Engine:
    """Use the rendezvous of `paceline run`, because the servers do not know torch's store."""
    place = rank_environment()
    if (rank, size) != (place.rank, place.size):
        raise InvalidArgumentError(
            f"rank {rank} of {size} in a job of {place.size}: only the group of all ranks can use parameter servers",
            remedy="init_process_group('paceline') for all ranks",
        )
    settings = replace(settings, rendezvous=settings.rendezvous or place.rendezvous)
    return Engine.start(rank, size + settings.helpers, settings.to_json(), None)


_jobs: weakref.WeakSet[ProcessGroupJob] = weakref.WeakSet()
_stores: list[Store] = []


def _keep(store: Store) -> None:
    """Keep the store of the latest job until this process ends.

    Rank 0 may serve it. Others that begin their next group while it is still ending this one find the store of this
    one, which would be gone before they have used it; as it is kept, the next group uses it, too, as under torchrun.
    """
    _stores[:] = [store]


def _close_all() -> None:
    for job in list(_jobs):
        job.close(patience_s())


def _forked() -> None:
    for job in list(_jobs):
        job.forked()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
