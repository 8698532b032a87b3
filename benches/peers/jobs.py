"""Start a job, wait for it, and kill anything left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from systems import System, launches


class JobError(Exception):
    """A job failed or took too long; the message ends with the tail of its output."""


def run(system: System, ranks: int, arguments: list[str], timeout_s: float) -> list[Any]:
    """What each rank wrote as JSON, in rank order. Every job has its own processes and leaves none behind."""
    return _run(system.name, ranks, lambda folder: launches(system, ranks, [*arguments, "--out", folder]), timeout_s)


def run_command(name: str, ranks: int, command: list[str], timeout_s: float, variables: Mapping[str, str]) -> list[Any]:
    """Likewise, with a given launcher."""
    shared = {**os.environ, **variables}
    return _run(name, ranks, lambda folder: [([*command, "--out", folder], shared)], timeout_s)


def _run(name: str, ranks: int, launch: Callable[[str], list[Any]], timeout_s: float) -> list[Any]:
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
        place = Path(folder)
        output = place / "output"
        with output.open("wb") as sink:
            processes = [
                subprocess.Popen(
                    command, env=variables, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
                )
                for command, variables in launch(folder)
            ]
            try:
                problem = _wait(processes, timeout_s)
            finally:
                _end(processes)
        if problem:
            raise JobError(f"{name}, {ranks} ranks: {problem}\n{output.read_text(errors='replace')[-2000:]}")
        return [json.loads((place / f"{rank}.json").read_text()) for rank in range(ranks)]


def _wait(processes: list[subprocess.Popen[bytes]], timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while True:
        codes = [process.poll() for process in processes]
        if any(codes):
            return f"exit status {next(code for code in codes if code)}"
        if None not in codes:
            return ""
        if time.monotonic() > deadline:
            return f"no end after {timeout_s:.0f} s"
        time.sleep(0.02)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """A launcher gets two seconds to end its ranks; then the whole session goes."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
