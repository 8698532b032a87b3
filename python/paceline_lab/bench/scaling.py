"""Scaling efficiency, and the regression line of images/s over ranks."""

from __future__ import annotations

from collections.abc import Callable

from paceline_lab.bench.result import Result, Row, middle
from paceline_lab.bench.statistics import bootstrap, line


def scale(result: Result) -> None:
    """Fill in efficiencies and lines of engines that ran with several numbers of ranks.

    Efficiency is images/s per rank, relative to the run with the fewest ranks; it is 1 for that run.
    """
    for engine in dict.fromkeys(row.engine for row in result.rows):
        rows = sorted((row for row in result.rows if row.engine == engine), key=lambda row: row.workers)
        if len(rows) < 2:
            continue
        fewest = rows[0]
        for row in rows:
            row.efficiency = (row.total / row.workers) / (fewest.total / fewest.workers)
            if row is not fewest:
                row.efficiency_interval = bootstrap(
                    [run.seconds for one in (row, fewest) for run in one.runs], _efficiency(row, fewest)
                )
        fitted = line([(row.workers, total) for row in rows for total in row.totals])
        if fitted is not None:
            result.lines[engine] = fitted


def _efficiency(row: Row, fewest: Row) -> Callable[[list[list[float]]], float]:
    def of(drawn: list[list[float]]) -> float:
        ours, theirs = middle(drawn[: len(row.runs)]), middle(drawn[len(row.runs) :])
        return row.batch / ours / (fewest.batch / theirs)

    return of
