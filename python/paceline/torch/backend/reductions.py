"""Maps torch's reduction operators and dtypes to reductions of the runtime.

| dtype | how |
| --- | --- |
| float32, float64, float16, bfloat16, int32, int64 | directly |
| uint8 | directly; averages and multiples in int32, and back |
| int8, int16, uint16 | in int32, and back: sums and products wrap as they do in the dtype itself |
| uint32 | in int64, and back |
| bool | as uint8: sum and maximum are "or", product and minimum are "and", as in torch and Gloo |
| complex | sum and average, of the real and imaginary parts |
| float8 and others | refused: their sums lose too much; convert to bfloat16 |

Averages of integers are the sum divided by the number of ranks, rounded toward zero; a factor of integers (PREMUL_SUM,
Horovod's `prescale_factor` and `postscale_factor`) gives a product in float64, rounded toward zero. Horovod does the
same. Sums of int32 and int64 wrap before they are divided; narrower integers are added up in int32, so that they do
not.

BAND and BOR are supported for bool, but not for integers; BXOR is not supported: gather and combine instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from paceline.torch.backend.buffers import REDUCIBLE, Memory, dense_copy, name_of
from paceline.torch.backend.group import Call, Loose

_NAMES: dict[Any, str] = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.PRODUCT: "product",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
    ReduceOp.PREMUL_SUM: "premul_sum",
}
AT_ONCE: dict[Any, str] = {kind: name for kind, name in _NAMES.items() if name in ("sum", "min", "max", "product")}
"""Operators that need neither a factor nor another dtype, if the runtime knows the tensor's dtype."""
_WIDER: dict[torch.dtype, torch.dtype] = {
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
WIDER_IN_PRODUCTS = {**_WIDER, torch.uint8: torch.int32}
"""The dtype in which integers are averaged or multiplied by a factor, if it is not their own."""
_BOOL = {"sum": "max", "max": "max", "bor": "max", "product": "min", "min": "min", "band": "min"}


@dataclass(frozen=True, slots=True)
class Reduction:
    """The runtime's reduction: `op` on elements of `dtype`, and factors of the inputs and of the result."""

    op: str
    dtype: torch.dtype
    prescale: float = 1.0
    postscale: float = 1.0

    def call(self, **more: Unpack[Call]) -> Call:
        """Return the arguments of `submit` for it, and further ones."""
        named: Call = {"op": self.op, "dtype": REDUCIBLE[self.dtype]}
        return {**named, "prescale": self.prescale, "postscale": self.postscale, **more}

    def read(self, memory: Memory, tensor: Tensor) -> Tensor:
        """Return the values of `tensor` in this dtype, dense."""
        if _is_viewed_as(tensor.dtype, self.dtype):
            return _viewed(memory.read(tensor))
        # `to` would keep the tensor's strides, in which ranks may differ.
        return memory.read(dense_copy(tensor, self.dtype))

    def write(self, memory: Memory, tensor: Tensor, own: int) -> Tensor:
        """Return a dense tensor of this dtype, which `memory.copy_back` copies to `tensor` (see `Memory.write`)."""
        if _is_viewed_as(tensor.dtype, self.dtype):
            return _viewed(memory.write(tensor, own))
        return memory.instead(tensor, torch.empty(tensor.shape, dtype=self.dtype, device=tensor.device))

    def update(self, memory: Memory, tensor: Tensor) -> Tensor:
        """Return the values of `tensor` in this dtype, dense, to be changed in place and copied back."""
        if _is_viewed_as(tensor.dtype, self.dtype):
            return _viewed(memory.update(tensor))
        return memory.instead(tensor, self.read(memory, tensor))


def _is_viewed_as(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return whether elements are those of the other dtype, or pairs of them, in the same memory."""
    return dtype is other or dtype is torch.bool or dtype.is_complex


def _viewed(tensor: Tensor) -> Tensor:
    """View bools as bytes, and complex numbers as pairs, in the memory of a dense tensor."""
    if tensor.dtype is torch.bool:
        return tensor.detach().view(torch.uint8)
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach())
    return tensor


def lowered(call: str, operator: Loose, dtype: torch.dtype, size: int) -> Reduction:
    """Choose the reduction over `size` ranks. Raises TypeError with the remedy if the runtime has none."""
    kind = getattr(operator, "op", operator)
    known = _planned.get((kind, dtype, size))
    if known is None:
        known = _plan(call, operator, dtype, size)
        if _NAMES[kind] != "premul_sum":
            _planned[kind, dtype, size] = known
    return known


_planned: dict[tuple[Any, torch.dtype, int], Reduction] = {}


def _plan(call: str, operator: Loose, dtype: torch.dtype, size: int) -> Reduction:
    kind = getattr(operator, "op", operator)
    op = _NAMES.get(kind)
    if op is None:
        raise TypeError(f"{call}: the reduction {operator!r} is unknown; known are {', '.join(_NAMES.values())}")
    real = dtype.to_real() if dtype.is_complex else dtype
    if op in ("sum", "avg", "premul_sum") and real.is_floating_point and real in REDUCIBLE:
        factor = _factor(operator) if op == "premul_sum" else 1.0
        return Reduction("sum", real, factor, 1.0 / size if op == "avg" else 1.0)
    if op in ("avg", "premul_sum") and (dtype in REDUCIBLE or dtype in _WIDER) and not dtype.is_floating_point:
        factor = _factor(operator) if op == "premul_sum" else 1.0
        return Reduction("sum", WIDER_IN_PRODUCTS.get(dtype, dtype), factor, 1.0 / size if op == "avg" else 1.0)
    if op in ("sum", "min", "max", "product") and dtype in REDUCIBLE:
        return Reduction(op, dtype)
    if op in ("sum", "min", "max", "product") and dtype in _WIDER:
        return Reduction(op, _WIDER[dtype])
    if dtype is torch.bool and op in _BOOL:
        return Reduction(_BOOL[op], torch.uint8)
    name = str(getattr(kind, "name", kind)).rpartition(".")[2]
    raise TypeError(f"{call}: {name} of {name_of(dtype)} is not defined; {_remedy(op, dtype)}")


def _factor(operator: Loose) -> float:
    _, factor = operator.__getstate__()  # torch 2.12 and older have no `factor`
    return float(factor.item() if isinstance(factor, Tensor) else factor)


def _remedy(op: str, dtype: torch.dtype) -> str:
    if op.startswith("b"):
        return "all-gather the tensors and combine them on each rank"
    if dtype.is_complex:
        return "sum and average are"
    if dtype.is_floating_point:
        return "convert to bfloat16, float16 or float32 first"
    if dtype is torch.bool:
        return "convert to int32, int64 or a floating-point dtype first"
    return "convert to int32, int64 or a floating-point dtype first"
