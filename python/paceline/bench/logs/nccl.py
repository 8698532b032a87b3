"""Logs of nccl-tests (https://github.com/NVIDIA/nccl-tests). If a line has both, the out-of-place results are read."""

from __future__ import annotations

import re

from paceline._internal.units import count
from paceline.bench.logs.found import Read, ReadError, Size, number, once, whole

_COLUMNS = re.compile(r"^#\s+size\s+count\s+type")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b")
_TOOL = re.compile(r"\b(\w+)_perf\b")
_OUT_OF_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)")
_END = re.compile(r"^#\s*Avg bus bandwidth")
_COLLECTIVE = re.compile(r"^# Collective test starting: (\w+)_perf")


def recognised(lines: list[str]) -> bool:
    """Recognise it by its column headings."""
    return any(_COLUMNS.match(line) for line in lines)


def read(lines: list[str]) -> Read:
    """Read sizes, times and bandwidths. Raises ReadError."""
    found, ranks, columns = Read("nccl-tests", "all_reduce"), 0, 0
    checks: list[int] = []
    seen: set[int] = set()
    named = next((match for line in lines if (match := _COLLECTIVE.match(line) or _TOOL.search(line))), None)
    if named is not None:
        found.what = named[1]
    wrong = outside = 0
    ended = False
    for at, line in enumerate(lines, 1):
        if _RANK.match(line):
            ranks += 1
        elif _COLUMNS.match(line):
            if columns:
                raise ReadError(at, "a second run begins here; use a separate log for each run")
            columns, checks = _before_time(line, at), _checks(line)
        elif match := _OUT_OF_BOUNDS.match(line):
            outside = int(match[1][:18])
        elif _END.match(line):
            ended = True
        elif columns and (words := line.split()) and words[0].isdigit():
            if len(words) < columns + 3:
                raise ReadError(at, f"has {len(words)} columns; size, count, type, … time, algbw, busbw are expected")
            size = whole(words[0], at, "size")
            time, algorithm, bus = (
                number(words[columns + place], at, name) for place, name in enumerate(("time", "algbw", "busbw"))
            )
            once(seen, size, at)
            found.sizes.append(Size(size, time * 1e-6, algorithm * 1e9, bus * 1e9))
            if any(place < len(words) and words[place] not in ("0", "N/A") for place in checks):
                wrong += 1
    if not found.sizes:
        raise ReadError(len(lines), "no sizes below the heading; did the benchmark fail?")
    found.devices = ranks or None
    if wrong:
        found.notes.append(f"{count(wrong, 'size')} had wrong results")
    if outside and not wrong:
        found.notes.append(f"{count(outside, 'value')} out of bounds: the benchmark failed")
    if not ended:
        found.notes.append(
            "ends without '# Avg bus bandwidth', so sizes may be missing; was the benchmark interrupted?"
        )
    found.sizes.sort(key=lambda one: one.size_bytes)
    return found


def _checks(line: str) -> list[int]:
    """Return the columns of wrong results, out of place and in place; older versions have the largest error instead."""
    words = [word.strip("#") for word in line.split()]
    return [at for at, word in enumerate(word for word in words if word) if word == "wrong"]


def _before_time(line: str, at: int) -> int:
    """Return the number of columns before the first time: older versions have no column `root`."""
    words = line.lstrip("#").split()
    if "time" not in words:
        raise ReadError(at, "the heading has no column 'time'")
    return words.index("time")
