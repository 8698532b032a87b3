"""Messages of a rank to its launcher: that it joins the job, and why it is about to fail."""

from __future__ import annotations

import json
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

from paceline.errors import InvalidArgumentError, JobError, PacelineError

PIPE = "PACELINE_RUN_FAILURE"
"""Environment variable with descriptor and inode of the pipe to which it is written, one JSON document a line."""
MOST = 4096
"""Bytes that a pipe takes atomically (PIPE_BUF)."""

_LETTERS = 1000


def tell_launcher() -> None:
    """Report exceptions that nobody catches to the launcher as well, if there is one.

    For an InvalidArgumentError, print the line of the script and the message, without the frames between it and the
    check.
    """
    if getattr(sys.excepthook, "reports_to_launcher", False):
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _raised  # noqa: PLW0603 - of this process
        _raised = True
        report_error(error)
        if isinstance(error, InvalidArgumentError) and before is sys.__excepthook__:
            print(f"{_where(trace)}{error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        else:
            before(kind, error, trace)

    hook.reports_to_launcher = True  # type: ignore[attr-defined]
    sys.excepthook = hook


_raised = False
_AFTER_ERROR_S = 5.0


def patience_s() -> float | None:
    """Return how long this process waits at its end for other ranks to begin what it has begun, while nothing moves.

    None: as long as a caller would wait. After an exception that nobody has caught, its launcher should soon know.
    """
    return _AFTER_ERROR_S if _raised else None


def _where(trace: TracebackType | None) -> str:
    """Return the innermost line outside installed packages: in the script, or in a module next to it."""
    installed = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(trace)]
    own = [(file, line) for file, line in frames if not file.startswith((*installed, "<"))]
    return f"{own[-1][0]}:{own[-1][1]}: " if own else ""


def report_error(error: BaseException) -> None:
    """Tell the launcher, if there is one, why this process is about to end."""
    kind = type(error)
    first_line = next(iter(str(error).splitlines()), "")
    # A JobError names the ranks that it is about; other errors are the rank's own.
    text = first_line if isinstance(error, JobError) and first_line else f"{kind.__name__}: {first_line}".rstrip(": ")
    remedy = error.remedy if isinstance(error, PacelineError) else None
    report = {"reason": _cut(text), "remedy": remedy and _cut(remedy), "follows": follows(error)}
    _write({**report, "is_whole": isinstance(error, JobError)})


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[:_LETTERS] + "…"


@contextmanager
def joining(size: int) -> Iterator[None]:
    """Tell the launcher, if there is one, that this rank waits for all others, and then that they have come.

    Only the launcher knows if one of them has ended instead. A job of some of its ranks does not concern it.
    """
    whole = os.environ.get("WORLD_SIZE") == str(size)
    if whole:
        _write({"joining": "begun"})
    how = "failed"
    try:
        yield
        how = "done"
    finally:
        if whole:
            _write({"joining": how})


def _write(report: Mapping[str, object]) -> None:
    descriptor, _, inode = os.environ.get(PIPE, "").partition(":")
    if not (descriptor.isdecimal() and inode.isdecimal()):
        return
    try:
        pipe = os.fstat(int(descriptor))
        # The script may have closed the descriptor and got a pipe of its own under the same number.
        if stat.S_ISFIFO(pipe.st_mode) and pipe.st_ino == int(inode):
            os.write(int(descriptor), json.dumps(report).encode() + b"\n")
    except (OSError, ValueError):  # The launcher is gone, or the script has closed the descriptor.
        pass


def follows(error: BaseException | None) -> bool:
    """Return whether this error, or one that it was raised from, reports that another rank failed."""
    while error is not None:
        if isinstance(error, JobError) or "JobError: " in str(
            error
        ):  # the form in which torch's C++ code passes them on
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
