"""Logs of the OSU micro-benchmarks (https://mvapich.cse.ohio-state.edu/benchmarks): latency, bandwidth, collectives."""

from __future__ import annotations

import re

from paceline.bench.logs.found import Read, ReadError, Size, number, whole

_TITLE = re.compile(
    r"^#\s*OSU\s+(?:MPI|NCCL|OpenSHMEM|UPC|UPC\+\+)?\S*\s*(.*?)\s+(?:Latency |Bandwidth )?Test\b", re.IGNORECASE
)
_HEADING = re.compile(r"^#\s*Size\b")
_PROCESSES = re.compile(r"\b(\d+) processes\b")


def recognised(lines: list[str]) -> bool:
    """By its title."""
    return any(line.startswith("#") and "OSU" in line for line in lines)


def read(lines: list[str]) -> Read:
    """Sizes, and times or bandwidths. Raises ReadError."""
    found, bandwidth, heading = Read("osu", "?"), False, False
    for at, line in enumerate(lines, 1):
        if match := _TITLE.match(line):
            found.what = match[1].strip() or "point-to-point"
        if match := _PROCESSES.search(line):
            found.devices = int(match[1])
        if _HEADING.match(line):
            heading, bandwidth = True, "MB/s" in line
            if not bandwidth and "us" not in line:
                raise ReadError(at, "the heading names neither a latency in us nor a bandwidth in MB/s")
        elif heading and (words := line.split()) and not line.startswith("#"):
            if len(words) < 2:
                raise ReadError(at, f"'{line.strip()[:60]}' is no size and value")
            size = whole(words[0], at, "Size")
            value = number(words[1], at, "the second column")
            seconds = None if bandwidth else value * 1e-6
            rate = value * 1e6 if bandwidth else (size / seconds if seconds else None)
            found.sizes.append(Size(size, seconds, rate, None))
    if not found.sizes:
        raise ReadError(len(lines), "there are no sizes below the heading; did the benchmark fail?")
    found.sizes.sort(key=lambda one: one.size_bytes)
    return found
