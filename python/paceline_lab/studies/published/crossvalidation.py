"""Leave-one-source-out: forecasts of a source's rows with constants that were fitted without it.

A constant that was calibrated on a source is fitted again to the other sources' rows that depend on it; if there are
none, it has its prior value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.catalog import channels
from paceline.catalog.constants import Constant, assuming
from paceline.catalog.libraries import all_libraries

from paceline_lab.studies.published.data import Kind, Row
from paceline_lab.studies.published.engines import CannotForecastError
from paceline_lab.studies.published.rows import Forecast, forecast

# Tried values over the prior.
_FACTORS = tuple(3.0 ** (step / 4) for step in range(-4, 5))


@dataclass(frozen=True)
class Left:
    """A row's forecast without its source. `residual`: the logarithm of measured over forecast iteration time."""

    forecast: Forecast
    residual: float


def calibrated() -> list[Constant]:
    """Return the constants that were fitted to measurements, each once."""
    every = [*channels.all_constants().values(), *(it for one in all_libraries() for it in one.constants.values())]
    return [it for it in dict.fromkeys(every) if it.calibrated]


def sources_of(constant: Constant) -> set[str]:
    """Return the ids of the rows that a constant was fitted to."""
    return set(re.findall(r"[A-Z][A-Z0-9]+", constant.calibrated))


def residual(it: Forecast) -> float:
    """Return the logarithm of measured over forecast time."""
    assert it.row.measured is not None
    assert it.row.metric is not None
    ratio = math.log(it.value / it.row.measured)
    return -ratio if it.row.metric.kind is Kind.SECONDS else ratio


def leave_one_source_out(rows: Sequence[Row]) -> list[Left]:
    """Return the forecasts of all measured, well-posed rows."""
    known = [row for row in rows if row.measured is not None and row.well_posed]
    left: list[Left] = []
    for source in dict.fromkeys(row.id for row in known):
        others = [row for row in known if row.id != source]
        values = _fitted([it for it in calibrated() if source in sources_of(it)], others)
        with assuming(values):
            left += [Left(it, residual(it)) for row in known if row.id == source for it in _forecasts([row])]
    return left


def _fitted(constants: Sequence[Constant], rows: Sequence[Row]) -> dict[Constant, float]:
    values = {it: it.prior or it.value for it in constants}
    for constant in constants:
        prior = values[constant]
        with assuming(values):
            before = {it.row.line: it.value for it in _forecasts(rows)}
        with assuming(values | {constant: 2 * prior}):
            using = [it.row for it in _forecasts(rows) if it.value != before.get(it.row.line)]
        if using:
            values[constant] = min(
                (factor * prior for factor in _FACTORS), key=lambda value: _error(values | {constant: value}, using)
            )
    return values


def _error(values: Mapping[Constant, float], rows: Sequence[Row]) -> float:
    with assuming(values):
        return sum(abs(residual(it)) for it in _forecasts(rows))


def _forecasts(rows: Sequence[Row]) -> list[Forecast]:
    forecasts = []
    for row in rows:
        try:
            forecasts.append(forecast(row))
        except CannotForecastError:
            continue
    return forecasts
