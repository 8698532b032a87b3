"""Gradient synchronization in a PyTorch rank: DDP over a backend, or an optimizer with Horovod's interface."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline_lab.bench.ranks.rank_spec import RankSpec


@dataclass
class Wrapped:
    """A model and an optimizer that train together with those of the other ranks."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    close: Callable[[], object]
    """Leave the job."""
    choices: Callable[[], list[tuple[int, str]]] = list
    """The largest all-reduce, in bytes, for each strategy, if the engine reports it."""


def sgd(spec: RankSpec, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that all engines use."""
    return torch.optim.SGD(model.parameters(), lr=spec.learning_rate, momentum=spec.momentum)


def wrapped(spec: RankSpec, model: nn.Module, device: torch.device) -> Wrapped:
    """Join the job that the launcher described."""
    return {"ddp": _ddp, "optimizer": _optimizer, "horovod": _horovod}[spec.mode](spec, model, device)


def _ddp(spec: RankSpec, model: nn.Module, device: torch.device) -> Wrapped:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if spec.backend == "paceline":
        import paceline.torch  # noqa: F401 - registers the backend
    dist.init_process_group(spec.backend, timeout=timedelta(seconds=spec.limit_s))
    options: dict[str, Any] = {"device_ids": [device]} if device.type == "cuda" else {}
    if spec.fusion_bytes is not None:
        options["bucket_cap_mb"] = spec.fusion_bytes / (1 << 20)
    # Each rank keeps its own running means, as under Horovod and TensorFlow.
    together = DistributedDataParallel(model, broadcast_buffers=False, **options)
    ours = spec.backend == "paceline"
    return Wrapped(together, sgd(spec, model), dist.destroy_process_group, _choices if ours else list)


def _choices() -> list[tuple[int, str]]:
    from paceline.torch.backend.register import world_choices

    return world_choices()


def _optimizer(spec: RankSpec, model: nn.Module, _: torch.device) -> Wrapped:
    import paceline.torch as hvd

    return _with(hvd, spec, model)


def _horovod(spec: RankSpec, model: nn.Module, _: torch.device) -> Wrapped:
    import horovod.torch as hvd

    return _with(hvd, spec, model)


def _with(hvd: Any, spec: RankSpec, model: nn.Module) -> Wrapped:  # noqa: ANN401 - a module with Horovod's interface
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(spec, model), named_parameters=model.named_parameters())
    return Wrapped(model, optimizer, hvd.shutdown)
