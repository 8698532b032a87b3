"""Output for people: tables and texts as wide as the terminal, and a progress bar."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import click

from paceline._internal import tables
from paceline._internal.tables import Column, Groups
from paceline._internal.units import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def render(columns: Sequence[Column], groups: Groups) -> list[str]:
    """Return the lines of a table that keeps to the width of the terminal, as `tables.render` does."""
    return tables.render(columns, groups, width=table_width())


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return the text as lines of limited width, with control characters escaped."""
    import textwrap

    text = printable(" ".join(text.splitlines()).replace("\t", " "))
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def width() -> int:
    """Return the columns to wrap text to: the terminal's (or $COLUMNS), between 40 and 80; 80 in a pipe."""
    return min(80, table_width())


def table_width() -> int:
    """Return the columns that a table may have: the terminal's (or $COLUMNS), between 40 and 100; 100 in a pipe."""
    return min(100, max(40, shutil.get_terminal_size((100, 24)).columns))


def say(lines: Sequence[str], *, err: bool = False) -> None:
    """Print lines of text, wrapped; colors only on a terminal, and not with NO_COLOR (https://no-color.org).

    A stream whose encoding has no rules, dashes and quotation marks gets those of ASCII. In a pipe, rules are ASCII,
    too, as tools count bytes. Control and bidirectional characters, such as those of a file's fields, are escaped:
    only the colors and the bold type of `click.style` reach the terminal.
    """
    stream = sys.stderr if err else sys.stdout
    is_terminal = stream is not None and stream.isatty()
    for line in lines:
        text = encodable(fitted(_safe(line)), stream)
        if not is_terminal and _RULE in text:
            text = text.replace(_RULE, "-")
        click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)


_STYLES = re.compile(r"(\x1b\[(?:0|1|3[0-7])m)")


def _safe(line: str) -> str:
    """Return a line without other escape sequences than those of styles."""
    parts = _STYLES.split(line)
    parts[::2] = ["\n".join(map(printable, part.split("\n"))) for part in parts[::2]]
    return "".join(parts)


_RULE = "─"
_ASCII = str.maketrans({
    "─": "-", "│": "|", "⋮": ":", "…": "...", "’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "×": "x",
    "→": "->", "±": "+-", "µ": "u", "≤": "<=", "≥": ">=", "·": "*",
})  # fmt: skip


def encodable(text: str, stream: TextIO | None) -> str:
    """Return text that a stream can print: without the signs that its encoding lacks, in ASCII."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    except LookupError:
        pass
    return text


def put(document: str) -> None:
    """Print a document, such as JSON, to stdout as it is."""
    click.echo(document)


def remark(text: str) -> None:
    """Print a note to stderr, wrapped."""
    say([f"paceline: note: {printable(text)}"], err=True)


def fitted(line: str) -> str:
    """Return a line as it is if it is as narrow as a table may be, or else wrapped, with what follows indented."""
    if len(click.unstyle(line)) <= table_width():
        return line
    import textwrap

    indent = " " * (len(line) - len(line.lstrip()) + 2)
    lines = textwrap.wrap(line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def on_terminal() -> bool:
    """Return whether stderr is a terminal; it is None where the caller has closed it."""
    return sys.stderr is not None and sys.stderr.isatty()


__all__ = [
    "Bar", "Column", "encodable", "fitted", "on_terminal", "put", "remark", "render", "say", "table_width", "width",
    "wrapped",
]  # fmt: skip

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
