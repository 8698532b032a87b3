"""How far forecasts of comparable cases have been off, and the interval that follows: docs/explanation/accuracy.md.

residuals.json has an entry for each published row, by `scripts/write_residuals.py`: how far a forecast is off whose
constants were fitted without the row's source. Within a source, the interval is that of split conformal prediction (V.
Vovk et al., "Algorithmic Learning in a Random World", 2005): of n residuals the ⌈(n + 1) 0.8⌉-th smallest. Sources
differ more than the rows of one, so the same is done once more over the sources' sizes (R. Dunn et al.,
"Distribution-free prediction sets for two-layer hierarchical models", 2022), widened by Student's t for their small
number.

If the times of computation are a roofline's, they are part of the forecast and of its error: then the residuals are
those of published training of transformers (residuals-models.json, by `scripts/write_residuals.py`), on one node
or on several, of GPUs of today or older ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from paceline.forecast.kinds import FURTHER, Comparable, Evidence, Ground
from paceline.forecast.result import Interval
from paceline.forecast.wording import terms

LEVEL = 0.8
_EMULATED_BPS = (0.5e9, 53e9)
"""Rates that links of `paceline validate` stand for: bytes are divided, so that gradients take 125 ms on a link of a
few hundred Mbps, and those of VGG-16 are the most, 822.5 MB."""
_RESIDUALS = Path(__file__).parent / "residuals.json"
_MODELS = Path(__file__).parent / "residuals-models.json"
_VALIDATED = Path(__file__).parent / "validated.json"
_FEW_SOURCES_FACTOR = (2.40, 1.47, 1.28, 1.20, 1.15, 1.12, 1.10, 1.09)
"""By the number of sources: the 90 % quantile of Student's t with as many degrees of freedom over the normal's."""


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
    """The properties of a forecast that evidence depends on. `own`: the strategy is the library's own."""

    library: str
    family: str
    strategy: str
    channel: str
    workers: int
    nodes: int
    link_bps: float
    own: bool = True
    computes: bool = True
    coordinated: bool = False
    sharded: bool = False
    communicates: bool = True
    """A single worker may still have a server."""
    beyond: Evidence | None = None
    """An option that no measurement had, and why; None if there is none."""
    architecture: str = ""
    """That of the GPU whose roofline gave the times of computation; empty if they were recorded."""


@lru_cache(maxsize=1)
def published_cases() -> tuple[Case, ...]:
    """Return the published rows."""
    return tuple(Case(**case) for case in json.loads(_RESIDUALS.read_text(encoding="utf-8"))["cases"])


@dataclass(frozen=True)
class ModelCase:
    """A published rate of training of a transformer. `residual` is that of the iteration time, as in `Case`."""

    source: str
    architecture: str
    sharded: bool
    gpus: int
    nodes: int
    link_bps: float
    residual: float


@lru_cache(maxsize=1)
def model_cases() -> tuple[ModelCase, ...]:
    """Return the published rows of transformers."""
    return tuple(ModelCase(**case) for case in json.loads(_MODELS.read_text(encoding="utf-8"))["cases"])


@lru_cache(maxsize=1)
def _validated() -> tuple[tuple[str, int, float], ...]:
    """Return strategy, workers and residual of the comparisons of `paceline validate`."""
    rows = json.loads(_VALIDATED.read_text(encoding="utf-8"))["rows"]
    return tuple((row["strategy"], row["workers"], -math.log1p(row["error"])) for row in rows)


def interval(iteration_s: float, question: Question, without: str = "") -> tuple[Interval | None, Evidence]:
    """Return the interval around a forecast, or None, and what it is based on or why there is none.

    Args:
        iteration_s: The forecast, in seconds.
        question: What was forecast.
        without: A source whose cases do not count, because the forecast is of that source.
    """
    if question.architecture and iteration_s > 0 and not question.coordinated:
        return _around(iteration_s, question, *_models(question, without))
    if question.workers < 2 and question.communicates and iteration_s > 0:
        return None, Evidence(Ground.SERVED_ALONE)
    if question.workers < 2 or iteration_s <= 0:
        return None, Evidence(Ground.SILENT)
    if question.coordinated:
        return None, Evidence(Ground.COORDINATED)
    if question.sharded:
        return None, Evidence(Ground.SHARDED_RECORDING)
    return _around(
        iteration_s,
        question,
        *(_bare(question) if question.library == "none" else _published(question, without)),
    )


def _around(
    iteration_s: float, question: Question, residuals: Residuals, found: Evidence
) -> tuple[Interval | None, Evidence]:
    if not residuals:
        return None, found
    if question.beyond is not None:
        return None, question.beyond
    size, cases = spread(residuals), sum(map(len, residuals.values()))
    low, high = iteration_s * math.exp(-size), iteration_s * math.exp(size)
    return Interval(low, high, LEVEL, cases, terms.reason(found)), found


Residuals = Mapping[str, Sequence[float]]
"""By source."""


def spread(residuals: Residuals) -> float:
    """Return the size that the residual of another source does not exceed with a probability of 80 %."""
    sizes = [_quantile([abs(residual) for residual in own]) for own in residuals.values()]
    return _quantile(sizes) * _FEW_SOURCES_FACTOR[min(len(sizes), len(_FEW_SOURCES_FACTOR)) - 1]


def _quantile(sizes: Sequence[float]) -> float:
    """Return the ⌈(n + 1) 0.8⌉-th smallest; the largest, if that is more than there are."""
    return sorted(sizes)[min(len(sizes), math.ceil((len(sizes) + 1) * LEVEL)) - 1]


def coverage() -> tuple[int, int, int]:
    """Return how many published rows lie in the interval from other sources, how many have one, and how many do not.

    Neither the row's forecast nor its interval depends on the row's source.
    """
    inside = known = 0
    for case in published_cases():
        question = Question("", case.family, "", case.channel, case.gpus, case.nodes, case.link_bps)
        found, _ = interval(1.0, question, without=case.source)
        if found is not None:
            known += 1
            inside += found.low_s <= math.exp(case.residual) <= found.high_s
    return inside, known, len(published_cases()) - known


def coverage_of_models() -> tuple[int, int, int]:
    """Return the same counts as `coverage`, of published training of transformers."""
    inside = known = 0
    for case in model_cases():
        question = Question(
            *("ddp", "nccl", "native", "rdma"),
            workers=case.gpus,
            nodes=case.nodes,
            link_bps=case.link_bps,
            sharded=case.sharded,
            architecture=case.architecture,
        )
        found, _ = interval(1.0, question, without=case.source)
        if found is not None:
            known += 1
            inside += found.low_s <= math.exp(case.residual) <= found.high_s
    return inside, known, len(model_cases()) - known


def _bare(question: Question) -> tuple[Residuals, Evidence]:
    """Return the residuals of `paceline validate`, whose ranks execute the bare schedule."""
    rows = [(workers, residual) for strategy, workers, residual in _validated() if strategy == question.strategy]
    about = Evidence(Ground.NOT_VALIDATED, strategy=question.strategy)
    if not rows:
        return {}, about
    most = max(workers for workers, _ in rows)
    if question.workers > FURTHER * most or question.nodes != question.workers:
        return {}, about.on(Ground.WORKERS_VALIDATED, most=most)
    slowest, fastest = _EMULATED_BPS
    if not slowest / FURTHER <= question.link_bps <= fastest * FURTHER:
        return {}, about.on(Ground.LINKS_VALIDATED, least=slowest, most=fastest)
    return {"validate": [residual for _, residual in rows]}, about.on(Ground.VALIDATED, most=most)


def _published(question: Question, without: str) -> tuple[Residuals, Evidence]:
    """Return the residuals of the closest comparable cases, and what they have in common."""
    if not question.own:
        return {}, Evidence(Ground.LIBRARY_UNPUBLISHED, library=question.library, strategy=question.strategy)
    if not question.computes:
        return {}, Evidence(Ground.ALL_REDUCES)
    about = Evidence(Ground.PUBLISHED, comparable=Comparable.ONE_NODE, family=question.family, channel=question.channel)
    if question.nodes == 1:
        return _comparable(question, [case for case in published_cases() if case.nodes == 1], about, without)
    family = [case for case in published_cases() if case.nodes > 1 and case.family == question.family]
    over = [case for case in family if case.channel == question.channel]
    near, basis = _comparable(question, over, replace(about, comparable=Comparable.OVER_CHANNEL), without)
    if near:
        return near, basis
    return _comparable(question, family, replace(about, comparable=Comparable.BETWEEN_NODES), without)


_OLDER = ("pascal", "volta", "turing")


def _models(question: Question, without: str) -> tuple[Residuals, Evidence]:
    """Return the residuals of training on as many nodes, one or several, of GPUs as new."""
    older, several = question.architecture in _OLDER, question.nodes > 1
    cases = [case for case in model_cases() if (case.architecture in _OLDER) == older and (case.nodes > 1) == several]
    if question.workers > 1 and not question.own:
        return {}, Evidence(Ground.TRANSFORMERS_UNPUBLISHED, strategy=question.strategy)
    about = Evidence(Ground.PUBLISHED, comparable=Comparable.TRANSFORMERS, has_nodes=several, is_older=older)
    return _comparable(question, cases, about, without)


def _comparable(
    question: Question, cases: Sequence[Case | ModelCase], about: Evidence, without: str
) -> tuple[Residuals, Evidence]:
    sources = tuple(sorted({case.source for case in cases}))
    if not sources:
        return {}, about.on(Ground.NOTHING_PUBLISHED)
    if len(sources) == 1:
        return {}, about.on(Ground.ONE_SOURCE, sources=sources)
    most = max(case.gpus for case in cases)
    if question.workers > FURTHER * most:
        return {}, about.on(Ground.GPUS, most=most)
    links = [case.link_bps for case in cases]
    if question.nodes > 1 and not min(links) / FURTHER <= question.link_bps <= max(links) * FURTHER:
        return {}, about.on(Ground.LINKS, least=min(links), most=max(links))
    residuals = {it: [case.residual for case in cases if case.source == it] for it in sources if it != without}
    return residuals, about.on(Ground.PUBLISHED, sources=tuple(residuals))
