"""How far forecasts of comparable cases have been off, and the interval that follows: docs/explanation/accuracy.md.

residuals.json has an entry for each published row, by `scripts/write_residuals.py`: how far a forecast is off whose
constants were fitted without the row's source. If the times of computation are computed, they are part of the forecast
and of its error: then the cases are measured training steps of models on GPUs (residuals-models.json). `likeness` has
how cases make an interval.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline._internal import units
from paceline.catalog.gpus import architecture_title
from paceline.forecast.kinds import FURTHER, Comparable, Evidence, Ground
from paceline.forecast.likeness import (
    APART,
    FP32_QUANTIZED,
    LEVEL,
    QUANTILE,
    VERDICT_LEVEL,
    Conditions,
    Like,
    size_of,
    spread_of,
)
from paceline.forecast.result import Interval
from paceline.forecast.wording import terms

_EMULATED_BPS = (0.5e9, 53e9)
"""Rates that links of `paceline validate` stand for: bytes are divided, so that gradients take 125 ms on a link of a
few hundred Mbps, and those of VGG-16 are the most, 822.5 MB."""
_PUBLISHED = Path(__file__).parent / "residuals.json"
_COMPUTED = Path(__file__).parent / "residuals-models.json"
_SCALED = Path(__file__).parent / "residuals-scaled.json"
_MEMORY = Path(__file__).parent / "residuals-memory.json"
_VALIDATED = Path(__file__).parent / "validated.json"
_FEWEST_SOURCES = 2
"""Of the cases of an interval, since one source says nothing of how far another is off."""
_PSEUDO_SOURCES = 4
"""Of a prior for a variance: an inverse gamma distribution with so many degrees of freedom."""
_APART = 1
"""Properties of three in which a published row may differ from the question."""
_OF_ONE_SOURCE = 2.40
"""The 90 % quantile of Student's t with one degree of freedom over the normal's: for the only machine of `paceline
validate`."""


@dataclass(frozen=True)
class Case:
    """A published measurement and its forecast. `residual`: the logarithm of measured over forecast time."""

    source: str
    family: str
    channel: str
    gpus: int
    nodes: int
    link_bps: float
    residual: float

    def differences(self, question: Question) -> int:
        """Return in how many properties it differs: the library's family, the channel, one node or several."""
        pairs = [(self.family, question.family), (self.channel, question.channel)]
        return sum(own != its for own, its in [*pairs, (self.nodes > 1, question.nodes > 1)])


@dataclass(frozen=True)
class ComputedCase:
    """A measured training step whose computation was computed, and its forecast; see `Case`."""

    source: str
    conditions: Conditions
    gpus: int
    nodes: int
    link_bps: float
    residual: float
    blind: bool = False
    """Whether nothing was fitted to the source, nor corrected by it."""
    kind: str = ""
    """Of memory: `peak` (allocated), or `reserved`."""


@dataclass(frozen=True)
class ScaledCase:
    """A measured training step, and its forecast with the computation that a step on fewer GPUs sets; see `Case`."""

    source: str
    measured_gpus: int
    gpus: int
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
    conditions: Conditions | None = None
    """Those of computed times; None if they were recorded."""
    gpus: int = 0
    """All GPUs, if times are computed."""
    spread: float = 0.0
    """How far the times of a calibrated device differed from step to step, as a share: it widens the interval."""


@lru_cache(maxsize=1)
def published_cases() -> tuple[Case, ...]:
    """Return the published rows."""
    return tuple(Case(**case) for case in _read(_PUBLISHED)["cases"])


@lru_cache(maxsize=1)
def computed_cases() -> tuple[ComputedCase, ...]:
    """Return the measured training steps of models."""
    return tuple(_computed_case(dict(case)) for case in _read(_COMPUTED)["cases"])


@lru_cache(maxsize=1)
def scaled_cases() -> tuple[ScaledCase, ...]:
    """Return the measured training steps of more GPUs than a measured one's."""
    return tuple(ScaledCase(**case) for case in _read(_SCALED)["cases"])


def _measured(architecture: str) -> list[str]:
    """Return the source of each measured training step of GPUs of an architecture."""
    return [one.source for one in computed_cases() if one.conditions.architecture == architecture]


def has_interval(architecture: str) -> bool:
    """Whether enough sources have measured GPUs of an architecture for intervals."""
    return len(set(_measured(architecture))) >= _FEWEST_SOURCES


def measured_on(architecture: str) -> str:
    """Return how many measured training steps of GPUs of an architecture forecasts have been compared with."""
    sources = _measured(architecture)
    title = f"{architecture_title(architecture)} GPUs"
    if not sources:
        return f"no measured training on {title}: forecasts have no interval"
    steps, of = units.count(len(sources), "measured step"), units.count(len(set(sources)), "source")
    few = "" if len(set(sources)) >= _FEWEST_SOURCES else f", fewer than the {_FEWEST_SOURCES} of an interval"
    return f"{steps} on {title}, of {of}{few}"


@lru_cache(maxsize=1)
def memory_cases() -> tuple[ComputedCase, ...]:
    """Return the measured memory of training steps."""
    return tuple(_computed_case(dict(case)) for case in _read(_MEMORY)["cases"])


@lru_cache(maxsize=4)
def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _computed_case(case: dict[str, Any]) -> ComputedCase:
    conditions = Conditions(**{field.name: case.pop(field.name) for field in fields(Conditions)})
    return ComputedCase(conditions=conditions, **case)


def forget() -> None:
    """Read the files again when they are next needed: they have been rewritten."""
    for cached in (published_cases, computed_cases, scaled_cases, memory_cases, _read, _near):
        cached.cache_clear()


@lru_cache(maxsize=1)
def _validated() -> tuple[tuple[str, int, float], ...]:
    """Return strategy, workers and residual of the comparisons of `paceline validate`."""
    rows = json.loads(_VALIDATED.read_text(encoding="utf-8"))["rows"]
    return tuple((row["strategy"], row["workers"], -math.log1p(row["error"])) for row in rows)


_IGNORED: ContextVar[frozenset[str]] = ContextVar("_IGNORED", default=frozenset())


@contextmanager
def ignoring(sources: Iterable[str]) -> Iterator[None]:
    """Make intervals of this context without the cases of these sources."""
    token = _IGNORED.set(frozenset(sources))
    try:
        yield
    finally:
        _IGNORED.reset(token)


def interval(
    iteration_s: float, question: Question, without: frozenset[str] = frozenset()
) -> tuple[Interval | None, Evidence]:
    """Return the interval around a forecast, or None, and what it is based on or why there is none.

    Args:
        iteration_s: The forecast, in seconds.
        question: What was forecast.
        without: Sources whose cases do not count, such as that of the forecast.
    """
    without |= _IGNORED.get()
    if iteration_s <= 0:
        return None, Evidence(Ground.SILENT)
    if question.coordinated and question.workers > 1:
        return None, Evidence(Ground.COORDINATED)
    if question.conditions is not None:
        return _around(iteration_s, question, *_computed(question, question.conditions, without))
    if question.workers < 2:
        return None, Evidence(Ground.SERVED_ALONE if question.communicates else Ground.SILENT)
    if question.sharded:
        return None, Evidence(Ground.SHARDED_RECORDING)
    return _around(
        iteration_s,
        question,
        *(_bare(question) if question.library == "none" else _published(question, without)),
    )


@dataclass(frozen=True)
class _Size:
    """The logarithm of an interval's high end over the forecast, and how many cases it is made of."""

    log: float
    cases: int
    spread: float
    """The standard deviation of usual errors."""
    verdict_log: float
    """That of the interval of `VERDICT_LEVEL`."""


def _around(
    iteration_s: float, question: Question, size: _Size | None, ground: Evidence
) -> tuple[Interval | None, Evidence]:
    if size is None:
        return None, ground
    if question.beyond is not None:
        return None, question.beyond
    log = math.hypot(size.log, math.log1p(question.spread))
    low, high = iteration_s * math.exp(-log), iteration_s * math.exp(log)
    spread = math.hypot(size.spread, math.log1p(question.spread))
    return Interval(low, high, LEVEL, size.cases, terms.reason(ground), spread=spread), ground


def _bare(question: Question) -> tuple[_Size | None, Evidence]:
    """Return the size by `paceline validate`, whose ranks execute the bare schedule."""
    rows = [(workers, residual) for strategy, workers, residual in _validated() if strategy == question.strategy]
    about = Evidence(Ground.NOT_VALIDATED, strategy=question.strategy)
    if not rows:
        return None, about
    most = max(workers for workers, _ in rows)
    if question.workers > FURTHER * most or question.nodes != question.workers:
        return None, about.on(Ground.WORKERS_VALIDATED, most=most)
    slowest, fastest = _EMULATED_BPS
    if not slowest / FURTHER <= question.link_bps <= fastest * FURTHER:
        return None, about.on(Ground.LINKS_VALIDATED, least=slowest, most=fastest)
    likes = [Like("validate", 0, residual) for _, residual in rows]
    size, inner = (_OF_ONE_SOURCE * size_of(likes, level=level) for level in (LEVEL, VERDICT_LEVEL))
    return _Size(size, len(rows), size / QUANTILE, inner), about.on(Ground.VALIDATED, most=most)


def _published(question: Question, without: frozenset[str]) -> tuple[_Size | None, Evidence]:
    """Return the size by comparable cases, and what these have in common."""
    if not question.own:
        return None, Evidence(Ground.LIBRARY_UNPUBLISHED, library=question.library, strategy=question.strategy)
    if not question.computes:
        return None, Evidence(Ground.ALL_REDUCES)
    about = Evidence(Ground.PUBLISHED, comparable=Comparable.ONE_NODE, family=question.family, channel=question.channel)
    if question.nodes == 1:
        ground = _grounds(question, [case for case in published_cases() if case.nodes == 1], about)
    else:
        family = [case for case in published_cases() if case.nodes > 1 and case.family == question.family]
        over = [case for case in family if case.channel == question.channel]
        ground = _grounds(question, over, replace(about, comparable=Comparable.OVER_CHANNEL))
        if ground.ground is not Ground.PUBLISHED:
            ground = _grounds(question, family, replace(about, comparable=Comparable.BETWEEN_NODES))
    if ground.ground is not Ground.PUBLISHED:
        return None, ground
    near = [
        Like(case.source, case.differences(question), case.residual)
        for case in published_cases()
        if case.source not in without and case.differences(question) <= _APART
    ]
    if not near:
        return None, ground.on(Ground.NOTHING_PUBLISHED)
    return _sized(near, _PUBLISHED), ground.on(Ground.PUBLISHED, sources=_closest(near))


def _sized(cases: Sequence[Like], file: Path) -> _Size:
    size, inner = (size_of(cases, _read(file)["unseen"], level) for level in (LEVEL, VERDICT_LEVEL))
    return _Size(size, len(cases), spread_of(cases), inner)


def _closest(cases: Sequence[Like]) -> tuple[str, ...]:
    """Return the sources, the most alike first."""
    ordered = sorted(cases, key=lambda like: (like.differences, like.source))
    return tuple(dict.fromkeys(like.source for like in ordered))


def _grounds(
    question: Question, cases: Sequence[Case | ComputedCase], about: Evidence, gpus: int | None = None
) -> Evidence:
    """Return whether cases are enough, and reach as far as the question: `PUBLISHED`, or why they do not.

    `gpus`: those that count; None: as many as workers.
    """
    sources = tuple(sorted({case.source for case in cases}))
    if not sources:
        return about.on(Ground.NOTHING_PUBLISHED)
    if len(sources) < _FEWEST_SOURCES:
        return about.on(Ground.ONE_SOURCE, sources=sources)
    most, own = max(case.gpus for case in cases), question.workers if gpus is None else gpus
    if own > FURTHER * most:
        return about.on(Ground.GPUS, own=own, most=most)
    links = [case.link_bps for case in cases if case.nodes > 1]
    if question.nodes > 1 and not min(links) / FURTHER <= question.link_bps <= max(links) * FURTHER:
        return about.on(Ground.LINKS, own=question.link_bps, least=min(links), most=max(links))
    return about.on(Ground.PUBLISHED)


def _computed(question: Question, conditions: Conditions, without: frozenset[str]) -> tuple[_Size | None, Evidence]:
    """Return the size by cases in like conditions, and their sources; each property has been measured by two."""
    if question.workers > 1 and not question.own:
        return None, Evidence(Ground.TRANSFORMERS_UNPUBLISHED, strategy=question.strategy)
    near = _near("time", conditions, without)
    if near.missing is not None:
        value = getattr(conditions, near.missing)
        return None, Evidence(Ground.UNMEASURED, condition=near.missing, value=value)
    about = Evidence(Ground.PUBLISHED, comparable=Comparable.ALIKE)
    ground = _grounds(question, near.as_large, about, question.gpus)
    if ground.ground is not Ground.PUBLISHED:
        return None, ground
    return near.size, ground.on(Ground.PUBLISHED, sources=near.sources)


def forecast_spread(own: Interval | None, ground: Evidence | None) -> float:
    """Return how far a forecast may be off: by its interval, or as usual where it has none for this reason."""
    return usual_spread(ground) if own is None else own.spread


def usual_spread(ground: Evidence | None) -> float:
    """Return how far a forecast without an interval of its own may be off.

    It is the root mean square of the logarithm of measured over forecast time, in which each source counts once: what
    has conditions that nobody else has measured is off like a source of its own. Where few have measured a property, it
    is that of these sources and of `_PSEUDO_SOURCES` more that are off as usual.

    Args:
        ground: Why it has no interval; None for what computes nothing.
    """
    if ground is None or ground.ground is not Ground.UNMEASURED:
        return _spread(published_cases())
    cases = computed_cases()
    own = _squares([case for case in cases if getattr(case.conditions, ground.condition) == ground.value])
    return math.sqrt(fmean([*[_spread(cases) ** 2] * _PSEUDO_SOURCES, *own]))


def _spread(cases: Sequence[Case | ComputedCase]) -> float:
    return math.sqrt(fmean(_squares(cases)))


def _squares(cases: Sequence[Case | ComputedCase]) -> list[float]:
    """Return the mean square of the residuals of each source."""
    by_source: dict[str, list[float]] = {}
    for case in cases:
        by_source.setdefault(case.source, []).append(case.residual**2)
    return [fmean(squares) for squares in by_source.values()]


@dataclass(frozen=True)
class _Near:
    """The cases in conditions like some."""

    size: _Size | None
    sources: tuple[str, ...]
    """The most alike first."""
    as_large: tuple[ComputedCase, ...]
    """Those on one GPU, one node or several, whichever it is."""
    missing: str | None = None
    """The property that too few sources have measured."""


@lru_cache(maxsize=256)
def _near(kind: str, conditions: Conditions, without: frozenset[str]) -> _Near:
    """Return the cases near some conditions, of `time`, or of a kind of memory."""
    cases, file = (computed_cases(), _COMPUTED) if kind == "time" else (memory_cases(), _MEMORY)
    near = [
        (case, differences)
        for case in cases
        if case.source not in without
        and (case.conditions.weights == FP32_QUANTIZED) == (conditions.weights == FP32_QUANTIZED)
        and len(differences := conditions.differences(case.conditions)) + (kind != (case.kind or "time")) <= APART
    ]
    # By weights first, which say best why there is nothing near.
    for name in sorted((field.name for field in fields(Conditions)), key=lambda name: name != "weights"):
        known = {case.source for case, differences in near if name not in differences}
        if len(known) < _FEWEST_SOURCES:
            return _Near(None, (), (), name)
    likes = [
        Like(case.source, len(differences) + (kind != (case.kind or "time")), case.residual)
        for case, differences in near
    ]
    as_large = tuple(case for case, differences in near if "scale" not in differences)
    return _Near(_sized(likes, file), _closest(likes), as_large)


def memory_interval(
    size_bytes: int,
    kind: str,
    conditions: Conditions,
    without: frozenset[str] = frozenset(),
    *,
    for_verdict: bool = False,
) -> tuple[int, int] | None:
    """Return the bytes between which measured memory is with a probability of `LEVEL`; None outside the evidence.

    Args:
        size_bytes: The forecast.
        kind: `peak`, `reserved` or `total`.
        conditions: Those of the step. Memory does not depend on the architecture of the GPU.
        without: Sources whose cases do not count.
        for_verdict: Of `VERDICT_LEVEL` instead.
    """
    near = _near_memory("peak" if kind == "peak" else "reserved", conditions, without | _IGNORED.get())
    size = None if near is None else near.verdict_log if for_verdict else near.log
    return None if size is None else (round(size_bytes * math.exp(-size)), round(size_bytes * math.exp(size)))


def _near_memory(kind: str, conditions: Conditions, without: frozenset[str]) -> _Size | None:
    return _near(kind, replace(conditions, architecture=""), without).size


MEMORY_KINDS = ("peak", "reserved", "total")
"""Of memory: what is allocated at the peak, with what the allocator keeps, and all that the process takes."""


@dataclass(frozen=True)
class Coverage:
    """The coverage of intervals that leave out the source of their own case."""

    inside: int
    """Cases in their interval."""
    known: int
    """Cases that have one."""
    outside: int
    """Cases that have none."""
    times: float
    """The median of an interval's high end over the forecast."""
    of_sources: float
    """The share of a source's cases in their interval, the mean of all sources that have some."""

    @property
    def share(self) -> float:
        """The share of cases in their interval of those that have one."""
        return self.inside / self.known


def coverage() -> Coverage:
    """Return how intervals of the published rows do."""
    return covered(_left_out(published_cases()))


def coverage_of_models(which: Callable[[ComputedCase], bool] = lambda _: True) -> Coverage:
    """Return how intervals of the measured training steps do. `which`: those that count; all have a say."""
    return covered(_left_out([case for case in computed_cases() if which(case)]))


def coverage_of_memory(which: Callable[[ComputedCase], bool] = lambda _: True) -> Coverage:
    """Return how intervals of measured memory do; see `coverage_of_models`."""
    cases = [case for case in memory_cases() if which(case)]
    sizes = [_near_memory(case.kind, case.conditions, frozenset((case.source,))) for case in cases]
    pairs = zip(cases, sizes, strict=True)
    return covered([(case.source, case.residual, None if size is None else size.log) for case, size in pairs])


def coverage_of_scaled() -> Coverage:
    """Return how intervals of scaled forecasts do."""
    rows = []
    for case in scaled_cases():
        others = [Like(one.source, 0, one.residual) for one in scaled_cases() if one.source != case.source]
        rows.append((case.source, case.residual, _sized(others, _SCALED).log))
    return covered(rows)


def scaled_interval(
    iteration_s: float, gpus: int, measured_gpus: int, spread: float, own: Interval | None
) -> Interval | None:
    """Return the interval of a forecast whose computation measured steps on other GPUs have set.

    Args:
        iteration_s: The forecast, in seconds.
        gpus: All of them.
        measured_gpus: Those of the nearest measured step.
        spread: The standard deviation of the logarithm of several measured steps over their scaled forecasts.
        own: The interval without scaling, around the same forecast; the narrower one counts.
    """
    cases = [Like(case.source, 0, case.residual) for case in scaled_cases()]
    size = _sized(cases, _SCALED)
    furthest = max(case.gpus / case.measured_gpus for case in scaled_cases())
    if max(gpus, measured_gpus) / min(gpus, measured_gpus) > FURTHER * furthest:
        return own
    log = math.hypot(size.log, QUANTILE * spread)
    if own is not None and own.high_s / own.low_s <= math.exp(2 * log):
        return own
    sources = ", ".join(_closest(cases)[:4])
    basis = f"forecasts scaled to a measured step on fewer GPUs: {sources} and more"
    return Interval(
        iteration_s * math.exp(-log), iteration_s * math.exp(log), LEVEL, len(cases), basis, spread=log / QUANTILE
    )


def _left_out(cases: Sequence[Case | ComputedCase]) -> list[tuple[str, float, float | None]]:
    """Return source and residual of each case, and the logarithm of the interval that does not know its source."""
    rows: list[tuple[str, float, float | None]] = []
    for case in cases:
        own, _ = interval(1.0, question_of(case), frozenset((case.source,)))
        rows.append((case.source, case.residual, None if own is None else math.log(own.high_s)))
    return rows


def question_of(case: Case | ComputedCase) -> Question:
    """Return what a case would have been asked as."""
    if isinstance(case, Case):
        return Question("", case.family, "", case.channel, case.gpus, case.nodes, case.link_bps)
    usual = ("ddp", "nccl", "native", "rdma")
    return Question(*usual, case.gpus, case.nodes, case.link_bps, conditions=case.conditions, gpus=case.gpus)


def covered(rows: Sequence[tuple[str, float, float | None]]) -> Coverage:
    """Return how intervals do: of each case its source, its residual, and the logarithm of its interval's high end."""
    known = [(source, abs(residual) <= size, size) for source, residual, size in rows if size is not None]
    by_source: dict[str, list[bool]] = {}
    for source, is_inside, _ in known:
        by_source.setdefault(source, []).append(is_inside)
    return Coverage(
        inside=sum(is_inside for _, is_inside, _ in known),
        known=len(known),
        outside=len(rows) - len(known),
        times=math.exp(statistics.median(size for *_, size in known)) if known else 1.0,
        of_sources=fmean(map(fmean, by_source.values())) if known else 1.0,
    )
