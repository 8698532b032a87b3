"""What every rank of an all-reduce job does, whatever the system: check once, warm up, time. Needs only numpy.

Calls follow each other without a barrier, in batches of about a millisecond: a barrier would add its own jitter, which
differs between systems, to the time. No rank runs ahead by more than one call, because each result needs all ranks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Call = Callable[[], object]
_BATCH_S = 0.001
_WARM_S = 0.05


def arguments(**positional: str) -> argparse.Namespace:
    """The command line that all jobs share, after the job's own arguments."""
    parser = argparse.ArgumentParser()
    for name, text in positional.items():
        parser.add_argument(name, help=text)
    parser.add_argument("--threads", default="multiple")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def all_reduce(
    options: argparse.Namespace, rank: int, ranks: int, prepare: Callable[[np.ndarray], Call], about: str
) -> None:
    """`prepare` makes the call that reduces a float32 buffer in place; seconds per call go to a file."""
    slots = np.zeros(2 * ranks, np.float32)
    exchange = prepare(slots)

    def agreed(*numbers: float) -> list[int]:
        """Share rank 0's numbers: the sum of its numbers and zeros."""
        slots[:] = 0
        slots[: len(numbers)] = numbers if rank == 0 else 0
        exchange()
        return [int(number) for number in slots[: len(numbers)]]

    result: dict[str, list[float]] = {}
    for size in options.sizes:
        buffer = np.empty(size // 4, np.float32)
        call = prepare(buffer)
        pattern = np.arange(buffer.size, dtype=np.float32) % 1000
        buffer[:] = pattern * (rank + 1)
        call()
        if not np.array_equal(buffer, pattern * (ranks * (ranks + 1) // 2)):
            raise SystemExit(f"rank {rank}: the sum of {size} bytes is wrong")
        del pattern
        buffer.fill(1)  # grows to infinity, which adds as fast as any number
        estimate = min(_timed(call, 1) for _ in range(3))
        (warm,) = agreed(_WARM_S / estimate)
        if warm > 3:
            estimate = _timed(call, min(warm, 100_000))
        per_batch, batches = agreed(max(1, _BATCH_S / estimate), max(5, options.seconds / max(estimate, _BATCH_S)))
        result[str(size)] = [_timed(call, per_batch) for _ in range(batches)]
    (options.out / f"{rank}.json").write_text(json.dumps({"about": about, "seconds": result}))


def _timed(call: Call, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times
