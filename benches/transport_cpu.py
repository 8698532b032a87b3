"""CPU time that a transport uses: an all-reduce on each rank of a job, over all threads of its process.

paceline run -np 2 --no-prefix --strategy ring --transport grpc -- python benches/transport_cpu.py 33554432 8
"""

from __future__ import annotations

import sys
import time

import numpy as np
import paceline


def main(size: int, steps: int) -> None:
    """`steps` all-reduces of `size` bytes, after three that do not count; rank 0 prints the time of one."""
    with paceline.job.join() as job:
        array = np.ones(size // 4, "float32")
        for _ in range(3):
            job.all_reduce(array)
        job.barrier()
        took, cpu, sent = [], time.process_time(), job.status()["bytes_sent"]
        for _ in range(steps):
            begin = time.perf_counter()
            job.all_reduce(array)
            took.append(time.perf_counter() - begin)
        cpu, sent = time.process_time() - cpu, job.status()["bytes_sent"] - sent
        if job.rank == 0:
            print(
                f"{size} bytes: {1e3 * cpu / steps:.2f} ms of a core, {sent / cpu / 1e9:.2f} GB/s sent by a core; "
                f"on the clock {1e3 * min(took):.2f} ms at best, {1e3 * sorted(took)[steps // 2]:.2f} in the middle"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
