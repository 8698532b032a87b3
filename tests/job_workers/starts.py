"""Joining a job, and obstacles to it. Argument: what to do afterwards."""

import gc
import os
import resource
import sys
import threading
import time
import weakref

import numpy as np
import paceline
from paceline.job.job import InvalidArgumentError, JobError

from job_workers.values import check_combined, holdings, tell, values


def simple(job):
    assert job.all_reduce(np.full(3, job.rank + 1))[0] == job.size * (job.size + 1) / 2
    names = job.status()["transports"]
    tell(rank=job.rank, size=job.size, local_rank=job.local_rank, transports=names, choices=job.choices())


def again(job):
    """Successive jobs leave nothing in the process, however they end."""
    job.close()
    del job
    before = holdings()
    for turn in range(6):
        job = paceline.job.join()
        array = np.ones(100, "float32")
        handle = job.all_reduce(array, async_=True)
        group = job.group(reversed(range(job.size)), "back")
        assert group.rank == job.size - 1 - job.rank
        group.barrier()
        handle.wait()
        if turn % 3 == 0:
            job.close()
            job.close()
        held = weakref.ref(job)
        del job, group, handle
        gc.collect()
        assert held() is None
        assert holdings() == before, (turn, holdings(), before)
    tell(**before)


def threads(job):
    """Threads that begin and wait at the same time, each in its own group."""
    groups = [job.group(range(job.size), f"thread {k}") for k in range(4)]
    errors = []

    def work(number):
        try:
            group = groups[number]
            for turn in range(60):
                length = 1 + (turn * 977) % 20_000
                array = values("float32", length, job.rank, number, turn)
                if turn % 2:
                    group.all_reduce(array)
                else:
                    group.all_reduce(array, async_=True).wait()
                check_combined(array, "sum", "float32", [(rank, number, turn) for rank in range(job.size)], number)
        except BaseException as error:
            errors.append(repr(error))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors
    job.barrier()
    tell(done=True)


def main(after):
    begin = time.monotonic()
    if os.environ.get("JOB_TEST_LIMIT"):
        name, limit = os.environ["JOB_TEST_LIMIT"].split("=")
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(limit), int(limit)))
    try:
        job = paceline.job.join()
    except (JobError, InvalidArgumentError) as error:
        tell(kind=type(error).__name__, error=str(error), after=time.monotonic() - begin, pid=os.getpid())
        sys.exit(3)
    globals()[after](job)


if __name__ == "__main__":
    main(sys.argv[1])
