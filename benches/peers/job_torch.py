"""One rank of an all-reduce job through torch.distributed."""

from __future__ import annotations

import importlib
import os

import measure
import numpy as np
import torch
import torch.distributed as dist

options = measure.arguments(backend="gloo or paceline")
if options.backend == "paceline":
    importlib.import_module("paceline.torch")
dist.init_process_group(options.backend)


def prepare(buffer: np.ndarray) -> measure.Call:
    tensor = torch.from_numpy(buffer)
    return lambda: dist.all_reduce(tensor)


about = f"torch {torch.__version__.split('+')[0]}"
measure.all_reduce(options, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), prepare, about)
dist.destroy_process_group()
