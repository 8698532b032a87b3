"""Process sets: some ranks of the job, which work together while the others do not take part."""

from __future__ import annotations

from collections.abc import Iterable

from paceline._core import NamedOperation
from paceline.torch.hvd import world
from paceline.torch.hvd.gathering import told_by_all
from paceline.torch.hvd.handles import Part
from paceline.torch.hvd.world import members_of


class ProcessSet:
    """Some ranks of the job, to be given to `hvd.init` or `hvd.add_process_set`, and then to operations."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """`ranks` as `hvd.rank()` counts them, in any order. Raises ValueError for what is no list of numbers."""
        try:
            found = sorted(ranks)
        except TypeError:
            raise ValueError(f"a process set is made of a list of ranks, not of {ranks!r:.80}") from None
        if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in found):
            raise ValueError(f"a process set is made of a list of ranks, not of {found!r:.80}")
        self.ranks: list[int] = found
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        """How many ranks; None before it has been added."""
        return None if self.process_set_id is None else len(world.ranks_of(self))

    def rank(self) -> int | None:
        """This rank's place in the set; None before it has been added. Raises ValueError at ranks outside."""
        return None if self.process_set_id is None else world.members_of(self).rank

    def included(self) -> bool:
        """Whether this rank is one of them. Raises NotInitializedError before `init`."""
        return world.rank() in self.ranks

    def invalidate(self) -> None:
        """It has been removed; it may be added again."""
        self.process_set_id = None

    def __repr__(self) -> str:
        """Its number and ranks."""
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
"""All ranks. Its number is 0; the ranks are known after `hvd.init()`."""
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Add a process set, or one of these ranks. All ranks of the job call this, with the same ranks in the same order.

    Raises ValueError for ranks that do not exist or come twice, for ranks that are a set already, and if ranks call it
    with different ones.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    here, ranks = world.current(), _checked(added)
    everybody = world.members_of(global_process_set)
    for rank, said in enumerate(told_by_all(everybody, "process_set.add", ranks)):
        if said != ranks:
            raise ValueError(
                f"add_process_set: ranks {ranks} here, on rank {here.rank}, and {said} on rank {rank}; all ranks add "
                "the same sets in the same order"
            )
    added.process_set_id = here.register(ranks, added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; False for that of all ranks, which stays, and for one that is not there.

    All ranks of the job call this. Operations of the set that are in flight fail. Raises ValueError if ranks remove
    different ones.
    """
    here, number = world.current(), process_set.process_set_id
    if not number or number not in here.sets:
        return False
    everybody = world.members_of(global_process_set)
    for rank, said in enumerate(told_by_all(everybody, "process_set.remove", [number])):
        if said != [number]:
            raise ValueError(
                f"remove_process_set: number {number} here, and {said} on rank {rank}; all ranks remove the same"
            )
    here.unregister(number)
    return True


def _checked(process_set: ProcessSet) -> list[int]:
    here, ranks = world.current(), process_set.ranks
    if not ranks:
        raise ValueError("add_process_set: the set has no ranks; give one or more")
    if process_set.process_set_id is not None:
        raise ValueError(f"add_process_set: {process_set!r} has been added before")
    if ranks[0] < 0 or ranks[-1] >= here.size or len(set(ranks)) < len(ranks):
        raise ValueError(
            f"add_process_set: ranks {ranks} in a job of {here.size}; ranks count from 0 to {here.size - 1}, and each "
            "is named once"
        )
    for number, known in here.sets.items():
        if list(known.ranks) == ranks:
            raise ValueError(f"add_process_set: ranks {ranks} are process set {number} already; use that one")
    return ranks


# Waiting for other ranks: barriers, and ranks that run out of data before others.


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have come. Raises JobError if one is gone."""
    members = members_of(process_set)

    def nothing(_: NamedOperation) -> None:
        pass

    members.begin(
        "barrier", None, lambda full: Part(members.coordinator.request("barrier", full), nothing), waits=True
    )()


def join(device: int = -1) -> int:
    """This rank has no more data: take part with zeros in what others reduce, until all ranks have joined.

    Returns the rank that joined last. Sums, averages and all-gathers of others go on meanwhile; averages are over all
    ranks. `device` is Horovod's, and has no meaning here. Raises JobError if a rank is gone.
    """
    members = members_of(global_process_set)
    members.check()
    operation = members.coordinator.join()
    operation.wait()
    members.names.restart()
    return operation.source()
