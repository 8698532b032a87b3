"""Ranks that multicast messages to several peers. Argument: what to do."""

import os
import signal
import sys
import time

import numpy as np
import paceline

from job_workers.values import DTYPES, LENGTHS, LONG, Digest, check_combined, said, tell, values


def counts(job):
    """Bytes sent and received, and the fate of datagrams."""
    status = job.status()
    return {"sent": status["bytes_sent"], "received": status["bytes_received"], "multicast": status["multicast"]}


def sums(job):
    """All-reduces of all dtypes and of many lengths, of all ranks and of some."""
    digest, group = Digest(), job.group(range(job.size - 1, -1, -1), "turned")
    for dtype in DTYPES:
        for length in (*LENGTHS, LONG):
            for number, who in enumerate((job, group)):
                array = values(dtype, length, job.rank, number)
                who.all_reduce(array, "sum", name=f"{dtype}-{length}", **said(dtype))
                check_combined(array, "sum", dtype, [(rank, number) for rank in range(job.size)])
                digest.add(array)
    tell(rank=job.rank, digest=digest.text(), choices=job.choices(), **counts(job))


def once(job, length=1_000_000):
    """The bytes of one all-reduce."""
    before = counts(job)
    array = np.full(int(length), job.rank + 1, "float32")
    job.all_reduce(array)
    assert (array == job.size * (job.size + 1) / 2).all()
    after = counts(job)
    tell(
        sent=after["sent"] - before["sent"], received=after["received"] - before["received"], **after["multicast"] or {}
    )


def lose(job, how, length=1_000_000):
    """Rank 1 ends in the middle of it; the others keep training."""
    array = np.ones(int(length), "float32")
    try:
        for step in range(10**6):
            if job.rank == 1 and step == 20:
                tell(ends_at=time.monotonic())
                os.kill(os.getpid(), getattr(signal, how))
            array[:] = 1
            job.all_reduce(array, name="w")
    except paceline.JobError as error:
        tell(error=str(error), at=time.monotonic())
        before = time.monotonic()
        job.close()
        tell(closed_in=time.monotonic() - before)


def late(job):
    """The last rank is late more than once: the others wait for it, without errors."""
    for _ in range(2):
        if job.rank == job.size - 1:
            time.sleep(1)
        array = np.full(4_000_000, 1.0, "float32")
        job.all_reduce(array)
        assert (array == job.size).all()
    # Acknowledgments follow a moment after the sum.
    until = time.monotonic() + 10
    while any(job.status()["multicast"][what] for what in ("kept", "waiting")) and time.monotonic() < until:
        time.sleep(0.01)
    tell(**counts(job))


def rate(job, megabytes=64, times=10):
    """Seconds of an all-reduce, the median."""
    array, took = np.ones(int(megabytes) * 250_000, "float32"), []
    for _ in range(int(times)):
        job.barrier()
        begin = time.monotonic()
        job.all_reduce(array)
        took.append(time.monotonic() - begin)
    tell(seconds=sorted(took)[len(took) // 2], **counts(job))


if __name__ == "__main__":
    with paceline.job.join() as it:
        globals()[sys.argv[1]](it, *sys.argv[2:])
