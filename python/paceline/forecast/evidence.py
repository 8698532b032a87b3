"""How far forecasts of comparable cases have been off, and the interval that follows: docs/explanation/accuracy.md.

residuals.json holds one entry for each published row, by `scripts/write_residuals.py`. Its residual is that of a
forecast whose constants were fitted without the row's source. The interval is that of split conformal prediction (V.
Vovk et al., "Algorithmic Learning in a Random World", 2005): with n comparable residuals, the next one is at most the
⌈(n + 1) 0.8⌉-th smallest in absolute value with a probability of 80 %, if it is drawn like them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

LEVEL = 0.8
_RESIDUALS = Path(__file__).parent / "residuals.json"
_VALIDATED = Path(__file__).parent / "validated.json"
_FEWEST = 4
"""So many residuals are needed for a quantile of 80 %."""
_ENOUGH = 8
"""With so many cases of a similar scale, others do not count."""
_FURTHER = 2.0
"""Evidence reaches up to this factor beyond the largest comparable job, and the fastest and slowest links."""


@dataclass(frozen=True)
class Interval:
    """The interval that holds the measured iteration time with a probability of `level`. Times are seconds."""

    low_s: float
    high_s: float
    level: float
    cases: int
    """Comparable measurements."""
    basis: str
    """What they are."""


@dataclass(frozen=True)
class Case:
    """A measurement and its forecast. `residual`: the logarithm of measured over forecast iteration time."""

    source: str
    family: str
    channel: str
    gpus: int
    nodes: int
    link_bps: float
    residual: float


@dataclass(frozen=True)
class Question:
    """What a forecast is about, as far as evidence depends on it. `own`: the strategy is what the library does."""

    library: str
    family: str
    strategy: str
    channel: str
    workers: int
    nodes: int
    link_bps: float
    own: bool = True
    computes: bool = True


@lru_cache(maxsize=1)
def published_cases() -> tuple[Case, ...]:
    """Return the published rows."""
    return tuple(Case(**case) for case in json.loads(_RESIDUALS.read_text(encoding="utf-8"))["cases"])


@lru_cache(maxsize=1)
def _validated() -> tuple[tuple[str, int, float], ...]:
    """Return strategy, workers and residual of the comparisons of `paceline validate`."""
    rows = json.loads(_VALIDATED.read_text(encoding="utf-8"))["rows"]
    return tuple((row["strategy"], row["workers"], -math.log1p(row["error"])) for row in rows)


def interval(iteration_s: float, question: Question, without: str = "") -> tuple[Interval | None, str]:
    """Return the interval around a forecast, or None, and what it is based on or why there is none.

    Args:
        iteration_s: The forecast, in seconds.
        question: What was forecast.
        without: A source whose cases do not count, because the forecast is of that source.
    """
    if question.workers < 2 or iteration_s <= 0:
        return None, "no interval: nothing is communicated, so only the trace could be wrong"
    residuals, basis = _bare(question) if question.library == "none" else _published(question, without)
    if len(residuals) < _FEWEST:
        return None, f"no interval, because this is outside the evidence: {basis}"
    size = quantile(residuals)
    found = Interval(iteration_s * math.exp(-size), iteration_s * math.exp(size), LEVEL, len(residuals), basis)
    return found, basis


def quantile(residuals: Sequence[float]) -> float:
    """Return the size that the next residual does not exceed with a probability of 80 %; at least four are given."""
    sizes = sorted(map(abs, residuals))
    return sizes[min(len(sizes), math.ceil((len(sizes) + 1) * LEVEL)) - 1]


def _bare(question: Question) -> tuple[list[float], str]:
    """Return the residuals of `paceline validate`, whose ranks execute the bare schedule."""
    rows = [(workers, residual) for strategy, workers, residual in _validated() if strategy == question.strategy]
    if not rows:
        return [], f"{question.strategy} has not been compared with real runs"
    most = max(workers for workers, _ in rows)
    if question.workers > _FURTHER * most or question.nodes != question.workers:
        return [], f"the bare schedule of {question.strategy} was run on up to {most} workers, one a node"
    return [residual for _, residual in rows], f"{question.strategy} on an emulated network, 2 to {most} workers"


def _published(question: Question, without: str) -> tuple[list[float], str]:
    """Return the residuals of the closest comparable cases, and what they have in common."""
    if not question.own:
        return [], f"no measurement of {question.library} with {question.strategy} has been published"
    if not question.computes:
        return [], "too few measurements of all-reduces alone have been published"
    one_node = question.nodes == 1
    cases = [it for it in published_cases() if it.source != without and (it.nodes == 1) == one_node]
    where = "on one node" if one_node else f"over {question.channel.upper()}"

    def alike(case: Case) -> bool:
        return case.family == question.family and (one_node or case.channel == question.channel)

    def scaled(case: Case) -> bool:
        return question.workers / 4 <= case.gpus <= question.workers * 4

    levels: tuple[tuple[str, int, Callable[[Case], bool]], ...] = (
        (f"{question.family} {where}, a similar number of GPUs", _ENOUGH, lambda case: alike(case) and scaled(case)),
        (f"{question.family} {where}", _FEWEST, alike),
        (f"all libraries {where}", _FEWEST, lambda case: one_node or case.channel == question.channel),
    )
    reason = f"no measurements {where} have been published"
    for words, least, matches in levels:
        found = [case for case in cases if matches(case)]
        if len(found) < least:
            continue
        if reason := _beyond(question, found, one_node=one_node):
            continue
        sources = sorted({case.source for case in found})
        return [case.residual for case in found], f"{words} ({', '.join(sources)})"
    return [], reason or f"no measurements {where} have been published"


def _beyond(question: Question, cases: Sequence[Case], *, one_node: bool) -> str:
    """Return how the question lies beyond the cases; empty if it does not."""
    most = max(case.gpus for case in cases)
    if question.workers > _FURTHER * most:
        return f"measurements end at {most} GPUs"
    if one_node:
        return ""
    links = [case.link_bps for case in cases]
    if not min(links) / _FURTHER <= question.link_bps <= max(links) * _FURTHER:
        return f"measurements have links of {min(links) / 1e9:g} to {max(links) / 1e9:g} Gbit/s"
    return ""
