"""Reads the Chrome traces that torch.profiler writes (Kineto), compressed or not.

The format: https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp (the events and their `args`), and
torch/csrc/distributed/c10d/ParamCommsUtils.hpp (what is recorded of a collective). Times are microseconds. In the
first releases (torch 1.8 to 1.11), categories and arguments had other names, which are translated here.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline._internal.documents import read_limited
from paceline._internal.files import NO_SUCH_FILE, list_of, why_unread
from paceline.errors import InvalidArgumentError

_MOST_BYTES = 4_000_000_000
"""Unpacked. More than this as JSON does not fit into the memory of a usual machine."""

_FIRST_CATEGORIES = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
_FIRST_ARGUMENTS = {"external id": "External id", "Input dims": "Input Dims"}
_ANNOTATION = re.compile(r"(?:ProfilerStep#|Optimizer\.|DistributedDataParallel\.|enumerate\(|(?:nccl|gloo|mpi|ucc):)")
"""Annotations, which the first releases recorded as operators."""
_NODE = re.compile(r"\w+Backward\d*$|torch::autograd::AccumulateGrad$")
EVALUATION = "autograd::engine::evaluate_function: "
"""The event around a node of the backward pass; the first releases recorded the node only."""


@dataclass(frozen=True, eq=False)
class Event:
    """A complete event (`"ph": "X"`) of the file."""

    name: str
    category: str
    thread: object
    start: float
    end: float
    args: Mapping[str, Any]

    def number(self, key: str) -> int | None:
        """Return an integer of the event's arguments; None if there is none."""
        value = self.args.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def has(self, other: Event) -> bool:
        """Return whether the other event lies inside this one, on whatever thread."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Profile:
    """A file's events in order of their start, the enclosing one first."""

    path: Path
    events: Sequence[Event]
    backend: str
    """The backend of torch.distributed: `nccl`, `gloo`; empty if the process was alone."""
    world_size: int
    device: str
    """The name of the GPU; empty if there was none."""
    rank: int = 0
    first_format: bool = False
    """Whether it has the names of torch 1.8 to 1.11."""
    by_category: dict[str, list[Event]] = field(default_factory=dict)

    @property
    def age(self) -> str:
        """An addition to errors about a file of an older format."""
        if not self.first_format:
            return ""
        return " (this file has the older format of torch 1.8 to 1.11, which recorded less; newer ones record more)"

    def of(self, *categories: str) -> list[Event]:
        """Return the events of some categories, in order."""
        if len(categories) == 1:
            return self.by_category.get(categories[0], [])
        return [event for event in self.events if event.category in categories]


def read_profile(path: Path) -> Profile:
    """Return a file's events. Raises InvalidArgumentError."""
    content = document(path)
    raw = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(raw, list):
        raise InvalidArgumentError(
            f'{path}: has no list "traceEvents"', remedy="a file of torch.profiler's export_chrome_trace"
        )
    about = content if isinstance(content, dict) else {}
    if about.get("format") == "paceline-trace":
        raise InvalidArgumentError(f"{path}: is already a Paceline trace", remedy=f"paceline simulate {path}")
    events = [
        _event(path, index, entry)
        for index, entry in enumerate(raw)
        if isinstance(entry, dict) and entry.get("ph") == "X" and entry.get("cat") is not None
    ]
    if not events:
        raise InvalidArgumentError(
            f'{path}: traceEvents has no complete events ("ph": "X")', remedy="a profile of some steps"
        )
    first_format = any(event.category in _FIRST_CATEGORIES for event in events)
    if first_format:
        events = _renamed(events)
    events.sort(key=lambda event: (event.start, -event.end))
    job = about.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    devices = about.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    profile = Profile(
        path=path,
        events=events,
        backend=str(job.get("backend", "")),
        world_size=job["world_size"] if isinstance(job.get("world_size"), int) else 1,
        device=str(first.get("name", "")),
        rank=job["rank"] if isinstance(job.get("rank"), int) else 0,
        first_format=first_format,
    )
    for event in events:
        profile.by_category.setdefault(event.category, []).append(event)
    return profile


def _renamed(events: Sequence[Event]) -> list[Event]:
    """Return events of the first releases under the names of today."""
    evaluated = any(event.name.startswith(EVALUATION) for event in events)
    renamed: list[Event] = []
    for event in events:
        category = _FIRST_CATEGORIES.get(event.category, event.category)
        if category == "cpu_op" and _ANNOTATION.match(event.name):
            category = "user_annotation"
        args = {_FIRST_ARGUMENTS.get(key, key): value for key, value in event.args.items()}
        if category == "cpu_op" and not evaluated and _NODE.match(event.name):
            renamed.append(replace(event, name=EVALUATION + event.name, category=category, args=args))
        renamed.append(replace(event, category=category, args=args))
    return renamed


def document(path: Path) -> Any:  # noqa: ANN401
    """Return the JSON of a Chrome trace, packed or not. Raises InvalidArgumentError."""
    if path.is_dir():
        raise InvalidArgumentError(f"{path}: is a folder", remedy=f"a .json or .json.gz file in it (list: ls {path})")
    if not path.exists():
        raise InvalidArgumentError(f"{path}: {NO_SUCH_FILE}", remedy=list_of(path))
    try:
        content = read_limited(path, _MOST_BYTES, packed=True, begins=b"{[")
    except OSError as error:
        hint = "; profile fewer steps (schedule(active=3))" if error.errno == errno.EFBIG else ""
        raise InvalidArgumentError(f"{path}: {why_unread(error)}{hint}", remedy=list_of(path)) from None
    try:
        # Kineto writes names of functions as they are, which need not be UTF-8.
        return json.loads(content.decode("utf-8", errors="replace"), strict=False)
    except MemoryError:
        raise InvalidArgumentError(
            f"{path}: does not fit into the memory", remedy="schedule(active=3) (profiles fewer steps)"
        ) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            where = f"line {error.lineno}: {error.msg}"
        elif isinstance(error, RecursionError):
            where = "nested too deeply"
        else:  # Python refuses to read integers of more than 4,300 digits.
            where = "an integer has thousands of digits"
        raise InvalidArgumentError(
            f"{path}: is not JSON ({where})", remedy="a whole file: the job may have ended while the profiler wrote it"
        ) from error


def _event(path: Path, index: int, entry: Mapping[str, Any]) -> Event:
    start, duration = entry.get("ts"), entry.get("dur", 0)
    for key, value in (("ts", start), ("dur", duration)):
        # Some versions wrote numbers as text.
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not abs(number) < 1e18:
            raise InvalidArgumentError(
                f"{path}: traceEvents[{index}].{key}: must be microseconds, not {value!r:.40}", remedy=f'"{key}": 12.5'
            )
        if key == "dur" and number < 0:
            raise InvalidArgumentError(
                f"{path}: traceEvents[{index}].dur: must be at least 0, not {value}", remedy='"dur": 0'
            )
    args = entry.get("args")
    begin = float(start)  # type: ignore[arg-type]
    return Event(
        name=str(entry.get("name", "")),
        category=str(entry["cat"]),
        thread=(entry.get("pid"), entry.get("tid")),
        start=begin,
        end=begin + float(duration),
        args=args if isinstance(args, dict) else {},
    )
