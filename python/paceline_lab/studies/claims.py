"""The claims of the studied publications, and whether simulated figures support them: claims.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline_lab.studies.report import ClaimResult

Figures = Mapping[str, float]


@cache
def _claims() -> dict[str, list[dict[str, Any]]]:
    with Path(__file__).with_name("claims.toml").open("rb") as file:
        return tomllib.load(file)


def judged(study: str, figures: Sequence[Figures]) -> list[ClaimResult]:
    """Return the claims of a study; `figures`: those that decide each, in the order of the claims."""
    pairs = zip(_claims()[study], figures, strict=True)
    return [ClaimResult(claim["claim"], holds(claim, own), own) for claim, own in pairs]


def holds(claim: Mapping[str, Any], figures: Figures) -> bool:
    """Return whether figures meet all of a claim's conditions, which claims.toml explains."""
    by = claim.get("by", 1.0)
    return all(_CONDITIONS[name](value, figures, by) for name, value in claim.items() if name in _CONDITIONS)


def _within(limits: Mapping[str, Sequence[float]], figures: Figures, _: float) -> bool:
    return all(least <= figures[name] <= most for name, (least, most) in limits.items())


def _each(limits: Sequence[float], figures: Figures, by: float) -> bool:
    return _within(dict.fromkeys(figures, limits), figures, by)


def _chains(names: Sequence[Any]) -> list[tuple[str, str]]:
    return [pair for chain in (names if isinstance(names[0], list) else [names]) for pair in pairwise(chain)]


def _rising(names: Sequence[Any], figures: Figures, by: float) -> bool:
    return all(figures[before] * by < figures[after] for before, after in _chains(names))


def _falling(names: Sequence[Any], figures: Figures, by: float) -> bool:
    return all(figures[after] <= figures[before] * by for before, after in _chains(names))


def _equal(pairs: Sequence[tuple[str, str, float]], figures: Figures, _: float) -> bool:
    return all(abs(figures[other] / figures[one] - 1) < tolerance for one, other, tolerance in pairs)


def _level(value: tuple[str, float], figures: Figures, _: float) -> bool:
    name, tolerance = value
    return abs(min(each for other, each in figures.items() if other != name) / figures[name] - 1) <= tolerance


def _greatest(value: tuple[str, float], figures: Figures, _: float) -> bool:
    name, share = value
    return figures[name] >= share * max(figures.values())


def _above(limit: float, figures: Figures, _: float) -> bool:
    return sum(value > limit for value in figures.values()) > len(figures) / 2


_CONDITIONS: dict[str, Callable[[Any, Figures, float], bool]] = {
    "within": _within,
    "each": _each,
    "rising": _rising,
    "falling": _falling,
    "equal": _equal,
    "level": _level,
    "greatest": _greatest,
    "above": _above,
}
