"""One rank of an all-reduce job on paceline's engine, without torch."""

from __future__ import annotations

import json
import os

import measure
import numpy as np
import paceline
from paceline._core import Engine

options = measure.arguments(transport="shm or tcp")
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
settings = {
    "transport": options.transport,
    "rendezvous": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    "secret": os.environ["PACELINE_SECRET"],
}
engine = Engine.start(rank, ranks, json.dumps(settings))
world = engine.world()


def prepare(buffer: np.ndarray) -> measure.Call:
    submit, inputs = world.submit, [(buffer.ctypes.data, buffer.size)]
    return lambda: submit("all_reduce", inputs=inputs, dtype="float32", op="sum").wait()


measure.all_reduce(options, rank, ranks, prepare, f"paceline {paceline.__version__}")
engine.close()
