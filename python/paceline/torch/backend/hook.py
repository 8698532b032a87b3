"""A DDP communication hook that picks the strategy by the size of the bucket."""

# No `from __future__ import annotations`: DDP inspects the hook's annotations.
import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from paceline._core import parse_size
from paceline.catalog import names
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError
from paceline.torch.backend.process_group import CPU, CUDA, Operations

Choice = names.Strategy | Mapping[str, names.Strategy] | Callable[[GradBucket], names.Strategy | None] | None
"""A strategy, strategies by maximum bucket size, or a function of the bucket; None: the fastest."""
Hook = Callable[[Any, GradBucket], Future[Tensor]]


def strategy_hook(model_or_group: DistributedDataParallel | dist.ProcessGroup | None, strategy: Choice = None) -> Hook:
    """Create a DDP communication hook that averages each bucket's gradients with a chosen strategy.

    DDP rebuilds its buckets after the first step, so the index of a bucket is meaningless. All ranks must make the same
    choice.

    Args:
        model_or_group: A DDP model, with which the hook is registered; or a process group, or None for the default
            group, to create a hook that torch's own hooks can wrap.
        strategy: A name that `paceline list strategies` lists; or names by size, each for buckets of up to that many
            bytes; or a function from a `GradBucket` to a name. None uses the one measured as fastest.

    Returns:
        The hook.

    Raises:
        InvalidArgumentError: A strategy or size is unknown, or no strategy is given for the largest buckets.
        ValueError: The process group is not Paceline's.

    Example:
        >>> strategy_hook(model, {"64KB": "recursive-doubling", "inf": "ring"})  # doctest: +SKIP
        >>> hook = bf16_compress_wrapper(strategy_hook(None, "ring"))  # doctest: +SKIP
        >>> model.register_comm_hook(None, hook)  # doctest: +SKIP
    """
    choose = _chooser(strategy)
    group = model_or_group
    if isinstance(model_or_group, DistributedDataParallel):
        group = model_or_group.process_group

    def average(state: Any, bucket: GradBucket) -> Future[Tensor]:  # noqa: ANN401 - whatever was registered
        operations = operations_of(group if group is not None else dist.group.WORLD)
        buffer = bucket.buffer()
        # Before the sum, as DDP does itself: half precision is less likely to overflow.
        work = operations.allreduce(buffer, strategy=choose(bucket), prescale=1.0 / operations.size())
        assert work is not None, "no options were given, so there is a handle"
        return work.get_future_of(buffer)

    if isinstance(model_or_group, DistributedDataParallel):
        operations_of(group)
        model_or_group.register_comm_hook(None, average)
    return average


def operations_of(group: object) -> Operations:
    """Return Paceline's operations in a process group. Raises ValueError if it has none."""
    if isinstance(group, Operations):
        return group
    if isinstance(group, dist.ProcessGroup):
        for device in (CPU, CUDA):
            with contextlib.suppress(RuntimeError):  # It has no backend for this device.
                if isinstance(below := group._get_backend(device), Operations):
                    return below
    raise ValueError("the process group is not paceline's; call init_process_group('paceline') first")


def _chooser(strategy: Choice) -> Callable[[GradBucket], str | None]:
    if strategy is None:
        return lambda bucket: None
    if isinstance(strategy, str):
        name = find_strategy(strategy).name
        return lambda bucket: name
    if isinstance(strategy, Mapping):
        limits = sorted((_limit(size), find_strategy(name).name) for size, name in strategy.items())
        if not limits or limits[-1][0] != math.inf:
            raise InvalidArgumentError("no strategy is named for the largest buckets", remedy='{"inf": "ring"}')
        return lambda bucket: next(name for limit, name in limits if bucket.buffer().nbytes <= limit)
    return strategy


def _limit(size: str) -> float:
    return math.inf if size == "inf" else parse_size(size)
