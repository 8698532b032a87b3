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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from paceline.forecast.beyond import FURTHER
from paceline.forecast.result import Interval

LEVEL = 0.8
_EMULATED_BPS = (0.5e9, 53e9)
"""What the links of `paceline validate` stand for: bytes are divided, so that gradients take 125 ms on a link of a few
hundred Mbit/s, and those of VGG-16 are the most, 822.5 MB."""
_RESIDUALS = Path(__file__).parent / "residuals.json"
_MODELS = Path(__file__).parent / "residuals-models.json"
_VALIDATED = Path(__file__).parent / "validated.json"
_WIDER = (2.40, 1.47, 1.28, 1.20, 1.15, 1.12, 1.10, 1.09)
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
    coordinated: bool = False
    sharded: bool = False
    communicates: bool = True
    """A single worker may still have a server."""
    beyond: str = ""
    """An option that no measurement had, and why; empty if there is none."""
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


def interval(iteration_s: float, question: Question, without: str = "") -> tuple[Interval | None, str]:
    """Return the interval around a forecast, or None, and what it is based on or why there is none.

    Args:
        iteration_s: The forecast, in seconds.
        question: What was forecast.
        without: A source whose cases do not count, because the forecast is of that source.
    """
    if question.architecture and iteration_s > 0 and not question.coordinated:
        return _around(iteration_s, question, *_models(question, without))
    if question.workers < 2 and question.communicates and iteration_s > 0:
        return None, "no interval: no measurement is of a single worker with a server"
    if question.workers < 2 or iteration_s <= 0:
        return None, "no interval: nothing is communicated, so only the trace could be wrong"
    if question.coordinated:
        return (
            None,
            "no interval: published measurements of coordinators are of one machine (paceline study load-imbalance)",
        )
    if question.sharded:
        return None, "no interval: measurements of sharded training are of models with a --gpu, not of recordings"
    return _around(
        iteration_s,
        question,
        *(_bare(question) if question.library == "none" else _published(question, without)),
    )


def _around(iteration_s: float, question: Question, residuals: Residuals, basis: str) -> tuple[Interval | None, str]:
    if not residuals:
        return None, f"no interval, because this is outside the evidence: {basis}"
    if question.beyond:
        return None, f"no interval, because this is outside the evidence: {question.beyond}"
    size, cases = spread(residuals), sum(map(len, residuals.values()))
    return Interval(iteration_s * math.exp(-size), iteration_s * math.exp(size), LEVEL, cases, basis), basis


Residuals = Mapping[str, Sequence[float]]
"""By source."""


def spread(residuals: Residuals) -> float:
    """Return the size that the residual of another source does not exceed with a probability of 80 %."""
    sizes = [_quantile([abs(residual) for residual in own]) for own in residuals.values()]
    return _quantile(sizes) * _WIDER[min(len(sizes), len(_WIDER)) - 1]


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


def _bare(question: Question) -> tuple[Residuals, str]:
    """Return the residuals of `paceline validate`, whose ranks execute the bare schedule."""
    rows = [(workers, residual) for strategy, workers, residual in _validated() if strategy == question.strategy]
    if not rows:
        return {}, f"{question.strategy} has not been compared with real runs"
    most = max(workers for workers, _ in rows)
    if question.workers > FURTHER * most or question.nodes != question.workers:
        return {}, f"the bare schedule of {question.strategy} was run on up to {most} workers, one a node"
    slowest, fastest = _EMULATED_BPS
    if not slowest / FURTHER <= question.link_bps <= fastest * FURTHER:
        return {}, (
            f"the bare schedule of {question.strategy} was run on emulated links that stand for {slowest / 1e9:g} to "
            f"{fastest / 1e9:g} Gbit/s"
        )
    residuals = [residual for _, residual in rows]
    return {"validate": residuals}, f"{question.strategy} on an emulated network, 2 to {most} workers"


def _published(question: Question, without: str) -> tuple[Residuals, str]:
    """Return the residuals of the closest comparable cases, and what they have in common."""
    if not question.own:
        return {}, f"no measurement of {question.library} with {question.strategy} has been published"
    if not question.computes:
        return {}, "too few measurements of all-reduces alone have been published"
    if question.nodes == 1:
        on_one = [case for case in published_cases() if case.nodes == 1]
        return _comparable(question, on_one, "GPUs of one node", without)
    family = [case for case in published_cases() if case.nodes > 1 and case.family == question.family]
    over = [case for case in family if case.channel == question.channel]
    found, words = _comparable(question, over, f"{question.family} over {question.channel.upper()}", without)
    return (found, words) if found else _comparable(question, family, f"{question.family} between nodes", without)


_OLDER = ("pascal", "volta", "turing")


def _models(question: Question, without: str) -> tuple[Residuals, str]:
    """Return the residuals of training on as many nodes, one or several, of GPUs as new."""
    older, several = question.architecture in _OLDER, question.nodes > 1
    cases = [case for case in model_cases() if (case.architecture in _OLDER) == older and (case.nodes > 1) == several]
    if question.workers > 1 and not question.own:
        return {}, f"no measurement of transformers with {question.strategy} has been published"
    words = (
        f"transformers on {'several nodes' if several else 'one node'} of {'older GPUs' if older else 'today’s GPUs'}"
    )
    return _comparable(question, cases, words, without)


def _comparable(
    question: Question, cases: Sequence[Case | ModelCase], words: str, without: str
) -> tuple[Residuals, str]:
    sources = sorted({case.source for case in cases})
    if not sources:
        return {}, f"{words}: nothing has been published"
    if len(sources) == 1:
        return {}, f"{words}: the constants were fitted to the only source, {sources[0]}"
    most = max(case.gpus for case in cases)
    if question.workers > FURTHER * most:
        return {}, f"{words}: measurements end at {most} GPUs, and intervals at {FURTHER * most:g}"
    links = [case.link_bps for case in cases]
    if question.nodes > 1 and not min(links) / FURTHER <= question.link_bps <= max(links) * FURTHER:
        least, fastest = min(links) / 1e9, max(links) / 1e9
        return {}, (
            f"{words}: measurements have links of {least:g} to {fastest:g} Gbit/s, and intervals reach from half the "
            f"slowest to twice the fastest, {least / FURTHER:g} to {fastest * FURTHER:g} Gbit/s"
        )
    found = {it: [case.residual for case in cases if case.source == it] for it in sources if it != without}
    return found, f"{words}: {', '.join(found)}"
