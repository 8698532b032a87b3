"""The state of training with PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline.hvd.elastic.state import ObjectState
from paceline.job.elastic_commits import Snapshot
from paceline.torch.hvd.elastic.state_handlers import StateHandler, handler_of


class TorchState(ObjectState):
    """Models, optimizers, learning-rate schedulers, samplers and other objects, as attributes by their names.

    Objects with `state_dict` and `load_state_dict` are committed through these methods, others as in `ObjectState`.

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
        """Take the objects; nothing is committed yet. `run` synchronizes the ranks before the first call.

        Args:
            model: The model.
            optimizer: The optimizer.
            **kwargs: Further objects by name.
        """
        self._handlers: dict[str, StateHandler] = {}
        given = {"model": model, "optimizer": optimizer}
        kwargs = {**{name: value for name, value in given.items() if value is not None}, **kwargs}
        handlers = {name: handler_of(value) for name, value in kwargs.items()}
        super().__init__(**{name: value for name, value in kwargs.items() if handlers[name] is None})
        self._handlers = {name: handler for name, handler in handlers.items() if handler is not None}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever was given
        """Return the object of this name."""
        handlers: dict[str, StateHandler] = self.__dict__.get("_handlers", {})
        if name in handlers:
            return handlers[name].value
        raise AttributeError(f"{type(self).__name__} has no '{name}'; give it to TorchState({name}=...)")

    def __setattr__(self, name: str, value: object) -> None:
        """Replace an object. Raises TypeError if the new one is not committed in the same way."""
        handlers: dict[str, StateHandler] = self.__dict__.get("_handlers", {})
        if name not in handlers:
            super().__setattr__(name, value)
            return
        handler = handler_of(value)
        if handler is None or type(handler) is not type(handlers[name]):
            raise TypeError(f"state.{name} is a {type(value).__name__}; it must stay a {type(handlers[name]).__name__}")
        handlers[name] = handler

    def sync(self) -> None:
        """Copy the state of rank 0 to all ranks, and keep it: `restore` brings it back.

        Raises:
            JobError: A rank is gone.
            InvalidArgumentError: An object cannot be pickled.
        """
        for name, handler in self._handlers.items():
            handler.sync(f"hvd.elastic.{name}")
        super().sync()

    def _snapshot(self) -> Snapshot:
        return super()._snapshot(), {name: handler.take() for name, handler in self._handlers.items()}

    def _bring_back(self, snapshot: Snapshot) -> None:
        objects, kept = snapshot
        super()._bring_back(objects)
        for name, handler in self._handlers.items():
            handler.put(kept[name])
