"""The worth of each mechanism of the model of operators: the eight recorded steps without it.

Everything else stays as it is: no constant is fitted again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import fmean
from unittest import mock

from paceline.catalog.constants import assuming
from paceline.catalog.gpus import find_hardware
from paceline.operators import products
from paceline.operators.machine import Machine, all_constants
from paceline.operators.operator import Operator, Tensor, contiguous, is_attention
from paceline.operators.steps import Step

from paceline_lab.studies.steps.data import UNITS, Metric, Row, recording

_MANY = 1e6
"""Times a rate that limits nothing."""
_NOTHING = 1e-15
"""Seconds."""
Changed = Callable[[Sequence[Operator]], list[Operator]]


@dataclass(frozen=True)
class Mechanism:
    """A part of the model that can be left out."""

    name: str
    without: Callable[[], AbstractContextManager[object]] = nullcontext
    """The context in which it is left out."""
    changed: Callable[[Operator], list[Operator]] | None = None
    """The operators that are run instead of one."""


@dataclass(frozen=True)
class Ablated:
    """The mean error without a mechanism, and the greatest, by the model that has it."""

    name: str
    mean: float
    worst: float
    model: str


def _constants(**changes: Callable[[float], float]) -> Callable[[], AbstractContextManager[object]]:
    """Return a context in which constants, whose names begin so, have other values."""

    @contextmanager
    def context() -> Iterator[None]:
        known = all_constants()
        changed = {
            known[name]: change(known[name].value)
            for start, change in changes.items()
            for name in known
            if name.startswith(start.replace("_", "."))
        }
        assert changed
        with assuming(changed):
            yield

    return context


def _choices(name: str, *those: object) -> Callable[[], AbstractContextManager[object]]:
    """Return a context in which a product has only these of its choices."""

    @contextmanager
    def context() -> Iterator[None]:
        with mock.patch.object(products, name, those):
            products.fastest_s.cache_clear()
            yield
        products.fastest_s.cache_clear()

    return context


def _by_products(operator: Operator) -> list[Operator]:
    """Return attention as products and a softmax, which keeps the scores: torch's math path."""
    if not is_attention(operator.name):
        return [operator]
    is_backward = "backward" in operator.name
    query, key, value = operator.inputs[1:4] if is_backward else operator.inputs[:3]
    batch = query.shape[0] * query.shape[1]
    rows, keys, size, width = query.shape[2], key.shape[2], query.shape[3], value.shape[3]

    def tensor(*shape: int) -> Tensor:
        return contiguous((batch, *shape), query.dtype)

    def run(name: str, inputs: Sequence[Tensor], *outputs: Tensor) -> Operator:
        return Operator(name, tuple(inputs), outputs, phase=operator.phase)

    scores, mask = tensor(rows, keys), contiguous((batch, rows, keys), "bool")
    left, right, whole, result = tensor(rows, size), tensor(size, keys), tensor(keys, width), tensor(rows, width)
    drops = bool(operator.attributes.get("dropout_p"))
    if not is_backward:
        return [
            run("mul", [left], left),
            run("bmm", [left, right], scores),
            *([run("add", [scores, mask], scores)] if operator.attributes.get("is_causal") else []),
            run("_softmax", [scores], scores),
            *([run("native_dropout", [scores], scores, mask)] if drops else []),
            run("bmm", [scores, whole], result),
        ]
    return [
        run("bmm", [tensor(keys, rows), result], whole),
        run("bmm", [result, tensor(width, keys)], scores),
        *([run("native_dropout_backward", [scores, mask], scores)] if drops else []),
        run("_softmax_backward_data", [scores, scores], scores),
        run("bmm", [scores, tensor(keys, size)], left),
        run("bmm", [tensor(keys, rows), left], tensor(keys, size)),
        run("mul", [left], left),
    ]


def _unmasked(operator: Operator) -> list[Operator]:
    """Return causal attention over all keys."""
    if not is_attention(operator.name):
        return [operator]
    return [replace(operator, attributes={**operator.attributes, "is_causal": False})]


def _as_one(_: float) -> float:
    return 1.0


MECHANISMS = (
    Mechanism("nothing left out"),
    Mechanism("fused attention: products and a softmax instead", changed=_by_products),
    Mechanism("causal masks: all keys instead", changed=_unmasked),
    Mechanism("split-K", _choices("_SPLITS", 1)),
    Mechanism("the choice of a tile: 128 x 256 instead", _choices("_TILES", (128, 256))),
    Mechanism("ends of a tile", _constants(product_tile=lambda _: _NOTHING)),
    Mechanism("slow products of odd rows", _constants(product_unaligned=lambda _: _MANY)),
    Mechanism("limit by instructions", _constants(lanes=lambda _: _MANY)),
    Mechanism(
        "classes of memory-bound operators: the plain rate instead",
        _constants(**{"memory_reduction": _as_one, "memory_batch-norm": _as_one, "memory_optimizer": _as_one}),
    ),
    Mechanism("reads from L2", _constants(memory_l2=_as_one)),
    Mechanism("slow depthwise convolutions: the lanes' peak instead", _constants(depthwise=_as_one)),
    Mechanism("implicit products: a product's rate instead", _constants(product_implicit=_as_one)),
    Mechanism("the cost of dropout in attention", _constants(attention_dropout=_as_one)),
    Mechanism("start and drain of a kernel", _constants(kernel=lambda _: _NOTHING)),
)


def ablated(rows: Sequence[Row]) -> list[Ablated]:
    """Return the errors of recorded steps without each mechanism; `rows`: those of the study."""
    known = [row for row in rows if row.metric is Metric.STEP_TIME and row.group == "steps"]
    each = []
    for mechanism in MECHANISMS:
        with mechanism.without():
            errors = {row.model: abs(_step_s(row, mechanism) / (row.measured * UNITS[row.unit]) - 1) for row in known}
        model = max(errors, key=lambda name: errors[name])
        each.append(Ablated(mechanism.name, fmean(errors.values()), errors[model], model))
    return each


def _step_s(row: Row, mechanism: Mechanism) -> float:
    document = recording(row.words[0]).operators()
    assert document is not None
    step = Step.of(document)
    if mechanism.changed is not None:
        step = _with(step, mechanism.changed)
    times = step.times(Machine(find_hardware(row.words[row.words.index("--gpu") + 1])))
    return math.fsum(times.forward_s) + times.backward_s + times.optimizer_s


def _with(step: Step, changed: Callable[[Operator], list[Operator]]) -> Step:
    """Return a step with other operators instead of some."""
    operators: list[Operator] = []
    places = []
    for operator in step.operators:
        places.append(len(operators))
        operators += [replace(it, sources=()) for it in changed(operator)]
    places.append(len(operators))

    def moved(span: tuple[int, int]) -> tuple[int, int]:
        return places[span[0]], places[span[1]]

    # Gradients are of no interest here.
    return Step(tuple(operators), tuple(map(moved, step.forward)), {}, moved(step.backward), moved(step.optimizer))
