"""Combines several steps into one trace: medians per event, and names instead of indices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline._internal import recording
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
from paceline.catalog import dtypes
from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.torch.recorder.modules import ModuleTable, needed_tensors
from paceline.torch.recorder.step import StepTimes
from paceline.torch.recorder.step_hooks import Gradient


@dataclass(frozen=True)
class Medians(recording.Medians):
    """Those of a model."""

    trained: int
    """Elements of the parameters that have gradients."""


def combine(
    steps: Sequence[StepTimes], table: ModuleTable, gradients: Mapping[int, Gradient], *, with_input: bool = False
) -> Medians:
    """Return medians over the steps that ran the same layers. Raises RecordingError if there is no step.

    `with_input`: the time between steps is the worker's first layer.
    """
    if not steps:
        raise RecordingError(
            "none of the recorded steps computed a gradient of the model's parameters",
            remedy="loss.backward() in the recorded steps",
        )
    alike = of_the_usual_shape(steps)
    last = alike[-1]
    notes = _notes(alike, len(steps), table)

    dtype = wire_dtype(gradients[p] for p in last.ready_s)
    itemsize = DTYPE_BYTES[dtype]
    ready = {p: median(step.ready_s[p] for step in alike) for p in last.ready_s}
    backward_s = max([median(step.backward_s for step in alike), *ready.values()])

    forward, loss_s, input_s = with_special_layers(_forward(alike, table), alike, with_input=with_input)
    other = sorted({gradients[p].dtype for p in ready} - {dtype})
    if other:
        notes.append(f"gradients of {', '.join(other)} are rounded up to whole {dtype} elements")
    sparse = [table.parameter_names[p] for p in ready if gradients[p].sparse]
    if sparse:
        notes.append(f"sparse gradients count as dense: {_some(sparse)}")

    left = [i for i, elements in enumerate(table.parameter_elements) if elements and i not in ready]
    unused = tuple(n for i, n in enumerate(table.parameter_names) if i not in ready and i not in table.frozen)
    worker = {
        "forward": forward,
        "gradients": [
            {
                "tensor": table.parameter_names[p],
                "ready_s": seconds(at_s),
                "bytes": wire_bytes(gradients[p], itemsize),
                **_shape(gradients[p], itemsize),
            }
            for p, at_s in sorted(ready.items(), key=lambda item: item[1])
            if gradients[p].elements  # Empty parameters send nothing.
        ],
        "backward_s": seconds(backward_s),
        "optimizer_s": seconds(median(step.optimizer_s for step in alike)),
    }
    return Medians(
        worker=worker,
        dtype=dtype,
        batch=Counter(step.batch for step in alike).most_common(1)[0][0],
        loss_s=loss_s,
        input_s=input_s,
        step_s=median(step.total_s for step in alike),
        steps=len(alike),
        unused=unused,
        frozen=tuple(table.parameter_names[i] for i in sorted(table.frozen)),
        not_trained=tuple(
            {"tensor": table.parameter_names[i], "bytes": whole_elements(table.parameter_bytes[i], itemsize)}
            for i in left
        ),
        trained=sum(table.parameter_elements[p] for p in ready),
        notes=tuple(notes),
    )


def wire_dtype(gradients: Iterable[Gradient]) -> str:
    """Return the dtype of most gradient elements, among those that the trace format allows."""
    return dtypes.wire_dtype((gradient.dtype, gradient.elements) for gradient in gradients)


def wire_bytes(gradient: Gradient, itemsize: int) -> int:
    """Return the gradient's bytes, rounded up to whole elements of `itemsize` bytes."""
    return whole_elements(gradient.elements * gradient.itemsize, itemsize)


def _shape(gradient: Gradient, itemsize: int) -> dict[str, list[int]]:
    """Return the gradient's shape, for a trace in whose elements it can be told."""
    if gradient.shape is None or gradient.itemsize != itemsize or math.prod(gradient.shape) != gradient.elements:
        return {}
    return {"shape": list(gradient.shape)}


def _forward(steps: Sequence[StepTimes], table: ModuleTable) -> list[dict[str, Any]]:
    layers = steps[-1].layers
    needs = needed_tensors(table, layers)
    forward: list[dict[str, Any]] = []
    for position, name in enumerate(numbered(layers, lambda module: table.names[module])):
        duration_s = median(step.layer_s[position] for step in steps)
        layer: dict[str, Any] = {"layer": name, "duration_s": seconds(duration_s)}
        tensors = [table.parameter_names[p] for p in needs[position] if table.parameter_elements[p]]
        if tensors:
            layer["tensors"] = tensors
        forward.append(layer)
    return forward


def _notes(alike: Sequence[StepTimes], steps: int, table: ModuleTable) -> list[str]:
    last = alike[-1]
    notes = notes_of_steps(len(alike), steps)
    if 0 in table.opaque:
        notes.append("the model is compiled, which hides its layers: it is one layer with all parameters")
    elif last.layers == (0,) and table.descendants[0]:
        notes.append("no calls of layers inside the model were seen: it is one layer with all parameters")
    elif table.opaque:
        notes.append(f"compiled, so one layer each: {_some([table.names[m] for m in sorted(table.opaque)])}")
    notes += notes_of_passes(last.passes)
    if not last.saw_backward_start:
        notes.append("the start of the backward pass was not seen; it is assumed to follow the forward pass")
    return notes


def _some(names: Sequence[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


CALLED_TWICE = (
    "cannot record optimizer.step(closure) that calls the closure several times in a step, as LBFGS does: "
    "there is no point at which the gradients of the iteration are ready and the optimizer has not started"
)
