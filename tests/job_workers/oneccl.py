"""Ranks whose all-reduces are oneCCL's: right sums, and the end of a rank before and within a call."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import paceline.job
from paceline.errors import JobError, PacelineError

OPERATIONS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


def check_values(job):
    """Compare every type and operation with numpy; whole numbers, so that results are exact in any order."""
    for dtype in ("float32", "float64", "float16", "int32", "int64", "uint8"):
        for op, combine in OPERATIONS.items():
            for length in (1, 9, 5000):
                held = [
                    np.random.default_rng([rank, length]).integers(0, 4, length).astype(dtype)
                    for rank in range(job.size)
                ]
                array, expected = held[job.rank].copy(), held[0]
                for other in held[1:]:
                    expected = combine(expected, other).astype(dtype)
                job.all_reduce(array, op)
                assert np.array_equal(array, expected), (dtype, op, length)
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        assert any("libccl_legacy_cpu" in line for line in maps)
    print(f"rank {job.rank} right", flush=True)


def die(job, within):
    """Rank 1 dies between two all-reduces, or within one; the others say who it was, and when."""
    array = np.ones(1 << 21 if within else 100, np.float32)
    job.all_reduce(array, "max")
    begin = time.monotonic()
    if job.rank == 1:
        if not within:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            job.all_reduce(array, "max")
    except JobError as error:
        print(f"rank {job.rank} after {time.monotonic() - begin:.1f} s: {error}", flush=True)


def some(job):
    """Two of the ranks form a group, in which oneCCL has no communicator."""
    group = job.group([0, 1], "some") if job.rank < 2 else None
    array = np.ones(10, np.float32)
    try:
        if group is not None:
            group.all_reduce(array, "sum")
    except PacelineError as error:
        print(f"rank {job.rank}: {error}", flush=True)
    job.all_reduce(array, "sum")


with paceline.job.join() as job:
    {"values": check_values, "some": some}.get(sys.argv[1], lambda job: die(job, sys.argv[1] == "within"))(job)
