"""Makes a trace from TensorFlow's timelines and profiles: one file a rank."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from paceline._core import Trace
from paceline._internal.documents import MB, read_json
from paceline._internal.nearest import alike
from paceline._internal.units import count, shown
from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.errors import InvalidArgumentError
from paceline.interop.kineto_step import LOSS_LAYER
from paceline.interop.tensorflow_file import Recording, read_recording
from paceline.interop.tensorflow_step import Step, take_apart, workers

_LARGEST = 64 * MB
_LARGEST_TENSOR = 10**15
"""Bytes of a tensor in any trace."""


@dataclass(frozen=True)
class TensorflowSummary:
    """Summary of an import. Times are in seconds, of the first worker."""

    name: str
    batch: int
    device: str
    ranks: int
    steps: int
    layers: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    gradients: int
    gradient_bytes: int
    distribution: tuple[str, ...]
    """The order in which servers send: that of the forward pass."""
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self)


def import_tensorflow(
    paths: Sequence[Path],
    *,
    batch: int,
    name: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    sizes: Path | None = None,
) -> tuple[Trace, TensorflowSummary]:
    """Return a trace and what is in it.

    Args:
        paths: Timelines (JSON) or profiles (.xplane.pb), of one rank each; each worker in one is a worker.
        batch: Samples of a step.
        name: The trace's name; the first file's by default.
        device: What it was recorded on.
        dtype: Dtype of the gradients; by default that in the file, or float32.
        sizes: A JSON file with the bytes of each trainable variable by name, in the model's order.

    Raises:
        InvalidArgumentError: A file is missing or malformed, or lacks what a trace needs.
    """
    given = {} if sizes is None else _sizes(sizes)
    every: list[tuple[list[Step], dict[str, tuple[int, str]], Path]] = []
    notes: list[str] = []
    gpus: set[str | None] = set()
    for path in paths:
        recording = read_recording(path)
        if not recording.has_inputs and not given:
            raise InvalidArgumentError(
                f"{path}: a profile has neither names nor sizes of variables",
                remedy='--sizes sizes.json ({"net/dense/kernel": 4096, …}, in the model\'s order)',
            )
        gpus.add(recording.gpu)
        for task in workers(recording):
            taken = [take_apart(recording, step, task, list(given)) for step in recording.steps]
            usual = _usual(taken, notes)
            every.append((usual, _bytes(recording, usual[-1], given), path))
    if len(gpus) > 1 and None in gpus:
        raise InvalidArgumentError("some files are of a GPU and others of CPUs", remedy="files of alike ranks")
    on_gpu = None not in gpus
    if on_gpu:
        notes.append("times of a GPU's kernels")
    steps, known, _ = every[0]
    if unknown := [variable for variable in given if variable not in known]:
        near = alike(unknown[0], list(known))
        raise InvalidArgumentError(
            f"{sizes!s:.200}: {paths[0]} has no gradient of '{shown(unknown[0])}'",
            remedy=f"'{near[0]}' in its place" if near else "the sizes of variables that the step trains",
        )
    wire = dtype or Counter(kind for _, kind in known.values()).most_common(1)[0][0]
    distribution = steps[-1].order
    for number, (_, others, path) in enumerate(every):
        if {key: value[0] for key, value in others.items()} != {key: value[0] for key, value in known.items()}:
            raise InvalidArgumentError(
                f"{path}: worker {number} has other gradients than worker 0: {len(others)} instead of {len(known)}, "
                "or others",
                remedy="files of ranks that trained the same model",
            )
    plain = name or paths[0].name.removesuffix(".gz").removesuffix(".json").removesuffix(".pb").removesuffix(".xplane")
    document = {
        "format": "paceline-trace",
        "version": 1,
        "name": plain,
        "provenance": "; ".join(
            [
                f"imported from TensorFlow's {count(len(paths), 'file')}, {count(len(every), 'worker')}",
                f"median of {count(len(steps), 'step')}",
                *notes,
            ]
        ),
        "batch": batch,
        "dtype": wire,
        "device": device or ("GPU" if on_gpu else "CPU"),
        "workers": [_worker(some, sizes_of, wire) for some, sizes_of, _ in every],
        "distribution": [variable for variable in distribution if variable in steps[-1].ready_s],
    }
    trace = Trace.from_json(json.dumps(document).encode(), str(paths[0]))
    worker: dict[str, Any] = document["workers"][0]  # type: ignore[index]
    summary = TensorflowSummary(
        name=plain,
        batch=batch,
        device=str(document["device"]),
        ranks=len(every),
        steps=len(steps),
        layers=len(worker["forward"]),
        forward_s=sum(layer["duration_s"] for layer in worker["forward"]),
        backward_s=worker["backward_s"],
        optimizer_s=worker["optimizer_s"],
        gradients=len(worker["gradients"]),
        gradient_bytes=sum(gradient["bytes"] for gradient in worker["gradients"]),
        distribution=tuple(document["distribution"]),  # type: ignore[arg-type]
        notes=tuple(notes),
    )
    return trace, summary


def _sizes(path: Path) -> dict[str, int]:
    content = read_json(path, _LARGEST)
    if (
        not isinstance(content, dict)
        or not content
        or not all(type(size) is int and 0 < size <= _LARGEST_TENSOR for size in content.values())
    ):
        raise InvalidArgumentError(
            f"{path!s:.200}: must have the bytes of each variable by its name", remedy='{"net/dense/kernel": 4096}'
        )
    return dict(content)


def _usual(steps: Sequence[Step], notes: list[str]) -> list[Step]:
    """Return the steps that most have in common."""
    shapes = Counter(step.shape for step in steps)
    most = max(shapes.values())
    last = next(step for step in reversed(steps) if shapes[step.shape] == most)
    usual = [step for step in steps if step.shape == last.shape]
    if len(usual) < len(steps):
        notes.append(f"{len(steps) - len(usual)} of {len(steps)} steps had other layers or gradients: left out")
    return usual


def _bytes(recording: Recording, step: Step, given: Mapping[str, int]) -> dict[str, tuple[int, str]]:
    """Return bytes and dtype of each gradient."""
    sizes: dict[str, tuple[int, str]] = {}
    for variable in step.ready_s:
        tensor = recording.tensors.get(step.producers.get(variable, ""))
        if variable in given:
            sizes[variable] = given[variable], tensor.dtype if tensor else "float32"
        elif tensor is not None:
            sizes[variable] = tensor.bytes, tensor.dtype
        else:
            raise InvalidArgumentError(
                f"{recording.path}: has no size of {variable}'s gradient",
                remedy="generate_chrome_trace_format(show_memory=True), or --sizes sizes.json",
            )
    return sizes


def _worker(steps: Sequence[Step], sizes: Mapping[str, tuple[int, str]], dtype: str) -> dict[str, Any]:
    last, width = steps[-1], DTYPE_BYTES[dtype]
    places = {layer: [step.layers.index(layer) for step in steps] for layer in last.layers}
    forward = []
    for index, layer in enumerate(last.layers):
        durations = [step.layer_s[place] for step, place in zip(steps, places[layer], strict=True)]
        entry: dict[str, Any] = {"layer": layer, "duration_s": round(median(durations), 9)}
        if tensors := [name for name in last.needs[index] if name in last.ready_s]:
            entry["tensors"] = tensors
        forward.append(entry)
    needed = {name for entry in forward for name in entry.get("tensors", [])}
    rest = [name for name in last.ready_s if name not in needed]
    if rest:  # Read in another way, such as by a look-up.
        forward[0:1] = [{**forward[0], "tensors": [*forward[0].get("tensors", []), *rest]}] if forward else []
        forward = forward or [{"layer": "model", "duration_s": 0.0, "tensors": rest}]
    loss = round(median(step.loss_s for step in steps), 9)
    if loss > 0:
        forward.append({"layer": LOSS_LAYER, "duration_s": loss})
    ready = {name: round(median(step.ready_s[name] for step in steps), 9) for name in last.ready_s}
    backward = max([median(step.backward_s for step in steps), *ready.values()])
    return {
        "forward": forward,
        "gradients": [
            {"tensor": name, "ready_s": at, "bytes": -(-sizes[name][0] // width) * width}
            for name, at in sorted(ready.items(), key=lambda item: item[1])
        ],
        "backward_s": round(backward, 9),
        "optimizer_s": round(median(step.optimizer_s for step in steps), 9),
    }
