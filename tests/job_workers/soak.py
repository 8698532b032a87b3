"""Random operations for a long time, with constant memory, descriptors and threads. Argument: seconds.

Every rank draws the same plan for a turn from its number; now and then groups, and even jobs, are recreated.
"""

import gc
import os
import sys
import time
from pathlib import Path

import numpy as np
import paceline

from job_workers.groups import plan, run_window
from job_workers.values import Digest, forget, holdings, tell

WARM_UP = 0.2
"""Of the time. Caches fill, and the allocator finds its size."""
TURNS_OF_A_JOB = 40
STEPS = 60


def resident_kib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def turn(job, number, made):
    members, steps = plan([7, number], job.size, STEPS)
    groups = {0: job}
    for key, ranks in enumerate(members):
        if key > 0 and job.rank in ranks:
            # Names recur: a closed group must leave nothing behind.
            known = (key, *ranks)
            groups[key] = made[known] if known in made else job.group(ranks, f"soak {key}")
            made[known] = groups[key]
    own = np.random.default_rng([number, job.rank])
    at = 0
    while at < len(steps):
        window = steps[at : at + int(own.integers(1, 20))]
        at += len(window)
        run_window(groups, window, own, Digest(), members)
    for length in (1, 1000, 250_000):
        array = np.ones(length, "float32")
        job.all_reduce(array, name="in step")
        assert (array == job.size).all()
    after, before, word = (job.rank + 1) % job.size, (job.rank - 1) % job.size, np.empty(2, "int64")
    sent = job.send(np.array([job.rank, number]), after, async_=True)
    assert job.recv(word, before) == before
    assert word.tolist() == [before, number]
    sent.wait()


def enough(job, until):
    """Whether the time is over, which rank 0 decides for all."""
    over = np.array([time.monotonic() >= until], "uint8")
    job.broadcast(over)
    return bool(over[0])


def main(seconds):
    begin, number, samples, over = time.monotonic(), 0, [], False
    while not over:
        with paceline.job.join(transport=("auto", "tcp")[number // TURNS_OF_A_JOB % 2]) as job:
            made = {}
            for _ in range(TURNS_OF_A_JOB):
                turn(job, number, made)
                number += 1
                if number % 10 == 0:
                    made.clear()
                over = enough(job, begin + seconds)
                if over:
                    break
        del job, made
        forget()
        gc.collect()
        if time.monotonic() - begin > WARM_UP * seconds or over:
            samples.append({"kib": resident_kib(), **holdings()})
    tell(turns=number, samples=samples)


if __name__ == "__main__":
    main(float(sys.argv[1]))
