"""Published rows side by side with ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.studies.network_operator.published import MODELS, TITLES, Row
from paceline.studies.network_operator.runs import Simulations
from paceline.studies.report import Compared, Skipped


def value(row: Row, simulations: Simulations) -> float:
    """What we simulate for the row, in its unit."""
    seconds = simulations[row.config]
    if row.over is not None:
        return simulations[row.over] / seconds
    return row.times * seconds - row.offset


def compared(rows: Sequence[Row], simulations: Simulations) -> Iterator[Compared]:
    """Each row with ours beside it."""
    for row in rows:
        ours = value(row, simulations)
        yield Compared(row.table, row.row, TITLES[row.model], row.published, ours, row.unit, row.calibrated)


def skipped(rows: Sequence[Row]) -> Iterator[Skipped]:
    """Models for which the paper gives no value in a row that it gives for others."""
    given: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        given.setdefault((row.table, row.row), set()).add(row.model)
    for (table, name), models in given.items():
        if models <= set(MODELS):
            for model in (model for model in MODELS if model not in models):
                yield Skipped(table, name, TITLES[model], "no value is published")
