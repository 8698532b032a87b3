"""The operators of an optimizer's step: one over all tensors, torch's foreach operators, or tensor by tensor.

bitsandbytes has one kernel a tensor. transformers' Adafactor is a loop of some fifteen operators over FP32 copies, five
of which are reductions. torch.optim.Muon multiplies matrices in 16 bits and updates nothing else: AdamW updates that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from paceline.catalog.models.layers import Tensor as Parameter
from paceline.catalog.names import Optimizer, OptimizerImpl
from paceline.catalog.optimizers import KINDS, NEWTON_SCHULZ, is_matrix, moments_dtype
from paceline.catalog.recipes import Recipe, dtype_bytes
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
    # The root of the new moment times the gradient, clipped by its norm.
    "adafactor": (
        *(("pow", "g>u"), ("add_", "u"), ("mean", "u>r"), ("mean", "u>c"), ("mul", "rc>u"), ("mul_", "ug")),
        *(("linalg_vector_norm", "u>s"), ("div_", "u"), ("mul_", "u"), ("neg", "u>t"), ("add_", "pt")),
    ),
}
"""Operators without a fused kernel, and what each reads of parameters, gradients, moments m and v, and a temporary t;
it writes the first, or what follows `>` (torch/optim/adam.py and sgd.py, `_multi_tensor_adam` and `_multi_tensor_sgd`;
`Adafactor.step` in transformers/optimization.py, whose u and t are temporaries, r and c means of rows and columns).
"""


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
    if KINDS[optimizer].orthogonal:
        matrices = [one for one in parameters if is_matrix(one.name, one.shape)]
        for matrix in matrices:
            yield from _orthogonal(matrix, recipe, ways)
        optimizer, parameters = "adam", [one for one in parameters if one not in matrices]
        impl = "foreach" if parameters else impl
    elif optimizer == "adafactor":
        for one in parameters:
            yield from _factored(one, recipe, ways)
        return
    elif KINDS[optimizer].by_tensor:
        for one in parameters:
            yield _of_tensor(one, recipe, optimizer, ways)
        return

    def made(dtype: str) -> tuple[Tensor, ...]:
        return tuple(contiguous((-(-one.size // ways),), dtype) for one in parameters)

    held = made("float32" if recipe.masters else recipe.parameters)
    gradients = made(recipe.gradients)
    copies = made(recipe.parameters) if recipe.masters else ()
    if impl == "fused":
        states = made(recipe.states) * KINDS[optimizer].moments
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


def _of_tensor(parameter: Parameter, recipe: Recipe, optimizer: Optimizer, ways: int) -> Operator:
    """Return bitsandbytes' kernel for one tensor, with the copy that it has in 16 bits beside FP32 masters."""
    size = -(-parameter.size // ways)
    held = contiguous((size,), "float32" if recipe.masters else recipe.parameters)
    copies = (contiguous((size,), recipe.parameters),) if recipe.masters else ()
    states = (contiguous((size,), moments_dtype(optimizer, parameter.size, recipe)),) * KINDS[optimizer].moments
    read = (held, contiguous((size,), recipe.gradients), *states)
    return Operator(f"multi_tensor_{optimizer}", read, (held, *states, *copies), phase="update")


def _factored(parameter: Parameter, recipe: Recipe, ways: int) -> Iterator[Operator]:
    """Yield Adafactor's operators for one tensor."""
    size, rows = -(-parameter.size // ways), -(-parameter.size // parameter.shape[-1])
    full, narrow = contiguous((size,), "float32"), contiguous((size,), recipe.parameters)
    gradient = contiguous((size,), recipe.gradients)
    rows_of, columns_of = contiguous((-(-rows // ways),), "float32"), contiguous((parameter.shape[-1],), "float32")
    converts = recipe.parameters != "float32" and not recipe.masters
    if recipe.gradients != "float32":
        yield Operator("copy", (gradient,), (full,), phase="update")
    if converts:
        yield Operator("copy", (narrow,), (full,), phase="update")
    yield Operator("linalg_vector_norm", (full,), (contiguous((1,), "float32"),), phase="update")
    places = {"p": full, "g": full, "u": full, "t": full, "r": rows_of, "c": columns_of}
    places["s"] = contiguous((1,), "float32")
    for name, letters in _PASSES["adafactor"]:
        read, _, other = letters.partition(">")
        inputs = tuple(places[one] for one in read)
        yield Operator(name.rstrip("_"), inputs, (places[other or read[0]],), phase="update")
    if recipe.parameters != "float32":
        yield Operator("copy", (full,), (narrow,), phase="update")


def _orthogonal(parameter: Parameter, recipe: Recipe, ways: int) -> Iterator[Operator]:
    """Yield torch.optim.Muon's operators for one matrix, or for those of several experts.

    The shorter side's square is what is multiplied (`_zeropower_via_newtonschulz`).
    """
    size = -(-parameter.size // ways)
    held = contiguous((size,), "float32" if recipe.masters else recipe.parameters)
    gradient, moment = contiguous((size,), recipe.gradients), contiguous((size,), recipe.states)
    yield Operator("lerp", (moment, gradient), (moment,), phase="update")
    yield Operator("lerp", (gradient, moment), (moment,), phase="update")
    *several, rows, columns = parameter.shape
    short, long = sorted((rows, columns))
    count = math.prod(several)
    wide = contiguous((count, -(-short // ways), long), "bfloat16")
    across = contiguous((count, long, -(-short // ways)), "bfloat16")
    square = contiguous((count, wide.shape[1], wide.shape[1]), "bfloat16")
    yield Operator("copy", (moment,), (wide,), phase="update")
    yield Operator("linalg_vector_norm", (wide,), (contiguous((1,), "bfloat16"),), phase="update")
    yield Operator("div", (wide,), (wide,), phase="update")
    for _ in range(NEWTON_SCHULZ):
        yield Operator("bmm", (wide, across), (square,), phase="update")
        yield Operator("baddbmm", (square, square, square), (square,), phase="update")
        yield Operator("baddbmm", (wide, square, wide), (wide,), phase="update")
    yield Operator("mul", (held,), (held,), phase="update")
    yield Operator("add", (held, wide), (held,), phase="update")
    if recipe.masters and dtype_bytes(recipe.parameters) < 4:
        yield Operator("copy", (held,), (contiguous((size,), recipe.parameters),), phase="update")


def _applied(name: str, impl: OptimizerImpl, *lists: tuple[Tensor, ...]) -> Iterator[Operator]:
    """Yield an operator over lists of tensors, the last of which it writes: one for all, or one for each."""
    *read, written = lists
    if impl == "foreach":
        yield Operator(f"_foreach_{name}", tuple(t for one in read for t in one), written, phase="update")
        return
    for *inputs, output in zip(*lists, strict=True):
        yield Operator(name.rstrip("_"), tuple(inputs), (output,), phase="update")
