"""Printing for people: the width of lines, and whether there are colours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import click


def width() -> int:
    """Columns to wrap text to: the terminal's (or $COLUMNS), between 40 and 110."""
    return min(110, max(40, shutil.get_terminal_size((100, 24)).columns))


def say(lines: Sequence[str]) -> None:
    """Print to stdout; colours only on a terminal, and not with NO_COLOR (https://no-color.org)."""
    for line in lines:
        click.echo(line, color=False if os.environ.get("NO_COLOR") else None)
