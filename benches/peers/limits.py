"""The machine's limit: how fast cores copy, and the shortest time of an all-reduce inside one host at that rate.

**Bytes.** n ranks hold S bytes each, in their own memory; a rank can at best load from everybody's memory and store
into its own. For each element somebody loads n values and stores the sum, and the n - 1 others each load the sum and
store it: 2n - 1 loads and n stores, (3n - 1) S bytes in all. For two ranks: each loads the other's half (S/2) and its
own (S/2), stores the sums (S/2), loads the other's sums (S/2) and stores them (S/2): 5 S.

**Rate.** A copy of b bytes moves 2 b: it loads and stores each. So with c = min(n, cores) cores that copy r bytes per
second each while all copy, T >= (3n - 1) S / (2 c r). r is measured at the same working set, n S / c per core, half of
it source and half destination, because data that fit into caches are copied faster; from 256 KiB on, because less would
come from the core's own L1 cache, where another rank's data never are.

This is a bound, not a forecast. Additions, cache lines moving from core to core, and ranks waiting for each other count
as free, although they take most of the time below about 256 KiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import numpy as np
import summary
import systems

_BATCH_S = 0.002
_LEAST_SET = 256 << 10


def copy_rates(sizes: Sequence[int], cores: int, seconds: float = 0.1, turns: int = 1) -> list[float]:
    """Bytes copied per second by one core while `cores` copy at once, per working set; the best of several turns."""
    sizes = [max(size, _LEAST_SET) for size in sizes]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(cores)
    pipes, workers = [], []
    for _ in range(cores):
        here, there = context.Pipe(duplex=False)
        worker = context.Process(target=_copy, args=(barrier, list(sizes), seconds, turns, there), daemon=True)
        worker.start()
        there.close()
        pipes.append(here)
        workers.append(worker)
    results = [pipe.recv() for pipe in pipes]
    for worker in workers:
        worker.join()
    return [max(statistics.mean(each[size][turn] for each in results) for turn in range(turns)) for size in sizes]


def _copy(barrier: Barrier, sizes: list[int], seconds: float, turns: int, result: Connection) -> None:
    rates: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(turns):
        for size in sizes:
            half = size // 2
            source, target = np.ones(half, np.uint8), np.ones(half, np.uint8)
            start = time.perf_counter()
            np.copyto(target, source)
            times = max(1, int(_BATCH_S / (time.perf_counter() - start)))
            barrier.wait(60)
            batches, end = [], time.perf_counter() + seconds
            while len(batches) < 3 or time.perf_counter() < end:
                start = time.perf_counter()
                for _ in range(times):
                    np.copyto(target, source)
                batches.append(times * half / (time.perf_counter() - start))
            barrier.wait(60)
            rates[size].append(statistics.median(batches))
    result.send(rates)


def measure(sizes: Sequence[int], ranks: int, turns: int = 1) -> dict[int, tuple[float, float]]:
    """For each size the rate of a core, and the minimum seconds of an all-reduce."""
    cores = systems.cores()
    copying = min(ranks, cores)
    rates = copy_rates([ranks * size // copying for size in sizes], copying, turns=turns)
    return {
        size: (rate, summary.least_seconds(size, ranks, cores, rate)) for size, rate in zip(sizes, rates, strict=True)
    }


def main() -> None:
    """Measure, and print."""
    import allreduce
    import show

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3, help="take the best of this many turns")
    arguments = parser.parse_args()
    one = copy_rates(allreduce.SIZES, 1, turns=arguments.turns)
    measured = measure(allreduce.SIZES, arguments.ranks, arguments.turns)
    rows = [
        [summary.size_text(size), f"{single / 1e9:.1f}", f"{rate / 1e9:.1f}", summary.microseconds(least)]
        for single, (size, (rate, least)) in zip(one, measured.items(), strict=True)
    ]
    cores = min(arguments.ranks, systems.cores())
    header = ["size", "one core copies, GB/s", f"each of {cores} cores, GB/s", "least time, us"]
    show.table(summary.Table(f"All-reduce inside one host, {arguments.ranks} ranks", header, rows))


if __name__ == "__main__":
    main()
