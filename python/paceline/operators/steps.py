"""The operators of one step in a trace, and its times on another GPU.

A trace that was computed without a device holds what it was computed of (`operators` in
docs/reference/trace-format.md): the operators in their order, and where layers, gradients and passes end among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline import _core
from paceline._core import Trace
from paceline._internal.recording import ACCUMULATION_LAYER, INPUT_LAYER, seconds
from paceline.catalog.gpus import Hardware, titled
from paceline.errors import InvalidArgumentError
from paceline.operators.backend import Backend, backend_of, capability
from paceline.operators.forms import problem_of
from paceline.operators.machine import Machine
from paceline.operators.operator import Operator, Tensor
from paceline.operators.rows import described, operator_of, row_of, tensor_of
from paceline.operators.schedule import Schedule

Span = tuple[int, int]
"""The place of the first operator, and the one after the last."""
_DAY_S = 86_400.0
"""The longest pass of a trace (docs/reference/trace-format.md)."""


@dataclass(frozen=True)
class Step:
    """The operators of a step, and how they are divided."""

    operators: tuple[Operator, ...]
    forward: tuple[Span, ...]
    """Operators of each forward layer."""
    gradients: Mapping[str, int]
    """Operators of the backward pass that precede each gradient, by the tensor's name."""
    backward: Span
    optimizer: Span

    def document(self) -> dict[str, Any]:
        """Return the content of a trace's field `operators`: tensors and operators that differ, each once."""
        tensors: dict[Tensor, int] = {}
        kinds: dict[str, int] = {}
        rows: list[dict[str, Any]] = []
        order = []
        # Only fusion asks who wrote an input.
        sourced = any(operator.compiled for operator in self.operators)
        for place, operator in enumerate(self.operators):
            kind = row_of(operator, place, tensors, sourced=sourced)
            key = repr(kind)
            if key not in kinds:
                kinds[key] = len(rows)
                rows.append(kind)
            order.append(kinds[key])
        return {
            "tensors": [described(tensor) for tensor in tensors],
            "kinds": rows,
            "order": order,
            "forward": [list(span) for span in self.forward],
            "gradients": dict(self.gradients),
            "backward": list(self.backward),
            "optimizer": list(self.optimizer),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Step:
        """Return the step of a trace's field `operators`, which the trace has checked."""
        kinds = _kinds(document)
        operators = tuple(_placed(kinds[kind], place) for place, kind in enumerate(document["order"]))
        return cls(
            operators,
            tuple((begin, end) for begin, end in document["forward"]),
            document["gradients"],
            tuple(document["backward"]),
            tuple(document["optimizer"]),
        )

    def times(self, machine: Machine) -> Times:
        """Return the seconds of the step on a GPU, as it follows another one."""
        own = list(self.operators)
        schedule = Schedule(machine)
        schedule.extend(own)
        count = len(own)
        schedule.extend([*own, *(_later(operator, count) for operator in own)])
        done = schedule.done_s[count:]

        def lasts(span: Span) -> float:
            return done[span[1]] - done[span[0]]

        first = self.backward[0]
        return Times(
            tuple(map(lasts, self.forward)),
            {name: lasts((first, first + before)) for name, before in self.gradients.items()},
            lasts(self.backward),
            lasts(self.optimizer),
        )


@dataclass(frozen=True)
class Times:
    """Seconds of a step's parts."""

    forward_s: tuple[float, ...]
    ready_s: Mapping[str, float]
    """By tensor, since the start of the backward pass."""
    backward_s: float
    optimizer_s: float


def step_of(worker: Mapping[str, Any], counted: Mapping[str, Any], operators: Sequence[Operator]) -> Step:
    """Return the step of a trace's worker.

    Args:
        worker: The worker, as in the trace's file.
        counted: The same with numbers of operators instead of seconds. It may have layers of operators that take no
            time, which the worker has not: they belong to the layer before.
        operators: Operators, of which the step's are the last.
    """
    layers = [(layer["layer"], round(layer["duration_s"])) for layer in counted["forward"]]
    # The passes before the last one come first, although a trace has them after its layers.
    layers.sort(key=lambda layer: (INPUT_LAYER, ACCUMULATION_LAYER, layer[0]).index(layer[0]))
    backward, optimizer = round(counted["backward_s"]), round(counted["optimizer_s"])
    begin = len(operators) - sum(count for _, count in layers) - backward - optimizer
    kept = {layer["layer"] for layer in worker["forward"]}
    spans: dict[str, Span] = {}
    last, end = "", 0
    for name, count in layers:
        last = name if name in kept else last
        spans[last] = (spans.get(last, (end, end))[0], end + count)
        end += count
    own = [replace(it, sources=tuple(max(-1, source - begin) for source in it.sources)) for it in operators[begin:]]
    ready = {gradient["tensor"]: round(gradient["ready_s"]) for gradient in counted["gradients"]}
    forward = tuple(spans[layer["layer"]] for layer in worker["forward"])
    return Step(tuple(own), forward, ready, (end, end + backward), (end + backward, len(own)))


def _kinds(document: Mapping[str, Any]) -> list[Operator]:
    """Return the operators of a step that differ; their sources are distances."""
    tensors = [tensor_of(one) for one in document["tensors"]]
    return [operator_of(one, tensors) for one in document["kinds"]]


def _placed(operator: Operator, place: int) -> Operator:
    if not operator.sources:
        return operator
    return replace(operator, sources=tuple(place - back if back else -1 for back in operator.sources))


def _later(operator: Operator, count: int) -> Operator:
    if not operator.sources:
        return operator
    return replace(operator, sources=tuple(it + count if it >= 0 else it for it in operator.sources))


def update_bytes(recording: Trace) -> int:
    """Return the bytes of temporaries in the optimizer's step: the most that an operator makes that is not in place.

    AdamW's is the square root of the second moment (`_foreach_sqrt`), unless it is fused.
    """
    document = recording.operators()
    if document is None:
        return 0
    tensors = [tensor_of(one) for one in document["tensors"]]
    first, end = document["optimizer"]
    kinds = (document["kinds"][place] for place in document["order"][first:end])
    made = (kind for kind in kinds if not kind["name"].endswith("_"))
    return max((sum(tensors[place].bytes for place in kind.get("outputs", ())) for kind in made), default=0)


def retimed(trace: Trace, hardware: Hardware) -> Trace:
    """Return a trace with the times of its operators on another GPU.

    Args:
        trace: A trace that has operators.
        hardware: The GPU.

    Raises:
        InvalidArgumentError: The GPU has no units for a dtype of the operators or no kernel for its attention, or a
            step takes longer than a day.
    """
    document = trace.operators()
    assert document is not None
    step = Step.of(document)
    _check(document, trace.name)
    lacking = _lacking(step, hardware)
    if lacking is not None:
        raise InvalidArgumentError(
            f"{hardware.title} has no {lacking}, in which {trace.name} computes",
            setting="gpu",
            remedy="paceline record --gpu … --dtype fp16 -- …, another recording",
        )
    times = _dispatched(step, trace, hardware).times(Machine(hardware))
    if max(sum(times.forward_s), times.backward_s, times.optimizer_s) > _DAY_S:
        raise InvalidArgumentError(
            f"{trace.name}: a step takes longer than a day on {hardware.title}", setting="gpu", remedy="another GPU"
        )
    (worker,) = trace.workers
    forward = [
        _core.Layer(
            layer.name,
            seconds(duration_s),
            layer.tensors,
            activation_bytes=layer.activation_bytes,
            backward_bytes=layer.backward_bytes,
        )
        for layer, duration_s in zip(worker.forward, times.forward_s, strict=True)
    ]
    gradients = [
        _core.Gradient(it.tensor, seconds(times.ready_s[it.tensor]), it.bytes, it.shape) for it in worker.gradients
    ]
    own = _core.Worker(
        forward,
        gradients,
        backward_s=seconds(times.backward_s),
        optimizer_s=seconds(times.optimizer_s),
    )
    provenance = f"{trace.provenance}; computed again for {hardware.under_limit}"
    return trace.replace(workers=[own], device=hardware.title, provenance=provenance)


def _check(document: Mapping[str, Any], name: str) -> None:
    """Raise InvalidArgumentError if an operator of a trace lacks what its kind needs."""
    for place, kind in enumerate(_kinds(document)):
        problem = problem_of(kind)
        if problem is not None:
            raise InvalidArgumentError(
                f"{name}: operators.kinds[{place}]: {problem}",
                remedy='a trace as paceline record --gpu writes it, or none of its "operators"',
            )


def _lacking(step: Step, hardware: Hardware) -> str | None:
    """Return a 16-bit dtype of the step's tensors that a GPU has no peak for."""
    dtypes = {tensor.dtype for operator in step.operators for tensor in operator.inputs}
    missing = {"bfloat16": "bf16", "float16": "fp16"}
    return next((name for name, short in missing.items() if name in dtypes and short not in hardware.peak_flops), None)


def _dispatched(step: Step, trace: Trace, hardware: Hardware) -> Step:
    """Return the step with the attention kernels that torch chooses on a GPU.

    A kernel that torch would not have chosen on the recording's GPU either is the script's choice.
    """
    on_cpu = any(operator.name.endswith(_OF_CPU) for operator in step.operators)
    if hardware.title != trace.device and (hardware.is_cpu or on_cpu):
        raise InvalidArgumentError(
            f"{trace.name} was recorded for {trace.device}, and a CPU dispatches other operators than a GPU",
            setting="gpu",
            remedy=f"paceline record --gpu {hardware.name} …, another recording",
        )
    if hardware.is_cpu:
        return step
    recorded, here = titled(trace.device), capability(hardware.architecture)
    before = None if recorded is None else capability(recorded.architecture)
    if before == here:
        return step

    def on_gpu(operator: Operator) -> Operator:
        match = _ATTENTION.fullmatch(operator.name)
        if match is None:
            return operator
        was, after = (None if sm is None else _backend(operator, sm) for sm in (before, here))
        if was not in (None, match["kernel"]):
            return operator
        if after == "math":
            raise InvalidArgumentError(
                f"{hardware.title} has no fused kernel for the attention of {trace.name}",
                setting="gpu",
                remedy="paceline record --gpu …, another recording",
            )
        return replace(operator, name=f"_scaled_dot_product_{after}_attention{match['backward']}")

    operators = tuple(map(on_gpu, step.operators))
    return replace(step, operators=operators)


_OF_CPU = ("_for_cpu", "_for_cpu_backward")
_ATTENTION = re.compile("_scaled_dot_product_(?P<kernel>cudnn|flash|efficient)_attention(?P<backward>(_backward)?)")


def _backend(operator: Operator, sm: tuple[int, int]) -> Backend:
    """Return the kernel that torch chooses for the arguments of an attention operator, forward or backward."""
    first = 1 if operator.name.endswith("backward") else 0
    query, key, value = operator.inputs[first : first + 3]
    scores = (query.shape[-2], key.shape[-2])
    dropout = operator.attributes.get("dropout_p")
    return backend_of(
        sm,
        (query, key, value),
        dropout if isinstance(dropout, float) else 0.0,
        has_mask=any(len(it.shape) == 4 and it.shape[-2:] == scores for it in operator.inputs[first + 3 :]),
        is_causal=bool(operator.attributes.get("is_causal")),
        enable_gqa=True,
    )
