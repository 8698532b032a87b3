"""How models, optimizers, samplers and others are kept, brought back, and given to other ranks."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.torch.hvd.distributed import Distributed
from paceline.torch.hvd.elastic.sampler import ElasticSampler
from paceline.torch.hvd.objects import allgather_object, broadcast_object
from paceline.torch.hvd.parameters import broadcast_optimizer_state, broadcast_parameters

Kept = Any
"""What one kind needs to be as it was."""


class Kind(Protocol):
    """One thing of a state."""

    value: Any
    """What the script sees."""

    def take(self) -> Kept:
        """A copy, which later steps do not change."""

    def put(self, kept: Kept) -> None:
        """Be as it was. The copy stays as it is."""

    def sync(self, name: str) -> None:
        """Be as on rank 0. All ranks call this."""


def copied(tree: Any) -> Any:  # noqa: ANN401 - a state dict, or what stands in one
    """The same with tensors of its own; without what tensors hang on (graphs, hooks)."""
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
        """Nothing is kept yet."""
        self.value = value

    def take(self) -> Kept:
        """Its state dict."""
        return {name: copied(tensor) for name, tensor in self.value.state_dict().items()}

    def put(self, kept: Kept) -> None:
        """Load it; gradients are of the steps that were lost."""
        self.value.load_state_dict(kept)
        self.value.zero_grad(set_to_none=True)

    def sync(self, name: str) -> None:
        """Tensors in place; what else modules keep (`get_extra_state`) as objects."""
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
        """Nothing is kept yet."""
        self.value = value

    def take(self) -> Kept:
        """Its state dict."""
        return copied(self.value.state_dict())

    def put(self, kept: Kept) -> None:
        """Load it. Torch keeps tensors that fit as they are: it is given copies."""
        self.value.load_state_dict(copied(kept))
        for group in self.value.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def sync(self, name: str) -> None:
        """State and options."""
        broadcast_optimizer_state(self.value, 0)


class Stateful:
    """What has `state_dict` and `load_state_dict`: a learning-rate scheduler, a gradient scaler."""

    def __init__(self, value: Any) -> None:  # noqa: ANN401 - whatever has them
        """Nothing is kept yet."""
        self.value = value

    def take(self) -> Kept:
        """Its state dict."""
        return copied(self.value.state_dict())

    def put(self, kept: Kept) -> None:
        """Load it."""
        self.value.load_state_dict(copied(kept))

    def sync(self, name: str) -> None:
        """Its state dict as an object."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0, name))


class Sampler:
    """An `ElasticSampler`: what any rank knows to have been processed is."""

    def __init__(self, value: ElasticSampler) -> None:
        """Nothing is kept yet."""
        self.value = value

    def take(self) -> Kept:
        """Epoch, and what has been processed in it."""
        return self.value.state_dict()

    def put(self, kept: Kept) -> None:
        """Go back, and share the rest among the ranks of now."""
        self.value.load_state_dict(kept)

    def sync(self, name: str) -> None:
        """The epoch of rank 0, and what has been processed by ranks that are in it."""
        told = allgather_object(self.value.state_dict(), name)
        epoch = told[0]["epoch"]
        processed = sorted({index for state in told if state["epoch"] == epoch for index in state["processed_indices"]})
        self.value.load_state_dict({"epoch": epoch, "processed_indices": processed})


def kind_of(value: object) -> Kind | None:
    """How it is kept; None: as any Python object."""
    if isinstance(value, nn.Module):
        return Model(value)
    if isinstance(value, torch.optim.Optimizer | Distributed):
        return Optimizer(value)
    if isinstance(value, ElasticSampler):
        return Sampler(value)
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return Stateful(value)
    return None
