"""Process sets: groups of ranks that work together while the others do not take part."""

from __future__ import annotations

from collections.abc import Iterable

from paceline._core import NamedOperation
from paceline.hvd import world
from paceline.hvd.handles import PendingOperation
from paceline.hvd.messages import gather_numbers
from paceline.hvd.world import members_of


class ProcessSet:
    """A group of ranks, given first to `hvd.init` or `hvd.add_process_set`, and then to operations.

    Example:
        >>> hvd.ProcessSet([1, 0]).ranks
        [0, 1]
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        """Create a set of these ranks, which the job does not know until it is added.

        Args:
            ranks: Ranks as numbered by `hvd.rank()`, in any order.

        Raises:
            ValueError: `ranks` is not a list of integers.
        """
        try:
            members = sorted(ranks)
        except TypeError:
            raise ValueError(f"a process set is made of a list of ranks, not of {ranks!r:.80}") from None
        if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in members):
            raise ValueError(f"a process set is made of a list of ranks, not of {members!r:.80}")
        self.ranks: list[int] = members
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        """Return the number of ranks, or None before the set is added."""
        return None if self.process_set_id is None else len(world.ranks_of(self))

    def rank(self) -> int | None:
        """Return this process's rank within the set, or None before the set is added.

        Raises:
            ValueError: This rank is not in the set.
        """
        return None if self.process_set_id is None else world.members_of(self).rank

    def included(self) -> bool:
        """Return whether this rank is in the set.

        Raises:
            NotInitializedError: `hvd.init()` has not been called.
        """
        return world.rank() in self.ranks

    def invalidate(self) -> None:
        """Mark the set as removed; it may be added again."""
        self.process_set_id = None

    def __repr__(self) -> str:
        """Return its number and ranks."""
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
"""All ranks. Its number is 0; the ranks are known after `hvd.init()`."""
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Add a process set. All ranks of the job call this with the same ranks in the same order.

    Args:
        process_set: The set, or the ranks of a new one.

    Returns:
        The added set.

    Raises:
        ValueError: A rank does not exist or is listed twice, the ranks already are a set, or ranks of the job give
            different ones.
        JobError: A rank is gone.

    Example:
        >>> hvd.add_process_set([0])
        Traceback (most recent call last):
            ...
        ValueError: add_process_set: ranks [0] are process set 0 already; use that one
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    here, ranks = world.current(), _checked(added)
    everybody = world.members_of(global_process_set)
    for rank, values in enumerate(gather_numbers(everybody, "process_set.add", ranks)):
        if values != ranks:
            raise ValueError(
                f"add_process_set: ranks {ranks} here, on rank {here.rank}, and {values} on rank {rank}; all ranks add "
                "the same sets in the same order"
            )
    added.process_set_id = here.register(ranks, added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set. All ranks of the job call this; operations of the set in flight fail.

    Args:
        process_set: The set.

    Returns:
        Whether it was removed: the set of all ranks and unknown sets are not.

    Raises:
        ValueError: Ranks remove different sets.
        JobError: A rank is gone.

    Example:
        >>> hvd.remove_process_set(hvd.global_process_set)
        False
    """
    here, number = world.current(), process_set.process_set_id
    if not number or number not in here.sets:
        return False
    everybody = world.members_of(global_process_set)
    for rank, values in enumerate(gather_numbers(everybody, "process_set.remove", [number])):
        if values != [number]:
            raise ValueError(
                f"remove_process_set: number {number} here, and {values} on rank {rank}; all ranks must remove one set"
            )
    here.unregister(number)
    return True


def _checked(process_set: ProcessSet) -> list[int]:
    here, ranks = world.current(), process_set.ranks
    if not ranks:
        raise ValueError("add_process_set: the set has no ranks; give one or more")
    if process_set.process_set_id is not None:
        raise ValueError(f"add_process_set: {process_set!r} has already been added")
    if ranks[0] < 0 or ranks[-1] >= here.size or len(set(ranks)) < len(ranks):
        raise ValueError(
            f"add_process_set: ranks {ranks} in a job of {here.size}; ranks count from 0 to {here.size - 1}, and each "
            "is named once"
        )
    for number, known in here.sets.items():
        if list(known.ranks) == ranks:
            raise ValueError(f"add_process_set: ranks {ranks} are process set {number} already; use that one")
    return ranks


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have reached the barrier.

    Args:
        process_set: The ranks that take part; by default all.

    Raises:
        JobError: A rank is gone.

    Example:
        >>> hvd.barrier()
    """
    members = members_of(process_set)

    def nothing(_: NamedOperation) -> None:
        pass

    members.begin(
        "barrier",
        None,
        lambda full: PendingOperation(members.coordinator.request("barrier", full), nothing),
        waits=True,
    )()


def join(device: int = -1) -> int:
    """Contribute zeros to reductions of other ranks until all have joined: this rank has no more data.

    Sums, averages and barriers of the other ranks continue meanwhile; averages still divide by the number of all ranks.
    Their other operations fail on every rank that calls them, as in Horovod. In asynchronous training, no worker
    waits for this one any more.

    Args:
        device: Accepted for compatibility with Horovod, and ignored.

    Returns:
        The rank that joined last.

    Raises:
        JobError: A rank is gone.

    Example:
        >>> hvd.join()
        0
    """
    members = members_of(global_process_set)
    members.check()
    servers = world.current().job.servers
    if servers is not None:
        servers.finish()
    operation = members.coordinator.join()
    operation.wait()
    members.names.restart()
    return operation.source()
