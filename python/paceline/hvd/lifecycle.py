"""Joining and leaving the job."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Iterable
from dataclasses import replace

from paceline.errors import InvalidArgumentError, JobError
from paceline.hvd import timeline, world
from paceline.hvd.environment import Knobs, timeline_path
from paceline.hvd.handles import drain
from paceline.hvd.objects import allgather_object
from paceline.hvd.process_sets import ProcessSet, add_process_set, global_process_set
from paceline.hvd.world import places
from paceline.job.elastic_member import LauncherGoneError, membership
from paceline.job.failure import tell_launcher
from paceline.job.job import join_named


def init(comm: Iterable[int] | None = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Join the job that this process was started for, and wait for all ranks. Idempotent.

    Rank and size come from the launcher (paceline run, torchrun, mpirun, srun; docs/how-to/running.md). A process
    started without a launcher is a job of one rank. Settings are read from the PACELINE_ and HOROVOD_ environment
    variables (docs/reference/settings.md). In an elastic job it waits until a world has formed.

    Args:
        comm: Ranks of the launcher that work together, including this one; they are renumbered from 0. Ranks that name
            other sets form separate worlds, but all processes call `init`. By default all ranks.
        process_sets: Process sets to add at once. `"dynamic"` is accepted and has no effect: sets may always be added
            later.

    Raises:
        InvalidArgumentError: An environment variable is invalid.
        JobError: Ranks did not connect in time; the message names them.
        ValueError: `comm` lacks this rank or is not a list of ranks, or `process_sets` is not a list of `ProcessSet`.

    Example:
        >>> hvd.init()
        >>> hvd.rank(), hvd.size()
        (0, 1)
    """
    if world.is_initialized():
        return
    tell_launcher()
    sets = _sets(process_sets)
    _join_any(comm, sets)
    # Registered after what leaves the job at the end, so called before it.
    atexit.unregister(drain)
    atexit.register(drain)


def _join_any(comm: Iterable[int] | None, sets: list[ProcessSet]) -> None:
    while True:
        try:
            _join(comm, sets)
        except JobError as error:
            member = membership()
            if member is None or isinstance(error, LauncherGoneError):
                raise
            member.why = str(error)  # The driver says whether there is another world.
        else:
            return


def _join(comm: Iterable[int] | None, sets: list[ProcessSet]) -> None:
    knobs = Knobs.from_environment()
    hierarchical = knobs.hierarchical and not os.environ.get("PACELINE_STRATEGY")
    path = timeline_path()
    job = join_named(strategy="hierarchical" if hierarchical else None, timeline=path)
    if not knobs.threshold_given and job.settings.has_servers():
        # As in simulations: every tensor is pushed and pulled separately.
        knobs = replace(knobs, threshold=0)
    if job.settings.unfused:
        if knobs.threshold_given:
            job.close()
            raise InvalidArgumentError(
                "HOROVOD_FUSION_THRESHOLD: baidu-ring reduces every tensor separately",
                remedy="unset HOROVOD_FUSION_THRESHOLD, or PACELINE_STRATEGY=ring",
            )
        knobs = replace(knobs, threshold=0, threshold_given=True)
    here: world.World | None = None
    try:
        here = world.World(job, knobs, _ranks(comm, job.rank, job.size))
        world.enter(here)
        here.register(range(here.size), global_process_set)
        global_process_set.ranks = list(range(here.size))
        gathered = allgather_object((socket.gethostname(), job.local_rank, here.common_settings), name="hvd.init")
        _compare([settings for _, _, settings in gathered])
        here.places = places(here.rank, [(host, local_rank) for host, local_rank, _ in gathered])
        for process_set in sets:
            add_process_set(process_set)
        if job.settings.timeline is not None:
            timeline.mark(True)
    except BaseException:
        world.enter(None)
        global_process_set.ranks = []
        (job if here is None else here).close()
        raise


def _compare(settings: list[dict[str, object]]) -> None:
    """Raise InvalidArgumentError naming the variable and two ranks whose values differ."""
    for rank, own in enumerate(settings):
        for variable, value in own.items():
            first = settings[0].get(variable)
            if value != first:
                raise InvalidArgumentError(
                    f"{variable} is {first} on rank 0 and {value} on rank {rank}",
                    remedy=f"{variable}={first} on all ranks",
                )


def _sets(process_sets: Iterable[ProcessSet] | str | None) -> list[ProcessSet]:
    """Return the process sets to add at once. Raises ValueError."""
    if process_sets is None or (isinstance(process_sets, str) and process_sets.lower() == "dynamic"):
        return []
    if isinstance(process_sets, str):
        raise ValueError(f"init: process_sets is {process_sets!r}; give a list of ProcessSet, or 'dynamic'")
    sets = list(process_sets)
    if any(not isinstance(process_set, ProcessSet) for process_set in sets):
        raise ValueError("init: process_sets contains something other than ProcessSet; write hvd.ProcessSet([0, 1])")
    return sets


def shutdown() -> None:
    """Leave the job; operations in flight fail, here and on ranks that wait for them. `init` may be called again."""
    if not world.is_initialized():
        return
    here = world.current()
    timeline.mark(False)
    world.enter(None)
    for number, registered in here.sets.items():
        for process_set in registered.objects:
            if number:
                process_set.invalidate()
    global_process_set.ranks = []
    here.close()


def _ranks(comm: Iterable[int] | None, rank: int, size: int) -> list[int]:
    """Return the ranks of the job that make up the world. Raises ValueError."""
    if comm is None:
        return list(range(size))
    try:
        ranks = list(comm)
    except TypeError:
        raise ValueError(
            f"init: comm is {type(comm).__name__}; there is no MPI: give a list of ranks, or leave it out"
        ) from None
    if not ranks:
        return list(range(size))
    good = all(isinstance(member, int) and 0 <= member < size for member in ranks) and len(set(ranks)) == len(ranks)
    if not good or rank not in ranks:
        raise ValueError(f"init: comm={ranks!r:.80} on rank {rank} of {size}; list ranks once each, with this one")
    return ranks
