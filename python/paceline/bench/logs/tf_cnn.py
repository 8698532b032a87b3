"""Logs of tf_cnn_benchmarks (https://github.com/tensorflow/benchmarks, benchmark_cnn.py)."""

from __future__ import annotations

import re

from paceline.bench.logs.found import Read, ReadError, number, whole

_STEP = re.compile(r"^(\d+)\s+images/sec: (\S+)(?: \+/- (\S+) \(jitter = ([^)]*)\))?(?:\s+[-+.\dnaife]+)*\s*$")
_TOTAL = re.compile(r"total images/sec: (\S+)")
_GLOBAL, _EACH = re.compile(r"^Batch size:\s+(\S+) global"), re.compile(r"^\s+(\S+) per device")
_FIELD = re.compile(r"^(Model|Variables):\s(.*)")


def recognised(lines: list[str]) -> bool:
    """Recognise it by its lines of rates."""
    return any("images/sec:" in line for line in lines)


def read(lines: list[str]) -> Read:
    """Read the total, and the last step's uncertainty and jitter. Raises ReadError."""
    found = Read("tf_cnn_benchmarks", "?")
    globally: int | None = None
    sizes = 0
    for at, line in enumerate(lines, 1):
        if found.total_images_per_s is not None and ("images/sec:" in line or _FIELD.match(line)):
            raise ReadError(at, "follows a total: a second run; use a separate log for each run")
        if match := _FIELD.match(line):
            name, value = match[1], match[2].strip()
            found.what = value if name == "Model" else found.what
            found.way = value if name == "Variables" else found.way
        elif match := _GLOBAL.match(line):
            globally = round(number(match[1], at, "Batch size"))
        elif match := _EACH.match(line):
            sizes = at
            found.batch = round(number(match[1], at, "Batch size per device"))
        elif match := _TOTAL.search(line):
            found.total_images_per_s = number(match[1], at, "total images/sec")
        elif "images/sec:" in line:
            step = _STEP.match(line)
            if step is None:
                raise ReadError(
                    at, f"'{line.strip()[:60]}' is not a step: '10<tab>images/sec: 123.4 +/- 1.2 (jitter = 3.4)'"
                )
            found.steps = whole(step[1], at, "Step")
            number(step[2], at, "images/sec")
            found.uncertainty = None if step[3] is None else number(step[3], at, "+/-")
            found.jitter = None if step[4] is None else number(step[4], at, "jitter")
    if found.total_images_per_s is None:
        raise ReadError(len(lines), "the log ends without 'total images/sec:'; was the benchmark interrupted?")
    if globally and found.batch:
        if globally % found.batch:
            raise ReadError(sizes, f"{globally} images do not give {found.batch} per device")
        found.devices = globally // found.batch
    return found
