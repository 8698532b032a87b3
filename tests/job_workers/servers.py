"""Ranks with parameter servers that are processes of their own. Words: what to do."""

import sys
import time

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


def again(job):
    """The job is left and joined again: the servers come along."""
    sums(job)
    job.close()
    with paceline.job.join() as other:
        sums(other)


def lose(job):
    """All-reduces until a server is gone."""
    array = np.ones(100_000, "float32")
    tell(servers=[peer["pid"] for peer in job.status()["peers"] if peer["server"] is not None])
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 20:
            array[:] = 1
            job.all_reduce(array, name="weights")
    except paceline.JobError as error:
        tell(error=str(error))
        sys.exit(3)


def one(job):
    """One all-reduce of so many bytes, for the timeline."""
    job.all_reduce(np.ones(500_000, "float32"), name="w")


if __name__ == "__main__":
    with paceline.job.join() as it:
        globals()[sys.argv[1]](it)
