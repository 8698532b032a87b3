"""The operators of an optimizer's step: one over all tensors, torch's foreach operators, or tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.catalog.models.layers import Tensor as Parameter
from paceline.catalog.names import Optimizer, OptimizerImpl
from paceline.catalog.recipes import Recipe
from paceline.operators.operator import Operator, Tensor, contiguous

_PASSES: dict[Optimizer, tuple[tuple[str, str], ...]] = {
    "adam": (
        ("mul_", "p"),
        ("lerp_", "mg"),
        ("mul_", "v"),
        ("addcmul_", "vg"),
        ("sqrt", "v>t"),
        ("div_", "t"),
        ("add_", "t"),
        ("addcdiv_", "pmt"),
    ),
    "momentum": (("add_", "gp"), ("mul_", "m"), ("add_", "mg"), ("add_", "pm")),
    "sgd": (("add_", "gp"), ("add_", "pg")),
}
"""Operators without a fused kernel, and what each reads of parameters, gradients, moments m and v, and a temporary t;
it writes the first, or what follows `>` (torch/optim/adam.py and sgd.py, `_multi_tensor_adam` and `_multi_tensor_sgd`).
"""
_STATES: dict[Optimizer, int] = {"adam": 2, "momentum": 1, "sgd": 0}


def update_of(
    parameters: Sequence[Parameter], recipe: Recipe, optimizer: Optimizer, impl: OptimizerImpl, ways: int = 1
) -> Iterator[Operator]:
    """Yield the operators of one step.

    Args:
        parameters: Those that are updated.
        recipe: The types of parameters, gradients and states.
        optimizer: Which optimizer it is.
        impl: How its step is made.
        ways: GPUs that share every parameter.
    """

    def made(dtype: str) -> tuple[Tensor, ...]:
        return tuple(contiguous((-(-one.size // ways),), dtype) for one in parameters)

    held = made("float32" if recipe.masters else recipe.parameters)
    gradients = made(recipe.gradients)
    copies = made(recipe.parameters) if recipe.masters else ()
    if impl == "fused":
        states = made(recipe.states) * _STATES[optimizer]
        # Apex's and DeepSpeed's kernels read 16-bit gradients and write the 16-bit parameters, too.
        written = (*held, *states, *copies)
        yield Operator(f"multi_tensor_{optimizer}", (*held, *gradients, *states), written, phase="update")
        return
    if recipe.masters and recipe.gradients != "float32":
        wide = made("float32")
        yield from _applied("copy", impl, gradients, wide)
        gradients = wide
    places = {"p": held, "g": gradients, "m": made(recipe.states), "v": made(recipe.states), "t": made(recipe.states)}
    for name, letters in _PASSES[optimizer]:
        read, _, other = letters.partition(">")
        yield from _applied(name, impl, *(places[one] for one in read), places[other or read[0]])
    if copies:
        yield from _applied("copy", impl, held, copies)


def _applied(name: str, impl: OptimizerImpl, *lists: tuple[Tensor, ...]) -> Iterator[Operator]:
    """Yield an operator over lists of tensors, the last of which it writes: one for all, or one for each."""
    *read, written = lists
    if impl == "foreach":
        yield Operator(f"_foreach_{name}", tuple(t for one in read for t in one), written, phase="update")
        return
    for *inputs, output in zip(*lists, strict=True):
        yield Operator(name.rstrip("_"), tuple(inputs), (output,), phase="update")
