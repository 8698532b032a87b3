"""Runs an example as a rank that a launcher has started, in a process that has already imported torch."""

import contextlib
import io
import os
import re
import runpy
import socket
import sys
from pathlib import Path

from torch_workers.launch import run

EXAMPLES = Path(__file__).parents[2] / "examples"


def play(_store, rank, size, port, name, options):
    """What the example prints on this rank."""
    job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "GROUP_WORLD_SIZE": 1}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "TOKENIZERS_PARALLELISM": "false"}
    os.environ.update({variable: str(value) for variable, value in job.items()})
    sys.argv = [str(EXAMPLES / name), *options]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return said.getvalue()


def trained(name, *options, size=2):
    """The hash of the weights that the example prints; they must be the same on all ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said = run(size, play, port, name, options, default=None)[0]
    match = re.findall(rf"weights ([0-9a-f]{{16}}), the same on {size} ranks", said)
    assert len(match) == 1, said
    return match[0]
