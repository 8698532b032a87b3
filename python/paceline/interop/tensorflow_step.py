"""Takes a step of TensorFlow apart: layers by the variables that they read, gradients, and the optimizer's updates.

Gradients are named after what they differentiate: `gradients/fc/MatMul_grad/MatMul_1` in graphs of TensorFlow 1,
`gradient_tape/net/fc/MatMul/MatMul_1` under a tape. In a timeline, the inputs of each update (`ApplyMomentum`, …) tell
its variable and its gradient. A profile has no inputs, so variables are told by their layer, and by the kinds of the
operations that compute gradients of weights and biases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from paceline.errors import InvalidArgumentError
from paceline.interop.tensorflow_file import READ, Operation, Recording, plain
from paceline.interop.timeline import length, union

_GRADIENT = re.compile(r"(?:^|/)(?:gradients(?:_\d+)?|gradient_tape)(?=/|$)")
_UPDATE = re.compile(r"_?(?:Resource)?(?:Sparse)?Apply[A-Z]\w*")
_ASSIGN = re.compile(r"Assign(?:Add|Sub)?(?:VariableOp)?|ScatterSub|ResourceScatter\w+")
_READ = {READ, "VariableV2", "Variable", "VarHandleOp"}
_STATIC = {"Const", "NoOp", "Shape", "ShapeN", "Identity", "BroadcastGradientArgs", "VarHandleOp", "_Arg", "RecvTensor"}
"""Operations that may run before what they are a part of begins."""
_WEIGHTS = re.compile(r"BackpropFilter|MatMul|UnsortedSegmentSum")
_BIASES = re.compile(r"BiasAddGrad|WithBias$")


@dataclass(frozen=True)
class Step:
    """The durations of one step, in seconds."""

    layers: tuple[str, ...]
    layer_s: tuple[float, ...]
    needs: tuple[tuple[str, ...], ...]
    """The variables that each layer reads first."""
    loss_s: float
    ready_s: dict[str, float]
    """By variable."""
    producers: dict[str, str]
    """The operation that makes a variable's gradient, in a timeline."""
    backward_s: float
    optimizer_s: float
    order: tuple[str, ...]
    """Variables in the order in which operations of the forward pass that read them began."""

    @property
    def shape(self) -> tuple[tuple[str, ...], frozenset[str]]:
        """Properties that steps must share for a median over them to be meaningful."""
        return tuple(sorted(self.layers)), frozenset(self.ready_s)


def workers(recording: Recording) -> list[str]:
    """Return the tasks that compute gradients. Raises InvalidArgumentError if there is none."""
    tasks = {one.task for step in recording.steps for one in step if is_gradient(one) and one.kind not in _STATIC}
    if not tasks:
        raise InvalidArgumentError(
            f"{recording.path}: no operation computes a gradient (gradients/… or gradient_tape/…)",
            remedy="a training step: of a session, or of a tf.function with a tape",
        )
    return sorted(tasks, key=lambda task: (task.rpartition(":")[0], len(task), task))  # Numbers without leading zeros.


def is_gradient(one: Operation) -> bool:
    """Return whether an operation belongs to the backward pass."""
    return _GRADIENT.search(one.name) is not None


def take_apart(recording: Recording, operations: Sequence[Operation], task: str, sizes: Sequence[str]) -> Step:
    """Return the durations of a worker's step.

    Args:
        recording: The file.
        operations: Those of the step, of all tasks.
        task: The worker.
        sizes: Names of variables whose sizes the user gave, in the order of the model.

    Raises:
        InvalidArgumentError: It reads no variable, or computes no gradient of one.
    """
    own = [one for one in operations if one.task == task]
    updates = _updates(operations) if recording.has_inputs else {}
    backward = [one for one in own if is_gradient(one) and one.kind not in _STATIC]
    if not backward:
        raise InvalidArgumentError(f"{recording.path}: a step has no backward pass", remedy="whole steps of training")
    if recording.has_inputs:
        reads = _reads_by_inputs(own, updates)
        ready, producers = _ready_by_inputs(recording.path, own, updates)
        groups = _by_scope(reads)
    else:
        groups = _by_order(recording.path, own, sizes)
        ready = _ready_by_kind(backward, groups)
        producers = {}
    last_read = max((reader.start for _, reader, _ in groups), default=own[0].start)
    begin = min((one.start for one in backward if one.start >= last_read), default=backward[0].start)
    forward = [one for one in own if one.start < begin and not is_gradient(one) and one.kind not in _STATIC | _READ]
    inside = [one for one in forward if any(_within(one.name, scope) for scope, _, _ in groups)]
    end = max((one.end for one in inside), default=begin)
    edges = [groups[0][1].start] if groups else [begin]
    for _, reader, _ in groups[1:]:
        edges.append(max(edges[-1], reader.start))
    edges.append(max(edges[-1], min(end, begin)))
    begin = max(begin, edges[-1])
    last = max(ready.values(), default=begin)
    kinds = [one for one in operations if _UPDATE.fullmatch(one.kind) or _ASSIGN.fullmatch(one.kind)]
    later = [one for one in kinds if one.end > begin and not any(_within(one.name, scope) for scope, _, _ in groups)]
    here = max((one.end for one in later if one.task == task), default=last)
    there = length(union((one.start, one.end) for one in later if one.task != task))
    return Step(
        layers=tuple(names[0].rpartition("/")[0] or scope for scope, _, names in groups),
        layer_s=tuple(b - a for a, b in pairwise(edges)),
        needs=tuple(names for _, _, names in groups),
        loss_s=max(0.0, begin - edges[-1]),
        ready_s={name: max(0.0, at - begin) for name, at in ready.items()},
        producers=producers,
        backward_s=max(0.0, last - begin),
        optimizer_s=max(0.0, here - last) + there,
        order=tuple(dict.fromkeys(name for _, _, names in groups for name in names)),
    )


def _within(name: str, scope: str) -> bool:
    return name == scope or name.startswith(f"{scope}/")


def _updates(operations: Sequence[Operation]) -> dict[str, list[str]]:
    """Return the inputs of the update of each variable, by its name."""
    updates: dict[str, list[str]] = {}
    for one in operations:
        if _UPDATE.fullmatch(one.kind) and one.inputs:
            inputs = [plain(name) for name in one.inputs[1:] if not name.startswith("^")]
            updates.setdefault(plain(one.inputs[0]), inputs)
    return updates


def _ready_by_inputs(
    path: Path, own: Sequence[Operation], updates: dict[str, list[str]]
) -> tuple[dict[str, float], dict[str, str]]:
    by_name = {one.name: one for one in own}
    ready, producers = {}, {}
    for variable, inputs in updates.items():
        for name in inputs:
            producer = by_name.get(name)
            if producer is not None and is_gradient(producer) and producer.kind != "Const":
                ready[variable], producers[variable] = producer.end, producer.name
                break
    if not ready:
        raise InvalidArgumentError(
            f"{path}: no update of a variable (ApplyMomentum, …) takes a gradient as its input",
            remedy="a timeline of a whole training step, with its optimizer",
        )
    return ready, producers


def _reads_by_inputs(own: Sequence[Operation], updates: dict[str, list[str]]) -> list[tuple[str, Operation]]:
    """Return variables and the first operation of the forward pass that needs each, in the order of their starts."""
    variable_of: dict[str, str] = {name: name for name in updates}
    for one in own:
        if one.kind in {READ, "Identity"} and one.inputs and plain(one.inputs[0]) in updates:
            variable_of[one.name] = plain(one.inputs[0])
    for name in updates:
        variable_of.setdefault(f"{name}/read", name)
    first: dict[str, Operation] = {}
    for one in own:
        if is_gradient(one) or one.kind in _STATIC | _READ or _UPDATE.fullmatch(one.kind):
            continue
        for name in one.inputs:
            variable = variable_of.get(plain(name))
            if variable is not None:
                first.setdefault(variable, one)
    return sorted(first.items(), key=lambda pair: pair[1].start)


def _by_scope(reads: Sequence[tuple[str, Operation]]) -> list[tuple[str, Operation, tuple[str, ...]]]:
    """Return layers with their first operation and their variables; a layer's name begins those of its variables."""
    scopes: dict[str, tuple[Operation, list[str]]] = {}
    for variable, reader in reads:
        scope = variable.rpartition("/")[0] or variable
        scopes.setdefault(scope, (reader, []))[1].append(variable)
    return [(scope, reader, tuple(names)) for scope, (reader, names) in scopes.items()]


def _by_order(
    path: Path, own: Sequence[Operation], sizes: Sequence[str]
) -> list[tuple[str, Operation, tuple[str, ...]]]:
    """Return layers of a profile with their first operation and their variables, which the user named in order."""
    first: dict[str, Operation] = {}
    reads: dict[str, int] = {}
    optimizers = {one.name.split("/")[0] for one in own if _UPDATE.fullmatch(one.kind)}
    optimizers |= {_before_assign(one.name) for one in own if re.fullmatch(r"Assign(Add|Sub)VariableOp", one.kind)}
    gradients = {_differentiated(one.name) for one in own if is_gradient(one)}
    for one in own:
        if is_gradient(one):
            continue
        if one.kind == READ and "/" in one.name:
            place = one.name.rpartition("/")[0]
            scope = place.rpartition("/")[0] or place
            trained = any(_within(name, scope) for name in gradients)
            if trained and not any(_within(one.name, name) for name in optimizers if name):
                reads[scope] = reads.get(scope, 0) + 1
    # What has no gradient, such as moving averages, may run before the layer begins.
    begun = {start for name in gradients for start in _beginnings(name)}
    others: dict[str, Operation] = {}
    for one in own:
        if is_gradient(one) or one.kind in _STATIC | _READ:
            continue
        inside = [name for name in reads if _within(one.name, name)]
        if inside:
            (first if one.name in begun else others).setdefault(max(inside, key=len), one)
    # A fused operation has the name of its last part, and so does the gradient of its first part.
    first = {**others, **first}
    groups: dict[str, list[str]] = {}
    for name in sizes:
        groups.setdefault(name.rpartition("/")[0] or name, []).append(name)
    scopes = sorted(first, key=lambda scope: first[scope].start)
    if len(scopes) != len(groups):
        raise InvalidArgumentError(
            f"{path}: {len(scopes)} layers read variables and compute gradients ({', '.join(scopes[:3])}, …), and the "
            f"sizes name {len(groups)}",
            remedy="--sizes sizes.json with the model's trainable variables by path, in its order",
        )
    return [(scope, first[scope], tuple(names)) for scope, names in zip(scopes, groups.values(), strict=True)]


def _beginnings(name: str) -> list[str]:
    """Return the operations that a gradient's name may be made of: `net/fc/Relu` of `net/fc/ReluGrad`."""
    words = name.removesuffix("Grad").split("/")
    return ["/".join(words[:number]) for number in range(1, len(words) + 1)]


def _before_assign(name: str) -> str:
    """Return the scope in which an optimizer assigns; empty at the top of the graph."""
    return name.rpartition("/")[0]


def _differentiated(name: str) -> str:
    """Return the operation whose gradient is computed: `net/fc/MatMul` of `gradient_tape/net/fc/MatMul/MatMul_1`."""
    return _GRADIENT.sub("", name, count=1).lstrip("/")


def _ready_by_kind(
    backward: Sequence[Operation], groups: Sequence[tuple[str, Operation, tuple[str, ...]]]
) -> dict[str, float]:
    """Return when each variable's gradient was there: by the kind of its operation, or with the layer's last one."""
    ready: dict[str, float] = {}
    for scope, _, names in groups:
        some = [one for one in backward if _within(_differentiated(one.name), scope)]
        weights = [one for one in some if _WEIGHTS.search(one.kind)]
        # Of the two products of a matrix product, the second is the weights' gradient.
        weights = [one for one in weights if one.name.endswith("_1")] or weights
        biases = [one for one in some if _BIASES.search(one.kind)]
        for name in names:
            word = name.rpartition("/")[2]
            known = biases if word in {"bias", "biases"} else weights if len(names) <= 2 else []
            ends = [one.end for one in known or some]
            if ends:
                ready[name] = max(ends)
    return ready
