"""Horovod's timeline of operations: Paceline's (docs/reference/timeline.md), each rank's part beside the file."""

from __future__ import annotations

import time

from paceline.job import timeline_files
from paceline.job.settings import check_timeline
from paceline.torch.hvd.world import current
from paceline.torch.recorder.marks import Marks

_marks: Marks | None = None
_path: str | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to record what this rank does; all ranks call it with the same file. Cycles are shown in any case.

    Raises NotInitializedError before `init`, InvalidArgumentError for a file that cannot be written or while one is
    recorded.
    """
    global _path  # noqa: PLW0603 - Horovod's API is one of functions
    path = check_timeline(file_path, "start_timeline")
    timeline_files.begin(current().job._joined(), path)
    _path = path
    mark(True)


def stop_timeline() -> None:
    """End the timeline, and write this rank's part; the last rank of a machine puts them together.

    Raises NotInitializedError before `init`.
    """
    global _path  # noqa: PLW0603
    engine = current().job._joined()
    mark(False)
    engine.stop_timeline()
    if _path is not None:
        timeline_files.finish(engine, _path)
    _path = None


def mark(on: bool) -> None:
    """Mark what the script does, or no longer."""
    global _marks  # noqa: PLW0603
    if _marks is not None:
        _marks.remove()
    _marks = Marks(current().job._joined()) if on else None


def moment() -> int:
    """Now, for `waited`; 0 if nothing is recorded."""
    return 0 if _marks is None else time.monotonic_ns()


def waited(since: int) -> None:
    """The script has waited for gradients since that moment."""
    if _marks is not None and since:
        _marks.waited(since)
