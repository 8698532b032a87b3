"""Statistics of rounds and their text, computed from the results alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Rounds = Sequence[float | None]  # seconds per call, a number for each round; None where the job failed
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Spread:
    """Median and range of several numbers."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """As `3.1 (2.8–3.3)`."""
        return f"{factor(self.median)} ({factor(self.low)}–{factor(self.high)})"


def slowest(ranks: Sequence[Sequence[float]]) -> float:
    """The median over batches of the slowest rank's time, from each rank's times of the same batches."""
    return statistics.median(max(times) for times in zip(*ranks, strict=True))


def middle(rounds: Rounds) -> float | None:
    """The median over the rounds that were measured."""
    known = [seconds for seconds in rounds if seconds is not None]
    return statistics.median(known) if known else None


def better(peers: Sequence[Rounds]) -> list[float | None]:
    """The best of several peers in each round."""
    return [min((time for time in times if time is not None), default=None) for times in zip(*peers, strict=True)]


def faster(peer: Rounds, ours: Rounds) -> Spread | None:
    """How many times as fast as the peer we are, within each round, so that a slow minute slows both."""
    ratios = [theirs / own for theirs, own in zip(peer, ours, strict=False) if theirs is not None and own]
    return Spread(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def least_seconds(size: int, ranks: int, cores: int, copied_per_core: float) -> float:
    """The shortest time of an all-reduce of `size` bytes where a rank stores into its own memory only.

    For each element, n loads and a store make the sum somewhere, and the n - 1 other ranks each load and store it:
    (3n - 1) S bytes in all, 5 S for two ranks. A copy loads and stores each byte, so min(n, cores) cores move twice
    what they copy.
    """
    return (3 * ranks - 1) * size / (2 * copied_per_core * min(ranks, cores))


def size_text(size: int) -> str:
    """As `4 KiB`."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def microseconds(seconds: float | None) -> str:
    """As `4.1`, `276`, `10.8k`."""
    if seconds is None:
        return "–"
    value = seconds * 1e6
    if value < 99.95:
        return f"{value:.1f}"
    if value < 9999.5:
        return f"{value:.0f}"
    return f"{value / 1e3:.1f}k" if value < 99950 else f"{value / 1e3:.0f}k"


def factor(number: float) -> str:
    """Three digits or fewer."""
    return f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:.0f}"
