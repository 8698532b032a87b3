"""A rank of `make gpu` that reduces and gathers arrays of CuPy, Numba, JAX and torch with `paceline.job`.

paceline run -np 2 -- python benches/gpu/arrays.py cupy,numba,jax,torch
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import paceline

# JAX would take three quarters of the device for each rank.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
LENGTHS = (1, 1000, 3_000_000)


def cupy() -> tuple[Callable[[np.ndarray], Any], Callable[[Any], np.ndarray]]:
    """Return how CuPy makes an array on the device, and how it is read."""
    library = importlib.import_module("cupy")
    return library.asarray, library.asnumpy


def numba() -> tuple[Callable[[np.ndarray], Any], Callable[[Any], np.ndarray]]:
    """Return the same of Numba."""
    library = importlib.import_module("numba.cuda")
    return library.to_device, lambda array: array.copy_to_host()


def jax() -> tuple[Callable[[np.ndarray], Any], Callable[[Any], np.ndarray]]:
    """Return the same of JAX, whose streams are its own: it waits. Its arrays are read-only: results go to CuPy's."""
    library = importlib.import_module("jax")
    library.config.update("jax_enable_x64", True)
    return lambda array: library.device_put(array).block_until_ready(), cupy()[1]


def torch() -> tuple[Callable[[np.ndarray], Any], Callable[[Any], np.ndarray]]:
    """Return the same of torch."""
    library = importlib.import_module("torch")
    return lambda array: library.from_numpy(array).cuda(), lambda array: array.cpu().numpy()


READ_ONLY = "jax"
LIBRARIES = {"cupy": cupy, "numba": numba, "jax": jax, "torch": torch}


def compared(job: paceline.job.Job, library: str) -> int:
    """Reduce and gather arrays of a library; return how many results were compared."""
    on_device, on_host = LIBRARIES[library]()
    count = 0
    for dtype in ("float32", "float64", "int32", "int64"):
        for length in LENGTHS:
            own = [(np.arange(length) % 1000 + rank).astype(dtype) for rank in range(job.size)]
            results = []
            if library != READ_ONLY:
                array = on_device(own[job.rank])
                job.all_reduce(array)
                results.append((array, sum(own)))
            whole = LIBRARIES["cupy" if library == READ_ONLY else library]()[0](np.zeros(job.size * length, dtype))
            job.all_gather(on_device(own[job.rank]), whole)
            results.append((whole, np.concatenate(own)))
            for got, want in results:
                count += 1
                if not np.array_equal(on_host(got), want):
                    raise SystemExit(f"rank {job.rank}: {library}, {dtype} x {length}: {on_host(got)[:4]}")
    return count


def main(names: str) -> None:
    """Try each library in a job of its own; rank 0 says how it ended."""
    for name in names.split(","):
        with paceline.job.join() as job:
            try:
                said: dict[str, Any] = {"arrays": name, "compared": compared(job, name)}
            except (paceline.InvalidArgumentError, ImportError) as error:
                said = {"arrays": name, "error": f"{type(error).__name__}: {error}"}
            if job.rank == 0:
                status = job.status()
                said |= {key: status[key] for key in ("cuda", "cuda_ipc") if key in status}
                print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
