"""Joining and leaving a job."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Unpack, cast

from paceline._core import Communicator, Engine
from paceline.async_ps.worker import Servers
from paceline.errors import InvalidArgumentError, JobError
from paceline.job import selection_log, timeline_files
from paceline.job.bootstrap import MpiExchange, share_secret
from paceline.job.collectives import Collectives, Exchanges, Handle
from paceline.job.elastic_loop import join_world
from paceline.job.elastic_member import Membership, membership
from paceline.job.failure import joining, patience_s, tell_launcher
from paceline.job.rank_environment import RankEnvironment, rank_environment
from paceline.job.settings import OVER_MPI, Settings
from paceline.settings.keywords import JobSettings

_MEET_S = 20.0
"""Time limit for ranks to connect once all have been given a place: one that does not is dead, and the driver knows."""

__all__ = ["Group", "Handle", "InvalidArgumentError", "Job", "JobError", "join"]


class Group(Collectives, Exchanges):
    """Some ranks of the job, in an order of the group's own. A rank may be in many groups."""


class Job(Group):
    """This process's part of a job, and the group of all its ranks.

    The job is left at the end of a `with` block, by `close`, when the last reference goes, or when the interpreter
    exits. Several threads may use a job, but threads that use one group at the same time must do so in the same order
    on every rank.

    Example:
        >>> with paceline.job.join() as example:
        ...     example.rank, example.size
        (0, 1)
    """

    def __init__(self, engine: Engine, place: RankEnvironment, communicator: Communicator, settings: Settings) -> None:
        """Made by `join`."""
        super().__init__(self, communicator, "world")
        self.local_rank = place.local_rank
        """Rank among those of this host; `None` if the launcher does not say."""
        self.local_size = place.local_size
        """Number of ranks on this host; `None` if the launcher does not say."""
        self._engine: Engine | None = engine
        self._groups: weakref.WeakSet[Group] = weakref.WeakSet([self])
        self._names: dict[tuple[str, tuple[int, ...]], int] = {}
        self._ended: str | None = None
        self.settings = settings
        """The settings with which the job was joined."""
        self.servers = Servers(engine, communicator.size, settings) if settings.is_asynchronous else None
        """The servers that apply this rank's gradients, in asynchronous training."""
        if settings.timeline is not None:
            timeline_files.begin(engine, settings.timeline)
        self._finalizer = weakref.finalize(self, _leave, engine, settings.timeline, self.servers)
        _jobs.add(self)

    def group(self, ranks: Sequence[int], name: str = "group") -> Group:
        """Create a group of ranks. Each member calls this with the same ranks and name, and they wait for each other.

        Ranks that create several groups must do so in the same order. A second call with the same arguments creates
        another group.

        Args:
            ranks: Ranks of the job in the order that they have in the group; this rank is one of them.
            name: What error messages call the group.

        Returns:
            The group, in which this process's rank is its position in `ranks`.

        Raises:
            InvalidArgumentError: A rank does not exist, is listed twice, or this rank is missing.
            JobError: A member did not call this, or has left.

        Example:
            >>> pair = job.group([0], name="first")
            >>> pair.size, pair.ranks
            (1, [0])
        """
        members = tuple(int(rank) for rank in ranks)
        if not members or min(members) < 0:
            raise InvalidArgumentError(
                f"group '{name}': must be distinct ranks of a job of {self.size}, not {list(members)}",
                remedy=f"ranks of 0-{self.size - 1}, each once",
            )
        again = self._names.get((name, members), 0)
        communicator = self._joined().group(members, f"{name}#{again}" if again else name)
        self._names[name, members] = again + 1
        group = Group(self, communicator, name)
        self._groups.add(group)
        return group

    def status(self) -> dict[str, Any]:
        """Return transports by peer, operations in flight, and bytes sent and received, for diagnostics and tests."""
        return cast("dict[str, Any]", json.loads(self._joined().status()))

    def close(self) -> None:
        """Leave the job. Idempotent.

        What this rank has begun is completed first, if the others begin it within the time limit. Other operations
        fail, here and on ranks that wait for them.
        """
        self._ended = self._ended or "the job has been closed; join again"
        self._finalizer()
        # Connections and shared memory end with the last reference.
        self._engine = None
        for group in list(self._groups):
            group._communicator = None

    def check(self) -> None:
        """Raise JobError if the job has been closed here, or if this process was forked from the one that joined it."""
        if self._ended is not None:
            raise JobError(self._ended)

    def _joined(self) -> Engine:
        self.check()
        if self._engine is None:
            raise JobError("the job has been closed", remedy="paceline.job.join()")
        return self._engine

    def __enter__(self) -> Job:
        """Return the job, which is left at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the job."""
        self.close()

    def _forked(self) -> None:
        """Refuse further use in a forked child: the connections belong to the parent."""
        self._ended = (
            f"this process was forked from rank {self.rank}, and is not itself a rank; start it with the 'spawn' or "
            "'forkserver' method, or fork it before the job is joined"
        )
        if self._engine is not None:
            self._engine.forget_after_fork()


def _leave(engine: Engine, timeline: str | None, servers: Servers | None) -> None:
    patience = patience_s()
    if servers is not None and patience is None:
        # After an error, the others learn that this rank has left, and why.
        with suppress(JobError):
            servers.leave()
    engine.close(patience)
    if timeline is not None:
        timeline_files.finish(engine, timeline)


def join(**settings: Unpack[JobSettings]) -> Job:
    """Join the job that this process was started for: wait for all ranks and connect to them.

    Rank and size come from the launcher (`paceline run`, torchrun, mpirun, srun or Ray; docs/how-to/running.md). A
    process started without a launcher is a job of one rank. Unless a strategy is named, the ranks first measure which
    is fastest for each message size.

    Args:
        **settings: Settings of the runtime such as `transport="tcp"` or `timeout_s=5` (docs/reference/settings.md).
            They take precedence over the PACELINE_* environment variables.

    Returns:
        The job.

    Raises:
        InvalidArgumentError: A setting is unknown, invalid, or has no effect on the others.
        JobError: Ranks did not connect in time; the message names them.

    Example:
        >>> with paceline.job.join(strategy="ring", timeout_s=30) as example:
        ...     example.all_reduce(np.ones(2))
        array([1., 1.])
    """
    tell_launcher()
    known = Settings.from_environment(None, **settings)
    known.refuse_coordinator()
    known.refuse_asynchronous("a job of arrays")
    if known.placed() or known.places_names:
        raise InvalidArgumentError(
            f"{known.placement}: the arrays of this job have no names",
            setting="placement",
            remedy="{this=even}, or paceline.torch's DistributedOptimizer",
        )
    return _join(known)


def join_named(**settings: Unpack[JobSettings]) -> Job:
    """Like `join`, for callers whose tensors have names, so that a file can place them on servers."""
    tell_launcher()
    known = Settings.from_environment(None, **settings)
    if known.is_asynchronous and not known.server_processes:
        raise InvalidArgumentError(
            f"{known.strategy} needs server processes, which only paceline run and paceline.ray start",
            setting="strategy",
            remedy="paceline run --strategy async-ps --servers 1 -- python train.py, or {this=ps}",
        )
    return _join(known)


def _join(known: Settings) -> Job:
    member = membership()
    if member is not None:
        return _join_world(member, known)
    place = rank_environment()
    rendezvous = known.rendezvous or place.rendezvous
    exchange: Callable[[bytes], list[bytes]] | None = None
    secret = known.secret
    if known.transport in OVER_MPI:
        through = MpiExchange(place.rank, place.size, known)
        exchange, secret = through, share_secret(through, known.secret)
    elif place.launcher == "torchrun" and rendezvous is None:
        exchange, secret = _through_torchrun(place, known)
    with joining(place.size):
        return _start(place, replace(known, rendezvous=rendezvous, secret=secret), exchange)


def _start(place: RankEnvironment, known: Settings, exchange: Callable[[bytes], list[bytes]] | None) -> Job:
    engine = Engine.start(place.rank, place.size + known.helpers, known.to_json(), exchange)
    try:
        world = engine.world()
    except BaseException:
        engine.close()
        raise
    job = Job(engine, place, world, known)
    if known.verbose and job.rank == 0:
        selection_log.log_choices(job.choices())
    return job


def _join_world(member: Membership, known: Settings) -> Job:
    """Join the next world of an elastic job, or the one after it if a rank dies before all have connected."""
    limit = min(known.start_timeout_s or _MEET_S, _MEET_S)

    def join() -> Job:
        settings = replace(known, secret=member.secret(), start_timeout_s=limit)
        return _start(member.rank_environment(), settings, member.exchange)

    return join_world(member, join)


def _through_torchrun(place: RankEnvironment, settings: Settings) -> tuple[Callable[[bytes], list[bytes]], str]:
    """Use torchrun's own store for the rendezvous, because torchrun sets none of ours; it comes with torch."""
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore

    from paceline.torch.backend.store_exchange import StoreExchange

    if place.master_address is None or place.master_port is None:
        raise InvalidArgumentError(
            "MASTER_ADDR and MASTER_PORT are missing, which torchrun sets",
            remedy="PACELINE_RENDEZVOUS=node1:29400, or paceline run -np 4 -- python train.py",
        )
    serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and place.rank == 0
    limit = settings.start_limit_s
    store = TCPStore(place.master_address, place.master_port, place.size, serves, timedelta(seconds=limit))
    exchange = StoreExchange(store, place.rank, place.size, limit)
    return exchange, share_secret(exchange, settings.secret)


_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


def _forked() -> None:
    for job in list(_jobs):
        job._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
