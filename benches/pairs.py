"""Compares the all-reduce of two checkouts, job by job: `python benches/pairs.py OTHER [--rounds 10]`.

OTHER is another checkout of this repository in which `make setup` was run. A job of each in turn, in alternating order;
printed are the medians of both in microseconds, and the median ratio (this checkout / other, below 1: this one is
faster) with the least and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import paceline

HERE = Path(__file__).resolve().parents[1]
# Strategy, ranks, transport, bytes.
CASES = [
    ("ring", 2, "shm", [4 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20]),
    ("ring", 2, "tcp", [4 << 10, 64 << 10, 1 << 20, 16 << 20]),
    ("ring", 4, "shm", [64 << 10, 16 << 20]),
    ("ring", 4, "tcp", [4 << 10, 64 << 10, 1 << 20]),
    ("ps", 2, "shm", [4 << 10, 4 << 20, 64 << 20]),
]
_BYTES = 60e6
"""Of a size in all, for as many repetitions as that gives, but 8 to 400."""


def measure(strategy: str, sizes: list[int]) -> None:
    """As a rank: print the median time of each size, in microseconds."""
    served = strategy == "ps"
    job = paceline.job.join(strategy=strategy, **({"servers": 1} if served else {}))
    medians = {}
    for size in sizes:
        array = np.ones(size // 4, "float32")
        repetitions = int(min(400, max(8, _BYTES // max(size, 60_000))))
        times = []
        for number in range(repetitions + repetitions // 10 + 3):
            if number == repetitions // 10 + 3:
                job.barrier()
                times.clear()
            begin = time.perf_counter()
            job.all_reduce(array, bucket=0) if served else job.all_reduce(array)
            times.append(time.perf_counter() - begin)
        medians[size] = statistics.median(times) * 1e6
    if job.rank == 0:
        print(json.dumps(medians), flush=True)
    job.close()


def run(checkout: Path, strategy: str, ranks: int, transport: str, sizes: list[int]) -> dict[int, float]:
    """A job of this checkout: bytes to microseconds."""
    program = checkout / ".venv" / "bin"
    words = [program / "paceline", "run", "-np", str(ranks), "--transport", transport, "--", program / "python"]
    words += [Path(__file__).resolve(), "--as-rank", strategy, json.dumps(sizes)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    job = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=300, check=False)
    for line in job.stdout.splitlines():
        if "{" in line:
            return {int(size): time for size, time in json.loads(line[line.index("{") :]).items()}
    sys.exit(f"{checkout}: the job printed no times:\n{job.stdout}{job.stderr}")


def main() -> None:
    """Compare."""
    if sys.argv[1:2] == ["--as-rank"]:
        measure(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, metavar="OTHER", help="the other checkout")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times, too")
    given = parser.parse_args()
    other = given.other.resolve()
    if not (other / ".venv" / "bin" / "paceline").exists():
        parser.error(f"{other} has no .venv/bin/paceline; run `make setup` there")
    rows = []
    print(f"{'':24}{'bytes':>10}{'this, us':>12}{'other, us':>12}  ratio")
    for strategy, ranks, transport, sizes in CASES:
        here, there = [], []
        for number in range(given.rounds):
            pair = [(HERE, here), (other, there)]
            for checkout, times in pair if number % 2 else reversed(pair):
                times.append(run(checkout, strategy, ranks, transport, sizes))
        for size in sizes:
            ratios = [mine[size] / theirs[size] for mine, theirs in zip(here, there, strict=True)]
            mine, theirs = ([times[size] for times in all_times] for all_times in (here, there))
            case = f"{strategy}, {ranks} ranks, {transport}"
            print(
                f"{case:24}{size:>10}{statistics.median(mine):>12.1f}{statistics.median(theirs):>12.1f}"
                f"  {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
                flush=True,
            )
            rows.append({"case": case, "bytes": size, "this_us": mine, "other_us": theirs})
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
