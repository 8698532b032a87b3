"""What the runtime does otherwise than the simulator, so that it cannot be compared."""

from __future__ import annotations

from dataclasses import fields

from paceline.library import Strategy
from paceline.settings import Settings


def otherwise(strategy: Strategy) -> str | None:
    """Why a strategy is not run as it is simulated, if it is not."""
    if "multicast" in strategy.knobs and not multicasts():
        return "the runtime sends to one after the other where the strategy multicasts"
    return None


def multicasts() -> bool:
    """Whether jobs can be told a group for multicasts."""
    return "multicast" in {field.name for field in fields(Settings)}
