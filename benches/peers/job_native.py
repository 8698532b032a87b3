"""One rank of an all-reduce job on paceline's engine, without torch."""

from __future__ import annotations

import engine
import measure
import numpy as np
import paceline

options = measure.arguments()
started, world = engine.start()


def prepare(buffer: np.ndarray) -> measure.Call:
    all_reduce, address, elements = world.all_reduce, buffer.ctypes.data, buffer.size
    return lambda: all_reduce(address, elements, "float32", "sum")


measure.all_reduce(options, world.rank, world.size, prepare, f"paceline {paceline.__version__}")
started.close()
