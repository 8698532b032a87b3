"""Starts, watches and ends an engine's processes on this host, together with those on other hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError

from paceline_lab.bench.host_group import HostGroup
from paceline_lab.bench.ranks.start import PARENT
from paceline_lab.bench.ranks.stopwatch import EVENTS

_LOOK_S = 0.2
_GRACE_S = 3.0
_LAST_WORDS = 400
_OVERHEARD = ("Traceback", "warn", "WARNING", "I0000", "W0000", "E0000", "[W", "To enable the following")
ENDED = "workers-ended"
"""The file that tells servers that the workers have finished."""


class EngineFailedError(PacelineError):
    """A failed run; the message names the rank and the reason."""


@dataclass(frozen=True)
class Process:
    """A process to start."""

    name: str
    """rank 0, server 1"""
    words: Sequence[str]
    environment: Mapping[str, str]
    serves: bool = False
    """Whether it is stopped when the others have finished."""


@dataclass
class _Running:
    process: Process
    popen: subprocess.Popen[bytes]
    log: Path

    def complaint(self) -> str | None:
        """Return why it ended early or failed; None if it did not."""
        code = self.popen.poll()
        if code is None or (code == 0 and not self.process.serves):
            return None
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"{self.process.name} (pid {self.popen.pid}) {ending}{last_words(self.log)}"


def run(  # noqa: PLR0917
    group: HostGroup,
    processes: Sequence[Process],
    folder: Path,
    limit_s: float,
    heard: Callable[[dict[str, Any]], None] = lambda _: None,
    wrong: str | None = None,
) -> None:
    """Run until all processes on all hosts have ended. `heard` gets rank 0's events. Raises EngineFailedError.

    `wrong`: an already known problem on this host.

    Process groups that still run afterwards, or on an interrupt, get SIGTERM and then SIGKILL.
    """
    until, events = time.monotonic() + limit_s, _Events(folder / EVENTS)
    running: list[_Running] = []
    try:
        for process in processes:
            try:
                running.append(_start(process, folder))
            except OSError as error:
                wrong = f"{process.name} cannot be started: {process.words[0]}: {error.strerror}"
                break
        while True:
            for event in events.new():
                heard(event)
            # The order matters: a process that fails in between still counts as running, and is reported at the next
            # check.
            left = [one.process.name for one in running if not one.process.serves and one.popen.poll() is None]
            wrong = wrong or next((text for one in running if (text := one.complaint())), None)
            if wrong is None and left and time.monotonic() > until:
                wrong = f"{', '.join(left)} did not finish within {limit_s:.0f} s{last_words(running[0].log)}"
            any_wrong, all_done = group.agree(failed=wrong is not None, done=not left)
            if any_wrong:
                raise EngineFailedError(next(text for text in group.gather(wrong) if text))
            if all_done:
                break
            time.sleep(_LOOK_S)
        for event in events.new():
            heard(event)
        (folder / ENDED).touch()
    finally:
        end(running)


def _start(process: Process, folder: Path) -> _Running:
    log = folder / f"{process.name.replace(' ', '-')}.log"
    with log.open("wb") as output:
        popen = subprocess.Popen(
            list(process.words),
            env={**process.environment, PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Running(process, popen, log)


def end(running: Sequence[_Running]) -> None:
    """End all processes."""
    try:
        _signal(running, signal.SIGTERM)
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until and any(one.popen.poll() is None for one in running):
            time.sleep(0.02)
    finally:  # also at a second Ctrl-C
        _signal(running, signal.SIGKILL)
        for one in running:
            one.popen.wait()


def _signal(running: Sequence[_Running], number: signal.Signals) -> None:
    for one in running:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.popen.pid, number)


class _Events:
    """Reads new lines of a file that may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def new(self) -> list[dict[str, Any]]:
        """Return the complete lines written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def last_words(log: Path) -> str:
    """Return the last informative line of a process's output."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    worded = [line.strip() for line in lines if any(map(str.isalpha, line))]
    telling = [line for line in worded if not any(word in line for word in _OVERHEARD)]
    return f": {telling[-1][:_LAST_WORDS]}" if telling else ""
