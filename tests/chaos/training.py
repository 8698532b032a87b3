"""Elastic training whose ranks are killed and stopped at random moments: no step is lost or made twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from typing import Any

from elastic_workers import model
from elastic_workers.launch import start

from chaos.tally import Section

_STEPS = 60
_LIMIT_S = 240.0


class Watched:
    """A job, and what its workers have told so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Read in a thread."""
        self.process = process
        self.lines: list[str] = []
        self.lines: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line)
                if line.startswith("{"):
                    self.lines.append(json.loads(line))
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def worlds(self) -> int:
        """Return how many ranks have begun to train in a world."""
        return sum("world" in result for result in self.lines)


def run(section: Section) -> None:
    """Run until the time is over."""
    number = 0
    while not section.over:
        one(section, number)
        number += 1


def one(section: Section, number: int) -> None:
    """Run one job."""
    source = section.source(number)
    least = source.choice([1, 2, 2])
    faults = source.choice([1, 2, 3])
    what = f"job {number}: --min-np {least}, {faults} faults"
    section.ran(f"jobs with --min-np {least}")
    options = ("-np", "2", "--min-np", str(least), "--timeout", "5", "--coordinator", "negotiate")
    job = Watched(start(*options, steps=_STEPS, pause=0.05))
    process, end = job.process, time.monotonic() + _LIMIT_S
    struck: list[int] = []
    try:
        for _ in range(faults):
            before = job.worlds()
            with job.changed:
                job.changed.wait_for(lambda n=before: job.worlds() >= n + (2 if n == 0 else 0) or _over(job), 120)
            time.sleep(source.uniform(0.0, 4.0))
            living = sorted({result["pid"] for result in job.lines if "world" in result} - set(struck))
            ended = {result["pid"] for result in job.lines if "ends" in result}
            living = [pid for pid in living if pid not in ended]
            if not living or process.poll() is not None or (least == 2 and len(living) < 2):
                break
            how = source.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            section.ran(f"{how.name} of a rank")
            try:
                os.kill(source.choice(living), how)
            except ProcessLookupError:
                continue
            struck.append(living[0])
            with job.changed:  # all are in a world again
                goal = job.worlds() + 2
                job.changed.wait_for(lambda n=goal: job.worlds() >= n or _over(job), 60)
        job.process.wait(max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        section.violated(what, f"does not end within {_LIMIT_S:g} s:\n{''.join(job.lines)[-2000:]}")
        return
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        job.reader.join(10)
    judge(section, what, least, job)


def _over(job: Watched) -> bool:
    return not job.reader.is_alive() or any("ends" in result for result in job.lines)


def judge(section: Section, what: str, least: int, job: Watched) -> None:
    """Check how a job has ended."""
    text = "".join(job.lines)
    ends = [result for result in job.lines if "ends" in result]
    if job.process.returncode != 0:
        # A rank may be struck after it has finished, and all that hold the state may be.
        if "other ranks had finished" in text or "as other ranks finished" in text:
            section.ran("struck after the end")
        elif "all ranks that held the last commit have died" in text and least == 1:
            section.ran("struck when it was alone")
        else:
            section.violated(what, f"exit code {job.process.returncode}:\n{text[-2000:]}")
        return
    if not ends or {(result["step"], result["done"]) for result in ends} != {(_STEPS, _STEPS)}:
        section.violated(what, f"steps were lost or made twice: {ends}\n{text[-1500:]}")
    if len({result["digest"] for result in ends}) > 1:
        section.violated(what, f"ranks end with different weights: {ends}")
    if least == 2 and {result["digest"] for result in ends} != {model.expected(_STEPS, 2)}:
        section.violated(what, f"the weights are not those of a run without faults: {ends}")
