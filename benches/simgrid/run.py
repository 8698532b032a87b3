"""Times the fluid network and SimGrid's flow model on the same ring: `python benches/simgrid/run.py [--prefix DIR]`.

Needs a C++ compiler and SimGrid (`apt install libsimgrid-dev`; --prefix for one that is unpacked elsewhere). The two
take turns, and the ratio is taken within each round. Paceline's time is that of the whole process, SimGrid's that of
its event loop alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("ring.cpp")


def main() -> None:
    """Build SimGrid's program, run both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", type=Path, default=Path("/usr"), help="where SimGrid is installed")
    parser.add_argument("--workers", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--size", type=int, default=100_000_000, help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    result = parser.parse_args()
    libraries = [str(path) for path in (result.prefix / "lib").glob("**/") if any(path.glob("lib*.so*"))]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "ring")
        values = [f"-L{path}" for path in libraries]
        build = ["g++", "-O2", "-std=c++17", str(SOURCE), f"-I{result.prefix}/include", *values, "-lsimgrid"]
        build += ["-o", program]
        subprocess.run([*build, "-Wl,--allow-shlib-undefined"], check=True, env=environment)
        print("workers  paceline s  simgrid s  ratio  simulated s (paceline, simgrid)")
        for workers in result.workers:
            ours, theirs, ratios = [], [], []
            for _ in range(result.rounds):
                start = time.perf_counter()
                command = ["simulate", f"allreduce:{result.size}B", "--workers", str(workers), "--strategy", "ring"]
                answer = subprocess.run(
                    [sys.executable, "-m", "paceline.cli", *command, "--network", "fluid", "--json"],
                    check=True,
                    capture_output=True,
                )
                ours.append(time.perf_counter() - start)
                simulated = json.loads(answer.stdout)[0]["iteration_s"]
                run = [program, str(workers), str(result.size)]
                line = subprocess.run(run, check=True, capture_output=True, text=True, env=environment).stdout.split()
                theirs.append(float(line[1]))
                ratios.append(theirs[-1] / ours[-1])
            times = f"{statistics.median(ours):10.2f}  {statistics.median(theirs):9.2f}"
            ratio = statistics.median(ratios)
            print(f"{workers:7}  {times}  {ratio:5.1f}  {simulated:.6f}, {float(line[0]):.6f}", flush=True)


if __name__ == "__main__":
    main()
