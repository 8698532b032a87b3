"""Published measurements of public systems and their forecasts.

docs/results/published.md explains the columns, how a row becomes a forecast, and the results. `--data FILE.csv`
forecasts any file with the same columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from paceline.errors import InvalidArgumentError
from paceline.forecast.evidence import coverage, published_cases

from paceline_lab.studies.published import collectives
from paceline_lab.studies.published.data import BUILT_IN, columns_of, read
from paceline_lab.studies.published.engines import forecast_each
from paceline_lab.studies.published.result import Published, Skip
from paceline_lab.studies.published.rows import forecast


def run(
    plots: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    data: Path | None = None,
    *,
    anchor: bool = False,
) -> Published | collectives.Collectives:
    """Forecast every row of a file; draw the figure if a folder is given.

    A file with the columns of sharded training may have collectives, too; `anchor` is for such.

    Raises InvalidArgumentError for an invalid file.
    """
    if data is not None and {"strategy", "metric", "value"} <= set(columns_of(data)):
        return collectives.run(plots, progress, data, anchor=anchor)
    if anchor:
        raise InvalidArgumentError(
            "--anchor needs rows of sharded training, and the rows here have their rate on one GPU, base_1gpu_img_s",
            remedy="--data FILE, or drop --anchor",
        )
    rows = read(data or BUILT_IN)
    forecasts, skipped = forecast_each(rows, forecast, progress)
    where = "published measurements of public systems" if data is None else str(data)
    title = f"{where}: {len(rows)} rows; error = forecast / published - 1; * a row that is not well-posed"
    drawn: list[str] = []
    if plots is not None and forecasts:
        from paceline_lab.studies.published.figures import draw_all

        drawn = [str(path) for path in draw_all(forecasts, plots)]
    without: dict[str, float] = {}
    if data is None:
        sizes = [abs(math.expm1(case.residual)) for case in published_cases()]
        own = coverage()
        without = {"rows": len(sizes), "mean": sum(sizes) / len(sizes), "worst": max(sizes)}
        without |= {"intervals": own.known, "inside": own.inside, "outside_evidence": own.outside}
    return Published(title, forecasts, [Skip(*it) for it in skipped], drawn, without)
