"""Ranks with parameter servers in separate processes. Argument: what to do."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import paceline

from job_workers.values import tell


def sums(job, seed=0):
    """All-reduces of many sizes, and other operations between; groups have servers, too."""
    for length in (0, 1, 5, 1000, 70_001, 1_000_000):
        for step in range(2):
            array = np.arange(length, dtype="float32") % 7 + job.rank + step
            want = sum(np.arange(length, dtype="float32") % 7 + rank + step for rank in range(job.size))
            job.all_reduce(array, "average" if step else "sum", name=f"t{length}")
            np.testing.assert_allclose(array, want / job.size if step else want, rtol=1e-6)
        array = np.full(3, job.rank)
        job.broadcast(array, root=job.size - 1)
        assert (array == job.size - 1).all()
    if job.rank < 2:
        group = job.group([1, 0], "pair")
        array = np.full(10, job.rank + 1, "float64")
        group.all_reduce(array)
        assert (array == 3).all()
    pids = {peer["server"]: peer["pid"] for peer in job.status()["peers"] if peer["server"] is not None}
    tell(servers=pids, size=job.size)


def steps(job):
    """Training steps: servers send nothing until all of a step's gradients have arrived, then by priority."""
    count, size = 24, 40_000
    arrays = [np.empty(size, "float32") for _ in range(count)]
    waited = []
    for step in range(6):
        for index, array in enumerate(arrays):
            array[:] = job.rank + index + step
        handles = []
        for index, array in enumerate(arrays):
            if index == count - 1 and job.rank == step % job.size:
                time.sleep(0.2)
                waited.append(any(handle.done() for handle in handles))
            handles.append(begin(job, array, f"g{index}", step=(index == count - 1, count - index)))
        for index, (array, handle) in enumerate(zip(arrays, handles, strict=True)):
            handle.wait()
            assert (array == sum(rank + index + step for rank in range(job.size))).all(), (step, index)
        empty = np.full(1000, 7.0, "float32")
        begin(job, empty, "moving average", pull_only=True).wait()
        assert (empty == 0).all()
    tell(early=any(waited), waited=len(waited))


def begin(job, array, name, **how):
    from paceline.job.arrays import memory

    given = memory(array, "array", dtype=None, writable=True)
    return job._begin("all_reduce", array, given, None, label=name, background=True, **how)


def stream(job):
    """Through a switch with little memory, with a late rank; returns the peak memory of the switch's process."""
    array = np.empty(20_000_000, "float32")
    for step in range(2):
        array[:] = np.arange(len(array), dtype="float32") % 1000 + job.rank
        if job.rank == 1 and step == 1:
            time.sleep(1.5)
        job.all_reduce(array, name="large")
        want = (np.arange(len(array), dtype="float32") % 1000) * job.size + sum(range(job.size))
        assert (array == want).all()
    (switch,) = [peer["pid"] for peer in job.status()["peers"] if peer["switch"]]
    lines = Path(f"/proc/{switch}/status").read_text().splitlines()
    tell(peak=next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))


def again(job):
    """The ranks leave the job and join it again, with the servers."""
    sums(job)
    job.close()
    with paceline.job.join() as other:
        sums(other)


def lose(job):
    """All-reduces until a server is gone."""
    array = np.ones(100_000, "float32")
    peers = job.status()["peers"]
    tell(servers=[peer["pid"] for peer in peers if peer["server"] is not None or peer["switch"]])
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 20:
            array[:] = 1
            job.all_reduce(array, name="weights")
    except paceline.JobError as error:
        tell(error=str(error))
        sys.exit(3)


def dies(job):
    """All-reduces until a worker is gone in the middle of one: rank 1 has sent a part of its gradient, or none."""
    array = np.ones(2_000_000, "float32")
    job.all_reduce(array, name="weights")
    tell(pid=os.getpid())
    if job.rank == 1:
        begin(job, array, "weights")
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        job.all_reduce(array, name="weights")
    except paceline.JobError as error:
        tell(error=str(error), seconds=time.monotonic() - start)
        sys.exit(3)


def _fails(job, call):
    try:
        call()
    except paceline.JobError as error:
        tell(error=str(error))
        sys.exit(3)


def other_shape(job):
    """Rank 1's gradient has another length: a server sees it first."""
    _fails(job, lambda: job.all_reduce(np.ones(1000 + job.rank, "float32"), name="weights"))


def other_call(job):
    """Rank 1 broadcasts while rank 0 all-reduces: these are counted separately, as servers take part in only one."""
    array = np.ones(1000, "float32")
    job.barrier()
    _fails(job, lambda: job.broadcast(array, root=0) if job.rank else job.all_reduce(array, name="weights"))


def one(job):
    """One all-reduce of this many bytes, for the timeline."""
    job.all_reduce(np.ones(500_000, "float32"), name="w")


def placed(job):
    """One all-reduce that states its place."""
    job.all_reduce(np.ones(500_000, "float32"), name="w", bucket=3)


if __name__ == "__main__":
    with paceline.job.join() as it:
        globals()[sys.argv[1]](it)
