"""Checks the all-reduces of a job against numpy: every rank knows what the others hold.

paceline run -np 3 --strategy ps --servers 2 -- python examples/check_sums.py
PACELINE_TRANSPORT=grpc paceline run -np 4 --strategy tree -- python examples/check_sums.py
"""

import numpy as np
import paceline.job

LENGTHS = (1, 7, 1000, 100_003)
DTYPES = ("float32", "float64", "int32")


def held(rank: int, length: int, dtype: str) -> np.ndarray:
    """Return what a rank contributes: whole numbers, so that sums are exact in any order."""
    return np.random.default_rng([rank, length]).integers(-100, 100, length).astype(dtype)


with paceline.job.join() as job:
    checked = 0
    for dtype in DTYPES:
        for length in LENGTHS:
            array = held(job.rank, length, dtype)
            job.all_reduce(array, "sum")
            expected = sum(held(rank, length, dtype) for rank in range(job.size))
            assert np.array_equal(array, expected), f"rank {job.rank}: a sum of {dtype}[{length}] is wrong"
            checked += 1
    if job.rank == 0:
        transports = ", ".join(sorted(set(job.status()["transports"]) - {"self"}))
        print(f"{checked} sums equal numpy's on {job.size} ranks over {transports or 'nothing, as there is one'}")
