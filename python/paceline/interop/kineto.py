"""Makes a trace from what torch.profiler recorded: one file a rank, some steps each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from paceline._core import Trace
from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.errors import InvalidArgumentError
from paceline.interop.kineto_file import Event, Profile, read_profile
from paceline.interop.kineto_step import LOSS_LAYER, Source, Step, take_apart

_STEP = re.compile(r"ProfilerStep#\d+$")


@dataclass(frozen=True)
class CollectiveTotal:
    """The collectives of one kind in a step of the first file's rank; medians."""

    kind: str
    count: int
    bytes: int | None
    """None if sizes were not recorded."""
    duration_s: float
    exposed_s: float
    """While computation waited for it."""


@dataclass(frozen=True)
class KinetoSummary:
    """Summary of an import. Times are in seconds, of the first file's rank."""

    name: str
    batch: int
    device: str
    ranks: int
    steps: int
    layers: int
    forward_s: float
    loss_s: float
    backward_s: float
    optimizer_s: float
    gradients: int
    gradient_bytes: int
    collectives: tuple[CollectiveTotal, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self)


def import_kineto(
    paths: Sequence[Path], *, name: str | None = None, batch: int | None = None, device: str | None = None
) -> tuple[Trace, KinetoSummary]:
    """Return a trace and what is in it.

    Args:
        paths: Files of `torch.profiler`, of one rank each: each becomes a recorded worker.
        name: The trace's name; the first file's by default.
        batch: Samples of a step; by default the first dimension of the model's input, if shapes were recorded.
        device: What it was recorded on; by default the GPU's name in the file.

    Raises:
        InvalidArgumentError: A file is missing or malformed, has no complete step, or lacks what a trace needs.
    """
    workers: list[dict[str, Any]] = []
    first: tuple[Profile, list[Step], str] | None = None
    notes: list[str] = []
    for path in paths:
        profile = read_profile(path)
        steps, dtype = _alike(profile, notes if first is None else [])
        workers.append(_worker(steps, dtype))
        if first is None:
            first = (profile, steps, dtype)
    assert first is not None
    profile, steps, dtype = first
    for path, worker in zip(paths[1:], workers[1:], strict=True):
        if {(g["tensor"], g["bytes"]) for g in worker["gradients"]} != {
            (g["tensor"], g["bytes"]) for g in workers[0]["gradients"]
        }:
            raise InvalidArgumentError(
                f"{path}: has other gradients than {paths[0]}", remedy="files of ranks that trained the same model"
            )
    batches = Counter(step.batch for step in steps)
    samples = batch or max(batches, key=lambda size: batches[size])
    if not samples:
        raise InvalidArgumentError(
            f"{paths[0]} has no shapes of the model's input",
            remedy="--batch 32, or record_shapes=True in torch.profiler.profile",
        )
    if batch is None:
        which = "" if len(batches) == 1 else f" in {batches[samples]} of {len(steps)} steps"
        notes.append(
            f"batch {samples} is the first dimension of the model's input{which}; give --batch if that is not so"
        )
    on_gpu = bool(profile.of("kernel"))
    plain = name or paths[0].name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")
    wrapped = any(e.name == "DistributedDataParallel.forward" for e in profile.of("user_annotation"))
    document = {
        "format": "paceline-trace",
        "version": 1,
        "name": plain,
        "provenance": "; ".join(
            [
                f"imported from torch.profiler's trace of {len(paths)} rank{'s' if len(paths) > 1 else ''}"
                + (f" of {profile.world_size} with {profile.backend}" if profile.backend else ""),
                f"median of {len(steps)} step{'s' if len(steps) > 1 else ''}",
                f"times of the {'GPU' if on_gpu else 'CPU'} without waits for collectives",
                *notes,
            ]
        ),
        "batch": samples,
        "dtype": dtype,
        "device": device or profile.device or ("GPU" if on_gpu else "CPU"),
        **({"library": "ddp"} if wrapped else {}),
        "workers": workers,
    }
    trace = Trace.from_json(json.dumps(document).encode(), str(paths[0]))
    worker = workers[0]
    loss = sum(layer["duration_s"] for layer in worker["forward"] if layer["layer"] == LOSS_LAYER)
    summary = KinetoSummary(
        name=plain,
        batch=samples,
        device=str(document["device"]),
        ranks=len(workers),
        steps=len(steps),
        layers=len(worker["forward"]),
        forward_s=sum(layer["duration_s"] for layer in worker["forward"]),
        loss_s=loss,
        backward_s=worker["backward_s"],
        optimizer_s=worker["optimizer_s"],
        gradients=len(worker["gradients"]),
        gradient_bytes=sum(gradient["bytes"] for gradient in worker["gradients"]),
        collectives=_totals(steps),
        notes=tuple(notes),
    )
    return trace, summary


def _alike(profile: Profile, notes: list[str]) -> tuple[list[Step], str]:
    """Return the steps that most have in common, and the dtype of their gradients."""
    path = profile.path
    source = Source(profile)
    windows = windows_of(profile)
    taken = [step for window in windows if (step := take_apart(source, window)) is not None]
    if not taken:
        raise InvalidArgumentError(
            f"{path}: no step computed a gradient ({len(windows)} found){profile.age}",
            remedy="activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], over both passes",
        )
    shapes = Counter(step.shape for step in taken)
    most = max(shapes.values())
    last = next(step for step in reversed(taken) if shapes[step.shape] == most)
    alike = [step for step in taken if step.shape == last.shape]
    if not last.gradients:
        raise InvalidArgumentError(
            f"{path}: has no sizes of the gradients{profile.age}", remedy="torch.profiler.profile(record_shapes=True)"
        )
    if len(alike) < len(windows):
        notes.append(f"{len(windows) - len(alike)} of {len(windows)} steps had other layers or no gradients: left out")
    if last.passes > 1:
        notes.append(f"{last.passes} passes per step: all but the last are in the layer (accumulation)")
    if last.buckets:
        notes.append("no shapes were recorded: a gradient here is a bucket, of the size that was reduced at once")
    without = sum(not step.optimizer_s for step in alike)
    if without:
        which = "" if without == len(alike) else f" in {without} of {len(alike)} steps"
        notes.append(f"no step of an optimizer was seen{which}: it counts as 0")
    if any(step.unlinked for step in alike):
        notes.append(_orphans([step.unlinked for step in alike]))
    bytes_of: Counter[str] = Counter()
    for gradient in last.gradients:
        bytes_of[gradient.dtype] += gradient.bytes
    known = [dtype for dtype, _ in bytes_of.most_common() if dtype in DTYPE_BYTES]
    if not known:
        raise InvalidArgumentError(
            f"{path}: the gradients are {', '.join(sorted(bytes_of))}", remedy=f"one of {', '.join(DTYPE_BYTES)}"
        )
    if len(bytes_of) > 1:
        notes.append(f"gradients of {', '.join(sorted(set(bytes_of) - {known[0]}))} are rounded up to whole {known[0]}")
    return alike, known[0]


def _orphans(each: Sequence[int]) -> str:
    """Return the note on kernels without a launch, given their number in each step."""
    some = [number for number in each if number]
    few, many = min(some), max(some)
    kernels = f"{many} kernel{'s' * (many > 1)}" if few == many else f"{few} to {many} kernels"
    where = "per step" if len(some) == len(each) > 1 else f"in {len(some)} of {len(each)} steps"
    return f"{kernels} {where} without the call that launched them: left out"


def windows_of(profile: Profile) -> list[Event]:
    """Return the steps: what `profiler.step()` marked, or else from one optimizer step's end to the next."""
    annotations = profile.of("user_annotation")
    steps = [event for event in annotations if _STEP.match(event.name)]
    if steps:
        return steps
    ends = [event for event in annotations if event.name.startswith("Optimizer.step")]
    if not ends:
        raise InvalidArgumentError(
            f"{profile.path}: has neither ProfilerStep#N nor Optimizer.step, so steps are unknown{profile.age}",
            remedy="profiler.step() after each step",
        )
    same = [event for event in ends if event.name == ends[-1].name and event.thread == ends[-1].thread]
    start = min(event.start for event in profile.events if event.thread == ends[-1].thread)
    windows = []
    for event in same:
        windows.append(Event("step", "user_annotation", event.thread, start, event.end, {}))
        start = event.end
    return windows


def _worker(steps: Sequence[Step], dtype: str) -> dict[str, Any]:
    last = steps[-1]
    width = DTYPE_BYTES[dtype]
    numbers: Counter[str] = Counter()
    gradients: list[dict[str, Any]] = []
    tensors: list[list[str]] = [[] for _ in last.layers]
    for index, gradient in enumerate(last.gradients):
        owner = last.layers[gradient.layers[0]] if not last.buckets else "bucket"
        tensor = f"{owner}.{numbers[owner]}"
        numbers[owner] += 1
        for at in gradient.layers:
            tensors[at].append(tensor)
        gradients.append(
            {
                "tensor": tensor,
                "ready_s": _seconds(median(step.gradients[index].ready_s for step in steps)),
                "bytes": -(-gradient.bytes // width) * width,
            }
        )
    forward = []
    for index, layer in enumerate(last.layers):
        entry: dict[str, Any] = {
            "layer": layer,
            "duration_s": _seconds(median(step.layer_s[index] for step in steps)),
        }
        if tensors[index]:
            entry["tensors"] = tensors[index]
        forward.append(entry)
    backward = max([median(step.backward_s for step in steps), *(g["ready_s"] for g in gradients)])
    return {
        "forward": forward,
        "gradients": gradients,
        "backward_s": _seconds(backward),
        "optimizer_s": _seconds(median(step.optimizer_s for step in steps)),
    }


def _totals(steps: Sequence[Step]) -> tuple[CollectiveTotal, ...]:
    kinds = dict.fromkeys(kind for step in steps for kind, _, _, _ in step.collectives)
    totals = []
    for kind in kinds:
        each = [[c for c in step.collectives if c[0] == kind] for step in steps]
        sizes = [sum(c[1] for c in some) for some in each]
        totals.append(
            CollectiveTotal(
                kind=kind,
                count=round(median(len(some) for some in each)),
                bytes=round(median(sizes)) if all(sizes) else None,
                duration_s=median(sum(c[2] for c in some) for some in each),
                exposed_s=median(sum(c[3] for c in some) for some in each),
            )
        )
    return tuple(totals)


def _seconds(value: float) -> float:
    return round(value, 9)
