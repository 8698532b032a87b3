"""The real run of a cell on a cluster, repeated while the machine disturbs it."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import click
from paceline._internal.system import cores
from paceline.errors import InvalidArgumentError, PacelineError

from paceline_lab.replay.result import WINDOW, Measured, Played, measured
from paceline_lab.validate.cells import UNBOUNDED, Cell

WARMUP = 2
WARMUP_ALONE, WARMUP_BOUND = 120, 10
"""Of workers that do not wait for each other, until their order has settled (docs/results/validation.md); and of those
with a bound of 0, which begin each iteration together."""
MOST_RUNS = 3
LATE_SHARE, LEAST_LATE_S = 0.02, 0.002
"""An iteration is disturbed if the 99th percentile of a rank's late wake-ups exceeds both these limits."""
STEAL_SHARE = 0.02
"""An iteration is also disturbed if the machine's host gave more than this share of the cores' time to others."""
_START_S, _PATIENCE = 60.0, 10.0
_SIGNALS = 128
_GROUP = "239.77.0.0:47700"
"""For multicasts: an emulated network has one job at a time."""


class Output(Protocol):
    """Collects what ranks print."""

    def stderr(self, rank: int) -> str:
        """Return what one rank printed to stderr."""


class Cluster(Protocol):
    """The part of `paceline_lab.emulate.cluster` that is used here."""

    realtime: bool

    def run(
        self,
        command: Sequence[str],
        *,
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        output: Any = None,  # noqa: ANN401 - an Output of the launcher
        limit_s: float = ...,
        **settings: Any,  # noqa: ANN401
    ) -> int:
        """Run ranks of a command on all workers; return the exit code."""

    def set_bandwidth(self, bandwidth_bps: float) -> None:
        """Set the rate of every NIC."""

    def check(self, *, repeats: int = ...) -> Any:  # noqa: ANN401
        """Measure how well the network keeps its rate."""


class Emulator(Protocol):
    """The module `paceline_lab.emulate`, or a stand-in."""

    @property
    def cluster(self) -> Callable[..., AbstractContextManager[Cluster]]:
        """Bring up a cluster: workers, servers, switch, bandwidth_bps, realtime."""

    @property
    def Collected(self) -> Callable[[], Output]:
        """Make an Output."""


class CellFailedError(PacelineError):
    """A run failed; the message says why."""


class InterruptedRunError(click.ClickException):
    """The user ended the run: no other cell is started."""

    def __init__(self, code: int) -> None:
        """`code`: the launcher's, 128 plus the number of a signal."""
        super().__init__(f"ended by {signal.Signals(code - _SIGNALS).name}")
        self.exit_code = code  # type: ignore[misc]


@dataclass
class Observed:
    """Measurements of a cell."""

    good: list[Measured] = field(default_factory=list)
    disturbed: list[Measured] = field(default_factory=list)
    runs: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    """Gradients by staleness, in all runs, if workers do not wait for each other."""

    @property
    def used(self) -> list[Measured]:
        """Iterations that count: those not disturbed, or all if there are none."""
        return self.good or self.disturbed

    @property
    def seconds(self) -> list[float]:
        """Durations of the iterations that count, sorted."""
        return sorted(one.seconds for one in self.used)

    @property
    def median_s(self) -> float:
        """Median of the iterations that count."""
        return statistics.median(self.seconds)

    def add(self, played: Sequence[Played], cores: int) -> None:
        """Add one run."""
        iterations = measured(played)
        self.runs += 1
        for rank in played:
            self.staleness.update(dict(rank.staleness))
        for one in iterations:
            (self.disturbed if disturbance(one, cores) else self.good).append(one)


def disturbance(iteration: Measured, cores: int) -> str | None:
    """Return the disturbances of an iteration that exceed the limits."""
    if iteration.late_s > max(LEAST_LATE_S, LATE_SHARE * iteration.seconds):
        return "late wake-ups"
    if iteration.steal_s > STEAL_SHARE * cores * iteration.seconds:
        return "steal"
    return None


@dataclass(frozen=True)
class CellRun:
    """One run: a cell, and the expected duration of its iterations."""

    cell: Cell
    expected_s: float
    iterations: int
    """Of workers that do not wait for each other: windows."""
    warmup: int = WARMUP
    timeline: Path | None = None

    @property
    def played(self) -> tuple[int, int]:
        """Iterations to warm up, and those that are measured."""
        if self.cell.staleness is None or self.timeline is not None:
            return self.warmup, self.iterations
        warmup = WARMUP_BOUND if self.cell.staleness == 0 else WARMUP_ALONE
        return max(self.warmup, warmup), WINDOW * self.iterations


def observe(cluster: Cluster, emulator: Emulator, run: CellRun) -> Observed:
    """Measure at least this many undisturbed iterations, if MOST_RUNS runs suffice. Raises CellFailedError."""
    return until_undisturbed(lambda count: play(cluster, emulator, replace(run, iterations=count)), run.iterations)


def until_undisturbed(play_so_many: Callable[[int], Sequence[Played]], iterations: int) -> Observed:
    """Run the missing number of iterations, at most MOST_RUNS times."""
    observed, available = Observed(), cores()
    while len(observed.good) < iterations and observed.runs < MOST_RUNS:
        observed.add(play_so_many(iterations - len(observed.good)), available)
    return observed


def play(cluster: Cluster, emulator: Emulator, run: CellRun) -> list[Played]:
    """Return the reports of all ranks of one run. Raises CellFailedError."""
    cell = run.cell
    with tempfile.TemporaryDirectory(prefix="paceline-validate-") as name:
        folder, output = Path(name), emulator.Collected()
        settings: dict[str, Any] = {"strategy": cell.strategy.name, "timeline": run.timeline}
        if cell.servers:
            settings["servers"] = cell.servers
        if cell.needs_switch:
            settings["switch"] = True
        if cell.staleness not in (None, UNBOUNDED):
            settings["staleness"] = cell.staleness
        if "multicast" in cell.strategy.knobs:
            settings["multicast"] = _GROUP
        try:
            code = cluster.run(
                command(run, folder),
                ranks_per_host=cell.ranks_per_host,
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                output=output,
                limit_s=_START_S + _PATIENCE * run.expected_s * sum(run.played),
                **{key: value for key, value in settings.items() if value is not None},
            )
        except InvalidArgumentError as error:
            raise CellFailedError(str(error)) from None
        except click.ClickException as error:
            raise CellFailedError(error.format_message()) from None
        if code > _SIGNALS:
            raise InterruptedRunError(code)
        if code:
            raise CellFailedError(f"exit code {code}: {_last_words(output, cell.workers)}")
        return read(folder, cell.workers)


def command(run: CellRun, folder: Path) -> list[str]:
    """Return the command of every rank."""
    cell = run.cell
    words = [sys.executable, "-m", "paceline_lab.replay", cell.trace]
    words += ["--scale", f"{cell.scale:g}", "--shrink", f"{cell.shrink:g}", "--output", str(folder)]
    warmup, iterations = run.played
    words += ["--iterations", str(iterations), "--warmup", str(warmup)]
    words += ["--sharding", cell.planned_sharding] if cell.planned_sharding is not None else []
    words += ["--compression", cell.compression] if cell.compression is not None else []
    return words + (["--bucket-size", cell.bucket_size] if cell.bucket_size is not None else [])


def read(folder: Path, workers: int) -> list[Played]:
    """Read the results of all ranks. Raises CellFailedError naming a rank without one."""
    rows = []
    for rank in range(workers):
        path = folder / f"replay-rank-{rank}.json"
        try:
            rows.append(Played.from_dict(json.loads(path.read_text())))
        except (OSError, ValueError) as error:
            raise CellFailedError(f"rank {rank} left no result: {error}") from None
    return rows


def _last_words(output: Output, workers: int) -> str:
    for rank in range(workers):
        lines = [line for line in output.stderr(rank).splitlines() if line.strip()]
        if lines:
            return f"rank {rank}: {lines[-1][:300]}"
    return "no rank printed a reason"
