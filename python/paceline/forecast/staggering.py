"""How far apart workers come to the same part of an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline import _core


@dataclass(frozen=True)
class Spread:
    """When workers come to a part of an iteration, in seconds from its beginning."""

    min_s: float
    median_s: float
    max_s: float
    spread_s: float
    """From the first worker to the last."""
    workers_s: tuple[float, ...] | None = None
    """Each worker's by rank, if `detail` was requested."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        own = {name: value for name, value in vars(self).items() if value is not None}
        return own | ({} if self.workers_s is None else {"workers_s": list(self.workers_s)})


@dataclass(frozen=True)
class Staggering:
    """How far apart workers come to the parts of an iteration.

    M. A. Chang et al., "How to Train your DNN: The Network Operator Edition", sections 4 and 8.1.1: the later some
    workers begin their backward passes, the fewer updates meet at a server. The iteration begins at the servers'
    barrier, or when the first worker begins it.
    """

    backward: Spread
    """When backward passes begin."""
    push: Spread
    """When they end: then a worker has handed over its last gradient."""
    pull: Spread | None = None
    """When the last new parameter arrives; None: no servers distribute them."""

    @classmethod
    def of(cls, known: _core.Staggering | None) -> Staggering | None:
        """Return what the native module says."""
        if known is None:
            return None
        return cls(_spread(known.backward), _spread(known.push), None if known.pull is None else _spread(known.pull))

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        pull = {} if self.pull is None else {"pull": self.pull.to_dict()}
        return {**pull, "backward": self.backward.to_dict(), "push": self.push.to_dict()}


def _spread(own: _core.Spread) -> Spread:
    each = None if own.workers_s is None else tuple(own.workers_s)
    return Spread(own.min_s, own.median_s, own.max_s, own.spread_s, each)
