"""Making parameters and optimizer state equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.hvd.handles import synchronize
from paceline.hvd.objects import broadcast_object
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import rank
from paceline.torch.hvd.broadcasting import broadcast_async_

Named = tuple[str | None, Tensor]
Tree = Any
"""A state dict: tensors and values in dicts, lists and tuples."""


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Tensor | tuple[str, Tensor]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's parameters or buffers to all ranks, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`. All ranks give the same names,
            or the same number of unnamed tensors in the same order.
        root_rank: Rank whose tensor is copied: a rank of the job, also within a process set.
        process_set: The ranks that take part; by default all.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        TypeError: A value is not a tensor.
        ValueError: `params` has another type.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    handles = [broadcast_async_(tensor, root_rank, name, process_set) for name, tensor in _named(params)]
    for handle in handles:
        synchronize(handle)


def _named(params: Mapping[str, Tensor] | Iterable[Tensor | tuple[str, Tensor]]) -> list[Named]:
    if isinstance(params, Mapping):
        named: list[Named] = sorted(params.items())
    elif isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise ValueError(f"broadcast_parameters: invalid params of type {type(params).__name__}; give state_dict()")
    else:
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    for place, (name, tensor) in enumerate(named):
        if not isinstance(tensor, Tensor):
            which = f"element {place}" if name is None else f"'{name}'"
            raise TypeError(f"broadcast_parameters: {which} is not a tensor but {type(tensor).__name__}; leave it out")
    return named


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's optimizer state and options, such as the learning rate, to all ranks.

    State that other ranks do not have yet is created there; the root does not change.

    Args:
        optimizer: Any optimizer except LBFGS; it may be a `DistributedOptimizer`.
        root_rank: Rank whose tensor is copied: a rank of the job, also within a process set.
        model: Accepted for compatibility with Horovod, and ignored.
        process_set: The ranks that take part; by default all.

    Raises:
        JobError: A rank is gone, or the ranks disagree about the tensor; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        ValueError: The optimizer is LBFGS, whose state depends on the rank's own steps, or ranks have different
            parameter groups.

    Example:
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state; let all ranks start without state")
    tensors: list[Tensor] = []
    own = _without_tensors(optimizer.state_dict(), tensors) if rank() == root_rank else None
    skeleton = broadcast_object(own, root_rank, "optimizer_state", process_set)
    if rank() != root_rank:
        whole = _with_tensors(skeleton, tensors)
    handles = [
        broadcast_async_(tensor, root_rank, f"optimizer_state.{index}", process_set)
        for index, tensor in enumerate(tensors)
    ]
    for handle in handles:
        synchronize(handle)
    if rank() != root_rank:
        _load(optimizer, whole)


@dataclass(frozen=True)
class _Place:
    """Placeholder for a tensor in a broadcast object."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _without_tensors(tree: Tree, tensors: list[Tensor]) -> Tree:
    """Return the tree with placeholders for tensors, which are collected in order."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return _Place(tuple(tree.shape), tree.dtype)
    if isinstance(tree, dict):
        return {key: _without_tensors(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_without_tensors(value, tensors) for value in tree)
    return tree


def _with_tensors(tree: Tree, tensors: list[Tensor]) -> Tree:
    """Return the tree with new tensors for the placeholders; they are collected in the same order."""
    if isinstance(tree, _Place):
        tensors.append(torch.zeros(tree.shape, dtype=tree.dtype))
        return tensors[-1]
    if isinstance(tree, dict):
        return {key: _with_tensors(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_with_tensors(value, tensors) for value in tree)
    return tree


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state; the dictionaries of options remain the same objects, because a scheduler may refer to them."""
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for mine, loaded in zip(groups, optimizer.param_groups, strict=True):
        mine.update(loaded)
    optimizer.param_groups = groups
