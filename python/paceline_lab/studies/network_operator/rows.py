"""Published rows and their simulated values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline_lab.studies.network_operator.published import MODELS, TITLES, Row
from paceline_lab.studies.network_operator.runs import Simulations
from paceline_lab.studies.report import Compared, Skipped


def value(row: Row, simulations: Simulations) -> float:
    """Return the simulated value of the row, in its unit."""
    seconds = simulations[row.config]
    if row.over is not None:
        return simulations[row.over] / seconds
    return row.times * seconds - row.offset


def compared(rows: Sequence[Row], simulations: Simulations) -> Iterator[Compared]:
    """Return each row with its simulated value."""
    for row in rows:
        ours = value(row, simulations)
        yield Compared(row.table, row.row, TITLES[row.model], row.published, ours, row.unit, row.calibrated)


def skipped(rows: Sequence[Row]) -> Iterator[Skipped]:
    """Return values that the paper gives for other models in the same row, but not for this one."""
    given: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        given.setdefault((row.table, row.row), set()).add(row.model)
    for (table, name), models in given.items():
        if models <= set(MODELS):
            for model in (model for model in MODELS if model not in models):
                yield Skipped(table, name, TITLES[model], "no value is published")
