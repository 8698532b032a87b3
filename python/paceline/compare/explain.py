"""How likely each cause is: how common it is, times how well the forecast with it meets the measurement.

The likelihood of a cause is that of the measured time under a log-normal error around the forecast with the cause, the
error that forecasts have (`Forecast.spread`). Where a cause has a value, it is the mean over the values that it may
have, so that a cause which could explain any time is less likely than one which explains this time only. Where the
measurement tells parts of a step, the gap of each part is explained by itself, by the causes that lengthen that part,
and counts by how large it is. The prior is the
number of public issues about such runs in which the cause was stated (`catalog/causes.json`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from paceline.catalog.causes import PARTS
from paceline.compare.hypotheses import Hypothesis, Question, Variable, evidence, hypotheses, sockets_in_forecast
from paceline.errors import InvalidArgumentError

_SIMULATED, _COMPUTED = 7, 33
"""Values of a cause for which a forecast is made; of those in between, times are interpolated."""
_FINE = 200
"""Values over which a likelihood is averaged."""
_REFINED = 5
"""Forecasts that make the value of a simulated cause more exact."""
_EXACT = 1e-3
"""Of a time: closer is not looked for."""
_LEAST_SHARE = 0.05
"""Of a gap: a cause that explains less is none of it."""
_LEAST_PART = 0.03
"""Of a step: smaller gaps of parts are not explained."""
_MISSED = 7 / 14
"""Share of the complaints searched for later whose first cause is wrong (`paceline study complaints`). Where the time
of a step alone was measured, as much of the probability of the listed causes follows how common they are."""
_NOTHING = 2 / 7
"""Prior that nothing is wrong, over that of all causes: so it was in 2 of the 9 complaints of complaints.json."""
_UNKNOWN_WEIGHT, _UNKNOWN_RANGE = 0.5, math.log(20.0)
"""Prior and range of a cause that is not in the catalog: it may lengthen a step up to 20 times."""


@dataclass(frozen=True)
class Explained:
    """A cause, and how it explains the measurement."""

    hypothesis: Hypothesis
    value: float | None
    """The value that comes closest; None if the cause has none."""
    seconds: float
    """The forecast with that value."""
    share: float
    """The share of the gap that it explains: 1 for all, above 1 for more."""
    probability: float
    """Among the causes, one that is not in the catalog included."""
    part: str | None = None
    """The part whose gap it explains; None: the whole gap."""
    in_forecast: bool = False
    """Whether the forecast has it already: it explains no gap, but why the run is no faster."""

    @property
    def words(self) -> str:
        """The value, or the change."""
        variable = self.hypothesis.variable
        return self.hypothesis.words if variable is None or self.value is None else variable.words(self.value)


@dataclass(frozen=True)
class Explanation:
    """The answer of a comparison."""

    question: Question
    causes: tuple[Explained, ...]
    """The most likely first."""
    unknown: float
    """The probability of a cause that is not in the catalog."""
    nothing: float
    """The probability that nothing is wrong, and the forecast is off by as much."""
    is_likely_nothing: bool = False
    """Whether that is likelier than any cause by how well each meets the measurement."""

    @property
    def is_within(self) -> bool:
        """Whether the measurement is within the forecast's interval."""
        return self.question.forecast.low_s <= self.question.seconds <= self.question.forecast.high_s

    @property
    def is_as_forecast(self) -> bool:
        """Whether the measurement is within the forecast's interval, or nothing is likelier than that all is well."""
        return self.is_within or self.is_likely_nothing

    @property
    def ratio(self) -> float:
        """The measured time over the forecast."""
        return self.question.seconds / self.question.forecast.seconds


def explain(question: Question) -> Explanation:
    """Return the causes that explain a gap, with their probabilities."""
    parts = [(_likelihoods(part), share) for part, share in _by_part(question)]
    total = math.fsum(share * one.total for one, share in parts)
    if not question.measured.parts_s:
        # Of parts, each counts by its gap; of the whole, the error of the forecast competes with all causes.
        own = parts[0][0]
        prior = _NOTHING * math.fsum(weight_of(question, one.hypothesis) for one, _ in own.causes)
        nothing = (prior + _NOTHING * _UNKNOWN_WEIGHT) * _density(question, question.forecast.seconds)
        total += nothing
        scaled = [(one, weight / total) for one, weight in own.causes] if total > 0 else []
        unknown, nothing = (own.unknown / total, nothing / total) if total > 0 else (1.0, 0.0)
        is_likely_nothing = nothing > max([unknown, *(probability for _, probability in scaled)])
        if not question.forecaster.is_of_nccl:
            scaled = _tempered(question, scaled)
    else:
        is_likely_nothing = False
        scaled = [(one, share * weight / own.total) for own, share in parts for one, weight in own.causes if own.total]
        unknown = math.fsum(share * (own.unknown / own.total if own.total else 1.0) for own, share in parts)
        nothing = 0.0

    def order(pair: tuple[Explained, float]) -> tuple[float, float]:
        # Causes that explain too little to have a probability: the common ones first, by how much they explain.
        one, probability = pair
        return -probability, -weight_of(question, one.hypothesis) * min(one.share, 1 / one.share)

    ordered = [replace(one, probability=probability) for one, probability in sorted(scaled, key=order)]
    explanation = Explanation(question, tuple(ordered), unknown, nothing, is_likely_nothing)
    if explanation.is_as_forecast or not question.is_slower:
        explanation = replace(explanation, causes=(*_in_forecast(question), *ordered))
    return explanation


def _tempered(question: Question, causes: list[tuple[Explained, float]]) -> list[tuple[Explained, float]]:
    """Return causes with the probabilities that the time of a step alone supports; their sum stays as it is."""
    common = [weight_of(question, one.hypothesis) for one, _ in causes]
    others = math.fsum(
        weight for weight, (one, _) in zip(common, causes, strict=True) if not one.hypothesis.is_of_bottleneck
    )
    weights = [
        (max(others, weight) if one.hypothesis.is_of_bottleneck else weight) * min(one.share, 1 / one.share)
        for weight, (one, _) in zip(common, causes, strict=True)
    ]
    listed, total = math.fsum(probability for _, probability in causes), math.fsum(weights)
    return [
        (one, (1 - _MISSED) * probability + _MISSED * listed * weight / total)
        for (one, probability), weight in zip(causes, weights, strict=True)
    ]


def _in_forecast(question: Question) -> list[Explained]:
    """Return what the forecast has already that keeps the run from being faster."""
    hypothesis = sockets_in_forecast(question)
    if hypothesis is None:
        return []
    return [Explained(hypothesis, None, question.forecast.seconds, 0.0, 0.0, in_forecast=True)]


def weight_of(question: Question, hypothesis: Hypothesis) -> float:
    """Return how common a cause is in runs like that of a question."""
    return hypothesis.cause.weight(question.runs, question.without)


def _by_part(question: Question) -> list[tuple[Question, float]]:
    """Return a question for each part with a gap of its own, and its share of the gap; else the question itself."""
    measured, forecast = question.measured.parts_s, question.forecast
    gaps = {name: seconds - forecast.parts_s.get(name, 0.0) for name, seconds in measured.items()}
    sign = 1.0 if question.is_slower else -1.0
    large = {name: gap for name, gap in gaps.items() if sign * gap > _LEAST_PART * forecast.seconds}
    if not large:
        return [(question, 1.0)]
    whole = math.fsum(large.values())
    return [
        (replace(question, seconds=forecast.seconds + gap, part=name, measured_parts=tuple(measured)), gap / whole)
        for name, gap in sorted(large.items(), key=lambda pair: -sign * pair[1])
        if forecast.seconds + gap > 0
    ]


@dataclass(frozen=True)
class _Likelihoods:
    """The causes of a gap with their weights, and that of one which is not in the catalog."""

    causes: list[tuple[Explained, float]]
    unknown: float

    @property
    def total(self) -> float:
        return math.fsum(weight for _, weight in self.causes) + self.unknown


def _likelihoods(question: Question) -> _Likelihoods:
    weighed: list[tuple[Explained, float, float]] = []
    for hypothesis in hypotheses(question):
        try:
            explained, likelihood = _explained(question, hypothesis)
        except InvalidArgumentError:
            continue  # The run cannot have it: an option has no effect, or excludes another.
        if explained is not None:
            weight = weight_of(question, hypothesis) * evidence(question, hypothesis.cause)
            weighed.append((explained, weight, likelihood))
    others = math.fsum(weight for one, weight, _ in weighed if not _is_as_others(one.hypothesis))
    return _Likelihoods(
        [
            (one, likelihood * (others + _UNKNOWN_WEIGHT if _is_as_others(one.hypothesis) else weight))
            for one, weight, likelihood in weighed
        ],
        _UNKNOWN_WEIGHT / _UNKNOWN_RANGE,
    )


def _is_as_others(hypothesis: Hypothesis) -> bool:
    """Whether a cause is as common as all others together."""
    return hypothesis.is_other_reading or hypothesis.is_of_bottleneck


def _explained(question: Question, hypothesis: Hypothesis) -> tuple[Explained | None, float]:
    """Return a cause with its best value, and its likelihood. Raises InvalidArgumentError."""
    variable = hypothesis.variable
    if variable is None:
        seconds = hypothesis.seconds(1.0)
        return _with(question, hypothesis, None, seconds), _density(question, seconds)
    if variable.is_whole:
        pairs = [(value, hypothesis.seconds(value)) for value in variable.values]
        value, seconds = min(pairs, key=lambda pair: abs(math.log(pair[1] / question.seconds)))
        densities = [_density(question, it) for _, it in pairs]
        return _with(question, hypothesis, value, seconds), math.fsum(densities) / len(densities)
    count = _SIMULATED if hypothesis.is_simulated else _COMPUTED
    curve = _Curve([(value, hypothesis.seconds(value)) for value in _spaced(variable, count)])
    fine = _spaced(variable, _FINE)
    rarities = [1.0 if variable.usual is None else value ** (-1 / math.log(variable.usual)) for value in fine]
    densities = [rarity * _density(question, curve.at(value)) for value, rarity in zip(fine, rarities, strict=True)]
    likelihood = math.fsum(densities) / math.fsum(rarities)
    value, seconds = _solved(question, hypothesis, curve)
    return _with(question, hypothesis, value, seconds), likelihood


def _with(question: Question, hypothesis: Hypothesis, value: float | None, seconds: float) -> Explained | None:
    """Return an explanation; None if it explains nothing, or changes the time in the other direction."""
    base = question.forecast.seconds
    if question.seconds == base:
        return None
    share = (seconds - base) / (question.seconds - base)
    return None if share < _LEAST_SHARE else Explained(hypothesis, value, seconds, share, 0.0, question.part)


def _spaced(variable: Variable, count: int) -> list[float]:
    low, high = math.log(variable.low), math.log(variable.high)
    return [math.exp(low + (high - low) * place / (count - 1)) for place in range(count)]


class _Curve:
    """Times by value, interpolated on logarithmic scales."""

    def __init__(self, pairs: Sequence[tuple[float, float]]) -> None:
        self.pairs = sorted(pairs)

    def at(self, value: float) -> float:
        """Return the time with a value."""
        place = min(max(1, bisect_left([it for it, _ in self.pairs], value)), len(self.pairs) - 1)
        (low, before), (high, after) = self.pairs[place - 1 : place + 1]
        share = (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        return math.exp((1 - share) * math.log(before) + share * math.log(after))

    def around(self, seconds: float) -> tuple[tuple[float, float], tuple[float, float]] | None:
        """Return the neighbors between which a time is; None if it is longer or shorter than all."""
        crossings = [pair for pair in pairwise(self.pairs) if (pair[0][1] - seconds) * (pair[1][1] - seconds) <= 0]
        return crossings[0] if crossings else None


def _solved(question: Question, hypothesis: Hypothesis, curve: _Curve) -> tuple[float, float]:
    """Return the value with which the forecast is as measured, by bisection, or the one that comes closest."""
    wanted = question.seconds
    around = curve.around(wanted)
    if around is None:
        return min(curve.pairs, key=lambda pair: abs(math.log(pair[1] / wanted)))
    low, high = around
    best = min(around, key=lambda pair: abs(pair[1] - wanted))
    for _ in range(_REFINED):
        if abs(best[1] / wanted - 1) < _EXACT or low[0] == high[0]:
            break
        share = 0.5 if high[1] == low[1] else math.log(wanted / low[1]) / math.log(high[1] / low[1])
        value = math.exp(math.log(low[0]) + min(0.98, max(0.02, share)) * math.log(high[0] / low[0]))
        tried = (value, hypothesis.seconds(value))
        best = min(best, tried, key=lambda pair: abs(pair[1] - wanted))
        if (tried[1] - wanted) * (low[1] - wanted) > 0:
            low = tried
        else:
            high = tried
    return best


def _density(question: Question, seconds: float) -> float:
    """Return the likelihood of the measured time under a forecast of so many seconds."""
    return _normal(math.log(question.seconds / seconds), question.forecast.spread)


def _normal(deviation: float, spread: float) -> float:
    return math.exp(-0.5 * (deviation / spread) ** 2) / (spread * math.sqrt(2 * math.pi))


def to_dict(explanation: Explanation) -> dict[str, Any]:
    """Return the answer as `--json` prints it; times in seconds."""
    question = explanation.question
    forecast, measured = question.forecast, question.measured
    parts = [name for name in PARTS if name in measured.parts_s or forecast.parts_s.get(name)]
    return {
        "measured": measured.text,
        "measured_s": question.seconds,
        "forecast_s": forecast.seconds,
        "interval_s": [forecast.low_s, forecast.high_s],
        "has_interval": forecast.has_interval,
        "ratio": explanation.ratio,
        "as_forecast": explanation.is_as_forecast,
        "gap_s": question.seconds - forecast.seconds,
        "parts": [
            {"part": name, "forecast_s": forecast.parts_s.get(name, 0.0), "measured_s": measured.parts_s.get(name)}
            for name in parts
        ],
        "causes": [
            {
                "cause": one.hypothesis.cause.name,
                "title": one.hypothesis.cause.title,
                "part": one.hypothesis.cause.part,
                "probability": one.probability,
                "value": one.value,
                "explained_by": one.words,
                "forecast_s": one.seconds,
                "share_of_gap": one.share,
                "gap_of": one.part,
                "in_forecast": one.in_forecast,
                "for": list(one.hypothesis.facts),
                "check": one.hypothesis.cause.check,
                "try": one.hypothesis.cause.remedy,
                "issues": [issue.url for issue in one.hypothesis.cause.issues],
            }
            for one in explanation.causes
        ],
        "unknown_cause": explanation.unknown,
        "nothing_wrong": explanation.nothing,
    }
