"""Logs of tf_cnn_benchmarks (https://github.com/tensorflow/benchmarks, benchmark_cnn.py).

With Horovod every worker prints everything: its own rate in the lines of steps, and in `total images/sec` the rate of
all workers (its own images times their number, by its own clock). In a log that all of them share, lines and even parts
of lines alternate.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field

from paceline._internal.units import count, digits
from paceline.interop.logs.contents import Read, ReadError, figure, number, truncated, whole
from paceline.interop.logs.paste import rank

_START = r"(?:^|[\s:>\])])"
"""The start of a line, or the end of a prefix."""
_STEP = re.compile(rf"{_START}(\d+)\s+images/sec: (\S+)(?: \+/- (\S+) \(jitter = ([^)]*)\))?(?:\s+[-+.\dnaife]+)*\s*$")
_TOTAL = re.compile(r"total images/sec: (\S+)")
_REMAINDER = re.compile(r"\d*\.\d{1,2}|\d{1,2}")
"""The end of a number whose line another worker has torn."""
_WHOLE_TOTAL = re.compile(r"\d+\.\d\d(?=total images/sec:|-{8}|\d+\t|[A-Z])")
"""A total, which has two decimals, where the next worker's text follows without a line end."""
_GLOBAL, _EACH = re.compile(rf"{_START}Batch size:\s+(\S+) global"), re.compile(r"(\S+) per device\s*$")
_FIELD = re.compile(rf"{_START}(Model|Variables):\s+(\S.*)")
_NEXT_HEADING = re.compile(r"[A-Z][A-Za-z ]*:")
_ALIKE = 1.05
"""Totals of one run's workers are of the same images, and differ by when their clocks started and stopped."""
_WORTH_A_NOTE = 1.01
_SAME = 1.005
"""Where lines are torn, totals that differ more may be made of two."""


@dataclass
class _Run:
    """One run, as far as it has been read."""

    read: Read
    globally: int | None = None
    sizes: int = 0
    """The line of the batch size per device."""
    headers: int = 0
    """How often the model has been printed: once by each worker."""
    own: int = 0
    """How many totals the writer has printed, or all workers without prefixes."""
    totals: list[float] = field(default_factory=list)
    rough: list[float] = field(default_factory=list)
    """Totals without two decimals: of another program, or cut by another worker's text."""
    broken: list[ReadError] = field(default_factory=list)
    """Lines that cannot be read, as workers wrote into each other's lines."""
    torn: int | None = None
    """A line with the rest of a number, if workers wrote into each other's lines."""

    @property
    def heading(self) -> tuple[object, ...]:
        """Model, synchronization and batch sizes, which the workers of a run have in common."""
        return self.read.what, self.read.way, self.read.batch, self.globally

    @property
    def several(self) -> bool:
        """Whether several workers have printed."""
        return max(self.headers, len(self.totals) + len(self.rough)) > 1

    def begins_another(self, line: str) -> bool:
        """Return whether a line belongs to the next run: after a total the model, after all of them the first steps.

        Workers wait for each other in each step, so all have printed the model before one prints its total.
        """
        if self.own and (match := _FIELD.search(line)) and match[1] == "Model":
            return True
        if self.own < max(1, self.headers):
            return False
        if "images/sec:" not in line:
            return _FIELD.search(line) is not None
        step = _STEP.search(line)
        return self.headers < 2 if step is None else int(step[1][:18]) < (self.read.steps or 0)


def recognized(lines: list[str]) -> bool:
    """Recognize it by its lines of rates."""
    return any("images/sec:" in line for line in lines)


def read(lines: list[str], *, ended: bool) -> list[Read]:
    """Read each run's total, and the last step's uncertainty and jitter.

    Of workers that print the same, the first total is read, as by `grep -m 1`, and the steps of one where a prefix
    names them. `ended`: the last line has a line end. Raises ReadError.
    """
    runs = [_Run(Read("tf_cnn_benchmarks", "unknown"))]
    writer = next(rank(line) for line in lines if "images/sec:" in line)
    for at, line in enumerate(lines, 1):
        totals, is_cut = "total images/sec:" in line, at == len(lines) and not ended
        if writer is not None and rank(line) not in (None, writer):
            if totals:
                _totals(runs[-1], line, at, is_cut=is_cut)
            continue
        if not totals and runs[-1].begins_another(line):
            runs.append(_Run(Read("tf_cnn_benchmarks", "unknown", at)))
        run = runs[-1]
        try:
            if totals:
                run.own += _totals(run, line, at, is_cut=is_cut)
            elif "images/sec:" in line:
                _step(run, line, at)
            elif _REMAINDER.fullmatch(line.strip()):
                run.torn = at
            else:
                _heading(run, line, at)
        except ReadError as error:
            run.broken.append(error)
    runs = _by_run(runs)
    for run in runs:
        _check(run, len(lines))
    return [run.read for run in runs]


def _totals(run: _Run, line: str, at: int, *, is_cut: bool) -> int:
    """Read the totals of a line, several where workers wrote into the same. Raises ReadError."""
    matches = [*_TOTAL.finditer(line)]
    for match in matches:
        glued = _WHOLE_TOTAL.match(match[1])
        text = glued[0] if glued else match[1]
        if is_cut and match.end() == len(line) and len(text.partition(".")[2]) < 2:
            raise truncated(at)  # the total has two decimals
        value = number(text, at, "total images/sec")
        (run.totals if len(text.partition(".")[2]) == 2 else run.rough).append(value)
    return len(matches)


def _heading(run: _Run, line: str, at: int) -> None:
    """Read a line of the heading, if it is one; the first worker's counts. Raises ReadError."""
    if match := _FIELD.search(line):
        value = _NEXT_HEADING.split(match[2])[0].strip()
        run.headers += len(re.findall("Model:", line))
        if match[1] == "Model" and run.read.what == "unknown":
            run.read.what = value
        elif match[1] == "Variables" and run.read.way is None:
            run.read.way = value
    elif (match := _GLOBAL.search(line)) and run.globally is None:
        run.globally = round(number(match[1], at, "Batch size"))
    elif (match := _EACH.search(line)) and run.read.batch is None:
        run.sizes = at
        run.read.batch = round(number(match[1], at, "Batch size per device"))


def _step(run: _Run, line: str, at: int) -> None:
    """Read a step. Raises ReadError."""
    step = _STEP.search(line)
    if step is None:
        raise ReadError(
            at,
            f"'{line.strip()[:60]}' is not a step",
            remedy="'10<tab>images/sec: 123.4 +/- 1.2 (jitter = 3.4)'",
        )
    number(step[2], at, "images/sec")
    reached = whole(step[1], at, "Step")
    uncertainty, jitter = (
        None if text is None else figure(text, at, what) for text, what in ((step[3], "+/-"), (step[4], "jitter"))
    )
    if reached > (run.read.steps or 0) or run.headers < 2:
        run.read.steps, run.read.uncertainty, run.read.jitter = reached, uncertainty, jitter


def _by_run(runs: list[_Run]) -> list[_Run]:
    """Return runs, of which several in a row may be those of one run's workers.

    A launcher that collects its workers' output writes a log for each worker of Horovod, all with the same heading.
    """
    made: list[_Run] = []
    while runs:
        first, group, left = runs[0], [], _devices(runs[0])
        for run in runs:
            if left <= 0 or run.heading != first.heading or first.read.way != "horovod":
                break
            group.append(run)
            left -= max(1, run.headers)
        totals = [total for run in group for total in run.totals]
        if left or len(group) < 2 or not totals or max(totals) > _ALIKE * statistics.median(totals):
            group = [first]
        else:
            first.totals, first.headers = totals, sum(max(1, run.headers) for run in group)
            first.rough = [total for run in group for total in run.rough]
            first.torn = next((run.torn for run in group if run.torn), None)
            first.broken = [error for run in group for error in run.broken]
        made.append(first)
        runs = runs[len(group) :]
    return made


def _devices(run: _Run) -> int:
    return run.globally // run.read.batch if run.globally and run.read.batch else 0


def _check(run: _Run, last: int) -> None:
    """Require a total, and compute the number of devices. Raises ReadError."""
    if run.broken and not run.several:
        raise run.broken[0]
    totals = run.totals or run.rough
    if not totals:
        raise ReadError(
            last,
            "the log ends without 'total images/sec:'",
            remedy="the log of a benchmark that was not interrupted",
        )
    middle = statistics.median(totals)
    near = [one for one in totals if middle / _ALIKE <= one <= middle * _ALIKE]
    if run.torn and (not run.totals or not near or max(near) > _SAME * min(near)):
        raise ReadError(
            run.torn,
            "workers wrote into each other's lines, and what is left of their totals differs",
            remedy="a log of one worker, or the launcher's output with a prefix for each line",
        )
    alike = near or totals
    run.read.total_images_per_s, run.read.totals_images_per_s = alike[0], alike
    if run.globally and run.read.batch:
        if run.globally % run.read.batch:
            raise ReadError(
                run.sizes,
                f"{run.globally} images do not give {run.read.batch} per device",
                remedy="the log as tf_cnn_benchmarks wrote it",
            )
        run.read.devices = _devices(run)
    run.read.notes += _notes(run, alike)


def _notes(run: _Run, totals: list[float]) -> list[str]:
    notes, missing = [], run.headers - len(totals)
    if max(totals) > _WORTH_A_NOTE * min(totals):
        low, high = digits(min(totals)), digits(max(totals))
        notes.append(f"{count(len(totals), 'worker')} printed totals of {low} to {high} images/s: the first counts")
    if missing > 0:
        notes.append(f"{count(missing, 'worker')} of {run.headers} printed no total that can be read")
    if run.broken:
        notes.append(f"{count(len(run.broken), 'line')} not read, as workers wrote into each other's lines")
    return notes
