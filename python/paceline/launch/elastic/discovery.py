"""Runs a discovery script, which prints the current hosts, one per line: `node1:4`, or `node1` for one slot."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from paceline._internal.operating_system import LIVE, OperatingSystem
from paceline.errors import InvalidArgumentError, JobError
from paceline.launch.hosts import parse_hosts

EVERY_S = 1.0
"""Horovod's interval."""
_LONGEST_S = 30.0
_MOST = 1 << 16
_FAILURES = 5
_GONE = 3
"""Answers in a row without a slot after which it is gone: a script may fail to see a host for a moment."""


class Discovery:
    """Runs the script periodically in the background."""

    def __init__(self, command: str, *, every_s: float = EVERY_S, system: OperatingSystem = LIVE) -> None:
        """Take a command in shell syntax, which runs without a shell. Raises InvalidArgumentError if it is empty."""
        try:
            self.words: Sequence[str] = shlex.split(command)
        except ValueError as error:
            raise InvalidArgumentError(f"--host-discovery-script '{command[:80]}': {error}") from None
        if not self.words:
            raise InvalidArgumentError(
                "--host-discovery-script: is empty", remedy="a command that prints lines such as node1:4"
            )
        self.every_s = every_s
        self._system = system
        self._slots: dict[str, int] = {}
        """Slots of each host, without those that are gone."""
        self._missing: dict[str, int] = {}
        """Answers in a row that had fewer slots of a host."""
        self._next = 0.0
        self._running: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close; a pipe could fill up
        self._give_up_at = 0.0
        self._failures = 0
        self._reported: set[str] = set()

    def first_time(self, name: str) -> bool:
        """Return whether this has not been reported to the user yet."""
        new = name not in self._reported
        self._reported.add(name)
        return new

    def patience(self, now: float) -> float:
        """Return the seconds until `look` is due."""
        return 0.05 if self._running is not None else max(0.0, self._next - now)

    def look(self, now: float) -> dict[str, int] | None:
        """Return the slots of each host if a run has ended, else None. A failed run is reported and changes nothing.

        Raises InvalidArgumentError if the script cannot be started, JobError if it has failed 5 times in a row.
        """
        if self._running is None:
            if now >= self._next:
                self._begin(now)
            return None
        code = self._running.poll()
        if code is None:
            if now < self._give_up_at:
                return None
            code = self._system.kill(self._running)
        self._running = None
        self._output.seek(0)
        data = self._output.read(_MOST + 1)
        text = data.decode(errors="replace")
        try:
            if len(data) > _MOST:  # the last line may be incomplete
                raise InvalidArgumentError(
                    f"printed more than {_MOST >> 10} KiB", remedy="a line such as node1:4 for each host"
                )
            if code:
                raise InvalidArgumentError(f"ended with exit code {code}")
            hosts = parse_hosts(",".join(text.split()), "what it printed") if text.split() else []
            latest = {host.name: host.slots for host in hosts}
            self._report_flapping(latest)
        except InvalidArgumentError as error:
            self._failures += 1
            problem = f"--host-discovery-script {self.words[0]}: {error}"
            if self._failures >= _FAILURES:
                raise JobError(
                    f"{problem}; {_FAILURES} times in a row",
                    remedy=error.remedy or f"{shlex.join(self.words)} (by hand)",
                ) from None
            if self.first_time(str(error)):
                click.echo(f"paceline: note: {problem} (keeping the current hosts)", err=True)
            return None
        self._failures = 0
        self._slots = self._steady(latest)
        return dict(self._slots)

    def _steady(self, latest: Mapping[str, int]) -> dict[str, int]:
        """Return the slots that are in this answer, or were in one of the last."""
        steady: dict[str, int] = {}
        for name in sorted({*self._slots, *latest}, key=[*latest, *self._slots].index):
            before, now = self._slots.get(name, 0), latest.get(name, 0)
            self._missing[name] = self._missing.get(name, 0) + 1 if now < before else 0
            slots = before if 0 < self._missing[name] < _GONE else now
            if slots:
                steady[name] = slots
        return steady

    def _report_flapping(self, latest: Mapping[str, int]) -> None:
        back = [
            name
            for name, missing in self._missing.items()
            if 0 < missing < _GONE and latest.get(name, 0) >= self._slots.get(name, 0)
        ]
        if back and self.first_time("a host that is back"):
            click.echo(
                f"paceline: note: --host-discovery-script {self.words[0]}: {back[0]} was missing from an answer and is "
                f"back; slots are gone after {_GONE} answers without them",
                err=True,
            )

    def _begin(self, now: float) -> None:
        self._next, self._give_up_at = now + self.every_s, now + _LONGEST_S
        self._output.seek(0)
        self._output.truncate()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_SECRET")}
        try:
            self._running = self._system.popen(self.words, self._output, environment)
        except OSError as error:
            words = Path(self.words[0])
            raise InvalidArgumentError(f"--host-discovery-script {words}: {error.strerror}") from None

    def close(self) -> None:
        """Stop a run that has not ended."""
        if self._running is not None:
            self._system.kill(self._running)
        self._output.close()
