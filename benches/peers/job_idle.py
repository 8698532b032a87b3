"""One rank that runs one collective and then idles: the CPU time of every thread but the main one."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from pathlib import Path


def spent() -> dict[str, float]:
    """CPU seconds of the other threads: in nanoseconds where the kernel counts them, otherwise in clock ticks."""
    result = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) == os.getpid():
            continue
        try:
            result[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError):
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            result[task.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return result


def start(kind: str) -> object:
    if kind == "native":
        import engine
        import numpy as np

        started, world = engine.start()
        buffer = np.ones(1 << 18, np.float32)
        world.submit("all_reduce", inputs=[(buffer.ctypes.data, buffer.size)], dtype="float32", op="sum").wait()
        return started
    import torch
    import torch.distributed as dist

    if kind == "paceline":
        importlib.import_module("paceline.torch")
    dist.init_process_group(kind)
    dist.all_reduce(torch.ones(1 << 18))
    return dist


parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["native", "paceline", "gloo"])
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()
started = start(options.kind)
time.sleep(0.5)
before, at = spent(), time.perf_counter()
time.sleep(options.seconds)
after, elapsed = spent(), time.perf_counter() - at
share = sum(seconds - before.get(task, 0) for task, seconds in after.items()) / elapsed
report = {"percent": 100 * share, "threads": len(after)}
(options.out / f"{os.environ['RANK']}.json").write_text(json.dumps(report))
os._exit(0)  # nothing is measured from here on, and no peer waits
