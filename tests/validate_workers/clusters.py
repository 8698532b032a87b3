"""Fake clusters for `paceline validate`: invented results, or ranks on this machine over loopback."""

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

from job_workers.launch import TESTS, clean
from paceline._internal.clock import Lateness
from paceline._internal.load import Load
from paceline_lab.replay.player import Iteration
from paceline_lab.replay.result import Played


class Collected:
    """What ranks print: of all together."""

    text = ""

    def stderr(self, rank):
        return self.text


@dataclass
class Pattern:
    error: float


@dataclass
class Fidelity:
    patterns: tuple


@dataclass
class Invented:
    """An emulator whose ranks take `seconds` for each iteration; of the first runs, some are disturbed."""

    seconds: float = 1.0
    late_s: float = 1e-4
    steal_s: float = 0.0
    disturbed_runs: int = 0
    code: int = 0
    silent: bool = False
    staleness: tuple = ((0, 30), (1, 70))
    """If workers do not wait for each other."""
    clusters: list = field(default_factory=list)
    runs: list = field(default_factory=list)
    realtime: bool = True

    Collected = Collected

    @contextmanager
    def cluster(self, **wanted):
        self.clusters.append(wanted)
        yield self

    def set_bandwidth(self, bandwidth_bps):
        self.clusters[-1]["set"] = bandwidth_bps

    def check(self, *, repeats):
        return Fidelity((Pattern(0.004), Pattern(-0.011)))

    def run(self, command, *, ranks_per_host=1, env=None, output=None, limit_s=0.0, **settings):
        self.runs.append((command, ranks_per_host, settings))
        assert limit_s > 0
        if self.code:
            output.text = "Traceback\nOSError: no route to host\n"
            return self.code
        if self.silent:
            return 0
        option = dict(pairwise(command))
        warmup, iterations = int(option["--warmup"]), int(option["--iterations"])
        late = self.disturbed_runs >= len(self.runs)
        workers = self.clusters[-1]["workers"] * ranks_per_host
        for rank in range(workers):
            played = self._played(rank, workers, warmup, warmup + iterations, late)
            if settings["strategy"] == "async-ps":
                played = replace(played, boundary="own", staleness=self.staleness if rank == 0 else ())
            with open(f"{option['--output']}/replay-rank-{rank}.json", "w") as out:  # noqa: PTH123
                json.dump(played.to_dict(), out)
        return 0

    def _played(self, rank, workers, warmup, count, late):
        step = round(self.seconds * 1e9)
        lateness = Lateness(1, 1e-5, 0.5 if late else self.late_s, 0.5)
        iterations = tuple(
            Iteration(n * step, n * step + step // 2, (n + 1) * step, lateness, Load(1, 0.25, self.steal_s))
            for n in range(count)
        )
        return Played(rank, workers, "host", "clock", "t", "s", "start", iterations, warmup, 2)


class Local:
    """Ranks and servers on this machine, over TCP, by `paceline run`, at whatever bandwidth loopback has."""

    Collected = Collected
    realtime = False

    @contextmanager
    def cluster(self, *, workers, **_):
        self.workers = workers
        yield self

    def set_bandwidth(self, bandwidth_bps):
        pass

    def check(self, *, repeats):
        return Fidelity((Pattern(0.0),))

    def run(self, command, *, ranks_per_host=1, env=None, output=None, limit_s=60.0, **settings):
        words = [sys.executable, "-m", "paceline.cli", "run", "-np", str(self.workers * ranks_per_host)]
        words += ["--transport", "tcp"]
        words += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        environ = {**clean(), **(env or {})}
        ended = subprocess.run(
            [*words, "--", *command], cwd=TESTS, env=environ, capture_output=True, text=True, timeout=90, check=False
        )
        output.text = ended.stderr
        return ended.returncode
