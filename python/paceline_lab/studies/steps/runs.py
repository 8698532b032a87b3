"""The forecasts of many rows: each command is executed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from paceline._internal import units
from paceline.catalog.constants import assuming
from paceline.errors import PacelineError
from paceline.forecast.evidence import ignoring

from paceline_lab.studies.priors import priors_without, publication
from paceline_lab.studies.steps.data import Row
from paceline_lab.studies.steps.forecast import Answer, Forecast, answer_of, range_of
from paceline_lab.studies.steps.result import Computed


def computed(
    title: str,
    rows: list[Row],
    groups: Mapping[str, str],
    figure: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Computed:
    """Forecast the rows of a study, of titled groups; draw its figure if there is a path for it."""
    forecasts, skipped = forecast_each(rows, progress)
    drawn: list[str] = []
    if figure is not None:
        from paceline_lab.studies.steps.figures import draw

        drawn = [str(draw(forecasts, groups, figure))]
    return Computed(title, forecasts, skipped, groups, drawn)


def forecast_each(
    rows: list[Row], progress: Callable[[int, int], None] | None = None
) -> tuple[list[Forecast], list[tuple[Row, str]]]:
    """Return the forecasts, and the rows without one, each with the reason. A command is executed once.

    Their intervals do not know the source of the row.
    """
    answers: dict[str, Answer | str] = {}
    commands = list(dict.fromkeys(row.command for row in rows if not row.left_out))
    first = {row.command: row for row in reversed(rows)}
    for done, command in enumerate(commands):
        if progress is not None:
            progress(done, len(commands))
        row = first[command]
        try:
            with ignoring((publication(row.source), row.group)):
                answers[command] = answer_of(row.words)
        except PacelineError as error:
            answers[command] = str(error)
    if progress is not None:
        progress(len(commands), len(commands))
    forecasts: list[Forecast] = []
    skipped: list[tuple[Row, str]] = []
    for row in rows:
        if row.left_out:
            skipped.append((row, _left_out(row)))
            continue
        answer = answers[row.command]
        if isinstance(answer, str):
            skipped.append((row, answer))
        else:
            forecasts.append(Forecast(row, answer))
    return forecasts, skipped


def _left_out(row: Row) -> str:
    """Return why a row is left out; if it has a command, with what this forecasts, or the range of its scenarios."""
    if not row.command:
        return row.left_out
    try:
        ends = [units.digits(end) for end in range_of(row)]
    except PacelineError as error:
        return f"{row.left_out}: {error}"
    return f"{row.left_out}: {row.measured:g} {row.unit}, forecast as {' to '.join(dict.fromkeys(ends))}"


def leave_one_source_out(rows: list[Row]) -> list[Forecast]:
    """Return the forecasts of each source's rows with the priors of all constants that were calibrated on it."""
    forecasts: list[Forecast] = []
    for source in dict.fromkeys(row.source for row in rows):
        with assuming(priors_without(source)):
            forecasts += forecast_each([row for row in rows if row.source == source])[0]
    return forecasts
