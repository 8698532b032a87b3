"""Ways of compressing gradients, by the names that `--compression` and `paceline.torch.compression` share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline._internal.nearest import nearest
from paceline.errors import InvalidArgumentError

NONE = "none"
OPTIONS = ("compression", "sync_every")
"""The settings of what is compressed, and how seldom it is exchanged."""
METHODS = (NONE, "fp16", "bf16", "int8", "powersgd", "topk")
INT8_BLOCK = 256
"""Values that share a scale (crates/iteration/src/compression.rs has the same)."""
_MOST_RANK = 65_536
_DEFAULTS = {"powersgd": 4, "topk": 0.01}


@dataclass(frozen=True)
class Compression:
    """A method, with the rank of PowerSGD or the share of values that top-k sends."""

    method: str
    parameter: float | None = None

    @property
    def name(self) -> str:
        """As users type it: `powersgd:4`."""
        return self.method if self.parameter is None else f"{self.method}:{self.parameter:g}"

    @property
    def needs_order(self) -> bool:
        """Whether the hook starts collectives in callbacks, for which ranks have to keep an order."""
        return self.method in {"powersgd", "int8"}

    @property
    def gathers(self) -> bool:
        """Whether something else than all-reduces is exchanged."""
        return self.method in {"topk", "int8"}


def parse(text: str) -> Compression:
    """Return the compression of a name such as `fp16`, `powersgd:4` or `topk:0.01`. Raises InvalidArgumentError."""
    method, colon, given = text.strip().lower().partition(":")
    if method not in METHODS:
        near = nearest(method, METHODS)
        remedy = f"{near or METHODS[0]} (one of {', '.join(METHODS)})"
        raise InvalidArgumentError(f"unknown compression '{text[:80]}'", setting="compression", remedy=remedy)
    if method not in _DEFAULTS:
        if colon:
            raise InvalidArgumentError(
                f"'{text[:80]}': {method} has no parameter", setting="compression", remedy=f"{{this={method}}}"
            )
        return Compression(method)
    value: float = _DEFAULTS[method]
    if colon:
        try:
            value = float(given)
        except ValueError:
            value = math.nan
    if method == "powersgd" and not (1 <= value <= _MOST_RANK and value == int(value)):
        raise InvalidArgumentError(
            f"'{text[:80]}': the rank must be 1-{_MOST_RANK}", setting="compression", remedy="{this=powersgd:4}"
        )
    if method == "topk" and not 0 < value <= 1:
        raise InvalidArgumentError(
            f"'{text[:80]}': the share of values that is sent must be above 0, and at most 1",
            setting="compression",
            remedy="{this=topk:0.01}",
        )
    return Compression(method, value)
