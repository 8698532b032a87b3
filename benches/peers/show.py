"""Tables and progress in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rich.box
import rich.table
import summary
from rich.console import Console
from rich.status import Status


def table(content: summary.Table) -> None:
    """Print it."""
    drawn = rich.table.Table(title=content.title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    drawn.min_width = len(content.title) + 2
    for place, name in enumerate(content.header):
        drawn.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in content.rows:
        drawn.add_row(*row)
    # As wide as needed where the output is not a terminal.
    Console(width=None if sys.stdout.isatty() else 180).print(drawn)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Report progress on stderr: in place on a terminal, otherwise one line per step."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    with Status("starting", console=Console(stderr=True)) as status:
        yield status.update
