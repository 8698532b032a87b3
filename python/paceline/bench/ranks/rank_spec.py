"""What a process of an engine measures."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKED_STEPS = 3
"""Weights of engines are compared after at most so many steps: rounding grows from step to step."""


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """The same for all ranks of a run."""

    way: str
    """How gradients meet: ddp, optimizer (Horovod's interface), horovod."""
    backend: str = ""
    """Of torch.distributed."""
    device: str = "cpu"
    model: str
    batch: int
    """Images of each rank in each step."""
    batches: int
    """Steps that count."""
    warmup: int
    alone: int
    """Steps at the end in which ranks compute without exchanging anything."""
    traced: bool = False
    """Rank 0 records a trace then, if it is one of torch."""
    seed: int
    learning_rate: float
    momentum: float
    image_size: int
    classes: int
    data_dir: str | None = None
    loader_workers: int = 2
    servers: int = 0
    folder: str
    """Where results go."""
    graph: str | None = None
    """The folder with the model as layers, for engines without torch."""
    fusion_bytes: int | None = None
    """Gradients of so many bytes travel together; None: what the engine does by itself."""
    limit_s: float = 600.0
    """For any wait of the engine's own."""

    def save(self) -> Path:
        """Into its folder."""
        path = Path(self.folder) / "spec.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @property
    def steps(self) -> int:
        """That train."""
        return self.warmup + self.batches

    @property
    def checked(self) -> int:
        """Steps after which weights are compared: in the warm-up, if there is one."""
        return min(CHECKED_STEPS, self.warmup or self.steps)


def read() -> RankSpec:
    """Return what this process measures, from the file that it was given."""
    return RankSpec(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def place() -> tuple[int, int, int]:
    """This process's rank, the number of ranks, and its number among those of its host."""
    for rank, size, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size]), int(os.environ.get(local, "0"))
    raise RuntimeError("no launcher has said which rank this process is")
