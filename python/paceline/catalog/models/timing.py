"""Times of a layer's operators on a GPU, in both passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.catalog import names
from paceline.catalog.constants import assumed
from paceline.catalog.gpus import Hardware
from paceline.catalog.models.layers import Layer, Tensor
from paceline.catalog.models.modules import Listed, Setting, before_of, operators_of
from paceline.catalog.models.updates import update_of
from paceline.catalog.recipes import Recipe
from paceline.operators.kernels import Work
from paceline.operators.machine import Machine
from paceline.operators.operator import Operator
from paceline.operators.queues import Program
from paceline.operators.works import program_of, works_of


@dataclass(frozen=True)
class Spent:
    """The times of a layer's operators."""

    forward: Program
    backward: Program
    """With what checkpointing computes again."""
    products_s: float
    """Of the forward pass's matrix products."""
    attention_s: tuple[float, float]
    """Of attention's kernels, in the forward and in the backward pass."""
    kept_bytes: int = 0
    """Bytes of values that the backward pass needs, without checkpointing."""


def machine_of(hardware: Hardware) -> Machine:
    """Return a GPU with the constants that hold now; the same one for the same GPU."""
    key = id(hardware), frozenset(assumed().items())
    if key not in _MACHINES:
        if len(_MACHINES) >= _MOST_MACHINES:
            _MACHINES.clear()
            _SPENT.clear()
            _WORKS.clear()
            _UPDATES.clear()
        _MACHINES[key] = Machine(hardware)
    return _MACHINES[key]


_MACHINES: dict[tuple[int, frozenset[object]], Machine] = {}
_MOST_MACHINES = 64


def spent_by(layer: Layer, hardware: Hardware, setting: Setting, checkpointing: names.Checkpointing) -> Spent:
    """Return what a layer takes; layers that differ only in their names are timed once."""
    machine = machine_of(hardware)
    key = (layer.kind, machine, setting, checkpointing)
    if key not in _SPENT:
        if len(_SPENT) >= _MOST_SPENT:
            _SPENT.clear()
        _SPENT[key] = _spent_by(layer, setting, checkpointing, machine)
    return _SPENT[key]


_SPENT: dict[object, Spent] = {}
_MOST_SPENT = 16_384
"""Searches ask for the same layers thousands of times."""


def spent_before(layer: Layer, hardware: Hardware, setting: Setting) -> Program:
    """Return what a decoder takes before its first layer."""
    return _program(before_of(layer, setting), machine_of(hardware))


def spent_on_update(
    parameters: Sequence[Tensor],
    recipe: Recipe,
    *,
    optimizer: names.Optimizer,
    impl: names.OptimizerImpl,
    ways: int,
    hardware: Hardware,
) -> Program:
    """Return the time of an optimizer's step, whose arguments are those of `update_of`; once for the same sizes."""
    machine = machine_of(hardware)
    key = (tuple((tensor.name, tensor.shape) for tensor in parameters), recipe, optimizer, impl, ways, machine)
    if key not in _UPDATES:
        if len(_UPDATES) >= _MOST_UPDATES:
            _UPDATES.clear()
        _UPDATES[key] = _program(list(update_of(parameters, recipe, optimizer, impl, ways)), machine)
    return _UPDATES[key]


_UPDATES: dict[object, Program] = {}
_MOST_UPDATES = 256


def _program(operators: Sequence[Operator], machine: Machine) -> Program:
    works, fused = works_of(operators, machine)
    return program_of(operators, works, [place in fused for place in range(len(works))], machine)


def _works_of(layer: Layer, setting: Setting, machine: Machine) -> tuple[Listed, list[Work], list[bool]]:
    """Return a layer's operators, their work on a GPU, and whether each ends a chain of fused ones."""
    key = (layer.kind, machine, setting)
    if key not in _WORKS:
        if len(_WORKS) >= _MOST_WORKS:
            _WORKS.clear()
        listed = operators_of(layer, setting)
        operators = [*listed.forward, *listed.backward]
        works, places = works_of(operators, machine)
        _WORKS[key] = listed, works, [place in places for place in range(len(operators))]
    return _WORKS[key]


_WORKS: dict[object, tuple[Listed, list[Work], list[bool]]] = {}
_MOST_WORKS = 1024
"""Searches try the ways of checkpointing one after the other, of which a layer's operators are the same."""


def _spent_by(layer: Layer, setting: Setting, checkpointing: names.Checkpointing, machine: Machine) -> Spent:
    listed, works, fused = _works_of(layer, setting, machine)
    operators = [*listed.forward, *listed.backward]
    middle = len(listed.forward)

    def program(chosen: Sequence[int]) -> Program:
        return program_of(
            [operators[p] for p in chosen], [works[p] for p in chosen], [fused[p] for p in chosen], machine
        )

    forward, backward = program(range(middle)), program(range(middle, len(operators)))
    again = _again(listed.forward, works, listed.scores, checkpointing) if layer.block else ()
    if again:
        backward = program(again).then(backward)

    def seconds(kind: str, some: Sequence[Work]) -> float:
        return sum(work.seconds for work in some if work.kind == kind)

    attention = seconds("attention", works[:middle]), seconds("attention", works[middle:])
    return Spent(forward, backward, seconds("matmul", works[:middle]), attention, listed.kept_bytes)


def _again(
    forward: Sequence[Operator], works: Sequence[Work], scores: tuple[int, int], checkpointing: names.Checkpointing
) -> Sequence[int]:
    """Return the places of the operators that the backward pass computes again.

    Selective checkpointing of unfused attention recomputes its scores (V. Korthikanti et al., 2022); with fused
    attention, it keeps that and every second product, as torchtitan does.
    """
    if checkpointing == "none":
        return ()
    if checkpointing == "full":
        return range(len(forward))
    if scores[1] > scores[0]:
        return range(*scores)
    products = [place for place, work in enumerate(works[: len(forward)]) if work.kind == "matmul"]
    kept = {*products[::2], *(p for p, work in enumerate(works[: len(forward)]) if work.kind == "attention")}
    return [place for place in range(len(forward)) if place not in kept]
