"""Errors of the command line: two lines, of which the second is something to type."""

from __future__ import annotations

import os
import re
import sys

import click

from paceline._internal.console import on_terminal, width
from paceline._internal.units import printable
from paceline.errors import TRY

_LONGEST_MESSAGE = 1000
_LONGEST_REMEDY = 500
_TOGETHER = re.compile(
    r"--?[A-Za-z][\w-]*(?:[ =](?:'[^']*'|\"[^\"]*\"|[^\s,()'\"-][^\s,()]*))?|\b(?:paceline|python|pip|ls) [^,()]*"
)
"""Text to type in one piece: an option with its value, or a command with its words."""


class UsageError(click.UsageError):
    """An error of the command line that knows what to type instead."""

    def __init__(self, message: str, ctx: click.Context | None = None, *, remedy: str | None = None) -> None:
        """Take the message, and the remedy: a few words to paste, such as `--sharding zero3`."""
        super().__init__(message, ctx)
        self.remedy = remedy


class CommandError(click.ClickException):
    """A failure of a command that knows what to type next."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        """Take the message, and the remedy, as `UsageError`; in Python it is a note."""
        super().__init__(message)
        self.remedy = remedy
        if remedy is not None:
            self.add_note(f"{TRY}{remedy}")


def called(ctx: click.Context) -> str:
    """Return the command as it is typed, whatever program runs it: `paceline list models`."""
    return " ".join(["paceline", *ctx.command_path.split()[1:]])


def show_error(what: str, remedy: str | None = None) -> None:
    """Print an error on stderr, and below it what to type instead."""
    lines = _fitted("paceline: error: ", what, _LONGEST_MESSAGE)
    if remedy:
        lines += _fitted(TRY, remedy, _LONGEST_REMEDY)
    try:
        click.echo("\n".join(lines), err=True)
    except OSError:  # A full disk. The exit code still says what happened: Python's own is 120 if its last flush fails.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def _fitted(begin: str, text: str, most: int) -> list[str]:
    """Return one printable line, on a terminal as many as it needs; what is typed in one piece stays in one."""
    line = printable(" ".join(text.split()))
    if len(line) > most:
        line = line[:most] + " …"
    if not on_terminal() or len(begin) + len(line) <= width():
        return [begin + line]
    import textwrap

    joined = _TOGETHER.sub(lambda match: match[0].replace(" ", "\0"), line)
    joined = begin.replace(" ", "\0") + joined
    lines = textwrap.wrap(joined, width(), subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False)
    return [one.replace("\0", " ") for one in lines]
