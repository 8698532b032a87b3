"""Timeline files: each rank writes a part next to the file, and the last one to end merges the parts.

A part is itself a timeline (Chrome trace events, one per line). Under `paceline run` the launcher merges them;
elsewhere the last rank, if it finds all parts in the folder. Remaining parts belong to ranks on other hosts without a
common file system, or to a run in which a rank was killed; `read` uses the parts that exist.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from paceline._core import Engine
from paceline.errors import InvalidArgumentError

_FIRST, _LAST = '{"displayTimeUnit": "ms", "traceEvents": [', "]}"


def part(path: str | Path, rank: int) -> Path:
    """Return the path of a rank's part."""
    return Path(f"{path}.rank-{rank}")


def begin(engine: Engine, path: str) -> None:
    """Start recording this rank. Raises InvalidArgumentError if the file cannot be written."""
    if engine.rank == 0:
        with contextlib.suppress(OSError):
            Path(path).unlink()
    engine.start_timeline(str(part(path, engine.rank)))


def finish(engine: Engine, path: str) -> None:
    """Merge the parts if this is the last rank to end and no launcher will."""
    if "PACELINE_RUN_ID" in os.environ and os.environ.get("PACELINE_TIMELINE") == path:
        return
    parts = [part(path, rank) for rank in range(engine.size)]
    if all(_complete(one) for one in parts):
        with contextlib.suppress(OSError):
            _merge(Path(path), parts)


def gather(path: str) -> str | None:
    """Merge the parts that exist after a run; return a message for the user.

    Raises InvalidArgumentError if the file cannot be written.
    """
    parts = found(path)
    if not parts:
        return None
    try:
        _merge(Path(path), parts)
    except OSError as error:
        raise InvalidArgumentError(f"timeline {path}: {error.strerror}; the parts are {path}.rank-*") from None
    ranks = f"{len(parts)} rank{'s'[: len(parts) != 1]}"
    return f"timeline of {ranks} in {path}: run `paceline doctor {path}`, or open it at https://ui.perfetto.dev"


def found(path: str | Path) -> list[Path]:
    """Return the complete parts of a timeline, in rank order."""
    path = Path(path)
    pattern = re.compile(re.escape(path.name) + r"\.rank-(\d{1,6})")
    ranked = [(match, entry) for entry in path.parent.iterdir() if (match := pattern.fullmatch(entry.name))]
    return [entry for _, entry in sorted((int(match[1]), entry) for match, entry in ranked) if _complete(entry)]


def _complete(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4))
            return file.read().strip().endswith(_LAST.encode())
    except OSError:
        return False


def _merge(path: Path, parts: list[Path]) -> None:
    """Merge all parts into one file, and remove them. Raises OSError; FileExistsError if another process is merging."""
    new = Path(f"{path}.merging")
    with new.open("x") as out:
        out.write(_FIRST + "\n")
        for number, event in enumerate(event for one in parts for event in _events(one)):
            out.write((",\n" if number else "") + event)
        out.write(f"\n{_LAST}\n")
    new.replace(path)
    for one in parts:
        one.unlink()


def _events(path: Path) -> Iterator[str]:
    with path.open() as lines:
        next(lines, None)
        for line in lines:
            event = line.strip().removesuffix(",")
            if event != _LAST:
                yield event


def say(text: str | None) -> None:
    """Print a message for people to standard error."""
    if text is not None:
        print(f"paceline: {text}", file=sys.stderr, flush=True)
