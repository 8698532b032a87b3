"""Reads timeline files into the activities of ranks; errors name file, event and remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline._internal import units
from paceline.async_ps.report import staleness_in
from paceline.doctor.events import RECORD, Event, events
from paceline.doctor.timeline_model import AGREEMENT, MARKS, Host, Operation, Rank, Recording, Span, Tensor
from paceline.errors import InvalidArgumentError
from paceline.job import timeline_files

_MOST_US = 4e15
"""Microseconds of a hundred years; later times are invalid."""
_EGRESS, _INGRESS = 1, 2
_LONGEST, _MOST = 255, 1 << 20
"""Characters of a host's name; processes and cores of a host."""
"""Threads of messages."""


def read(path: Path) -> Recording:
    """Read a timeline, or the parts of one that were never merged. Raises InvalidArgumentError."""
    try:
        there = path.exists()
        unmerged = timeline_files.unmerged(path)
        parts = timeline_files.timelines(path) if (unmerged or not there) and path.parent.is_dir() else []
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"{path!s:.200}: {getattr(error, 'strerror', None) or error}") from None
    if path.is_dir():
        raise InvalidArgumentError(f"{path}: is a folder, not a timeline", remedy=f"{path}/run.json")
    if not there and not parts:
        raise InvalidArgumentError(
            f"{path}: there is no such file, nor complete parts {path.name}.*rank-*", remedy=RECORD
        )
    for file in parts or [path]:
        if not file.is_file():  # Reading it might never end.
            raise InvalidArgumentError(f"{file}: is a pipe or a device", remedy=f"cat {file} > run.json")
    reader = _Reader(path)
    for file in parts or [path]:
        reader.take(file, events(file))
    notes = []
    if parts:
        notes.append(f"{path.name} does not exist yet: read its parts, {parts[0].name} and so on")
    return reader.finish(notes)


class _Reader:
    """Takes events one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path
        self._ranks: dict[int, Rank] = {}
        self._names: dict[int, str] = {}
        """Names of processes, by pid."""
        self._recorded: set[int] = set()
        """Pids of processes that Paceline's runtime recorded."""
        self._workers: set[int] = set()
        """Ranks that messages name."""
        self._open: dict[tuple[object, object, object], Event] = {}

    def take(self, file: Path, listed: Iterable[Event]) -> None:
        """Read all of a file. Raises InvalidArgumentError."""
        self._file = file
        for event in listed:
            try:
                self._event(event)
            except InvalidArgumentError:
                raise
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
                raise InvalidArgumentError(
                    f"{file}: cannot be understood at {json.dumps(event)[:200]}", remedy=RECORD
                ) from None

    def _event(self, event: Event) -> None:
        phase = event["ph"]
        if phase == "M":
            self._metadata(event)
            return
        category = event.get("cat")
        if category == "message":
            if phase == "b":
                self._message(event)
        elif phase == "X":
            self._complete(event, category)
        elif category in ("operation", "tensor"):
            key = event["pid"], event["id"], event["name"]
            if phase == "b" and "bytes" in event["args"]:  # not one of the pairs inside a tensor's
                self._open[key] = event
            elif phase == "e" and (begun := self._open.pop(key, None)) is not None:
                self._pair(begun, _ns(event["ts"]), category)

    def _rank(self, event: Event) -> Rank:
        pid = _whole(event["pid"])
        rank = self._ranks.get(pid)
        if rank is None:
            rank = self._ranks[pid] = Rank(pid - 1)
        return rank

    def _metadata(self, event: Event) -> None:
        if event["name"] == "process_name":
            self._names[_whole(event["pid"])] = str(event["args"]["name"])
        elif event["name"] == "paceline":
            rank = self._rank(event)
            if _whole(event["pid"]) in self._recorded:
                raise InvalidArgumentError(
                    f"{self._file}: rank {rank.rank} is in it twice; use one recording at a time: {RECORD}"
                )
            self._recorded.add(_whole(event["pid"]))
            rank.rank, rank.dropped = _whole(event["args"]["rank"]), _whole(event["args"]["dropped"])
            host = event["args"].get("host")
            if host is not None:
                rank.host = _host(host)

    def _complete(self, event: Event, category: object) -> None:
        begin = _ns(event["ts"])
        span = Span(str(event["name"]), begin, begin + _ns(event["dur"]))
        if span.end < span.begin:
            raise ValueError
        if category in MARKS:
            self._rank(event).marks[str(category)].append(span)
        elif category == "pipeline":
            rank = self._rank(event)
            if rank.pipeline is None:
                rank.pipeline = []
            rank.pipeline.append(span)
        elif category == "apply":
            self._rank(event).applied[staleness_in(span.name)] += 1
        elif category == "coordinator":
            rank = self._rank(event)
            rank.coordinator.setdefault(span.name, []).append(span)
            spun = event.get("args", {}).get("spun_us")
            if spun is not None:
                rank.spun += _ns(spun)

    def _message(self, event: Event) -> None:
        args, out = event["args"], event["tid"] == _EGRESS
        if event["tid"] not in (_EGRESS, _INGRESS):
            raise ValueError
        role = args["from"] if out else args["to"]
        for name in (args["from"], args["to"]):
            kind, _, number = name.partition(" ")
            if kind == "worker":
                self._workers.add(int(number))
        moved, key = self._rank(event).moved, (_whole(args["operation"]), role, out)
        moved[key] = moved.get(key, 0) + _whole(args["bytes"])

    def _pair(self, event: Event, end: int, category: str) -> None:
        rank, args, begin = self._rank(event), event["args"], _ns(event["ts"])
        name, number, size = str(event["name"]), _whole(args["operation"]), _whole(args["bytes"])
        end = max(begin, end)
        if category == "operation":
            operation = Operation(number, name, str(args["call"]), size, begin, end)
            (rank.votes if name in AGREEMENT else rank.operations).append(operation)
        else:
            agreed = begin + max(0, _ns(args["negotiated_us"]))
            rank.tensors.append(Tensor(name, size, number, begin, min(agreed, end), end))

    def finish(self, notes: list[str]) -> Recording:
        """Return the recording. Raises InvalidArgumentError if it is empty."""
        self._refuse_what_was_not_run()
        ranks = sorted(self._ranks.values(), key=lambda rank: rank.rank)
        servers = [rank for rank in ranks if self._names.get(rank.rank + 1, "").startswith("server")]
        workers = [rank for rank in ranks if rank not in servers]
        for rank in workers:
            rank.sort()
        here = {rank.rank for rank in workers}
        missing = sorted((self._workers | set(range(max(here, default=-1) + 1))) - {rank.rank for rank in ranks})
        if missing:
            which = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            notes.append(
                f"no recording of rank{'s'[: len(missing) != 1]} {which} (killed, or on another machine): waiting "
                "for them looks like slow transfers"
            )
        notes += [
            f"rank {rank.rank} dropped {rank.dropped} spans because there were too many: its end is missing; record "
            "fewer steps"
            for rank in ranks
            if rank.dropped
        ]
        recording = Recording(self._path, workers, servers, missing, notes)
        notes += [
            f"{host.processes} processes of this job share {units.count(host.cores, 'core')} of {host.name} and take "
            "turns, which lengthens every part of a step; with a core for each, all of these figures would be others"
            for host in recording.crowded
        ]
        return recording

    def _refuse_what_was_not_run(self) -> None:
        if not self._ranks:
            raise InvalidArgumentError(f"{self._path}: contains no events of a run", remedy=RECORD)
        if self._recorded >= self._ranks.keys():
            return
        forecast = not self._recorded and any(re.fullmatch(r"worker \d+", name) for name in self._names.values())
        what = (
            "is the timeline of a forecast, not of a run: `paceline simulate` itself says what bounds it"
            if forecast
            else "was not recorded by Paceline's runtime"
        )
        raise InvalidArgumentError(f"{self._path}: {what}; record a real run: {RECORD}")


def _ns(us: object) -> int:
    """Convert microseconds to nanoseconds. Raises ValueError if it is not a time."""
    if isinstance(us, bool) or not isinstance(us, int | float) or not -_MOST_US < us < _MOST_US:
        raise ValueError
    return round(us * 1000)


def _host(fields: Mapping[str, object]) -> Host:
    name, processes, cores = fields["name"], _whole(fields["processes"]), _whole(fields["cores"])
    plausible = isinstance(name, str) and 0 < len(name) <= _LONGEST and name.isprintable()
    if not plausible or not 0 < processes <= _MOST or not 0 < cores <= _MOST:
        raise ValueError
    return Host(str(name), processes, cores)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value
