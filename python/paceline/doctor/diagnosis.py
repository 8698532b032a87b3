"""A cause of lost time, and formatting of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline._internal import units

Figure = float | int | str | bool | None | list[int]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that a step spends time on."""

    name: str
    seconds: float
    """Time per mean step: the most that could be gained."""
    share: float
    """Share of the step, 0 to 1."""
    headline: str
    """The use of the time: `waiting for rank 1`."""
    facts: Sequence[str]
    """The figures in words: clauses, the most important first."""
    evidence: Mapping[str, Figure]
    """The figures: seconds, bytes, bit/s, counts and shares, as their names say."""
    tries: Sequence[str]
    """Remedies, cheapest first: words to type, or a change."""
    subject: str = ""
    """Whom it is about: `rank 1`."""

    @property
    def says(self) -> str:
        """The facts in one line, for `--json`."""
        return "; ".join(self.facts)


def nanoseconds(value: float) -> str:
    """`12_340_000` → `12.3 ms`."""
    return units.duration(value / 1e9)


def operations(number: float) -> str:
    """`1 operation`, `18.4 operations`."""
    return "1 operation" if number == 1 else f"{units.short(number)} operations"


def percent(share: float) -> str:
    """`0.443` → `44%`; below one percent with a digit more."""
    return units.percent(share, 0 if share >= 0.0095 or share <= 0 else 1)
