"""Ranks under a real mpirun, Open MPI's or MPICH's, from PyPI wheels; none of them remains."""

import json
import os
import secrets
import signal
import subprocess
import sys

import click
import pytest
from job_workers.launch import TESTS, clean, left_over
from paceline.errors import PacelineError
from paceline_lab.bench import environments

LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi_abi.so.1"}
# So that a rank's end does not end the others before they have reported.
RECOVERS = {"openmpi": ["--enable-recovery"], "mpich": ["-disable-auto-cleanup"]}


def installed(name):
    """The folder of the environment; skips the test if it cannot be created."""
    try:
        return environments.install(name, lambda _: None)
    except (PacelineError, click.ClickException) as reason:
        pytest.skip(str(reason))


class Mpirun:
    """One of the launchers, with its library."""

    def __init__(self, name):
        self.name, self.place = name, installed(name)
        self.library = self.place / "lib" / LIBRARIES[name]

    def start(self, ranks, *command, env=None, options=()):
        """The launcher's process. Ends with the test at the latest: its caller waits with a limit."""
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
        many = ["--oversubscribe", "--bind-to", "none"] if self.name == "openmpi" else []
        self.mark = secrets.token_hex(8)
        return subprocess.Popen(
            [self.place / "bin" / "mpirun", "-n", str(ranks), *many, *options, *command],
            env={**clean(), **root, "OMP_NUM_THREADS": "1", "JOB_TEST_MARK": self.mark, **(env or {})},
            cwd=TESTS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, ranks, *command, env=None, options=(), limit_s=120):
        """Its exit code, output and errors. Whatever remains after the limit is killed."""
        process = self.start(ranks, *command, env=env, options=options)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.end()
            out, err = process.communicate(timeout=10)
            pytest.fail(f"did not end within {limit_s} s:\n{out[-3000:]}{err[-3000:]}")
        finally:
            self.end()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def end(self):
        """Kills started processes that still exist, by number."""
        for number in left_over(self.mark, within=0.0):
            try:
                os.kill(int(number), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def worker(self, ranks, what, *words, module="mpi", **how):
        """A worker of `job_workers`."""
        command = [sys.executable, "-m", f"job_workers.{module}", what, *map(str, words)]
        return self.run(ranks, *command, **how)


def said(result):
    """The JSON documents that ranks printed."""
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
