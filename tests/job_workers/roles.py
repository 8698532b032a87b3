"""Ranks that are worker, server and switch at once.

Arguments: transport, strategy, bytes per piece or `whole`, elements, and the delay of rank 1 in seconds.
"""

import sys
import time

import numpy as np
import paceline

from job_workers.values import tell


def main(transport, strategy, chunk, elements, late_s):
    with paceline.job.join(transport=transport, strategy=strategy, chunk=chunk, servers=2, timeout_s=8.0) as job:
        right = []
        for bucket in range(2):
            array = np.arange(int(elements), dtype="float32") % 1000 + job.rank
            want = (np.arange(int(elements), dtype="float32") % 1000) * job.size + sum(range(job.size))
            if job.rank == 1:
                time.sleep(float(late_s))
            job.all_reduce(array, bucket=bucket)
            right.append(bool((array == want).all()))
        tell(right=right)


if __name__ == "__main__":
    main(*sys.argv[1:])
