"""Output for people: plain-text tables, wrapped text, and a progress bar."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True)
class Column:
    """A header of one or two lines, and whether cells are aligned left."""

    header: str
    left: bool = False


def render(columns: Sequence[Column], groups: Sequence[Sequence[Sequence[str]]], *, highlight_first: bool) -> list[str]:
    """Return the lines of a table, with an empty line between groups; a group's first row may be highlighted."""
    import click

    headers = [column.header.split("\n") for column in columns]
    height = max(len(lines) for lines in headers)
    top = [[*[""] * (height - len(lines)), *lines] for lines in headers]
    rows = [row for group in groups for row in group]
    widths = [max(map(len, [*lines, *(row[index] for row in rows)])) for index, lines in enumerate(top)]

    def line(cells: Sequence[str]) -> str:
        placed = zip(cells, widths, columns, strict=True)
        return "  ".join(
            f"{cell:<{width}}" if column.left else f"{cell:>{width}}" for cell, width, column in placed
        ).rstrip()

    lines = [click.style(line([cells[row] for cells in top]), bold=True) for row in range(height)]
    lines.append("─" * (sum(widths) + 2 * (len(widths) - 1)))
    for number, group in enumerate(groups):
        if number and len(rows) > len(groups):
            lines.append("")
        for place, row in enumerate(group):
            text = line(row)
            lines.append(click.style(text, fg="green") if highlight_first and place == 0 else text)
    return lines


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return the text as lines of limited width."""
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def width() -> int:
    """Return the columns to wrap text to: the terminal's (or $COLUMNS), between 40 and 110."""
    return min(110, max(40, shutil.get_terminal_size((100, 24)).columns))


def say(lines: Sequence[str]) -> None:
    """Print to stdout; colours only on a terminal, and not with NO_COLOR (https://no-color.org)."""
    for line in lines:
        click.echo(line, color=False if os.environ.get("NO_COLOR") else None)


def on_terminal() -> bool:
    """Return whether stderr is a terminal; it is None where the caller has closed it."""
    return sys.stderr is not None and sys.stderr.isatty()


_PATIENCE_S = 1.0


class Bar:
    """A progress bar on stderr, if that is a terminal and the work takes longer than a second.

    A context manager. Call it with the number of items done and the total; until the first is done, it says how long it
    has taken.
    """

    def __init__(self, words: str) -> None:
        """`words` come before the bar."""
        self._words = words
        self._done = 0
        self._total: int | None = None
        self._timer = threading.Timer(_PATIENCE_S, self._show)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._shown: tuple[Progress, TaskID] | None = None
        self._ended = False

    def __enter__(self) -> Bar:
        """Show nothing yet."""
        if on_terminal():
            self._timer.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        """Count what is done."""
        with self._lock:
            self._done, self._total = done, total
            if self._shown is not None:
                bar, task = self._shown
                bar.update(task, completed=done, total=total)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        text = TextColumn("{task.description}")
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with self._lock:
            if self._ended:
                return
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._shown = bar, bar.add_task(self._words, total=self._total, completed=self._done)
            bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the bar."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._shown is not None:
                self._shown[0].stop()
