"""The specification of the measurement in an engine's process."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

CHECKED_STEPS = 3
"""Weights are compared after at most this many steps, because rounding errors grow from step to step."""


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """The training to run, the same for all ranks of a run."""

    mode: str
    """How gradients are synchronized: ddp, optimizer (Horovod's interface), horovod."""
    backend: str = ""
    """Backend of torch.distributed."""
    device: str = "cpu"
    model: str
    batch: int
    """Batch size per rank."""
    batches: int
    """Measured steps."""
    warmup: int
    alone: int
    """Steps at the end in which ranks compute without communication."""
    traced: bool = False
    """Whether rank 0 then records a trace (torch only)."""
    seed: int
    learning_rate: float
    momentum: float
    image_size: int
    classes: int
    data_dir: str | None = None
    loader_workers: int = 2
    servers: int = 0
    xla: bool = False
    """Whether TensorFlow compiles clusters of a graph by XLA; `TF_XLA_FLAGS` says so to it."""
    inside: Literal["root", "ring"] = "root"
    """How workers of a node reduce among themselves, in ray-ps."""
    folder: str
    """Folder for results."""
    graph: str | None = None
    """Folder with the model as layers, for engines without torch."""
    fusion_bytes: int | None = None
    """Fusion size in bytes; None: the engine's default."""
    limit_s: float = 600.0
    """Timeout for the engine's own waits."""

    def save(self) -> Path:
        """Write it into its folder."""
        path = Path(self.folder) / "spec.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return self.warmup + self.batches

    @property
    def checked(self) -> int:
        """Number of steps after which weights are compared: within the warm-up, if there is one."""
        return min(CHECKED_STEPS, self.warmup or self.steps)


def read() -> RankSpec:
    """Return this process's specification, from the file named on its command line."""
    return RankSpec(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def place() -> tuple[int, int, int]:
    """Return this process's rank, the number of ranks, and its rank on its host."""
    for rank, size, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size]), int(os.environ.get(local, "0"))
    raise RuntimeError("no launcher set this process's rank")
