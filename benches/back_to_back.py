#!/usr/bin/env python3
"""Collectives one after the other, with a barrier between them and without, against what their bytes take on the links.

paceline emulate run --workers 8 --bandwidth 500Mbps -- python benches/back_to_back.py --strategy halving-doubling

A rank that is a little ahead sends the first part of the next collective while its receiver's link still carries the
last part of this one. Links are shared fairly, so this one takes longer, and the ranks drift further apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import paceline.job
from paceline._core import parse_rate

SIZES = (2_341_728, 9_000_672, 7_501_536, 7_585_792, 2_778_336)
"""Bytes of ResNet-50's buckets of 25 MiB, divided by four."""


def main() -> None:
    """Measure, and print a line per collective on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="halving-doubling")
    parser.add_argument("--bandwidth", default="500Mbps", help="of a link")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    job = paceline.job.join()
    how, rate = options.strategy, parse_rate(options.bandwidth) / 8
    arrays = [
        (np.zeros(size // 4 // job.size, "f4"), np.zeros(size // 4 // job.size * job.size, "f4")) for size in SIZES
    ]
    least = sum(whole.nbytes for _, whole in arrays) * (job.size - 1) / job.size / rate
    calls: dict[str, tuple[Callable[[np.ndarray, np.ndarray], object], float]] = {
        "reduce-scatter": (lambda part, whole: job.reduce_scatter(whole, out=part, strategy=how), least),
        "all-gather": (lambda part, whole: job.all_gather(part, whole, strategy=how), least),
        "all-reduce": (lambda _, whole: job.all_reduce(whole, strategy=how), 2 * least),
    }
    for name, (call, ideal) in calls.items():
        ratios = []
        for with_barrier in (True, False):
            taken = []
            for _ in range(options.rounds):
                job.barrier()
                begin = time.monotonic()
                for part, whole in arrays:
                    call(part, whole)
                    if with_barrier:
                        job.barrier()
                job.barrier()
                taken.append(time.monotonic() - begin)
            ratios.append(statistics.median(taken) / ideal)
        if job.rank == 0:
            print(f"{how}, {name}: {ratios[0]:.2f} with barriers, {ratios[1]:.2f} without, times the links' time")


if __name__ == "__main__":
    main()
