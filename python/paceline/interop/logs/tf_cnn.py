"""Logs of tf_cnn_benchmarks (https://github.com/tensorflow/benchmarks, benchmark_cnn.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.interop.logs.contents import Read, ReadError, figure, number, truncated, whole
from paceline.interop.logs.paste import rank

_START = r"(?:^|[\s:>\])])"
"""The start of a line, or the end of a prefix."""
_STEP = re.compile(rf"{_START}(\d+)\s+images/sec: (\S+)(?: \+/- (\S+) \(jitter = ([^)]*)\))?(?:\s+[-+.\dnaife]+)*\s*$")
_TOTAL = re.compile(r"total images/sec: (\S+)")
_GLOBAL, _EACH = re.compile(rf"{_START}Batch size:\s+(\S+) global"), re.compile(r"(\S+) per device\s*$")
_FIELD = re.compile(rf"{_START}(Model|Variables):\s+(\S.*)")


@dataclass
class _Run:
    """One run, as far as it has been read."""

    read: Read
    globally: int | None = None
    sizes: int = 0
    """The line of the batch size per device."""


def recognized(lines: list[str]) -> bool:
    """Recognize it by its lines of rates."""
    return any("images/sec:" in line for line in lines)


def read(lines: list[str], *, ended: bool) -> list[Read]:
    """Read each run's total, and the last step's uncertainty and jitter.

    Of ranks that print the same, one is read. `ended`: the last line has a line end. Raises ReadError.
    """
    runs = [_Run(Read("tf_cnn_benchmarks", "unknown"))]
    writer = next(rank(line) for line in lines if "images/sec:" in line)
    for at, line in enumerate(lines, 1):
        run = runs[-1]
        if writer is not None and rank(line) not in (None, writer):
            continue
        if run.read.total_images_per_s is not None and ("images/sec:" in line or _FIELD.search(line)):
            run = _Run(Read("tf_cnn_benchmarks", "unknown", at))
            runs.append(run)
        if match := _FIELD.search(line):
            name, value = match[1], match[2].strip()
            run.read.what = value if name == "Model" else run.read.what
            run.read.way = value if name == "Variables" else run.read.way
        elif match := _GLOBAL.search(line):
            run.globally = round(number(match[1], at, "Batch size"))
        elif (match := _EACH.search(line)) and run.read.batch is None:
            run.sizes = at
            run.read.batch = round(number(match[1], at, "Batch size per device"))
        elif match := _TOTAL.search(line):
            if at == len(lines) and not ended and len(match[1].partition(".")[2]) < 2:
                raise truncated(at)  # the total has two decimals
            run.read.total_images_per_s = number(match[1], at, "total images/sec")
        elif "images/sec:" in line:
            _step(run.read, line, at)
    for run in runs:
        _check(run, len(lines))
    return [run.read for run in runs]


def _step(read: Read, line: str, at: int) -> None:
    """Read a step. Raises ReadError."""
    step = _STEP.search(line)
    if step is None:
        raise ReadError(
            at,
            f"'{line.strip()[:60]}' is not a step",
            remedy="'10<tab>images/sec: 123.4 +/- 1.2 (jitter = 3.4)'",
        )
    read.steps = whole(step[1], at, "Step")
    number(step[2], at, "images/sec")
    read.uncertainty = None if step[3] is None else figure(step[3], at, "+/-")
    read.jitter = None if step[4] is None else figure(step[4], at, "jitter")


def _check(run: _Run, last: int) -> None:
    """Require a total, and compute the number of devices. Raises ReadError."""
    if run.read.total_images_per_s is None:
        raise ReadError(
            last,
            "the log ends without 'total images/sec:'",
            remedy="the log of a benchmark that was not interrupted",
        )
    if run.globally and run.read.batch:
        if run.globally % run.read.batch:
            raise ReadError(
                run.sizes,
                f"{run.globally} images do not give {run.read.batch} per device",
                remedy="the log as tf_cnn_benchmarks wrote it",
            )
        run.read.devices = run.globally // run.read.batch
