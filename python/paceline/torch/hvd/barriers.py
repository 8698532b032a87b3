"""Waiting for other ranks: barriers, and ranks that run out of data before others."""

from __future__ import annotations

from paceline._core import NamedOperation
from paceline.torch.hvd.handles import Part
from paceline.torch.hvd.process_sets import ProcessSet, global_process_set
from paceline.torch.hvd.world import members_of


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
