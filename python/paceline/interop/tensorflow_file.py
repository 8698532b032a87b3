"""Reads what TensorFlow records of its operations: a timeline (Chrome trace of RunMetadata), or a profile (XPlane).

A timeline is written by tensorflow/python/client/timeline.py, `generate_chrome_trace_format`: events of operations with
their names, types and inputs, and with `show_memory=True` the tensors that they make. A profile has names and types
only: the operators of executors are events called `name:Type`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.errors import InvalidArgumentError
from paceline.interop.kineto_file import document
from paceline.interop.xplane_file import Event, Plane, read_xplane

_OPERATOR = re.compile(r"(?P<name>[A-Za-z0-9.][\w.\\/>-]*):(?P<kind>_?[A-Z]\w*)$")
_TASK = re.compile(r"/job:(?P<job>[^/]+)/.*?task:(?P<task>\d+)")
_SIZES = re.compile(r"\bsize: (\d+)")
_BYTES = re.compile(r"\brequested_bytes: (\d+)")
_DTYPE = re.compile(r"\bdtype: DT_(\w+)")
_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64", "HALF": "float16", "BFLOAT16": "bfloat16"}
_STEP = "step_num"
"""The statistic of a profile's event that is a step of training."""


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation that ran. Times are seconds of the file's clock."""

    name: str
    kind: str
    """Its type, such as MatMul."""
    task: str
    """The process that ran it, such as `worker:0`."""
    start: float
    end: float
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """The first output of an operation."""

    bytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Recording:
    """The operations of the steps of a file, in order of their start."""

    path: Path
    steps: list[list[Operation]]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """By the name of the operation, where the file has their sizes."""
    has_inputs: bool = True
    """Whether operations have their inputs: in timelines."""


def read_recording(path: Path) -> Recording:
    """Return the operations in a file. Raises InvalidArgumentError."""
    if path.name.removesuffix(".gz").endswith(".pb"):
        return _of_profile(path, read_xplane(path))
    content = document(path)
    raw = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(raw, list):
        raise InvalidArgumentError(
            f'{path}: has no list "traceEvents"', remedy="a file of Timeline(step_stats).generate_chrome_trace_format()"
        )
    return _of_timeline(path, raw)


def _of_timeline(path: Path, raw: list[Any]) -> Recording:
    tasks: dict[Any, str] = {}
    operations: list[Operation] = []
    tensors: dict[str, Tensor] = {}
    for index, entry in enumerate(raw):
        if not isinstance(entry, dict):
            raise InvalidArgumentError(f"{path}: traceEvents[{index}]: must be an object", remedy='{"ph": "X", …}')
        args = entry.get("args")
        args = args if isinstance(args, dict) else {}
        pid = entry.get("pid")
        pid = pid if isinstance(pid, int | str) else None
        if entry.get("ph") == "M" and entry.get("name") == "process_name":
            tasks[pid] = _task(str(args.get("name", "")))
        elif entry.get("ph") == "X" and "name" in args:
            start, duration = _microseconds(path, index, entry, "ts"), _microseconds(path, index, entry, "dur")
            if duration < 0:
                raise InvalidArgumentError(
                    f"{path}: traceEvents[{index}].dur: must be at least 0, not {duration:.40g}", remedy='"dur": 0'
                )
            inputs = tuple(str(args[f"input{i}"]) for i in range(len(args)) if f"input{i}" in args)
            operations.append(
                Operation(
                    str(args["name"]),
                    str(args.get("op", "")),
                    tasks.get(pid, ""),
                    start * 1e-6,
                    (start + duration) * 1e-6,
                    inputs,
                )
            )
        elif entry.get("ph") == "O" and (tensor := _tensor(args)) is not None:
            tensors.setdefault(str(entry.get("name", "")), tensor)
    if not operations:
        raise InvalidArgumentError(
            f"{path}: traceEvents has no operations of TensorFlow",
            remedy=f"paceline import kineto {path} (torch.profiler's)",
        )
    # TensorFlow lists a device's operations twice if it ran several graphs there.
    once = {(one.task, one.name, one.start, one.end): one for one in operations}
    operations = sorted(once.values(), key=lambda one: (one.start, one.end))
    return Recording(path, [operations], tensors)


def _task(process: str) -> str:
    found = _TASK.search(process)
    return f"{found['job']}:{found['task']}" if found else ""


def _microseconds(path: Path, index: int, entry: dict[str, Any], key: str) -> float:
    value = entry.get(key, 0 if key == "dur" else None)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) < 1e18:
        raise InvalidArgumentError(
            f"{path}: traceEvents[{index}].{key}: must be microseconds, not {value!r:.40}", remedy=f'"{key}": 12.5'
        )
    return number


def _tensor(args: dict[str, Any]) -> Tensor | None:
    snapshot = args.get("snapshot")
    text = snapshot.get("tensor_description") if isinstance(snapshot, dict) else None
    if not isinstance(text, str):
        return None
    dtype, size = _DTYPE.search(text), _BYTES.search(text)
    if dtype is None or dtype[1] not in _DTYPES:
        return None
    name = _DTYPES[dtype[1]]
    shape = tuple(int(one[:18]) for one in _SIZES.findall(text))
    exact = math.prod(shape) * DTYPE_BYTES[name]
    # What is allocated may be more.
    return Tensor(exact if shape else int(size[1][:18]) if size else DTYPE_BYTES[name], name, shape)


def _of_profile(path: Path, planes: list[Plane]) -> Recording:
    events = [
        event for plane in planes if plane.name.startswith("/host:") for line in plane.lines for event in line.events
    ]
    operations: list[Operation] = []
    for event in events:
        found = _OPERATOR.match(event.name)
        if found is not None and "::" not in event.name:
            operations.append(Operation(found["name"], found["kind"], "", event.start, event.end))
    operations.sort(key=lambda one: (one.start, one.end))
    windows = _windows(path, events)
    steps: dict[int, list[Operation]] = defaultdict(list)
    at = 0
    for one in operations:
        while at < len(windows) and one.start >= windows[at].end:
            at += 1
        if at < len(windows) and windows[at].start <= one.start:
            steps[at].append(one)
    if not any(len(step) > 1 for step in steps.values()):
        raise InvalidArgumentError(
            f"{path}: has no operations of a graph within a step",
            remedy="tf.profiler.experimental.ProfilerOptions(host_tracer_level=3), and a tf.function",
        )
    return Recording(path, [steps[index] for index in sorted(steps)], has_inputs=False)


def _windows(path: Path, events: list[Event]) -> list[Event]:
    """Return the steps: those that the script or Keras marked, or else the calls of the longest function."""
    marked = sorted((event for event in events if _STEP in event.stats), key=lambda event: event.start)
    if marked:
        return marked
    called: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if "tf_function_call" in event.stats:
            called[event.name].append(event)
    if not called:
        raise InvalidArgumentError(
            f"{path}: has neither steps nor calls of a tf.function",
            remedy='with tf.profiler.experimental.Trace("train", step_num=n, _r=1), around each step',
        )
    longest = max(called.values(), key=lambda some: sum(event.end - event.start for event in some))
    return sorted(longest, key=lambda event: event.start)
