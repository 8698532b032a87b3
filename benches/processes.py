"""Whole `paceline` processes: wall-clock time and peak memory, median of several runs, beside `python -c pass`."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

PACELINE = str(Path(sys.executable).with_name("paceline"))
RING_OF_1024 = "allreduce:100MB --workers 1024 --bandwidth 25Gbps --latency 10us --strategy ring --chunk per-worker"
CASES: dict[str, str] = {
    "one small forecast": "simulate allreduce:1MB --workers 4 --strategy ring --json",
    "ring of 1,024 workers": f"simulate {RING_OF_1024} --json",
    "ResNet-200, 32 workers, ring": "simulate netop-resnet-200 --workers 32 --bandwidth 25Gbps --strategy ring --json",
    "the default sweep": "simulate --json",
    "study network-operator": "study network-operator --json",
}


def run(command: list[str]) -> tuple[float, float]:
    """Seconds and MB of one run, from the operating system's accounting of the finished child."""
    script = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    )
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - start
    peak = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
    return seconds, int(peak.stdout) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    commands = {"python -c pass": [sys.executable, "-c", "pass"]}
    commands |= {name: [PACELINE, *words.split()] for name, words in CASES.items()}
    for name, command in commands.items():
        run(command)
        results = [run(command) for _ in range(arguments.runs)]
        seconds, memory = statistics.median(r[0] for r in results), max(r[1] for r in results)
        rows.append({"case": name, "median_s": seconds, "worst_s": max(r[0] for r in results), "peak_mb": memory})
        if not arguments.json:
            print(f"{name:32} {seconds:8.3f} s   worst {rows[-1]['worst_s']:7.3f} s   {memory:7.1f} MB", flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
