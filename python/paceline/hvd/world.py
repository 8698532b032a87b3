"""This process's state between `init` and `shutdown`: its job, its place in it, and its process sets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paceline.catalog.strategies import GRAPH
from paceline.errors import InvalidArgumentError, JobError, PacelineError
from paceline.hvd.environment import Knobs
from paceline.hvd.members import Members
from paceline.hvd.partition import Cores, partition, restore
from paceline.hvd.plan_file import PlanFile, read_plan
from paceline.job.job import Job

HorovodInternalError = JobError
"""A rank died, left, is silent or called a different operation; Horovod scripts catch this."""
HostAndLocalRank = tuple[str, int | None]
"""Host name and local rank of a rank; None if the launcher does not say."""
NEGOTIATE = "negotiate"
DYNAMIC = "partitioned:dynamic"
TENSORFLOW = "tensorflow"
"""The placement that follows the order of creation."""


class NotInitializedError(PacelineError, ValueError):
    """`hvd.init()` has not been called, or `hvd.shutdown()` has."""

    def __init__(self) -> None:
        """The message says what to do."""
        super().__init__("Paceline has not been initialized; use hvd.init().")


@dataclass(frozen=True)
class Places:
    """One rank's place among the nodes of the job."""

    local_rank: int
    """Its number among the ranks of this node."""
    local_size: int
    cross_rank: int
    """Its number among the nodes that have this local rank."""
    cross_size: int
    homogeneous: bool
    """Whether all nodes have the same number of ranks."""


class Numbered(Protocol):
    """A process set as its world sees it."""

    process_set_id: int | None

    def invalidate(self) -> None:
        """Mark the set as removed."""


@dataclass
class Registered:
    """A process set that has been added."""

    ranks: tuple[int, ...]
    members: Members | None
    """None if this rank is not a member."""
    objects: list[Numbered] = field(default_factory=list)
    """The script's objects for this set."""


class World:
    """The ranks that work together, usually all ranks of the job."""

    def __init__(self, job: Job, knobs: Knobs, job_ranks: Sequence[int]) -> None:
        """`job_ranks` are the ranks of the job that form this world, in order; this rank is one of them."""
        self.job, self.knobs = job, knobs
        self.job_ranks = tuple(job_ranks)
        self.rank, self.size = self.job_ranks.index(job.rank), len(self.job_ranks)
        self.placed = job.settings.placed()
        """The parameter server of each tensor, if a file assigns them."""
        self.policy = job.settings.coordinator or (NEGOTIATE if job.settings.has_servers() else GRAPH)
        """The coordinator: how ranks agree on an order."""
        given = job.settings.coordinator_plan
        self.plan: PlanFile | None = None if given is None else read_plan(Path(given))
        """The plan that was made before the run."""
        self.places: Places | None = None
        """None until all ranks have reported."""
        self.sets: dict[int, Registered] = {}
        self._next = 0

    @property
    def common_settings(self) -> dict[str, object]:
        """Return the settings that all ranks must have in common to agree on an order, by environment variable."""
        plan = None if self.plan is None else self.plan.digest
        return {
            "PACELINE_COORDINATOR": self.policy,
            "PACELINE_COORDINATOR_PLAN": f"plan {plan}" if plan else "no plan",
            "HOROVOD_FUSION_THRESHOLD": self.knobs.threshold,
        }

    def register(self, ranks: Sequence[int], process_set: Numbered) -> int:
        """Add a process set and return its number. All ranks do so in the same order; members wait for each other."""
        number = self._next
        members = self._members(ranks, number) if self.rank in ranks else None
        self._next += 1
        self.sets[number] = Registered(tuple(ranks), members, [process_set])
        return number

    def _members(self, ranks: Sequence[int], number: int) -> Members:
        knobs = self.knobs
        if knobs.cores is not None and (self.job.local_rank is None or self.job.local_size is None):
            raise InvalidArgumentError(
                "HOROVOD_THREAD_AFFINITY: the launcher does not say which rank of its node this is",
                remedy="LOCAL_RANK=0 and LOCAL_WORLD_SIZE=8, or unset HOROVOD_THREAD_AFFINITY",
            )
        core = knobs.core(self.job.local_rank or 0, self.job.local_size or 1)
        cores: Cores | None = None
        dynamic = self.policy == DYNAMIC
        if core is None and (dynamic or self.policy == "partitioned"):
            cores = partition(
                self.job.local_rank or 0,
                self.job.local_size or 1,
                dynamic=dynamic,
                verbose=self.job.settings.verbose,
            )
            core = None if cores is None else cores.coordinator
        coordinator = self.job._joined().coordinator(
            [self.job_ranks[rank] for rank in ranks],
            f"process set {number} of the world of rank {self.job_ranks[0]}",
            cycle_time_s=knobs.cycle_time_s,
            threshold=knobs.threshold,
            capacity=knobs.capacity,
            warn_after_s=knobs.warn_after_s,
            give_up_after_s=knobs.give_up_s(self.job.settings.timeout_s),
            placement={f"allreduce.{name}": server for name, server in self.placed.items()},
            core=core,
            lent=cores.lent() if cores is not None and dynamic else [],
            policy=self.policy,
            bucket=knobs.bucket,
            prescribed=None if self.plan is None else self.plan.native(),
        )
        settings = self.job.settings
        in_order = (settings.server_processes or settings.servers) if settings.placement == TENSORFLOW else None
        return Members(coordinator, ranks, self.job.check, servers=in_order)

    def unregister(self, number: int) -> None:
        """Remove a process set."""
        registered = self.sets.pop(number)
        for process_set in registered.objects:
            process_set.invalidate()
        if registered.members is not None:
            registered.members.coordinator.close()

    def close(self) -> None:
        """Leave the job."""
        for registered in self.sets.values():
            if registered.members is not None:
                registered.members.coordinator.close()
        restore()
        self.job.close()


_world: World | None = None


def current() -> World:
    """Return the world of this process. Raises NotInitializedError before `init` and after `shutdown`."""
    if _world is None:
        raise NotInitializedError
    return _world


def enter(world: World | None) -> None:
    """Set the world of this process; None: there is none."""
    global _world  # noqa: PLW0603 - Horovod's API is one of functions, with one world a process
    _world = world


def registered(process_set: Numbered) -> Registered:
    """Return the record of a process set. Raises ValueError if it was not added, or was removed."""
    world = current()
    number = process_set.process_set_id
    known = world.sets.get(number) if number is not None else None
    if known is None:
        raise ValueError(
            f"{process_set!r} is unknown: it has not been added, or was removed; give it to "
            "hvd.init(process_sets=[...]) or hvd.add_process_set(...)"
        )
    return known


def ranks_of(process_set: Numbered) -> tuple[int, ...]:
    """Return the ranks of a process set."""
    return registered(process_set).ranks


def members_of(process_set: Numbered) -> Members:
    """Return this rank's view of a process set. Raises ValueError if this rank is not in it."""
    members = registered(process_set).members
    if members is None:
        raise ValueError(
            f"rank {current().rank} is not in {process_set!r}; only its members take part: "
            "if process_set.included(): ..."
        )
    return members


def root_in(members: Members, root_rank: int, name: str | None, process_set: Numbered) -> int:
    """Return the number within a process set of a rank of the job. Raises ValueError if it is not in the set."""
    if root_rank not in members.ranks:
        which = "broadcast" if name is None else f"broadcast of '{name}'"
        raise ValueError(
            f"{which}: root_rank {root_rank} is not in {process_set!r}; it is one of the job's ranks "
            f"{list(members.ranks)}"
        )
    return members.ranks.index(root_rank)


def is_initialized() -> bool:
    """Return whether `init` has been called, and `shutdown` has not.

    Example:
        >>> hvd.is_initialized()
        True
    """
    return _world is not None


def rank() -> int:
    """Return the rank of this process, from 0.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.

    Example:
        >>> hvd.rank()
        0
    """
    return current().rank


def size() -> int:
    """Return the number of ranks.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.

    Example:
        >>> hvd.size()
        1
    """
    return current().size


def local_rank() -> int:
    """Return the rank of this process among those of its node, from 0.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
    """
    return _places().local_rank


def local_size() -> int:
    """Return the number of ranks on this node.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
    """
    return _places().local_size


def cross_rank() -> int:
    """Return the index of this node among the nodes that have a process with this local rank.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
    """
    return _places().cross_rank


def cross_size() -> int:
    """Return the number of nodes that have a process with this local rank.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
    """
    return _places().cross_size


def is_homogeneous() -> bool:
    """Return whether all nodes have the same number of ranks.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.
    """
    return _places().homogeneous


def _places() -> Places:
    known = current().places
    if known is None:
        raise NotInitializedError
    return known


def places(rank: int, reported: Sequence[HostAndLocalRank]) -> Places:
    """Return the place of `rank`, from the host names and local ranks of all ranks, in rank order."""
    nodes = _nodes(reported)
    of = {member: node for node, members in nodes.items() for member in members}
    local = {member: at for members in nodes.values() for at, member in enumerate(members)}
    alike = [node for node, members in nodes.items() if len(members) > local[rank]]
    return Places(
        local_rank=local[rank],
        local_size=len(nodes[of[rank]]),
        cross_rank=alike.index(of[rank]),
        cross_size=len(alike),
        homogeneous=len({len(members) for members in nodes.values()}) == 1,
    )


def _nodes(reported: Sequence[HostAndLocalRank]) -> dict[tuple[str, int], list[int]]:
    """Return the ranks of each node in the order of their local ranks; nodes in the order of their lowest ranks."""
    nodes: dict[tuple[str, int], list[int]] = defaultdict(list)
    seen: Counter[HostAndLocalRank] = Counter()
    all_known = all(local is not None for _, local in reported)
    for rank, (host, local) in enumerate(reported):
        same = (host, local if all_known else rank)
        nodes[host, seen[same]].append(rank)
        seen[same] += 1
    if all_known:
        for members in nodes.values():
            members.sort(key=lambda member: reported[member][1] or 0)
    return nodes
