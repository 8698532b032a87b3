"""Times reduce-scatter and all-gather of each strategy that has them against the direct exchange, turn by turn.

python benches/halves.py [--ranks 2,4] [--transports shm,tcp] [--sizes 65536,4194304,67108864] [--turns 15]

Prints a table: median of the slowest rank's time in ms, and in brackets the median of the pairs' ratios to direct.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

WAYS = ((None, None), ("ring", None), ("ring", "512KiB"), ("halving-doubling", None), ("halving-doubling", "512KiB"))


def measure(sizes: list[int], turns: int, chunk: str | None) -> None:
    """One rank: all ways with this chunk, in turns."""
    import paceline

    ways = [strategy for strategy, cut in WAYS if cut == chunk or strategy is None]
    with paceline.job.join() as job:
        for size in sizes:
            whole = np.ones(size // 4, "float32")
            part, out = np.empty(size // 4 // job.size, "float32"), np.empty_like(whole)

            calls = {
                "reduce-scatter": lambda way, whole=whole, part=part: job.reduce_scatter(whole, out=part, strategy=way),
                "all-gather": lambda way, part=part, out=out: job.all_gather(part, out=out, strategy=way),
            }
            for name, call in calls.items():
                times = np.zeros((turns, len(ways)))
                for turn in range(-1, turns):
                    for at, way in enumerate(ways):
                        job.barrier()
                        begin = time.perf_counter()
                        call(way)
                        if turn >= 0:
                            times[turn, at] = time.perf_counter() - begin
                job.all_reduce(times, "max", strategy="ring")
                if job.rank == 0:
                    for at, way in enumerate(ways):
                        ratio = statistics.median(times[:, at] / times[:, 0])
                        ms = 1e3 * statistics.median(times[:, at])
                        found = {"collective": name, "bytes": size, "ms": ms, "of_direct": ratio}
                        print(json.dumps(found | {"strategy": way or "direct", "chunk": way and chunk}), flush=True)


def main() -> None:
    """Run every world, or one rank of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--sizes", default="65536,4194304,67108864")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--rank-of", default=None, help="for its own processes")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.rank_of is not None:
        measure(sizes, given.turns, given.rank_of or None)
        return
    for transport in given.transports.split(","):
        for ranks in given.ranks.split(","):
            for chunk in dict.fromkeys(cut for _, cut in WAYS):
                # A chunk needs a strategy of the job; direct exchanges do not look at it.
                cut = ["--chunk", chunk] if chunk else []
                run = ["run", "-np", ranks, "--transport", transport, "--strategy", "tree", *cut]
                rank = [sys.executable, __file__, "--sizes", given.sizes, "--turns", str(given.turns)]
                command = [sys.executable, "-m", "paceline", *run, "--", *rank, "--rank-of", chunk or ""]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                for line in done.stdout.splitlines():
                    found = json.loads(line[line.index("{") :])
                    way = found["strategy"] + (f" in {found['chunk']}" if found["chunk"] else "")
                    print(
                        f"{transport} {ranks} {found['bytes']:>9} {found['collective']:<14} {way:<28}"
                        f" {found['ms']:8.3f} ms ({found['of_direct']:.2f})",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
