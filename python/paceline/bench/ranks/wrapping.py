"""How gradients meet in a rank of PyTorch: DDP over a backend, or an optimizer with Horovod's interface."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.bench.ranks.rank_spec import Asked


@dataclass
class Wrapped:
    """A model and an optimizer that train with those of the other ranks."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    close: Callable[[], object]
    """Leave the job."""
    choices: Callable[[], list[tuple[int, str]]] = list
    """Bytes up to which an all-reduce goes by a strategy, where the engine says so."""


def sgd(asked: Asked, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all engines."""
    return torch.optim.SGD(model.parameters(), lr=asked.learning_rate, momentum=asked.momentum)


def wrapped(asked: Asked, model: nn.Module, local_rank: int) -> Wrapped:
    """Join the job that the launcher has described."""
    return {"ddp": _ddp, "optimizer": _optimizer, "horovod": _horovod}[asked.way](asked, model, local_rank)


def _ddp(asked: Asked, model: nn.Module, local_rank: int) -> Wrapped:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if asked.backend == "paceline":
        import paceline.torch  # noqa: F401 - registers the backend
    dist.init_process_group(asked.backend, timeout=timedelta(seconds=asked.limit_s))
    options: dict[str, Any] = {"device_ids": [local_rank]} if asked.device == "cuda" else {}
    if asked.fusion_bytes is not None:
        options["bucket_cap_mb"] = asked.fusion_bytes / (1 << 20)
    # Running means stay each rank's own, as they do under Horovod and TensorFlow.
    together = DistributedDataParallel(model, broadcast_buffers=False, **options)
    ours = asked.backend == "paceline"
    return Wrapped(together, sgd(asked, model), dist.destroy_process_group, _choices if ours else list)


def _choices() -> list[tuple[int, str]]:
    from paceline.torch.backend.register import world_choices

    return world_choices()


def _optimizer(asked: Asked, model: nn.Module, _: int) -> Wrapped:
    import paceline.torch as hvd

    return _with(hvd, asked, model)


def _horovod(asked: Asked, model: nn.Module, _: int) -> Wrapped:
    import horovod.torch as hvd

    return _with(hvd, asked, model)


def _with(hvd: Any, asked: Asked, model: nn.Module) -> Wrapped:  # noqa: ANN401 - a module with Horovod's interface
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(asked, model), named_parameters=model.named_parameters())
    return Wrapped(model, optimizer, hvd.shutdown)
