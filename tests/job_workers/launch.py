"""Starts the ranks of a job as processes, and ensures that none of them remains."""

import contextlib
import json
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tiers
from cli import TESTS, clean
from paceline._internal.ports import free_ports

LIMIT_S = 100


@dataclass
class Outcome:
    """A rank's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def said(self):
        """The JSON documents that it printed, one per line."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


def free_port():
    [port] = free_ports("127.0.0.1", 1)
    return port


class Ranks:
    """Processes `python -m job_workers.<module> <words>`, one per rank. Kills them when the block ends."""

    def __init__(self, folder, size, module, *words, env=None, env_of=None, command=(), start=None):
        """`env_of` gives a rank variables of its own; `start` says which ranks are started, if not all.

        `command` goes before Python's; a function gives each rank its own.
        """
        tiers.starts(size)
        self.folder, self.size = Path(folder), size
        self.mark = secrets.token_hex(8)
        common = {
            **clean(),
            "PACELINE_RENDEZVOUS": f"127.0.0.1:{free_port()}",
            "PACELINE_SECRET": secrets.token_hex(16),
            "PACELINE_STRATEGY": "ring",
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "JOB_TEST_MARK": self.mark,
            **(env or {}),
        }
        self.processes = {}
        for rank in range(size) if start is None else start:
            environ = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **((env_of or {}).get(rank, {}))}
            with self._file(rank, "out").open("w") as out, self._file(rank, "err").open("w") as err:
                before = command(rank) if callable(command) else command
                words_of = [*before, sys.executable, "-m", f"job_workers.{module}", *map(str, words)]
                streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
                self.processes[rank] = subprocess.Popen(words_of, cwd=TESTS, env=environ, **streams)

    def _file(self, rank, kind):
        return self.folder / f"{self.mark}-{rank}.{kind}"

    def pid(self, rank):
        return self.processes[rank].pid

    def err(self, rank):
        return self._file(rank, "err").read_text()

    def wait_for(self, rank, text, within=30, kind="out"):
        """Wait until a rank has printed something."""
        end = time.monotonic() + within
        while text not in self._file(rank, kind).read_text():
            assert time.monotonic() < end, f"rank {rank} did not print {text!r}: {self.outcomes(0)}"
            time.sleep(0.01)

    def outcomes(self, limit_s=LIMIT_S):
        """Every rank's exit code and output. A rank that does not end in time is killed."""
        end = time.monotonic() + limit_s
        values = {}
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.01, end - time.monotonic()))
        for rank, process in self.processes.items():
            late = process.poll() is None
            if late:
                process.kill()
                process.wait()
            note = f"\nkilled: did not end within {limit_s} s" if late else ""
            values[rank] = Outcome(process.returncode, self._file(rank, "out").read_text(), self.err(rank) + note)
        return values

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        if kind is None:
            assert not left_over(self.mark), "processes stayed behind"


def left_over(mark, within=2.0):
    """Processes that were started with this mark and still exist."""
    end = time.monotonic() + within
    while True:
        values = [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark.encode())]
        if not values or time.monotonic() >= end:
            return values
        time.sleep(0.02)


def _has(path, mark):
    try:
        return mark in path.read_bytes()
    except OSError:
        return False


def run(folder, size, module, *words, limit_s=LIMIT_S, **how):
    """The last JSON document of each rank, in order; all must end with exit code 0."""
    with Ranks(folder, size, module, *words, **how) as ranks:
        outcomes = ranks.outcomes(limit_s)
    bad = {rank: outcome for rank, outcome in outcomes.items() if outcome.code != 0}
    assert not bad, "\n".join(f"rank {r} ended with {o.code}:\n{o.out[-2000:]}{o.err[-6000:]}" for r, o in bad.items())
    return [outcomes[rank].said[-1] for rank in sorted(outcomes)]


def end(process, how=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(how)


def errors_where_rank_1_is_stopped(folder, env):
    """The first error of ranks 0 and 2 of three that train, after rank 1 has stopped itself."""
    with Ranks(folder, 3, "failures", "die_while_training", "SIGSTOP", env=env) as ranks:
        for rank in (0, 2):
            ranks.wait_for(rank, '"error"')
        ranks.processes[1].send_signal(signal.SIGKILL)
        outcomes = ranks.outcomes(40)
    return [next(said for said in outcomes[rank].said if "error" in said)["error"] for rank in (0, 2)]


def outcomes_where_rank_1_forks(folder, env=None, limit_s=40):
    """The outcomes of three ranks, once the child that sleeps on after rank 1's death has ended, too."""
    with Ranks(folder, 3, "failures", "fork", env=env) as ranks:
        for rank in (0, 2):
            ranks.wait_for(rank, '"error"')
        outcomes = ranks.outcomes(limit_s)
        end = time.monotonic() + 10
        while left_over(ranks.mark, 0):
            assert time.monotonic() < end
            time.sleep(0.1)
    return outcomes
