"""How far forecasts of comparable cases have been off, and the interval that follows: docs/explanation/accuracy.md.

residuals.json has an entry for each published row, by `scripts/write_residuals.py`: how far a forecast is off whose
constants were fitted without the row's source. If the times of computation are computed, they are part of the forecast
and of its error: then the cases are measured training steps of models on GPUs (residuals-models.json). `likeness` has
how cases make an interval.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline._internal import units
from paceline.catalog.gpus import architecture_title
from paceline.forecast.kinds import FURTHER, Comparable, Evidence, Ground
from paceline.forecast.likeness import APART, LEVEL, QUANTILE, Conditions, Like, size_of
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


@lru_cache(maxsize=3)
def memory_cases(kind: str) -> tuple[ComputedCase, ...]:
    """Return the measured memory of training steps, of a kind: `peak` (allocated), or `reserved`."""
    cases = [dict(case) for case in _read(_MEMORY)["cases"]]
    return tuple(_computed_case(case) for case in cases if case.pop("kind") == kind)


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


def interval(
    iteration_s: float, question: Question, without: frozenset[str] = frozenset()
) -> tuple[Interval | None, Evidence]:
    """Return the interval around a forecast, or None, and what it is based on or why there is none.

    Args:
        iteration_s: The forecast, in seconds.
        question: What was forecast.
        without: Sources whose cases do not count, such as that of the forecast.
    """
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


def _around(
    iteration_s: float, question: Question, size: _Size | None, ground: Evidence
) -> tuple[Interval | None, Evidence]:
    if size is None:
        return None, ground
    if question.beyond is not None:
        return None, question.beyond
    log = math.hypot(size.log, math.log1p(question.spread))
    low, high = iteration_s * math.exp(-log), iteration_s * math.exp(log)
    return Interval(low, high, LEVEL, size.cases, terms.reason(ground)), ground


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
    size = size_of([Like("validate", 0, residual) for _, residual in rows])
    return _Size(_OF_ONE_SOURCE * size, len(rows)), about.on(Ground.VALIDATED, most=most)


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


def _sized(cases: Sequence[Like], file: Path, factor: str = "factor") -> _Size:
    return _Size(_read(file)[factor] * size_of(cases), len(cases))


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
    most = max(case.gpus for case in cases)
    if (question.workers if gpus is None else gpus) > FURTHER * most:
        return about.on(Ground.GPUS, most=most)
    links = [case.link_bps for case in cases if case.nodes > 1]
    if question.nodes > 1 and not min(links) / FURTHER <= question.link_bps <= max(links) * FURTHER:
        return about.on(Ground.LINKS, least=min(links), most=max(links))
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
    cases, file = (computed_cases(), _COMPUTED) if kind == "time" else (memory_cases(kind), _MEMORY)
    near = [
        (case, differences)
        for case in _chosen(cases, conditions.has_adapters)
        if case.source not in without and len(differences := conditions.differences(case.conditions)) <= APART
    ]
    for field in fields(Conditions):
        known = {case.source for case, differences in near if field.name not in differences}
        if len(known) < _FEWEST_SOURCES:
            return _Near(None, (), (), field.name)
    likes = [Like(case.source, len(differences), case.residual) for case, differences in near]
    as_large = tuple(case for case, differences in near if "scale" not in differences)
    factor = "factor_of_adapters" if conditions.has_adapters else "factor"
    return _Near(_sized(likes, file, factor), _closest(likes), as_large)


def memory_interval(
    size_bytes: int, kind: str, conditions: Conditions, without: frozenset[str] = frozenset()
) -> tuple[int, int] | None:
    """Return the bytes between which measured memory is with a probability of `LEVEL`; None outside the evidence.

    Args:
        size_bytes: The forecast.
        kind: `peak`, `reserved` or `total`.
        conditions: Those of the step. Memory does not depend on the architecture of the GPU.
        without: Sources whose cases do not count.
    """
    near = _near("peak" if kind == "peak" else "reserved", replace(conditions, architecture=""), without)
    if near.size is None:
        return None
    return round(size_bytes * math.exp(-near.size.log)), round(size_bytes * math.exp(near.size.log))


def _chosen(cases: Sequence[ComputedCase], adapters: bool | None) -> list[ComputedCase]:
    return [case for case in cases if adapters in (None, case.conditions.has_adapters)]


def coverage_of_memory(*, adapters: bool | None = None) -> Coverage:
    """Return how intervals of measured memory do; see `coverage_of_models`."""
    rows: list[tuple[float, Interval | None]] = []
    for kind in ("peak", "reserved"):
        for case in _chosen(memory_cases(kind), adapters):
            found = memory_interval(_ONE, kind, case.conditions, frozenset((case.source,)))
            own = None if found is None else Interval(found[0] / _ONE, found[1] / _ONE, LEVEL, 0, "")
            rows.append((math.exp(case.residual), own))
    return covered(rows)


MEMORY_KINDS = ("peak", "reserved", "total")
"""Of memory: what is allocated at the peak, with what the allocator keeps, and all that the process takes."""
_ONE = 10**9
"""Bytes of a forecast whose interval is asked for."""


@dataclass(frozen=True)
class Coverage:
    """The coverage of intervals that leave out the source of their own case."""

    inside: int
    """Rows in their interval."""
    known: int
    """Rows that have one."""
    outside: int
    """Rows that have none."""
    width: float
    """The mean logarithmic width, over that of the smallest one width for all that holds `LEVEL` of them."""
    factor: float
    """By which the smallest intervals that hold `LEVEL` of the rows are larger."""


def coverage() -> Coverage:
    """Return how intervals of the published rows do."""
    return covered(left_out(published_cases()))


def coverage_of_models(*, adapters: bool | None = None) -> Coverage:
    """Return how intervals of the measured training steps do; `adapters`: only of those with some, or without."""
    return covered(left_out(_chosen(computed_cases(), adapters)))


def coverage_of_scaled() -> Coverage:
    """Return how intervals of scaled forecasts do."""
    rows: list[tuple[float, Interval | None]] = []
    for case in scaled_cases():
        others = [Like(one.source, 0, one.residual) for one in scaled_cases() if one.source != case.source]
        size = _sized(others, _SCALED)
        rows.append((math.exp(case.residual), Interval(math.exp(-size.log), math.exp(size.log), LEVEL, size.cases, "")))
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
    return Interval(iteration_s * math.exp(-log), iteration_s * math.exp(log), LEVEL, len(cases), basis)


def coverage_of_all() -> Coverage:
    """Return how intervals of both do."""
    return covered([*left_out(published_cases()), *left_out(computed_cases())])


def left_out(
    cases: Sequence[Case | ComputedCase], without: frozenset[str] = frozenset()
) -> list[tuple[float, Interval | None]]:
    """Return the measured time of each case, of a forecast of a second, and the interval that does not know its source.

    `without`: further sources that it does not know.
    """
    return [(math.exp(case.residual), interval(1.0, question_of(case), without | {case.source})[0]) for case in cases]


def question_of(case: Case | ComputedCase) -> Question:
    """Return what a case would have been asked as."""
    if isinstance(case, Case):
        return Question("", case.family, "", case.channel, case.gpus, case.nodes, case.link_bps)
    usual = ("ddp", "nccl", "native", "rdma")
    return Question(*usual, case.gpus, case.nodes, case.link_bps, conditions=case.conditions, gpus=case.gpus)


def covered(rows: Sequence[tuple[float, Interval | None]], factor: float = 1.0) -> Coverage:
    """Return how intervals do, of forecasts of a second.

    Args:
        rows: The measured time and the interval.
        factor: By which the intervals are to be larger.
    """
    sizes = [(abs(math.log(measured_s)), factor * math.log(own.high_s)) for measured_s, own in rows if own is not None]
    if not sizes:
        return Coverage(0, 0, len(rows), 1.0, 1.0)
    place = math.ceil(LEVEL * len(sizes)) - 1
    one_for_all = sorted(residual for residual, _ in sizes)[place]
    return Coverage(
        inside=sum(residual <= size for residual, size in sizes),
        known=len(sizes),
        outside=len(rows) - len(sizes),
        width=math.fsum(size for _, size in sizes) / len(sizes) / one_for_all,
        factor=sorted(residual / size for residual, size in sizes)[place],
    )
