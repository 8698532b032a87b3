"""Logs of nccl-tests (https://github.com/NVIDIA/nccl-tests). If a line has both, the out-of-place results are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paceline._internal.units import count
from paceline.interop.logs.contents import Read, ReadError, Size, figure, truncated, whole

_HEADING = re.compile(r"\bsize\s+count\s+type\b.*")
_MORE_HEADING = re.compile(r"^[\s#>]*(?:(?:time|algbw|busbw|#?wrong|error)\b\s*)+$")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\b(?:\s+\d+\s+on\s+(\S+)\s+device\b)?")
"""A rank, and its node."""
_STARTING = re.compile(r"\bCollective test starting: (\w+?)_perf\b")
_TOOL = re.compile(
    r"(?<![^\W_])(all_reduce|all_gather|reduce_scatter|reduce|broadcast|alltoallv?|sendrecv|gather|scatter|hypercube)"
    r"_perf(?:_mpi)?\b"
)
_OUT_OF_BOUNDS = re.compile(r"\bOut of bounds values\s*:\s*(\d+)")
_END = re.compile(r"\bAvg bus bandwidth\b")
_ROW = re.compile(r"(?<![\w.+-])(\d+)\s+(\d+)\s+([a-z][a-z0-9_]*)(?=\s|$).*")
"""Size, count and type, which no prefix has, and what follows them."""
_NUMBERS = re.compile(r"^[\s>]*(?:(?:[-+.\d]\S*|inf|nan|N/A)\s*)+$")

_NAMES = ("time", "algbw", "busbw")
_UNITS = (1e-6, 1e9, 1e9)

_GATHERS = ("all_gather", "alltoall")
_CANDIDATES = {
    # Whether it reduces, whether it has a root, and bus over algorithm bandwidth: below 1, 1, above 1 (nccl-tests'
    # doc/PERFORMANCE.md). Older versions print a reduction for sendrecv.
    (True, False, 1): ("all_reduce",),
    (True, False, 0): ("all_reduce", "sendrecv"),
    (True, False, -1): ("reduce_scatter",),
    (True, True, 0): ("reduce",),
    (False, True, 0): ("broadcast",),
    (False, True, -1): ("gather", "scatter"),
    (False, False, -1): _GATHERS,
    (False, False, 0): ("sendrecv",),
}


@dataclass
class _Table:
    """One table, as far as it has been read."""

    heading: int
    """The number of its line."""
    words: list[str]
    named: str | None
    ranks: Mapping[int, str | None]
    """The node of each."""
    sizes: dict[tuple[str, ...], list[Size]] = field(default_factory=dict)
    """By the columns between count and time: type, operation and root."""
    wrong: int = 0
    outside: int = 0
    infinite: int = 0
    ended: bool = False

    @property
    def before_time(self) -> int:
        """The number of columns before the first time: older versions have no column `root`."""
        return self.words.index("time")


def recognized(lines: list[str]) -> bool:
    """Recognize it by its column headings."""
    return any(_HEADING.search(line) for line in lines)


def read(lines: list[str], *, ended: bool) -> list[Read]:
    """Read sizes, times and bandwidths of each test. `ended`: the last line has a line end. Raises ReadError."""
    tables: list[_Table] = []
    named: str | None = None
    starting = False
    ranks: dict[int, str | None] = {}
    joined = iter(_joined(lines))
    for at, last, line in joined:
        table = tables[-1] if tables else None
        if match := _RANK.search(line):
            ranks[int(match[1][:9])] = match[2]
        elif match := _HEADING.search(line):
            words = [word for word in match[0].replace("#", " ").split() if word]
            if not {"time", "busbw"} <= {*words}:
                raise ReadError(
                    at, "the heading has no columns 'time' and 'busbw'", remedy="the log as nccl-tests wrote it"
                )
            tables.append(_Table(at, words, named, ranks))
            named, starting, ranks = None, False, {}
        elif match := _STARTING.search(line):
            named, starting = match[1], True
        elif (match := _TOOL.search(line)) and not starting:
            named = match[1]
        elif table is not None and (match := _OUT_OF_BOUNDS.search(line)):
            table.outside = int(match[1][:18])
        elif table is not None and _END.search(line):
            table.ended = True
        elif table is not None and not table.ended and (match := _ROW.search(line)):
            words = match[0].split()
            if last == len(lines) and not ended and len(words) < len(table.words):
                raise truncated(last)
            _add(table, words, at)
    full = [table for table in tables if table.sizes]
    if not full:
        raise ReadError(
            len(lines),
            "no sizes below the heading",
            remedy="the log of a benchmark that did not fail",
        )
    return [one for table in full for one in _reads(table)]


def _joined(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the first and the last number of each line, and its text; lines that were wrapped become one."""
    at = columns = 0
    while at < len(lines):
        first, text = at, lines[at]
        at += 1
        if _HEADING.search(text):
            while at < len(lines) and _MORE_HEADING.match(lines[at]):
                text, at = f"{text} {lines[at].lstrip('#> ')}", at + 1
            columns = len(text[_HEADING.search(text).start() :].replace("#", " ").split())  # type: ignore[union-attr]
        elif match := _ROW.search(text):
            words = len(match[0].split())
            while words < columns and at < len(lines) and _NUMBERS.match(lines[at]) and not _ROW.search(lines[at]):
                more = lines[at].lstrip("> ")
                text, words, at = f"{text} {more}", words + len(more.split()), at + 1
        yield first + 1, at, text


def _add(table: _Table, words: list[str], at: int) -> None:
    """Read a row. Raises ReadError."""
    before = table.before_time
    if len(words) < before + 3:
        raise ReadError(
            at,
            f"has {len(words)} columns, not those of nccl-tests",
            remedy="size, count, type, … time, algbw, busbw",
        )
    size = whole(words[0], at, "size")
    values = [
        figure(words[before + place], at, name, unit)
        for place, (name, unit) in enumerate(zip(_NAMES, _UNITS, strict=True))
    ]
    of_this_kind = table.sizes.setdefault(tuple(words[2:before]), [])
    if size and any(one.size_bytes == size for one in of_this_kind):
        raise ReadError(
            at,
            f"size {size} appears again with the same type, operation and root",
            remedy="a log for each cycle and process (MPI=1: one process prints)",
        )
    of_this_kind.append(Size(size, *values))
    table.infinite += None in values
    wrong = [place for place, word in enumerate(table.words) if word == "wrong"]
    table.wrong += any(place < len(words) and words[place] not in ("0", "N/A") for place in wrong)


def _reads(table: _Table) -> list[Read]:
    """Return the results of each type, operation and root of a table."""
    reads = []
    for kind, sizes in table.sizes.items():
        candidates = (table.named,) if table.named else _of_columns(kind, sizes, len(table.ranks))
        one = Read(
            "nccl-tests",
            candidates[0] if len(candidates) == 1 else "unknown",
            line=table.heading,
            devices=len(table.ranks) or None,
            nodes=None if None in table.ranks.values() else len({*table.ranks.values()}) or None,
            sizes=sorted(sizes, key=lambda one: one.size_bytes),
        )
        if len(table.sizes) > 1:
            one.what += f" ({', '.join(word for word in kind if word != '-1')})"
        if not table.named:
            by = f"by its columns it is {' or '.join(candidates)}" if candidates else "nor do its columns tell it"
            one.notes.append(f"the log does not name the operation; {by}")
        reads.append(one)
    notes = reads[0].notes
    if table.wrong:
        notes.append(f"{count(table.wrong, 'size')} had wrong results")
    if table.outside and not table.wrong:
        notes.append(f"{count(table.outside, 'value')} out of bounds: the benchmark failed")
    if table.infinite:
        notes.append(f"{count(table.infinite, 'size')} with inf or nan instead of a figure")
    if not table.ended:
        notes.append("ends without '# Avg bus bandwidth', so sizes may be missing; was the benchmark interrupted?")
    return reads


def _of_columns(kind: tuple[str, ...], sizes: list[Size], ranks: int) -> tuple[str, ...]:
    """Return the operations that have such columns."""
    if len(kind) < 3 or not kind[2].lstrip("-").isdigit():
        return ()
    pairs = [(one.bus_bandwidth or 0.0, one.algorithm_bandwidth or 0.0) for one in sizes]
    bus, algorithm = max(pair if all(pair) else (0.0, 0.0) for pair in pairs)
    sides: tuple[int, ...] = (-1, 0, 1)
    if bus >= 1e9:  # Of less, two decimals of GB/s do not tell the ratio.
        ratio = bus / algorithm
        sides = (0 if abs(ratio - 1) < 0.005 else 1 if ratio > 1 else -1,)
    names = [name for side in sides for name in _CANDIDATES.get((kind[1] != "none", kind[2] != "-1", side), ())]
    if sides == (0,) and "all_reduce" in names and ranks and ranks != 2:
        names.remove("all_reduce")  # which has this ratio only on 2 ranks
    return tuple(dict.fromkeys(names))
