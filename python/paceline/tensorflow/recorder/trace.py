"""Combines several steps into one worker of a trace: medians per layer and gradient, and names instead of numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline._internal import recording, units
from paceline._internal.recording import (
    RecordingError,
    notes_of_passes,
    notes_of_steps,
    numbered,
    of_the_usual_shape,
    seconds,
    whole_elements,
    with_special_layers,
)
from paceline.catalog.dtypes import DTYPE_BYTES, wire_dtype
from paceline.tensorflow.recorder.steps import StepTimes
from paceline.tensorflow.recorder.table import Table

MODEL_LAYER = "model"
"""The only layer of a step that calls none of Keras."""


@dataclass(frozen=True)
class Medians(recording.Medians):
    """Those of the layers that Keras called."""

    ready: frozenset[int]
    left: frozenset[int]
    """Parameters of the layers without a gradient."""
    modules: tuple[int, ...]


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
    alike = of_the_usual_shape(steps)
    last = alike[-1]
    ready = {number: median(step.ready_s[number] for step in alike) for number in last.ready_s}
    dtype = wire_dtype((table.parameters[number].dtype, table.parameters[number].elements) for number in ready)
    itemsize = DTYPE_BYTES[dtype]
    of_modules = frozenset().union(*(modules.get(module, frozenset()) for module in last.modules))
    left = frozenset(number for number in of_modules - ready.keys() if table.parameters[number].elements)
    frozen = sorted(number for number in left if not table.parameters[number].trainable)
    unused = sorted(left - set(frozen))

    layers = _forward(alike, table, [*ready, *frozen, *unused])
    forward, loss_s, input_s = with_special_layers(layers, alike, with_input=alone)
    backward_s = max([median(step.backward_s for step in alike), *ready.values()])
    worker = {
        "forward": forward,
        "gradients": [
            {
                "tensor": table.parameters[number].name,
                "ready_s": seconds(at),
                "bytes": _wire_bytes(table, number, itemsize),
                **_shape(table, number, itemsize),
            }
            for number, at in sorted(ready.items(), key=lambda item: item[1])
            if table.parameters[number].elements
        ],
        "backward_s": seconds(backward_s),
        "optimizer_s": seconds(median(step.optimizer_s for step in alike)),
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
    forward: list[dict[str, Any]] = []
    names = numbered(last.layers, lambda layer: MODEL_LAYER if layer < 0 else table.layer_name(layer))
    for position, name in enumerate(names):
        duration_s = median(step.layer_s[position] for step in steps)
        entry: dict[str, Any] = {"layer": name, "duration_s": seconds(duration_s)}
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


def _wire_bytes(table: Table, number: int, itemsize: int) -> int:
    """Return the gradient's bytes, rounded up to whole elements of `itemsize` bytes."""
    parameter = table.parameters[number]
    return whole_elements(parameter.elements * parameter.itemsize, itemsize)


def _shape(table: Table, number: int, itemsize: int) -> dict[str, list[int]]:
    parameter = table.parameters[number]
    return {"shape": list(parameter.shape)} if parameter.itemsize == itemsize else {}


def _notes(alike: Sequence[StepTimes], steps: int, table: Table, ready: Iterable[int], dtype: str) -> list[str]:
    last = alike[-1]
    notes = notes_of_steps(len(alike), steps)
    if last.layers == (-1,):
        notes.append("no call of a Keras layer was seen: the model is one layer with all parameters")
    notes += notes_of_passes(last.passes)
    other = sorted({table.parameters[number].dtype for number in ready} - {dtype})
    if other:
        notes.append(f"gradients of {', '.join(other)} are rounded up to whole {dtype} elements")
    sparse = [table.parameters[number].name for number in ready if table.parameters[number].sparse]
    if sparse:
        verb = "counts" if len(sparse) == 1 else "count"
        notes.append(f"{units.count(len(sparse), 'sparse gradient')} {verb} as dense, such as {sparse[0]}")
    return notes
