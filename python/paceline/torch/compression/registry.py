"""Communication hooks by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from paceline.catalog import compression as catalog
from paceline.errors import InvalidArgumentError
from paceline.torch.backend.completion import in_order
from paceline.torch.compression.int8 import Int8State, int8_hook
from paceline.torch.compression.topk import TopKState, topk_hook

Hook = Callable[[Any, Any], Future[Tensor]]
_FIRST = 2
"""DDP makes new buckets after the first step, and PowerSGD's state belongs to buckets."""


def hook_of(compression: str, group: dist.ProcessGroup | None = None) -> tuple[Any, Hook]:
    """Return the state and the hook of a compression, for `register_comm_hook`.

    Args:
        compression: `none`, `fp16`, `bf16`, `int8`, `powersgd:RANK` or `topk:DENSITY`. Hooks that start collectives in
            callbacks (`int8`, `powersgd`) are wrapped in `in_order`. PowerSGD compresses from the third step on.
        group: The ranks that average; None: the default group.

    Returns:
        State and hook.

    Raises:
        InvalidArgumentError: The name is unknown, or its parameter out of range.

    Example:
        >>> state, hook = paceline.torch.compression.hook_of("topk:0.01")
        >>> state.density
        0.01
        >>> model.register_comm_hook(state, hook)  # doctest: +SKIP
    """
    kind = catalog.parse(compression)
    parameter = kind.parameter or 0
    match kind.method:
        case "fp16":
            return group, default_hooks.fp16_compress_hook
        case "bf16":
            return group, default_hooks.bf16_compress_hook
        case "powersgd":
            state = PowerSGDState(group, matrix_approximation_rank=int(parameter), start_powerSGD_iter=_FIRST)
            return state, in_order(powerSGD_hook)
        case "topk":
            return TopKState(group, parameter), topk_hook
        case "int8":
            return Int8State(group), in_order(int8_hook)
    return group, default_hooks.allreduce_hook


def register(model: DistributedDataParallel, compression: str) -> None:
    """Compress the gradients of a DDP model from now on.

    Args:
        model: The model, which has no other communication hook.
        compression: As `hook_of` takes it; `none` leaves DDP as it is.

    Raises:
        InvalidArgumentError: The name is unknown, or the model is not a DDP model.

    Example:
        >>> register(model, "powersgd:4")  # doctest: +SKIP
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidArgumentError(
            f"model is a {type(model).__name__}, whose gradients are not exchanged",
            remedy="DistributedDataParallel(model)",
        )
    if catalog.parse(compression).method != catalog.NONE:
        state, hook = hook_of(compression, model.process_group)
        model.register_comm_hook(state, hook)
