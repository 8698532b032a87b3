"""Timeline files: each rank writes a part next to the file, and the last one to end merges the parts.

The names of parts contain the job's PACELINE_RUN_ID, if it has one, so that jobs with the same file keep their parts.

A part is itself a timeline: an array of Chrome trace events, one per line, which grows while the rank records. Until
the parts are merged, the file is a symbolic link to rank 0's part, as Horovod's file is that of rank 0. Under
`paceline run` the launcher merges them, and keeps the timeline of an earlier job until there is a new one; elsewhere
the last rank does, if it finds all parts in the folder. Remaining parts belong to ranks on other hosts without a common
file system, or to a run in which a rank was killed; `read` uses the parts that exist.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from paceline._core import Engine
from paceline._internal.units import printable
from paceline.errors import InvalidArgumentError

_FIRST, _LAST = '{"displayTimeUnit": "ms", "traceEvents": [', "]}"
_END = "]"
"""Ends a part."""
_LINKS = 40
"""Symbolic links that are followed, as by the system."""


def part(path: str | Path, rank: int, run: str = "") -> Path:
    """Return the path of a rank's part in the job `run`."""
    return Path(f"{path}.{run}.rank-{rank}" if run else f"{path}.rank-{rank}")


def _run() -> str:
    return os.environ.get("PACELINE_RUN_ID", "")


def _clear(path: str) -> None:
    """Remove the timeline of an earlier job, so that a file that exists at the end is another job's."""
    with contextlib.suppress(OSError):
        place(path).unlink()


@contextlib.contextmanager
def replacing(path: str | None, run: str) -> Iterator[None]:
    """Put the timeline of an earlier job aside while the job `run` makes another one; put it back if that makes none.

    Raises InvalidArgumentError if this is something that the timeline cannot replace.
    """
    if path is None:
        yield
        return
    check(path)
    target = place(path)
    aside = Path(f"{target}.{run}.before")
    with contextlib.suppress(FileNotFoundError):
        target.rename(aside)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if target.exists() and not unmerged(target):
                aside.unlink()
            elif aside.exists():
                aside.replace(target)


def place(path: str | Path) -> Path:
    """Return where the file is, or will be: `path`, or what the user's symbolic link there leads to."""
    absolute = Path(path).absolute()
    for _ in range(_LINKS):
        if not absolute.is_symlink() or unmerged(absolute):
            break
        absolute = absolute.parent / absolute.readlink()
    return absolute


def unmerged(path: str | Path) -> bool:
    """Return whether the file is the link to rank 0's part that stands for it until the parts are merged."""
    path = Path(path)
    with contextlib.suppress(OSError):
        return path.is_symlink() and _parts_of(path.name).fullmatch(path.readlink().name) is not None
    return False


def _parts_of(name: str) -> re.Pattern[str]:
    """Return the pattern of the names of parts; its groups are the job and the rank."""
    return re.compile(re.escape(name) + r"(?:\.([0-9a-f]+))?\.rank-(\d{1,6})")


def check(path: str) -> None:
    """Raise InvalidArgumentError if this is a device, a pipe, a folder or no timeline, or cannot be written."""
    if Path(path).exists() and not Path(path).is_file():
        kind = "a folder" if Path(path).is_dir() else "a device or a pipe"
        raise InvalidArgumentError(f"{path} is {kind}", setting="timeline", remedy="{this=timeline.json}")
    folder = place(path).parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        why = f"nothing can be written to the folder {folder}: {error.strerror}"
        raise InvalidArgumentError(f"{path}: {why}", setting="timeline", remedy="{this=timeline.json}") from None
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        begins = file.read(1 << 12).lstrip()
        # Chrome's format has an object with events, or only these.
        if begins and not begins.startswith(b"[") and b'"traceEvents"' not in begins:
            raise InvalidArgumentError(
                f"{path} is no timeline, and would be replaced",
                setting="timeline",
                remedy=f"{{this=timeline.json}}, or rm {path}",
            )


def _launched(path: str) -> bool:
    """Return whether a launcher puts the file aside at the start, and merges the parts at the end."""
    return bool(_run()) and Path(os.environ.get("PACELINE_TIMELINE", "")).absolute() == Path(path)


def begin(engine: Engine, path: str) -> None:
    """Start recording this rank. Raises InvalidArgumentError if the file cannot be written."""
    check(path)
    if engine.rank == 0 and not _launched(path):
        _clear(path)
    own = part(path, engine.rank, _run())
    engine.start_timeline(str(own))
    if engine.rank == 0:
        _show(place(path), own.absolute())


def _show(path: Path, own: Path) -> None:
    """Let the file be a link to rank 0's part, unless another job has written it, or there are no links here."""
    if path.exists() and not unmerged(path):
        return
    link = Path(f"{path}.showing")
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(own.name if own.parent == path.parent else own)
        link.replace(path)


def finish(engine: Engine, path: str) -> None:
    """Merge the parts if this is the last rank to end and no launcher will."""
    if _launched(path):
        return
    parts = [part(path, rank, _run()) for rank in range(engine.size)]
    if all(_complete(one) for one in parts):
        with contextlib.suppress(OSError):
            _merge(Path(path), parts)


def gather(path: str, run: str) -> str | None:
    """Merge the parts that the job `run` has left here; return a message for the user, or None without parts.

    Raises InvalidArgumentError if the file cannot be written, or if another job has written it since `clear`.
    """
    parts = _parts_by_job(Path(path)).get(run, [])
    if not parts:
        if part(path, 0, run).exists():
            _hide(path)
            raise InvalidArgumentError(
                f"timeline {path}: no rank has completed its part, such as {part(path, 0, run)}",
                remedy="df -h (is the disk full?), or ranks that are not killed",
            )
        return None
    kept = f"the parts are {part(path, 0, run)} and so on"
    if Path(path).exists() and not unmerged(place(path)):
        raise InvalidArgumentError(f"timeline {path}: another job has written it meanwhile", remedy=kept)
    try:
        _merge(Path(path), parts)
    except FileExistsError:
        raise InvalidArgumentError(f"timeline {path}: another job is writing it", remedy=kept) from None
    except OSError as error:
        _hide(path)
        raise InvalidArgumentError(f"timeline {path}: {error.strerror}", remedy=kept) from None
    ranks = f"{len(parts)} rank{'s'[: len(parts) != 1]}"
    if cut := _remove_rest(Path(path), run):
        ranks += f" (without {cut}, which {'was' if cut.startswith('rank ') else 'were'} ended before)"
    shown = shlex.quote(path)
    return f"timeline of {ranks} in {shown}: run `paceline doctor {shown}`, or open it at https://ui.perfetto.dev"


def _remove_rest(path: Path, run: str) -> str:
    """Remove the parts of a merged timeline that are not complete, which nothing reads; return whose they are."""
    pattern = _parts_of(path.name)
    matches = [match for entry in path.parent.iterdir() if (match := pattern.fullmatch(entry.name))]
    ranks = sorted(int(match[2]) for match in matches if (match[1] or "") == run)
    for rank in ranks:
        with contextlib.suppress(OSError):
            part(path, rank, run).unlink()
    return "" if not ranks else f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _hide(path: str) -> None:
    """Remove the link to rank 0's part, which is not complete, and will not be."""
    if unmerged(link := place(path)):
        with contextlib.suppress(OSError):
            link.unlink()


def timelines(path: str | Path) -> list[Path]:
    """Return the complete parts of a timeline, in rank order; of the latest job, if several have left parts."""
    return max(_parts_by_job(Path(path)).values(), key=lambda parts: max(map(_written, parts)), default=[])


def _parts_by_job(path: Path) -> dict[str, list[Path]]:
    """Return the complete parts by job, in rank order."""
    pattern = _parts_of(path.name)
    ranked = [(match, entry) for entry in path.parent.iterdir() if (match := pattern.fullmatch(entry.name))]
    parts: dict[str, list[Path]] = {}
    for match, entry in sorted(ranked, key=lambda one: int(one[0][2])):
        if _complete(entry):
            parts.setdefault(match[1] or "", []).append(entry)
    return parts


def _written(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _complete(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 3))
            return file.read() == f"\n{_END}\n".encode()
    except OSError:
        return False


def _merge(path: Path, parts: list[Path]) -> None:
    """Merge all parts into one file, and remove them. Raises OSError; FileExistsError if another process is merging."""
    path = place(path)
    new = Path(f"{path}.merging")
    with new.open("x") as out:
        try:
            out.write(_FIRST + "\n")
            for number, event in enumerate(event for one in parts for event in _events(one)):
                out.write((",\n" if number else "") + event)
            out.write(f"\n{_LAST}\n")
            out.flush()
        except OSError:  # No room: nobody else is writing it.
            new.unlink()
            raise
    new.replace(path)
    for one in parts:
        one.unlink()


def _events(path: Path) -> Iterator[str]:
    with path.open() as lines:
        next(lines, None)
        for line in lines:
            event = line.strip().removesuffix(",")
            if event != _END:
                yield event


def say(text: str | None) -> None:
    """Print a message for people to standard error."""
    if text is not None:
        print(f"paceline: {printable(text)}", file=sys.stderr, flush=True)
