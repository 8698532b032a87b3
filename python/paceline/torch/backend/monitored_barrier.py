"""`torch.distributed.monitored_barrier`: a barrier that says who is missing, in torch's words.

Ranks meet in the group's store instead of by messages, so that a barrier that fails leaves the group as it was: those
who came, and those who come later, can go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from paceline.errors import JobError
from paceline.job.bootstrap import named
from paceline.job.waiting import WaitReports
from paceline.torch.backend.store_exchange import wait_for

if TYPE_CHECKING:
    from paceline.torch.backend.job import ProcessGroupJob

_LOOK_S = 1.0
"""How often to look whether the job has failed, which says more than that a rank is missing."""
_REPLY_S = 5.0
"""How much longer than rank 0 the others wait for its answer."""
_ALL_HERE = "all here"


def meet(store: Store, rank: int, size: int, limit_s: float, job: ProcessGroupJob, *, every: bool) -> None:
    """Come to the barrier; return once all have come.

    Args:
        store: Only for this barrier.
        rank: In the group.
        size: Of the group.
        limit_s: How long rank 0 waits.
        job: Of the group.
        every: Whether rank 0 names all missing ranks instead of the first.

    Raises:
        JobError: A rank is missing; or the job has failed.
    """
    job.check()
    if rank == 0:
        _count(store, size, limit_s, job, every=every)
        return
    store.set(f"{rank}", "here")
    reports = WaitReports(limit_s, "timeout= or PACELINE_TIMEOUT")
    answered = _wait(
        store,
        "answer",
        time.monotonic() + limit_s + _REPLY_S,
        job,
        lambda: reports.report(
            lambda waited: f"rank {rank} has waited {waited} for rank 0's answer in monitored_barrier"
        ),
    )
    if not answered or store.get("answer").decode() != _ALL_HERE:
        raise JobError(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            "rank 0. Please check rank 0 logs for faulty rank."
        )


def _count(store: Store, size: int, limit_s: float, job: ProcessGroupJob, *, every: bool) -> None:
    deadline, missing = time.monotonic() + limit_s, []
    text = f"{limit_s * 1e3:.0f} ms"
    if limit_s <= 0:
        store.set("answer", "rank 0 has no time")
        raise JobError(f"Rank 0 timed out in monitoredBarrier after {text}", remedy="timeout=timedelta(seconds=60)")
    reports = WaitReports(limit_s, "timeout= or PACELINE_TIMEOUT")

    def report() -> None:
        if reports.due():
            late = [rank for rank in range(1, size) if not store.check([f"{rank}"])]
            reports.report(lambda waited: f"rank 0 has waited {waited} for {named(late)} in monitored_barrier")

    for rank in range(1, size):
        if _wait(store, f"{rank}", deadline, job, report):
            continue
        missing.append(rank)
        if not every:
            break
    if not missing:
        store.set("answer", _ALL_HERE)
        return
    store.set("answer", "ranks are missing")
    words = f"Rank {missing[0]}" if not every else f"Ranks {', '.join(map(str, missing))}"
    raise JobError(f"[Rank 0]: {words} failed to pass monitoredBarrier in {text}")


def _wait(store: Store, key: str, deadline: float, job: ProcessGroupJob, report: Callable[[], None]) -> bool:
    """Return whether the key has been set before `deadline`, by time.monotonic(); `report` the wait meanwhile."""
    looked = time.monotonic()

    def look() -> None:
        nonlocal looked
        if time.monotonic() >= looked + _LOOK_S:
            looked = time.monotonic()
            job.check()
            report()

    try:
        return wait_for(store, [key], deadline, look)
    except dist.DistNetworkError:  # The process of the store has ended.
        job.check()
        return False
