"""The size of an optimizer's states, for the memory of forecasts."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves


def state_size(optimizer: torch.optim.Optimizer) -> float | None:
    """Return the bytes of state per element of the parameters that a step has trained; None if that cannot be told.

    Counters, which are single numbers, do not count, nor do paged states of bitsandbytes, which are in managed memory.
    Of a parameter of which this rank has a shard, the whole and the whole's states count.
    """
    elements = size = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None and parameter not in optimizer.state:
                continue
            elements += parameter.numel()
            own = tree_leaves(optimizer.state.get(parameter, {}))
            tensors = (one for one in own if isinstance(one, torch.Tensor) and one.numel() > 1)
            size += sum(_bytes(one) for one in tensors if not getattr(one, "is_paged", False))
    return size / elements if elements else None


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
