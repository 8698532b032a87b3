"""Watches the input pipeline of a rank while a timeline is recorded: when it is at work, by the system's own accounts.

A pipeline works beside the script: processes that the rank has started (a DataLoader's workers), and torch's thread
that pins memory. Nothing in them is changed. Their time on a core is read every two milliseconds. Threads of tf.data
have the process's name, as those that compute, so nothing tells them apart.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from paceline._core import Engine

CATEGORY = "pipeline"
_EVERY_S = 0.002
_LOOK_S = 0.2
"""How often processes and threads are looked for: workers start with each epoch."""
_BUSY = 0.5
"""Share of an interval for which one of its threads must have run: waiting for a queue wakes them for microseconds."""
_THREAD = "pt_data_pin"
"""Name of the thread within the rank that pins memory."""
_MOST = 256
"""Threads that are watched at most."""


class InputWatch:
    """Marks the times at which a rank's input pipeline is at work, until it is removed."""

    def __init__(self, engine: Engine) -> None:
        """Begin to watch. A system without these accounts has no marks."""
        self._engine = engine
        self._files: dict[str, int] = {}
        """Open accounts, by path."""
        self._ran: dict[str, int] = {}
        """Nanoseconds on a core, as last read."""
        self._busy: tuple[int, int] | None = None
        """Beginning and end so far of the time at work."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if Path("/proc/self/schedstat").exists():
            now = time.monotonic_ns()
            # It says that the pipeline was watched, even if it never works.
            engine.mark(CATEGORY, "watched", now, now)
            self._thread = threading.Thread(target=self._watch, name="paceline-input", daemon=True)
            self._thread.start()

    def remove(self) -> None:
        """Watch no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._flush()
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _watch(self) -> None:
        looked, before = 0.0, time.monotonic_ns()
        while not self._over.wait(_EVERY_S):
            now = time.monotonic_ns()
            if now * 1e-9 - looked > _LOOK_S:
                self._look()
                looked = now * 1e-9
            if self._ran_most() >= _BUSY * (now - before):
                self._busy = (before if self._busy is None else self._busy[0], now)
            else:
                self._flush()
            before = now

    def _flush(self) -> None:
        if self._busy is not None:
            self._engine.mark(CATEGORY, "input pipeline", *self._busy)
            self._busy = None

    def _ran_most(self) -> int:
        """Return for how long the busiest thread has run since the last call, in nanoseconds."""
        most = 0
        for path, file in list(self._files.items()):
            try:
                ran = int(os.pread(file, 64, 0).split(b" ", 1)[0])
            except (OSError, ValueError):  # It has ended.
                os.close(self._files.pop(path))
                self._ran.pop(path, None)
                continue
            most = max(most, ran - self._ran.get(path, ran))
            self._ran[path] = ran
        return most

    def _look(self) -> None:
        for path in _accounts()[: _MOST - len(self._files)]:
            if path not in self._files:
                with contextlib.suppress(OSError):
                    self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _accounts() -> list[str]:
    """Return the accounts of the pipeline's threads: of processes that this one has started, and of its own."""
    accounts = []
    for thread in _listed("/proc/self/task"):
        folder = f"/proc/self/task/{thread}"
        with contextlib.suppress(OSError):
            if Path(f"{folder}/comm").read_text().startswith(_THREAD):
                accounts.append(f"{folder}/schedstat")
            for child in Path(f"{folder}/children").read_text().split():
                accounts += [f"/proc/{child}/task/{one}/schedstat" for one in _listed(f"/proc/{child}/task")]
    return accounts


def _listed(folder: str) -> list[str]:
    try:
        return [path.name for path in Path(folder).iterdir()]
    except OSError:
        return []
