"""Reads what TensorFlow records of its operations: a timeline (Chrome trace of RunMetadata), or a profile (XPlane).

A timeline is written by tensorflow/python/client/timeline.py, `generate_chrome_trace_format`: events of operations with
their names, types and inputs, and with `show_memory=True` the tensors that they make. A GPU has a second process with
kernels by the names of their operations (`/stream:all`), whose times count. A profile has names and types
only: the operators of executors are events called `name:Type`. On a GPU those only launch kernels. Each kernel has its
operator as a statistic, and shares a `correlation_id` with the host's launch, which tells its step
(xla/backends/profiler/gpu/cupti_collector.cc).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline._internal.units import count, listed
from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.errors import InvalidArgumentError
from paceline.interop.kineto_file import document
from paceline.interop.xplane_file import Event, Plane, read_xplane

_OPERATOR = re.compile(r"(?P<name>[A-Za-z0-9.][\w.\\/>-]*):(?P<kind>_?[A-Z]\w*)$")
_TASK = re.compile(r"/job:(?P<job>[^/]+)/.*?task:0*(?P<task>\d+)")
_SIZES = re.compile(r"\bsize: (\d+)")
_BYTES = re.compile(r"\brequested_bytes: (\d+)")
_DTYPE = re.compile(r"\bdtype: DT_(\w+)")
_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64", "HALF": "float16", "BFLOAT16": "bfloat16"}
_STEP = "step_num"
"""The statistic of a profile's event that is a step of training."""
_KERNEL_OPERATORS = ("tf_op", "annotation")
"""Statistics of a kernel with its operator; the second in TensorFlow before 2.5."""
_XLA_OPERATOR = "hlo_op"
_LAUNCH = "correlation_id"
_SENT = re.compile(r"(?:_S\d+|/_\d+)$")
_ON_GPU = re.compile(r"/(?:device:)?gpu:\d+", re.IGNORECASE)
_STREAMS = "/stream:all"
_COPIES = ("/stream:", "/memcpy")
_STREAM = "Stream #"
"""How names of lines with kernels begin. Other lines of a GPU are derived from these."""
READ = "ReadVariableOp"


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
    gpu: str | None = None
    """The plane whose kernels are the operations; None if they ran on CPUs."""


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
    names: dict[Any, str] = {}
    operations: list[Operation] = []
    launched: list[Operation] = []
    kernels: dict[str, tuple[float, float]] = {}
    tensors: dict[str, Tensor] = {}
    for index, entry in enumerate(raw):
        if not isinstance(entry, dict):
            raise InvalidArgumentError(f"{path}: traceEvents[{index}]: must be an object", remedy='{"ph": "X", …}')
        args = entry.get("args")
        args = args if isinstance(args, dict) else {}
        pid = entry.get("pid")
        pid = pid if isinstance(pid, int | str) else None
        if entry.get("ph") == "M" and entry.get("name") == "process_name":
            names[pid] = str(args.get("name", ""))
            tasks[pid] = _task(names[pid])
        elif entry.get("ph") == "X" and "name" in args:
            start, duration = _microseconds(path, index, entry, "ts"), _microseconds(path, index, entry, "dur")
            if duration < 0:
                raise InvalidArgumentError(
                    f"{path}: traceEvents[{index}].dur: must be at least 0, not {duration:.40g}", remedy='"dur": 0'
                )
            inputs = tuple(str(args[f"input{i}"]) for i in range(len(args)) if f"input{i}" in args)
            operation = Operation(
                str(args["name"]),
                str(args.get("op", "")),
                tasks.get(pid, ""),
                start * 1e-6,
                (start + duration) * 1e-6,
                inputs,
            )
            process = names.get(pid, "")
            if _STREAMS in process:
                first, last = kernels.get(operation.name, (operation.start, operation.end))
                kernels[operation.name] = min(first, operation.start), max(last, operation.end)
            elif not any(word in process for word in _COPIES):
                (launched if _ON_GPU.search(process) else operations).append(operation)
        elif entry.get("ph") == "O" and (tensor := _tensor(args)) is not None:
            tensors.setdefault(str(entry.get("name", "")), tensor)
    if kernels:
        launched = _with_kernels(path, operations, launched, kernels)
    operations += launched
    if not operations:
        raise InvalidArgumentError(
            f"{path}: traceEvents has no operations of TensorFlow",
            remedy=f"paceline import kineto {path} (torch.profiler's)",
        )
    # TensorFlow lists a device's operations twice if it ran several graphs there.
    once = {(one.task, one.name, one.start, one.end): one for one in operations}
    operations = sorted(once.values(), key=lambda one: (one.start, one.end))
    return Recording(path, [operations], tensors, gpu="a GPU" if kernels else None)


def _with_kernels(
    path: Path, on_cpu: list[Operation], launched: list[Operation], kernels: dict[str, tuple[float, float]]
) -> list[Operation]:
    """Return the operations of GPUs with the times of their kernels; others are done when their inputs are there."""
    tasks = {one.task for one in launched if one.name in kernels}
    if len(tasks) > 1:
        raise InvalidArgumentError(
            f"{path}: kernels belong to GPUs of {count(len(tasks), 'task')}, and do not say to which",
            remedy="a timeline of each worker's own session",
        )
    ends = {one.name: one.end for one in on_cpu} | {name: end for name, (_, end) in kernels.items()}
    timed: list[Operation] = []
    for one in sorted(launched, key=lambda one: one.start):
        inputs = [ends[name] for name in map(plain, one.inputs) if name in ends]
        at = max(inputs, default=one.start)
        start, end = kernels.get(one.name, (at, at))
        ends[one.name] = end
        timed.append(replace(one, start=start, end=end))
    return timed


def plain(name: str) -> str:
    """Return an operation's name without its output's number, and what a send adds to it."""
    return _SENT.sub("", name.split(":", maxsplit=1)[0])


def _task(process: str) -> str:
    match = _TASK.search(process)
    return f"{match['job']}:{match['task']}" if match else ""


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
    ran: list[tuple[float, Operation]] = []
    for event in events:
        if (operation := _operation(event.name, event)) is not None:
            ran.append((event.start, operation))
    gpu = _gpu(path, planes)
    if gpu is not None:
        # The host's operators only launch kernels. Reads of variables launch none: their names say what layers need.
        ran = [pair for pair in ran if pair[1].kind == READ] + _kernels(path, gpu, events)
    ran.sort(key=lambda pair: (pair[0], pair[1].end))
    windows = _windows(path, events)
    steps: dict[int, list[Operation]] = defaultdict(list)
    at = 0
    for moment, one in ran:
        while at < len(windows) and moment >= windows[at].end:
            at += 1
        if at < len(windows) and windows[at].start <= moment:
            steps[at].append(one)
    if not any(len(step) > 1 for step in steps.values()):
        raise InvalidArgumentError(
            f"{path}: has no operations of a graph within a step",
            remedy="tf.profiler.experimental.ProfilerOptions(host_tracer_level=3), and a tf.function",
        )
    ordered = [sorted(steps[index], key=lambda one: (one.start, one.end)) for index in sorted(steps)]
    if gpu is not None and not any(one.kind == READ for step in ordered for one in step):
        raise InvalidArgumentError(
            f"{path}: has kernels of {gpu.name}, but no reads of variables by the host",
            remedy="tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)",
        )
    return Recording(path, ordered, has_inputs=False, gpu=None if gpu is None else gpu.name)


def _operation(name: str, event: Event) -> Operation | None:
    """Return an operator of the graph with the times of an event; None if the name is not one's."""
    match = _OPERATOR.match(name)
    if match is None or "::" in name:
        return None
    return Operation(match["name"], match["kind"], "", event.start, event.end)


def _gpu(path: Path, planes: list[Plane]) -> Plane | None:
    """Return the GPU that ran operators; None if none did. Raises InvalidArgumentError if their times are not here."""
    ran: list[Plane] = []
    for plane in planes:
        if plane.name.startswith("/device:TPU:") and any(line.events for line in plane.lines):
            raise InvalidArgumentError(
                f"{path}: was recorded on a TPU, for which XLA compiles whole steps",
                remedy="a profile of a GPU or a CPU",
            )
        if not plane.name.startswith("/device:GPU:"):
            continue
        kernels = _on_streams(plane)
        named = sum(event.end - event.start for event in kernels if _kernel_operator(event) is not None)
        by_xla = sum(event.end - event.start for event in kernels if _XLA_OPERATOR in event.stats)
        if by_xla > named:
            raise InvalidArgumentError(
                f"{path}: XLA compiled what ran on {plane.name}, so kernels belong to no layer",
                remedy="a profile of the same training with jit_compile=False",
            )
        if named:
            ran.append(plane)
        elif any("kernel_details" in event.stats for event in kernels):
            raise InvalidArgumentError(
                f"{path}: the kernels of {plane.name} have no operator (tf_op)",
                remedy="tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, device_tracer_level=1)",
            )
    if len(ran) > 1:
        names = listed([plane.name for plane in ran], "and")
        raise InvalidArgumentError(
            f"{path}: {names} trained, and a trace describes workers of one device",
            remedy="a profile of each process with one GPU (CUDA_VISIBLE_DEVICES=0), without tf.distribute",
        )
    return ran[0] if ran else None


def _on_streams(plane: Plane) -> list[Event]:
    return [event for line in plane.lines if line.name.startswith(_STREAM) for event in line.events]


def _kernel_operator(event: Event) -> Operation | None:
    """Return the operator of a kernel, with the kernel's times."""
    for key in _KERNEL_OPERATORS:
        text = event.stats.get(key)
        if isinstance(text, str) and text:
            # Of nested annotations the last one, without what it says of shapes.
            return _operation(text.rpartition("::")[2].partition("#")[0], event)
    return None


def _kernels(path: Path, gpu: Plane, host: list[Event]) -> list[tuple[float, Operation]]:
    """Return the operators of a GPU with the times of their kernels, and when the host launched each."""
    launched = {event.stats[_LAUNCH]: event.start for event in host if _LAUNCH in event.stats}
    kernels: list[tuple[float, Operation]] = []
    for event in _on_streams(gpu):
        operation, launch = _kernel_operator(event), launched.get(event.stats.get(_LAUNCH, b""))
        if operation is not None and launch is not None:
            kernels.append((launch, operation))
    if not kernels:
        raise InvalidArgumentError(
            f"{path}: has no launch of any kernel of {gpu.name}, so their steps are unknown",
            remedy="a whole file of tf.profiler, with the host's part (host_tracer_level=3)",
        )
    return kernels


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
