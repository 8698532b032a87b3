"""How far recording changed the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Overhead:
    """Median step with the hooks and without them, from the end of one step to the end of the next, in seconds."""

    recorded_s: float
    bare_s: float
    recorded_steps: int
    bare_steps: int
    noise: float
    """Half the interquartile range of the bare steps, as a share of their median: what one should not read into."""

    @property
    def ratio(self) -> float:
        """Recorded ÷ bare: 1.014 means 1.4 % longer."""
        return self.recorded_s / self.bare_s

    def __str__(self) -> str:
        """Say it in one sentence."""
        percent = abs(self.ratio - 1) * 100
        change = f"{percent:.1f} % {'longer' if self.ratio >= 1 else 'shorter'}"
        recorded = f"median {self.recorded_s * 1e3:.4g} ms of {self.recorded_steps}"
        bare = f"{self.bare_s * 1e3:.4g} ms of {self.bare_steps} without hooks"
        return f"recording made the step {change} ({recorded} against {bare}, which vary by ±{self.noise * 100:.1f} %)"


def overhead(recorded_s: Sequence[float], bare_s: Sequence[float]) -> Overhead | None:
    """Compare the periods of recorded and of bare steps; None if there are none of either."""
    if not recorded_s or not bare_s or median(bare_s) <= 0:
        return None
    bare = median(bare_s)
    low, _, high = quantiles(bare_s, n=4, method="inclusive") if len(bare_s) > 1 else (bare, bare, bare)
    return Overhead(median(recorded_s), bare, len(recorded_s), len(bare_s), noise=(high - low) / 2 / bare)
