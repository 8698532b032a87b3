"""Horovod's timeline calls, which write Paceline's timeline (docs/reference/timeline.md)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from paceline._core import Engine
from paceline.errors import Source
from paceline.hvd.world import current
from paceline.job import timeline_files
from paceline.settings.table import SETTINGS


class Marks(Protocol):
    """Marks what a script does, such as its forward passes, in the timeline."""

    def remove(self) -> None:
        """Mark nothing any more."""

    def waited(self, began: int) -> None:
        """Mark that the script has waited for sums since `began`, by time.monotonic_ns()."""


class _Waits:
    """Marks nothing but waits: a framework without hooks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def remove(self) -> None:
        pass

    def waited(self, began: int) -> None:
        self._engine.mark("wait", "wait for sums", began, time.monotonic_ns())


_marker: Callable[[Engine], Marks] = _Waits
_marks: Marks | None = None
_path: str | None = None


def mark_with(marker: Callable[[Engine], Marks]) -> None:
    """Let a framework mark what its scripts do, from the next timeline on."""
    global _marker  # noqa: PLW0603
    _marker = marker


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start recording this rank's timeline. All ranks call this with the same file.

    The file grows from now on, with what rank 0 does, and has all ranks once they have stopped.

    Args:
        file_path: File to write; each rank writes its part next to it. Nothing happens if it is being recorded already.
        mark_cycles: Accepted for compatibility with Horovod; cycles are always shown.

    Raises:
        InvalidArgumentError: The file cannot be written, or another timeline is being recorded.
        NotInitializedError: `hvd.init()` has not been called.

    Example:
        >>> hvd.start_timeline("run.json")  # doctest: +SKIP
    """
    global _path  # noqa: PLW0603 - Horovod's API is one of functions
    path: str = SETTINGS["timeline"].check(file_path, Source("keyword", "start_timeline"))
    if path == _path:
        return
    timeline_files.begin(current().job._joined(), path)
    _path = path
    mark(True)


def stop_timeline() -> None:
    """Stop recording and complete this rank's part; the last rank of a host merges the parts.

    Raises:
        NotInitializedError: `hvd.init()` has not been called.

    Example:
        >>> hvd.stop_timeline()  # doctest: +SKIP
    """
    global _path  # noqa: PLW0603
    engine = current().job._joined()
    mark(False)
    engine.stop_timeline()
    if _path is not None:
        timeline_files.finish(engine, _path)
    _path = None


def mark(on: bool) -> None:
    """Start or stop marking the script's activities."""
    global _marks  # noqa: PLW0603
    if _marks is not None:
        _marks.remove()
    _marks = _marker(current().job._joined()) if on else None


def moment() -> int:
    """Return the current time for `waited`, or 0 if nothing is recorded."""
    return 0 if _marks is None else time.monotonic_ns()


def span(name: str, since: int, until: int) -> None:
    """Record what the script did between two moments, if anything is recorded."""
    if _marks is not None and since:
        current().job._joined().mark(name, name, since, until)


def waited(since: int) -> None:
    """Record that the script has waited for gradients since that moment."""
    if _marks is not None and since:
        _marks.waited(since)
