"""Logs of the OSU micro-benchmarks (https://mvapich.cse.ohio-state.edu/benchmarks): latency, bandwidth, collectives."""

from __future__ import annotations

import re

from paceline._internal.units import count
from paceline.bench.logs.found import Read, ReadError, Size, number, once, whole

_TITLE = re.compile(
    r"^# ?OSU (?:MPI|NCCL|OpenSHMEM|UPC|UPC\+\+)?\S* ?(.*?) (?:Latency |Bandwidth )?Test\b", re.IGNORECASE
)
_HEADING = re.compile(r"^#\s*Size\b")
_COUNTED = {1: "the second column", 3: "the fourth column"}
_PROCESSES = re.compile(r"\b(\d+) processes\b")


def recognised(lines: list[str]) -> bool:
    """Recognise it by its title."""
    return any(line.startswith("#") and "OSU" in line for line in lines)


def read(lines: list[str]) -> Read:
    """Read sizes, and times or bandwidths. Raises ReadError."""
    found, bandwidth, heading, place, failed = Read("osu", "?"), False, False, 1, 0
    seen: set[int] = set()
    for at, line in enumerate(lines, 1):
        if match := _TITLE.match(" ".join(line.split())):
            found.what = match[1].strip() or "point-to-point"
        if match := _PROCESSES.search(line):
            found.devices = int(match[1])
        if _HEADING.match(line):
            if heading:
                raise ReadError(at, "a second run begins here; use a separate log for each run")
            heading, bandwidth, place = True, "MB/s" in line, _place(line)
            if not bandwidth and "us" not in line:
                raise ReadError(at, "the heading names neither a latency in us nor a bandwidth in MB/s")
        elif heading and (words := line.split()) and not line.startswith("#"):
            if len(words) <= place:
                raise ReadError(at, f"'{line.strip()[:60]}' is not a size and a value")
            size = whole(words[0], at, "Size")
            value = number(words[place], at, _COUNTED[place])
            seconds = None if bandwidth else value * 1e-6
            rate = value * 1e6 if bandwidth else (size / seconds if seconds else None)
            once(seen, size, at)
            found.sizes.append(Size(size, seconds, rate, None))
            failed += "Fail" in words
    if not found.sizes:
        raise ReadError(len(lines), "no sizes below the heading; did the benchmark fail?")
    if failed:
        found.notes.append(f"{count(failed, 'size')} had wrong results")
    found.sizes.sort(key=lambda one: one.size_bytes)
    return found


def _place(heading: str) -> int:
    """Return the column to read; for non-blocking collectives, the one without overlapped computation."""
    return 3 if re.search(r"Overall\(us\)\s+Compute\(us\)\s+Pure Comm", heading) else 1
