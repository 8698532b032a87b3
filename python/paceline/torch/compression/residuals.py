"""Unsent values, kept for the next step (error feedback)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Bucket(Protocol):
    """The interface of a bucket for hooks: torch's `GradBucket`, or differences of parameters."""

    def index(self) -> int:
        """Return its number."""

    def buffer(self) -> Tensor:
        """Return all values, as one vector."""

    def gradients(self) -> Sequence[Tensor]:
        """Return the values of each parameter, which are parts of `buffer`."""

    def parameters(self) -> Sequence[Tensor]:
        """Return the parameters."""

    def is_last(self) -> bool:
        """Return whether it is the last one of a step."""


class Residuals:
    """One vector for each bucket. A parameter's part follows it into another bucket, as DDP makes new ones."""

    def __init__(self) -> None:
        """Nothing has been left yet."""
        self._flat: dict[int, Tensor] = {}
        self._owners: dict[int, tuple[int, ...]] = {}
        self._parts: dict[int, Tensor] = {}

    def of(self, bucket: Bucket) -> Tensor:
        """Return what is left of a bucket's values: a vector to be changed in place, at first zeros."""
        index, buffer, parameters = bucket.index(), bucket.buffer(), bucket.parameters()
        owners = tuple(id(parameter) for parameter in parameters)
        flat = self._flat.get(index)
        if flat is not None and self._owners[index] == owners and len(flat) == len(buffer):
            return flat
        made = torch.zeros_like(buffer)
        begin = 0
        for owner, parameter in zip(owners, parameters, strict=True):
            part = made[begin : begin + parameter.numel()]
            before = self._parts.get(owner)
            if before is not None and len(before) == len(part):
                part.copy_(before)
            self._parts[owner] = part
            begin += parameter.numel()
        self._flat[index], self._owners[index] = made, owners
        return made
