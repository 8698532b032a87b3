"""PyTorch's DistributedDataParallel over torch's own backends."""

from __future__ import annotations

import os
from typing import Any

from paceline._internal.units import count

from paceline_lab.bench.engines.base import Engine, Options, environments, missing_device, rank_words
from paceline_lab.bench.engines.paceline import DDP_BUCKET
from paceline_lab.bench.places import Places
from paceline_lab.bench.processes import EngineFailedError, Process
from paceline_lab.bench.ranks.rank_spec import RankSpec

SEVERAL_RANKS = "NCCL_MULTI_RANK_GPU_ENABLE"
"""NCCL's variable that lets several ranks share a GPU."""


class Ddp(Engine):
    """DDP over gloo, or NCCL on GPUs."""

    family = "torch"

    def __init__(self, options: Options, backend: str) -> None:
        """`backend`: gloo or nccl."""
        super().__init__(options)
        self.backend = backend
        self.name = f"ddp-{backend}"

    def missing(self) -> str | None:
        """Check whether GPUs or NCCL are missing."""
        if self.backend != "nccl":
            return missing_device(self.options)
        import torch

        if not torch.cuda.is_available():
            return "needs one GPU per rank, and torch with CUDA: pip install torch (https://pytorch.org)"
        if not torch.distributed.is_nccl_available():
            return "this torch was built without NCCL: pip install torch (https://pytorch.org)"
        return None

    def spec_fields(self) -> dict[str, Any]:
        """Return the backend and its device."""
        device = "cuda" if self.backend == "nccl" else self.options.device
        return {"mode": "ddp", "backend": self.backend, "device": device}

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """A ring: gloo's algorithm for large buffers, and NCCL's between few nodes."""
        return "ring", {"bucket_size": self.options.fusion_bytes or DDP_BUCKET}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return ranks, as torchrun starts them."""
        if self.backend == "nccl" and os.environ.get(SEVERAL_RANKS) != "1":
            import torch

            if torch.cuda.device_count() < len(places.own):
                has = count(torch.cuda.device_count(), "GPU")
                raise EngineFailedError(
                    f"this host has {has} for {count(len(places.own), 'rank')}",
                    remedy=f"a smaller -np, or {SEVERAL_RANKS}=1 (NCCL 2.30 and later)",
                )
        words = rank_words(self.options.python, "torch_rank", spec)
        return [
            Process(f"rank {slot.number}", words, environment)
            for slot, environment in environments(places, self.secret)
        ]
