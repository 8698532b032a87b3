"""The state of a training with PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline.torch.hvd.elastic.state import ObjectState, Snapshot
from paceline.torch.hvd.elastic.state_handlers import Kind, kind_of


class TorchState(ObjectState):
    """Models, optimizers, learning-rate schedulers, samplers, and other objects, as attributes by the names given.

    What has `state_dict` and `load_state_dict` is kept by them; the rest as in `ObjectState`.
    """

    def __init__(
        self, model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: object
    ) -> None:
        """Nothing is kept yet, and ranks may differ: `run` synchronizes them before the training function is called."""
        self._kinds: dict[str, Kind] = {}
        given = {"model": model, "optimizer": optimizer}
        kwargs = {**{name: value for name, value in given.items() if value is not None}, **kwargs}
        kinds = {name: kind_of(value) for name, value in kwargs.items()}
        super().__init__(**{name: value for name, value in kwargs.items() if kinds[name] is None})
        self._kinds = {name: kind for name, kind in kinds.items() if kind is not None}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever was given
        """What was given under this name."""
        kinds: dict[str, Kind] = self.__dict__.get("_kinds", {})
        if name in kinds:
            return kinds[name].value
        raise AttributeError(f"{type(self).__name__} has no '{name}'; give it to TorchState({name}=...)")

    def __setattr__(self, name: str, value: object) -> None:
        """Another object in the place of one that was given. Raises TypeError if it is kept in another way."""
        kinds: dict[str, Kind] = self.__dict__.get("_kinds", {})
        if name not in kinds:
            super().__setattr__(name, value)
            return
        kind = kind_of(value)
        if kind is None or type(kind) is not type(kinds[name]):
            raise TypeError(
                f"state.{name} is a {type(value).__name__}; give what it was: a {type(kinds[name]).__name__}"
            )
        kinds[name] = kind

    def sync(self) -> None:
        """Give all ranks what rank 0 has, and keep it: `restore` brings it back."""
        for name, kind in self._kinds.items():
            kind.sync(f"hvd.elastic.{name}")
        super().sync()

    def _snapshot(self) -> Snapshot:
        return super()._snapshot(), {name: kind.take() for name, kind in self._kinds.items()}

    def _bring_back(self, snapshot: Snapshot) -> None:
        objects, kept = snapshot
        super()._bring_back(objects)
        for name, kind in self._kinds.items():
            kind.put(kept[name])
