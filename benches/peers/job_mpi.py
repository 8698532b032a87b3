"""One rank of an all-reduce job under mpirun, in the environment of that MPI."""

from __future__ import annotations

import measure
import mpi4py
import numpy as np

options = measure.arguments()
mpi4py.rc.thread_level = options.threads
from mpi4py import MPI  # noqa: E402 - starts MPI

world = MPI.COMM_WORLD


def prepare(buffer: np.ndarray) -> measure.Call:
    reduce, place, described = world.Allreduce, MPI.IN_PLACE, [buffer, MPI.FLOAT]
    return lambda: reduce(place, described)


library = MPI.Get_library_version().split("\n")[0].split(",")[0]
about = " ".join(library.replace("Version:", "").replace(" v", " ").split())
measure.all_reduce(options, world.Get_rank(), world.Get_size(), prepare, about)
