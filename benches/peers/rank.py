"""One rank of an all-reduce job: through torch.distributed, mpi4py or paceline's engine. Needs only numpy beside it.

Each size is checked once, warmed up and timed. Calls follow each other without a barrier, in batches of about a
millisecond: a barrier would add its own jitter, which differs between systems, to the time. No rank runs ahead by more
than one call, because each result needs all ranks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Call = Callable[[], object]
Prepare = Callable[[np.ndarray], Call]
"""Makes the call that reduces a float32 buffer in place."""
_BATCH_S = 0.001
_WARM_S = 0.05


def torch(backend: str) -> tuple[int, int, Prepare, str, Call]:
    """Return rank, ranks, how a call is made, the version, and what ends the job."""
    import torch
    import torch.distributed as dist

    if backend == "paceline":
        importlib.import_module("paceline.torch")
    dist.init_process_group(backend)

    def prepare(buffer: np.ndarray) -> Call:
        tensor = torch.from_numpy(buffer)
        return lambda: dist.all_reduce(tensor)

    about = f"torch {torch.__version__.split('+')[0]}"
    return dist.get_rank(), dist.get_world_size(), prepare, about, dist.destroy_process_group


def mpi(threads: str) -> tuple[int, int, Prepare, str, Call]:
    """Return the same under mpirun, in the environment of that MPI, with this level of thread support."""
    import mpi4py

    mpi4py.rc.thread_level = threads
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(buffer: np.ndarray) -> Call:
        reduce, place, described = world.Allreduce, MPI.IN_PLACE, [buffer, MPI.FLOAT]
        return lambda: reduce(place, described)

    library = MPI.Get_library_version().split("\n")[0].split(",")[0]
    about = " ".join(library.replace("Version:", "").replace(" v", " ").split())
    return world.Get_rank(), world.Get_size(), prepare, about, lambda: None


def engine(_: str) -> tuple[int, int, Prepare, str, Call]:
    """Return the same of paceline's engine, without torch."""
    import paceline
    from paceline._core import Engine
    from paceline.job.rank_environment import rank_environment
    from paceline.job.settings import Settings

    place = rank_environment()
    over_mpi = os.environ.get("PACELINE_TRANSPORT") == "mpi"
    rendezvous = {} if over_mpi else {"rendezvous": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"}
    started = Engine.start(place.rank, place.size, Settings.from_environment(**rendezvous).to_json())
    world = started.world()

    def prepare(buffer: np.ndarray) -> Call:
        all_reduce, address, elements = world.all_reduce, buffer.ctypes.data, buffer.size
        return lambda: all_reduce(address, elements, "float32", "sum")

    return world.rank, world.size, prepare, f"paceline {paceline.__version__}", started.close


def measured(rank: int, ranks: int, prepare: Prepare, sizes: list[int], seconds: float) -> dict[str, list[float]]:
    """Return the seconds of a call by size in bytes, one for each batch."""
    slots = np.zeros(2 * ranks, np.float32)
    exchange = prepare(slots)

    def agreed(*numbers: float) -> list[int]:
        """Share rank 0's numbers: the sum of its numbers and zeros."""
        slots[:] = 0
        slots[: len(numbers)] = numbers if rank == 0 else 0
        exchange()
        return [int(number) for number in slots[: len(numbers)]]

    result: dict[str, list[float]] = {}
    for size in sizes:
        buffer = np.empty(size // 4, np.float32)
        call = prepare(buffer)
        pattern = np.arange(buffer.size, dtype=np.float32) % 1000
        buffer[:] = pattern * (rank + 1)
        call()
        if not np.array_equal(buffer, pattern * (ranks * (ranks + 1) // 2)):
            raise SystemExit(f"rank {rank}: the sum of {size} bytes is wrong")
        del pattern
        buffer.fill(1)  # grows to infinity, which adds as fast as any number
        estimate = min(timed(call, 1) for _ in range(3))
        (warm,) = agreed(_WARM_S / estimate)
        if warm > 3:
            estimate = timed(call, min(warm, 100_000))
        per_batch, batches = agreed(max(1, _BATCH_S / estimate), max(5, seconds / max(estimate, _BATCH_S)))
        result[str(size)] = [timed(call, per_batch) for _ in range(batches)]
    return result


def timed(call: Call, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def main() -> None:
    """Measure, and write the times into the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["torch", "mpi", "engine"])
    parser.add_argument("option", help="of the way: a backend of torch.distributed, or MPI's level of threads")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rank, ranks, prepare, about, close = {"torch": torch, "mpi": mpi, "engine": engine}[options.way](options.option)
    seconds = measured(rank, ranks, prepare, options.sizes, options.seconds)
    (options.out / f"{rank}.json").write_text(json.dumps({"about": about, "seconds": seconds}))
    close()


if __name__ == "__main__":
    main()
