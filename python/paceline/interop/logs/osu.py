"""Logs of the OSU micro-benchmarks (https://mvapich.cse.ohio-state.edu/benchmarks): latency, bandwidth, collectives."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from paceline._internal.units import count
from paceline.interop.logs.contents import Read, ReadError, Size, figure, finite, truncated, whole
from paceline.interop.logs.paste import shape

_TITLE = re.compile(
    r"# ?OSU (?:(?:MPI|NCCL|RCCL|OpenSHMEM|UPC\+\+|UPC)(?:-\S+)? )?(.*?) ?Test\b",
    re.IGNORECASE,
)
_OF_PAIRS = re.compile(r"(?:latency|multi|one.sided|MPI_)", re.IGNORECASE)
"""How names of tests between pairs begin, of which latency is one; of a collective, latency is the only test."""
_HEADING = re.compile(r"(#)\s*Size\b.*")
_COLUMN = re.compile(r"\((?:us|MB/s|%)\)|(?<!\()MB/s|Messages/s|Iterations")
_COUNTED = {1: "the second column", 3: "the fourth column"}
_PROCESSES = re.compile(r"\b(\d+) processes\b")
_ROW = re.compile(r"(?<![\w.+-])([-+.]?\d[\w.+-]*(?:\s+(?:[-+.]?\d[\w.+-]*|[-+]?(?:inf|nan)|Pass|Fail))*)\s*$")
"""Numbers up to the end of a line."""


@dataclass
class _Table:
    """One table, as far as it has been read."""

    heading: int
    """The number of its line."""
    prefix: str
    """The shape of what precedes its lines."""
    columns: int
    bandwidth: bool
    place: int
    """The column to read; for non-blocking collectives, the one without overlapped computation."""
    read: Read
    seen: set[int] = field(default_factory=set)
    failed: int = 0
    infinite: int = 0


def recognized(lines: list[str]) -> bool:
    """Recognize it by its title."""
    return any("OSU" in line and re.search(r"#.*\bOSU\b", line) for line in lines)


def read(lines: list[str], *, ended: bool) -> list[Read]:
    """Read sizes, and times or bandwidths of each test. `ended`: the last line has a line end. Raises ReadError."""
    tables: list[_Table] = []
    what, devices = "unknown", None
    for at, line in enumerate(lines, 1):
        table = tables[-1] if tables else None
        if match := _TITLE.search(" ".join(line.split())):
            what, devices = _named(match[1].strip()), None
        if match := _PROCESSES.search(line):
            devices = int(match[1][:9])
            if table is not None and not table.read.sizes:
                table.read.devices = devices
        if match := _HEADING.search(line):
            if "MB/s" not in line and "us" not in line:
                raise ReadError(
                    at,
                    "the heading names neither a latency in us nor a bandwidth in MB/s",
                    remedy="the log as OSU's benchmark wrote it",
                )
            tables.append(_table(line[: match.start()], match[0], at, Read("osu", what, at, devices)))
        elif table is not None and (words := _row(table, line, at)):
            if at == len(lines) and not ended and len(words[-1].partition(".")[2]) < 2 and words[-1].isascii():
                raise truncated(at)  # OSU prints two decimals
            _add(table, words, at)
    full = [table.read for table in tables if table.read.sizes]
    if not full:
        raise ReadError(
            len(lines),
            "no sizes below the heading",
            remedy="the log of a benchmark that did not fail",
        )
    for table in tables:
        if table.failed:
            table.read.notes.append(f"{count(table.failed, 'size')} had wrong results")
        if table.infinite:
            table.read.notes.append(f"{count(table.infinite, 'size')} with inf or nan instead of a figure")
        table.read.sizes.sort(key=lambda one: one.size_bytes)
    return full


def _named(title: str) -> str:
    """Return the name of a test: of a collective without `Latency`, which is what all are measured in."""
    return (title if _OF_PAIRS.match(title) else title.removesuffix(" Latency")) or "point-to-point"


def _table(prefix: str, heading: str, at: int, read: Read) -> _Table:
    bandwidth = "MB/s" in heading
    place = 3 if re.search(r"Overall\(us\)\s+Compute\(us\)\s+Pure Comm", heading) else 1
    return _Table(at, shape(prefix), max(1, len(_COLUMN.findall(heading))), bandwidth, place, read)


def _row(table: _Table, line: str, at: int) -> list[str]:
    """Return the words of a row without its prefix, or nothing if it is none. Raises ReadError."""
    match = _ROW.search(line)
    if match is None or "#" in line:
        return []
    words = match[1].split()
    verdict = words[-1] in ("Pass", "Fail")
    before = max(0, len(words) - table.columns - 1 - verdict)
    prefix = line[: match.start(1)] + " ".join(words[:before])
    if shape(prefix) == table.prefix and len(words) - before > table.place:
        return words[before:]
    if shape(prefix) == table.prefix:
        raise ReadError(
            at, f"'{line.strip()[:60]}' is not a size and a value", remedy="the log as OSU's benchmark wrote it"
        )
    return []


def _add(table: _Table, words: list[str], at: int) -> None:
    """Read a row. Raises ReadError."""
    size = whole(words[0], at, "Size")
    name = _COUNTED[table.place]
    value = figure(words[table.place], at, name, 1e6 if table.bandwidth else 1e-6)
    seconds = None if table.bandwidth else value
    rate = value if table.bandwidth else finite(size / seconds) if seconds else None
    if size and size in table.seen:
        raise ReadError(
            at,
            f"size {size} appears again",
            remedy="a log for each run",
        )
    table.seen.add(size)
    table.read.sizes.append(Size(size, seconds, rate, None))
    table.failed += "Fail" in words
    table.infinite += value is None
