"""Combines several steps into one worker of a trace: medians per layer and gradient, and names instead of numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline._internal import units
from paceline._internal.recording import ACCUMULATION_LAYER, INPUT_LAYER, LOSS_LAYER, RecordingError
from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.tensorflow.recorder.steps import StepTimes
from paceline.tensorflow.recorder.table import Table

MODEL_LAYER = "model"
"""The only layer of a step that calls none of Keras."""


@dataclass(frozen=True)
class Medians:
    """A worker of the trace, and values for which the trace has no field. Times are in seconds."""

    worker: dict[str, Any]
    dtype: str
    batch: int
    """0 if unknown."""
    loss_s: float
    input_s: float | None
    step_s: float
    steps: int
    ready: frozenset[int]
    left: frozenset[int]
    """Parameters of the layers without a gradient."""
    unused: tuple[str, ...]
    frozen: tuple[str, ...]
    not_trained: tuple[dict[str, Any], ...]
    modules: tuple[int, ...]
    notes: tuple[str, ...]


def combine(
    steps: Sequence[StepTimes], requested: int, table: Table, modules: dict[int, frozenset[int]], *, alone: bool
) -> Medians:
    """Return medians over the steps that ran the same layers. Raises RecordingError if there is none.

    `requested`: the steps that were recorded, some of which may have computed no gradient.
    """
    if not steps:
        raise RecordingError(
            "none of the recorded steps computed a gradient of the optimizer's variables",
            remedy="tape.gradient(loss, model.trainable_variables) in the recorded steps",
        )
    shapes = Counter(step.shape for step in steps)
    most = max(shapes.values())
    last = next(step for step in reversed(steps) if shapes[step.shape] == most)
    alike = [step for step in steps if step.shape == last.shape]
    ready = {number: median(step.ready_s[number] for step in alike) for number in last.ready_s}
    dtype = _wire_dtype(table, ready)
    itemsize = DTYPE_BYTES[dtype]
    of_modules = frozenset().union(*(modules.get(module, frozenset()) for module in last.modules))
    left = frozenset(number for number in of_modules - ready.keys() if table.parameters[number].elements)
    frozen = sorted(number for number in left if not table.parameters[number].trainable)
    unused = sorted(left - set(frozen))

    forward = _forward(alike, table, [*ready, *frozen, *unused])
    loss_s = median(step.loss_s for step in alike)
    accumulation_s = median(step.accumulation_s for step in alike)
    forward += [
        {"layer": name, "duration_s": _seconds(duration)}
        for name, duration in ((ACCUMULATION_LAYER, accumulation_s), (LOSS_LAYER, loss_s))
        if _seconds(duration) > 0
    ]
    inputs = [step.input_s for step in alike if step.input_s is not None]
    input_s = median(inputs) if inputs else None
    if alone and input_s:
        forward.insert(0, {"layer": INPUT_LAYER, "duration_s": _seconds(input_s)})
    backward_s = max([median(step.backward_s for step in alike), *ready.values()])
    worker = {
        "forward": forward,
        "gradients": [
            {
                "tensor": table.parameters[number].name,
                "ready_s": _seconds(at),
                "bytes": _wire_bytes(table, number, itemsize),
                **_shape(table, number, itemsize),
            }
            for number, at in sorted(ready.items(), key=lambda item: item[1])
            if table.parameters[number].elements
        ],
        "backward_s": _seconds(backward_s),
        "optimizer_s": _seconds(median(step.optimizer_s for step in alike)),
    }
    periods = [step.period_s for step in alike if step.period_s is not None]
    return Medians(
        worker=worker,
        dtype=dtype,
        batch=Counter(step.batch for step in alike).most_common(1)[0][0],
        loss_s=loss_s,
        input_s=input_s,
        step_s=median(periods),
        steps=len(alike),
        ready=frozenset(ready),
        left=left,
        unused=tuple(table.parameters[number].name for number in unused),
        frozen=tuple(table.parameters[number].name for number in frozen),
        not_trained=tuple(
            {"tensor": table.parameters[number].name, "bytes": _wire_bytes(table, number, itemsize)}
            for number in sorted(left)
        ),
        modules=last.modules,
        notes=tuple(_notes(alike, requested, table, ready, dtype)),
    )


def _forward(steps: Sequence[StepTimes], table: Table, every: Sequence[int]) -> list[dict[str, Any]]:
    """Return the layers; `every`: the parameters that one of them has to need."""
    last = steps[-1]
    wanted = set(every)
    needs = [[one for one in table.needs.get(layer, ()) if one in wanted] for layer in last.layers]
    missing = wanted - {one for some in needs for one in some}
    for number in sorted(missing):  # Variables that belong to no layer that was called, or to no layer at all.
        needs[_owner(number, last.layers, table)].append(number)
    calls: Counter[int] = Counter()
    forward: list[dict[str, Any]] = []
    for position, layer in enumerate(last.layers):
        calls[layer] += 1
        name = MODEL_LAYER if layer < 0 else table.layer_name(layer)
        entry: dict[str, Any] = {
            "layer": name + (f"#{calls[layer]}" if calls[layer] > 1 else ""),
            "duration_s": _seconds(median(step.layer_s[position] for step in steps)),
        }
        tensors = [table.parameters[one].name for one in needs[position] if table.parameters[one].elements]
        if tensors:
            entry["tensors"] = tensors
        forward.append(entry)
    return forward


def _owner(number: int, layers: Sequence[int], table: Table) -> int:
    """Return the place of the first layer whose path has most in common with a parameter's."""
    words = table.parameters[number].name.split("/")

    def common(layer: int) -> int:
        path = [] if layer < 0 else table.layer_name(layer).split("/")
        return next(
            (i for i, (a, b) in enumerate(zip(path, words, strict=False)) if a != b), min(len(path), len(words))
        )

    return max(range(len(layers)), key=lambda place: (common(layers[place]), -place))


def _wire_dtype(table: Table, numbers: Iterable[int]) -> str:
    """Return the type of most elements, among those that a trace may have."""
    elements: Counter[str] = Counter()
    for number in numbers:
        elements[table.parameters[number].dtype] += table.parameters[number].elements
    known = [dtype for dtype, _ in elements.most_common() if dtype in DTYPE_BYTES]
    if not known:
        raise RecordingError(
            f"the gradients are {', '.join(sorted(elements))}", remedy=f"one of {', '.join(DTYPE_BYTES)}"
        )
    return known[0]


def _wire_bytes(table: Table, number: int, itemsize: int) -> int:
    """Return the gradient's bytes, rounded up to whole elements of `itemsize` bytes."""
    parameter = table.parameters[number]
    return math.ceil(parameter.elements * parameter.itemsize / itemsize) * itemsize


def _shape(table: Table, number: int, itemsize: int) -> dict[str, list[int]]:
    parameter = table.parameters[number]
    return {"shape": list(parameter.shape)} if parameter.itemsize == itemsize else {}


def _notes(alike: Sequence[StepTimes], steps: int, table: Table, ready: Iterable[int], dtype: str) -> list[str]:
    notes: list[str] = []
    last = alike[-1]
    if len(alike) < steps:
        notes.append(f"{steps - len(alike)} of {steps} steps had different layers or passes and were left out")
    if last.layers == (-1,):
        notes.append("no call of a Keras layer was seen: the model is one layer with all parameters")
    if last.passes > 1:
        notes.append(f"{last.passes} passes per step: all but the last are in the layer {ACCUMULATION_LAYER}")
    other = sorted({table.parameters[number].dtype for number in ready} - {dtype})
    if other:
        notes.append(f"gradients of {', '.join(other)} are rounded up to whole {dtype} elements")
    sparse = [table.parameters[number].name for number in ready if table.parameters[number].sparse]
    if sparse:
        notes.append(f"{units.count(len(sparse), 'sparse gradient')} count as dense, such as {sparse[0]}")
    return notes


def _seconds(value: float) -> float:
    return round(value, 9)
