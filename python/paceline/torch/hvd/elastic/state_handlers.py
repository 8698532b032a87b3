"""How models, optimizers, samplers and other objects are committed, restored, and copied to other ranks."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.hvd.objects import allgather_object, broadcast_object
from paceline.torch.hvd.distributed import Distributed
from paceline.torch.hvd.elastic.sampler import ElasticSampler
from paceline.torch.hvd.parameters import broadcast_optimizer_state, broadcast_parameters

Kept = Any
"""A snapshot from which a handler restores its object."""


class StateHandler(Protocol):
    """One object of a state."""

    value: Any
    """The object that the script uses."""

    def take(self) -> Kept:
        """Return a copy that later steps do not change."""

    def put(self, kept: Kept) -> None:
        """Restore the object from a copy, without changing the copy."""

    def sync(self, name: str) -> None:
        """Make the object equal to rank 0's. All ranks call this."""


def copied(tree: Any) -> Any:  # noqa: ANN401 - a state dict, or what stands in one
    """Return a deep copy with its own tensors, without graphs and hooks."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return type(tree)((key, copied(value)) for key, value in tree.items())
    if type(tree) in (list, tuple):
        return type(tree)(copied(value) for value in tree)
    return copy.deepcopy(tree)


class Model:
    """A module: parameters and buffers."""

    def __init__(self, value: nn.Module) -> None:
        """Take the module."""
        self.value = value

    def take(self) -> Kept:
        """Return a copy of its state dict."""
        return {name: copied(tensor) for name, tensor in self.value.state_dict().items()}

    def put(self, kept: Kept) -> None:
        """Load a state dict, and drop gradients, which belong to the lost steps."""
        self.value.load_state_dict(kept)
        self.value.zero_grad(set_to_none=True)

    def sync(self, name: str) -> None:
        """Broadcast tensors in place, and extra state of modules (`get_extra_state`) as objects."""
        state = self.value.state_dict()
        tensors = {f"{name}.{key}": tensor for key, tensor in state.items() if isinstance(tensor, Tensor)}
        broadcast_parameters(tensors, 0)
        others = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        if others:
            state.update(broadcast_object(others, 0, f"{name}.others"))
            self.value.load_state_dict(state)


class Optimizer:
    """An optimizer, distributed or not."""

    def __init__(self, value: torch.optim.Optimizer) -> None:
        """Take the optimizer."""
        self.value = value

    def take(self) -> Kept:
        """Return a copy of its state dict."""
        return copied(self.value.state_dict())

    def put(self, kept: Kept) -> None:
        """Load copies, because torch keeps tensors that fit without copying them."""
        self.value.load_state_dict(copied(kept))
        for group in self.value.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def sync(self, name: str) -> None:
        """Broadcast state and options."""
        broadcast_optimizer_state(self.value, 0)


class Stateful:
    """An object with `state_dict` and `load_state_dict`, such as a learning-rate scheduler or a gradient scaler."""

    def __init__(self, value: Any) -> None:  # noqa: ANN401 - whatever has them
        """Take the object."""
        self.value = value

    def take(self) -> Kept:
        """Return a copy of its state dict."""
        return copied(self.value.state_dict())

    def put(self, kept: Kept) -> None:
        """Load a state dict."""
        self.value.load_state_dict(copied(kept))

    def sync(self, name: str) -> None:
        """Broadcast its state dict as an object."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0, name))


class Sampler:
    """An `ElasticSampler`: samples processed by any rank count as processed."""

    def __init__(self, value: ElasticSampler) -> None:
        """Take the sampler."""
        self.value = value

    def take(self) -> Kept:
        """Return the epoch, and the indices processed in it."""
        return self.value.state_dict()

    def put(self, kept: Kept) -> None:
        """Go back, and share the rest among the current ranks."""
        self.value.load_state_dict(kept)

    def sync(self, name: str) -> None:
        """Use the epoch of rank 0, and the indices processed by ranks that are in it."""
        states = allgather_object(self.value.state_dict(), name)
        epoch = states[0]["epoch"]
        processed = sorted(
            {index for state in states if state["epoch"] == epoch for index in state["processed_indices"]}
        )
        self.value.load_state_dict({"epoch": epoch, "processed_indices": processed})


def handler_of(value: object) -> StateHandler | None:
    """Return the handler of an object; None: like any Python object."""
    if isinstance(value, nn.Module):
        return Model(value)
    if isinstance(value, torch.optim.Optimizer | Distributed):
        return Optimizer(value)
    if isinstance(value, ElasticSampler):
        return Sampler(value)
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return Stateful(value)
    return None
