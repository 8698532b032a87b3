"""The state of a training with PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline.torch.hvd.elastic.state import ObjectState, Snapshot
from paceline.torch.hvd.elastic.state_handlers import Kind, kind_of


class TorchState(ObjectState):
    """Models, optimizers, learning-rate schedulers, samplers and other objects, as attributes by their names.

    What has `state_dict` and `load_state_dict` is committed through them, other objects as in `ObjectState`.

    Example:
        >>> state = hvd.elastic.TorchState(model=torch.nn.Linear(2, 1), epoch=0)
        >>> state.save()
        >>> state.epoch = 5
        >>> state.restore()
        >>> state.epoch
        0
    """

    def __init__(
        self, model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: object
    ) -> None:
        """Take the objects; nothing is committed yet. `run` synchronises the ranks before the first call.

        Args:
            model: The model.
            optimizer: The optimizer.
            **kwargs: Further objects by name.
        """
        self._kinds: dict[str, Kind] = {}
        given = {"model": model, "optimizer": optimizer}
        kwargs = {**{name: value for name, value in given.items() if value is not None}, **kwargs}
        kinds = {name: kind_of(value) for name, value in kwargs.items()}
        super().__init__(**{name: value for name, value in kwargs.items() if kinds[name] is None})
        self._kinds = {name: kind for name, kind in kinds.items() if kind is not None}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever was given
        """Return the object of this name."""
        kinds: dict[str, Kind] = self.__dict__.get("_kinds", {})
        if name in kinds:
            return kinds[name].value
        raise AttributeError(f"{type(self).__name__} has no '{name}'; give it to TorchState({name}=...)")

    def __setattr__(self, name: str, value: object) -> None:
        """Replace an object. Raises TypeError if the new one is not committed in the same way."""
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
        """Copy the state of rank 0 to all ranks, and keep it: `restore` brings it back.

        Raises:
            JobError: A rank is gone.
            InvalidArgumentError: An object cannot be pickled.
        """
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
