"""Counts of a section: what was tried, what was wrong, and what could not be tried here."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Section:
    """A part of the run."""

    name: str
    seed: int
    until: float
    """On the clock `time.monotonic`."""
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    """Runs of each kind."""
    wrong: list[dict[str, str]] = field(default_factory=list)
    skipped: str = ""
    """Why nothing could be tried."""
    seconds: float = 0.0

    def source(self, number: int) -> random.Random:
        """Return the random source of a run: it depends on nothing else than the seed and the run's number."""
        return random.Random(f"{self.seed} {self.name} {number}")

    @property
    def over(self) -> bool:
        """Whether the time is."""
        return time.monotonic() >= self.until

    def ran(self, kind: str) -> None:
        """Count a run."""
        self.counts[kind] += 1

    def violated(self, what: str, why: str) -> None:
        """Record and print what was wrong."""
        self.wrong.append({"run": what, "why": why[:2000]})
        print(f"chaos: {self.name}: {what}: {why[:600]}", file=sys.stderr, flush=True)
