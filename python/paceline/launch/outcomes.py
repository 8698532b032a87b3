"""Descriptions of how ranks ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from paceline._internal.console import Column, render
from paceline.job.failure import MOST, PIPE

_MOST_ROWS = 20


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
    reason: str | None = None
    """The exception that ended it, if it reported one: `ValueError: …`."""
    follows: bool = False
    """Whether it ended because another rank failed or was silent."""

    @property
    def failed(self) -> bool:
        """Whether it failed on its own."""
        return self.code != 0 and not self.stopped

    def words(self) -> str:
        """Return how it ended, such as `was killed by SIGKILL` or `exited with code 3`."""
        ending = f"was killed by {_signal(-self.code)}" if self.code < 0 else f"exited with code {self.code}"
        return f"{ending} when it was asked to end" if self.stopped else ending

    def sentence(self) -> str:
        """Return `rank 2 on host a (pid 1234) was killed by SIGKILL`, or `… exited with code 1: ValueError: …`."""
        where = f" on host {self.host}" if self.host is not None else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.name}{where} (pid {self.pid}) {self.words()}{why}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a table with one row for all ranks that ended alike."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.rank):
        kind, _, number = outcome.name.partition(" ")
        numbers = alike.setdefault((outcome.host or "", outcome.words(), kind), [])
        numbers.extend([int(number)] if number else [])
    rows = [(_called(kind, some), host, words) for (host, words, kind), some in alike.items()]
    columns = [Column("ranks", left=True), Column("host", left=True), Column("outcome", left=True)]
    if not any(host for _, host, _ in rows):
        columns.pop(1)
        rows = [(ranks, words) for ranks, _, words in rows]  # type: ignore[misc]
    lines = render(columns, [rows[:_MOST_ROWS]], highlight_first=False)
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
        self._reasons: dict[int, tuple[str, bool]] = {}

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
        with contextlib.suppress(
            ValueError, TypeError, KeyError, RecursionError
        ):  # The script may have written anything.
            report = json.loads(line)
            if "joining" in report:
                yield str(report["joining"])
            else:
                self._reasons[rank] = str(report["reason"]), bool(report["follows"])

    def reason(self, rank: int) -> tuple[str | None, bool]:
        """Return why a rank failed that has ended, and whether because of another; close its pipe."""
        os.close(self._pipes.pop(rank))
        del self._partial[rank]
        return self._reasons.pop(rank, (None, False))
