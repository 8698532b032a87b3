"""Descriptions of how ranks ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from paceline._internal.console import Column, render
from paceline.job.failure import MOST, PIPE

_MOST_ROWS = 20
FIRST = "first failure"


@dataclass(frozen=True)
class Report:
    """The error of a rank that it told its launcher."""

    reason: str | None = None
    """The exception that ended it: `ValueError: …`."""
    remedy: str | None = None
    """Words to type instead."""
    follows: bool = False
    """Whether it ended because another rank failed or was silent."""
    is_whole: bool = False
    """Whether the reason names ranks and hosts itself."""


@dataclass(frozen=True)
class Outcome:
    """A rank or server that has ended; `code` is negative for a signal, as in subprocess."""

    rank: int
    """Servers are numbered after the ranks."""
    host: str | None
    """None if the job runs on this machine only."""
    pid: int
    code: int
    stopped: bool
    """Whether paceline run stopped it."""
    name: str
    """`rank 0`, `server 0`, `switch`."""
    report: Report = Report()
    """The error that it reported, if any."""

    @property
    def failed(self) -> bool:
        """Whether it failed on its own."""
        return self.code != 0 and not self.stopped

    def words(self) -> str:
        """Return how it ended, such as `killed by SIGKILL` or `exited with code 3`."""
        ending = f"killed by {_signal(-self.code)}" if self.code < 0 else f"exited with code {self.code}"
        return f"{ending} when it was asked to end" if self.stopped else ending

    def sentence(self) -> str:
        """Return `rank 2 (host a, pid 1234) was killed by SIGKILL`, or `… exited with code 1: ValueError: …`."""
        was = "was " if self.code < 0 else ""
        why = f": {self.report.reason}" if self.report.reason else ""
        return f"{self.name} (host {self.host or socket.gethostname()}, pid {self.pid}) {was}{self.words()}{why}"

    def cause(self) -> str:
        """Return the sentence, or the report of a rank that failed because of another: it names both."""
        return self.report.reason if self.report.is_whole and self.report.reason else self.sentence()

    def remedy(self) -> str:
        """Return what to type or look at if it has failed."""
        if self.report.remedy:
            return self.report.remedy
        number = -self.code
        if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL):
            return "-x PYTHONFAULTHANDLER=1 (prints where it was)"
        if number == signal.SIGKILL and not self.report.reason:
            return f"dmesg on host {self.host or socket.gethostname()} (out of memory?)"
        return f"the output of {self.name} above, or --output-dir DIR (a file per rank)"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def table(outcomes: Iterable[Outcome], first: Outcome | None = None) -> list[str]:
    """Return a table with one row for all ranks that ended alike, and one for the `first` failure, above them."""
    alike: dict[tuple[str, str, str, str], list[int]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: (outcome is not first, outcome.rank)):
        kind, _, number = outcome.name.partition(" ")
        mark = FIRST if outcome is first else ""
        numbers = alike.setdefault((outcome.host or "", outcome.words(), kind, mark), [])
        numbers.extend([int(number)] if number else [])
    rows = [(_called(kind, some), host, words, mark) for (host, words, kind, mark), some in alike.items()]
    named = ("rank", "host", "outcome", "")
    kept = [index for index in range(4) if any(row[index] for row in rows)]
    columns = [Column(named[index], left=True) for index in kept]
    shown = [tuple(row[index] for index in kept) for row in rows[:_MOST_ROWS]]
    lines = render(columns, [shown])
    return lines + ([f"… and {len(rows) - _MOST_ROWS} rows more"] if len(rows) > _MOST_ROWS else [])


def _called(kind: str, numbers: Sequence[int]) -> str:
    return f"{'' if kind == 'rank' else kind} {runs(numbers)}".strip()


def runs(numbers: Sequence[int]) -> str:
    """Return `0, 2-5` for sorted numbers."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1] = parts[-1][0], number
        else:
            parts.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


class Notes:
    """The agent's ends of the pipes through which ranks report that they join, and why they failed."""

    def __init__(self) -> None:
        """Start without ranks."""
        self._pipes: dict[int, int] = {}
        self._partial: dict[int, bytes] = {}
        self._reports: dict[int, Report] = {}

    @contextmanager
    def pipe_for(self, rank: int, environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], int]]:
        """Make a pipe; yield the rank's environment and the descriptor that it inherits. Raises OSError."""
        mine, its = os.pipe()
        os.set_blocking(mine, False)
        self._pipes[rank], self._partial[rank] = mine, b""
        try:
            yield {**environment, PIPE: f"{its}:{os.fstat(its).st_ino}"}, its
        finally:
            os.close(its)

    def descriptor(self, rank: int) -> int:
        """Return what becomes readable when the rank has reported something."""
        return self._pipes[rank]

    def read(self, rank: int) -> tuple[list[str], bool]:
        """Return that the rank has `begun` to join the job, or that this is `done` or `failed`; and if that is all."""
        joins: list[str] = []
        if rank not in self._pipes:  # Closed by the handler of another event of the same round.
            return joins, False
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipes[rank], MOST):
                *lines, rest = (self._partial[rank] + data).split(b"\n")
                self._partial[rank] = rest[:MOST]
                for line in lines:
                    joins.extend(self._understand(rank, line))
            return joins, True
        return joins, False

    def _understand(self, rank: int, line: bytes) -> Iterator[str]:
        # The script may have written anything.
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            report = json.loads(line)
            if "joining" in report:
                yield str(report["joining"])
            else:
                remedy = report["remedy"]
                self._reports[rank] = Report(
                    str(report["reason"]),
                    None if remedy is None else str(remedy),
                    bool(report["follows"]),
                    bool(report["is_whole"]),
                )

    def report(self, rank: int) -> Report:
        """Return the error of a rank that has ended, and close its pipe."""
        os.close(self._pipes.pop(rank))
        del self._partial[rank]
        return self._reports.pop(rank, Report())
