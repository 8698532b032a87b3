"""Of two messages the later is wanted first; the other is longer than what is put aside unless nothing else helps."""

import numpy as np
import paceline

from job_workers.values import tell

BYTES = 80 << 20


def main():
    with paceline.job.join(transport="tcp", timeout_s=10.0) as job:
        large, small = np.full(BYTES // 4, job.rank, "float32"), np.full(4, job.rank, "float32")
        if job.rank == 1:
            first = job.send(large, 0, tag=1, async_=True)
            job.send(small, 0, tag=2)
            first.wait()
        else:
            job.recv(small, 1, tag=2)
            job.recv(large, 1, tag=1)
        tell(right=bool((large == 1).all() and (small == 1).all()))


if __name__ == "__main__":
    main()
