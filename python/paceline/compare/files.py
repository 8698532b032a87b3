"""A measurement from a text or a file, whose kind is recognized from its contents.

| file | tells |
| --- | --- |
| a recording of Paceline (`paceline record`) | forward, backward and optimizer; not what ranks wait for |
| a profile of torch.profiler (Chrome trace) | computation, exposed communication, input, optimizer, idle |
| a timeline of `paceline run` | the same without idle, and waiting for stragglers |
| a log of nccl-tests | the time of a collective, by size |
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from paceline._core import Trace
from paceline._internal import units
from paceline._internal.files import NO_SUCH_FILE, list_of
from paceline.catalog.builtin import load_trace
from paceline.catalog.models.spec import is_file
from paceline.compare.forecaster import Forecaster
from paceline.doctor.analysis import analyze
from paceline.doctor.reading import read as read_timeline
from paceline.errors import InvalidArgumentError
from paceline.forecast.measured import EXAMPLES, Measured, Quantity, Timed, parse
from paceline.forecast.nccl import request as collectives
from paceline.interop.kineto_parts import parts_of
from paceline.interop.logs import Read, nccl_json, read_log
from paceline.interop.logs.paste import decoded

_LOOKS_LIKE_FILE = re.compile(r".*(/|\\|\.(json|gz|log|txt|out|pt))")
_BEGINNING = 1 << 16
_JSON = re.compile(r"\s*(\{|\[\s*\{)")
_TRACE = re.compile(r'"format"\s*:\s*"paceline-trace"')
_PROFILE = re.compile(
    r'"cat"\s*:\s*"(cpu_op|kernel|user_annotation|cuda_runtime|python_function|Operator|Kernel|ac2g)"'
)
_FILES = "a recording, profile.json of torch.profiler, run.json of paceline run, or a log of nccl-tests"
_PROFILE_HEAD = re.compile(r'"(schemaVersion|deviceProperties|distributedInfo)"')


def read(text: str, forecaster: Forecaster) -> Measured:
    """Return the measurement that a text or file has. Raises InvalidArgumentError."""
    if not is_file(text):
        if _LOOKS_LIKE_FILE.fullmatch(text) and not _has_parts(Path(text)):
            raise InvalidArgumentError(
                f"{text:.200}: {NO_SUCH_FILE}", setting="measured", remedy=f"{list_of(Path(text))}, or {EXAMPLES}"
            )
        return _timeline(Path(text)) if _LOOKS_LIKE_FILE.fullmatch(text) else parse(text)
    path = Path(text)
    beginning = _beginning(path)
    if not beginning.strip():
        raise InvalidArgumentError(f"{path}: is empty", setting="measured", remedy=_FILES)
    if "\0" in beginning:
        raise InvalidArgumentError(f"{path}: is binary", setting="measured", remedy=_FILES)
    if not _JSON.match(beginning) or nccl_json.recognized(beginning):
        return _log(path, forecaster)
    _refuse_collective(path, forecaster)
    if _TRACE.search(beginning):
        return _recording(path, forecaster)
    if _PROFILE.search(beginning) or _PROFILE_HEAD.search(beginning):
        return _profile(path)
    return _timeline(path)


def _has_parts(path: Path) -> bool:
    """Return whether there are parts of a timeline that were never merged."""
    return path.parent.is_dir() and any(path.parent.glob(f"{path.name}.*rank-*"))


def _beginning(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return decoded(file.read(_BEGINNING))
    except (OSError, EOFError) as error:
        raise InvalidArgumentError(f"{path}: {error}", setting="measured", remedy=list_of(path)) from None


def _refuse_collective(path: Path, forecaster: Forecaster) -> None:
    if forecaster.is_of_nccl:
        raise InvalidArgumentError(
            f"{path}: is of training, and {forecaster.words[0]} is a collective",
            setting="measured",
            remedy=f"a log of {forecaster.library.lower()}-tests, or 5GB/s (busbw)",
        )


def _recording(path: Path, forecaster: Forecaster) -> Measured:
    """Return what a recording says, with the forecast's time of what it does not: exposed communication."""
    trace = load_trace(path)
    if not trace.computes:
        raise InvalidArgumentError(f"{path}: computes nothing", setting="measured", remedy="paceline record")
    parts = {"computation": trace.forward_s + trace.backward_s, "optimizer": trace.optimizer_s}
    forecast = forecaster.base
    rest = sum(seconds for name, seconds in forecast.parts_s.items() if name not in parts)
    notes = [
        "A recording has no time between ranks: that of the forecast stands for it",
        *_other_batch(trace, forecaster),
    ]
    return Measured(
        Quantity.STEP,
        sum(parts.values()) + rest,
        per_gpu=False,
        text=path.name,
        parts_s=parts,
        device=trace.device,
        notes=tuple(notes),
    )


def _other_batch(trace: Trace, forecaster: Forecaster) -> list[str]:
    result = forecaster.base.result
    if result is None or result.batch == trace.batch:
        return []
    return [f"The recording has batch {trace.batch}, the forecast {result.batch}: --batch {trace.batch}"]


def _profile(path: Path) -> Measured:
    parts = parts_of(path)
    seconds = {
        "computation": parts.computation_s,
        "communication": parts.communication_s,
        "input": parts.input_s,
        "optimizer": parts.optimizer_s,
        "launches": parts.idle_s,
    }
    notes = [f"Medians of {units.count(parts.steps, 'step')} of the profile"]
    if not parts.on_gpu:
        notes.append("The profile has no kernels, so its times are those of operators on the CPU")
    notes.append("Waiting for other ranks counts as communication in a profile of one rank")
    return Measured(
        Quantity.STEP,
        parts.step_s,
        per_gpu=False,
        text=path.name,
        parts_s=seconds,
        hidden_s=parts.hidden_s,
        gathered=parts.gathered,
        device=parts.device,
        ranks=parts.world_size or None,
        notes=tuple(notes),
    )


def _timeline(path: Path) -> Measured:
    analysis = analyze(read_timeline(path))
    if not analysis.has_steps:
        raise InvalidArgumentError(
            f"{path}: marks no steps",
            setting="measured",
            remedy="a timeline of a script with an optimizer of torch, or the time of a step",
        )
    mean = analysis.mean
    lasting = {
        "computation": mean.forward + mean.backward + mean.other,
        "communication": mean.negotiation + mean.transfer,
        "input": mean.input,
        "optimizer": mean.optimizer,
        "stragglers": mean.straggler,
    }
    return Measured(
        Quantity.STEP,
        mean.step / 1e9,
        per_gpu=False,
        text=path.name,
        parts_s={name: value / 1e9 for name, value in lasting.items()},
        ranks=analysis.recording.world_size,
        notes=(
            f"Means of {units.count(analysis.count, 'step')} of the timeline",
            f"Each part by rank: paceline doctor {path}",
        ),
    )


def _log(path: Path, forecaster: Forecaster) -> Measured:
    """Return the times of a collective by size; the largest size of both counts."""
    if not forecaster.is_collective:
        try:
            read_log(path, "")
        except InvalidArgumentError:
            raise InvalidArgumentError(f"{path}: is of no known kind", setting="measured", remedy=_FILES) from None
        raise InvalidArgumentError(
            f"{path}: is a log of a collective, and {forecaster.words[0]:.80} is none",
            setting="measured",
            remedy="paceline compare allreduce:1GiB --cluster dgx-h100 --gpus 16 --measured LOG",
        )
    spec = collectives.parse(forecaster.words[0])
    tests = [one for one in read_log(path, "") if one.format == "nccl-tests"]
    known = [one for one in tests if _kind(one) in (spec.kind, "")]
    if not known:
        what = units.listed([one.what for one in tests]) if tests else f"no test of {forecaster.library.lower()}-tests"
        raise InvalidArgumentError(
            f"{path}: has {what}, not {spec.kind}", setting="measured", remedy=f"a log of {_PERF[spec.kind]}"
        )
    times = {size.size_bytes: size.seconds for size in known[-1].sizes if size.seconds and size.size_bytes > 0}
    low, high = min(spec.sizes), max(spec.sizes)
    wanted = {size: seconds for size, seconds in times.items() if low <= size <= high}
    if not wanted:
        sizes = f"{_written(min(times))}-{_written(max(times))}" if times else "no sizes"
        raise InvalidArgumentError(
            f"{path}: has {sizes}, not {forecaster.words[0].partition(':')[2]}",
            setting="measured",
            remedy=f"paceline compare {spec.kind}:{sizes}",
        )
    devices = known[-1].devices
    largest = max(wanted)
    if devices in (None, 1) and all(not one.bus_bandwidth for one in known[-1].sizes if one.size_bytes == largest):
        raise InvalidArgumentError(
            f"{path}: has a bus bandwidth of 0, so that each process measured its own GPU alone",
            setting="measured",
            remedy=f"{forecaster.library.lower()}-tests compiled with MPI (make MPI=1 MPI_HOME=…), or "
            "all_reduce_perf -g 8 on one node",
        )
    notes = _placed(path, known[-1], forecaster)
    rows = tuple(Timed(size, wanted[size], forecaster.of_size(spec.kind, size)) for size in sorted(wanted))
    if spec.sizes != (largest,):
        forecaster.take(f"{spec.kind}:{_written(largest)}")
    return Measured(
        Quantity.STEP,
        wanted[largest],
        per_gpu=False,
        text=f"{path.name}, {units.size(largest)}",
        ranks=devices,
        sizes=rows,
        notes=(*notes, *known[-1].notes),
    )


def _placed(path: Path, test: Read, forecaster: Forecaster) -> list[str]:
    """Give a forecast of NCCL the ranks and nodes of a log where none are given.

    Raises InvalidArgumentError if those of a forecast differ.
    """
    if test.devices is None:
        return []
    options, taken = forecaster.options, False
    if forecaster.is_of_nccl and options.get("workers") is None and options.get("gpus") is None:
        forecaster.give(workers=str(test.devices))
        taken = True
    on = "" if test.nodes is None else f" on {units.count(test.nodes, 'node')}"
    per_node = None if test.nodes is None else -(-test.devices // test.nodes)
    ranks, nodes = forecaster.places
    is_other = test.nodes not in (None, nodes)
    if is_other and ranks == test.devices and forecaster.is_of_nccl and options.get("gpus_per_node") is None:
        forecaster.give(gpus_per_node=str(per_node))
        taken, is_other = True, forecaster.places[1] != test.nodes
    if is_other or ranks != test.devices:
        remedy = f"{{gpus={test.devices}}}{'' if per_node is None else f' {{gpus_per_node={per_node}}}'}"
        if not forecaster.is_of_nccl and options.get("cluster") is None:
            remedy += ", or {cluster=dgx-h100} with its GPUs (list: paceline list clusters)"
        raise InvalidArgumentError(
            f"{path}: has {units.count(test.devices, 'rank')}{on}, and the forecast {ranks} on "
            f"{units.count(nodes, 'node')}",
            setting="measured",
            remedy=remedy,
        )
    return [f"{units.count(ranks, 'rank')}{on}, as in {path.name}"] if taken else []


def _written(size: int) -> str:
    """Return a size as `--measured` and workloads have it, in the largest unit of nccl-tests that divides it."""
    power = next(power for power in (30, 20, 10, 0) if size % (1 << power) == 0)
    return f"{size >> power}{_BINARY[power]}"


_BINARY = {30: "GiB", 20: "MiB", 10: "KiB", 0: "B"}
_PERF = {
    "allreduce": "all_reduce_perf",
    "allgather": "all_gather_perf",
    "reducescatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
}


def _kind(one: Read) -> str:
    """Return the collective of a test as workloads are called; empty if the log does not say."""
    return one.what.partition(" ")[0].replace("_", "") if one.what != "unknown" else ""
