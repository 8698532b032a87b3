"""A progress bar on stderr, if that is a terminal and the work takes longer than a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_S = 1.0


class Bar:
    """Call it with the number of things done and of all; a context manager that clears the bar."""

    def __init__(self, words: str) -> None:
        """`words` stand before the bar."""
        self._words = words
        self._start = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Bar:
        """Nothing is shown yet."""
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show it, once it has taken long enough."""
        if self._shown is None:
            if time.monotonic() - self._start < _PATIENCE_S or not sys.stderr.isatty():
                return
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._shown = bar, bar.add_task(self._words, total=total)
            bar.start()
        bar, task = self._shown
        bar.update(task, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the bar."""
        if self._shown is not None:
            self._shown[0].stop()
