"""The kernels of an operator on a GPU, and their seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from paceline.operators import attention, convolutions, memory_bound
from paceline.operators.machine import Machine, constant
from paceline.operators.measured import Measured
from paceline.operators.operator import SYNCHRONIZE, Operator, Tensor, is_attention, is_multi_tensor
from paceline.operators.products import grouped_product_of, product_of, product_s

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm")
_GROUPED = ("_grouped_mm", "_scaled_grouped_mm")
_CONVOLUTIONS = ("convolution", "convolution_backward")


@dataclass(frozen=True)
class Work:
    """The cost of an operator."""

    kind: str
    """`matmul` (convolutions included), `attention`, `memory`, `optimizer` or `wait`."""
    flops: int
    bytes: int
    kernels: tuple[float, ...]
    """Seconds of each kernel."""

    @property
    def seconds(self) -> float:
        """Of all kernels."""
        return sum(self.kernels)


def work_of(operator: Operator, machine: Machine, previous: Tensor | None = None) -> Work:
    """Return the cost of an operator on a GPU, or on a calibrated CPU.

    Args:
        operator: What is dispatched.
        machine: The device. If it was calibrated, what was measured corrects what is modeled.
        previous: The result of the operator before, which L2 may hold.
    """
    work = _on_cpu(operator, machine) if machine.hardware.is_cpu else _on_gpu(operator, machine, previous)
    measured = _measured(machine)
    if measured is None or not work.kernels:
        return work
    ratio = measured.ratio(operator, work.kind)
    return replace(work, kernels=tuple(seconds * ratio for seconds in work.kernels))


@lru_cache(maxsize=8)
def _measured(machine: Machine) -> Measured | None:
    """Return what was measured on a device beside what is modeled for it; None if it was not calibrated."""
    calibration = machine.hardware.calibration
    if calibration is None:
        return None
    rows = []
    for operator, seconds in calibration.operators:
        work = _on_cpu(operator, machine) if machine.hardware.is_cpu else _on_gpu(operator, machine)
        if work.seconds > 0:
            rows.append((operator, work.kind, seconds / work.seconds))
    return Measured(rows)


def _on_cpu(operator: Operator, machine: Machine) -> Work:
    """Return the cost of an operator by a roofline: of FLOPs at the peak, or of bytes at the bandwidth of memory."""
    name, moved, flops, kind = operator.name, operator.read + operator.written, 0, "memory"
    if name == SYNCHRONIZE:
        return Work("wait", 0, 0, ())
    if name in _PRODUCTS and len(operator.inputs) > 1:
        kind, flops = "matmul", product_of(operator).flops
    elif name in _GROUPED:
        kind, flops = "matmul", grouped_product_of(operator).flops
    elif name in _CONVOLUTIONS:
        kind, flops = "matmul", convolutions.flops(operator)
    elif is_attention(name):
        kind, flops = "attention", attention.flops(operator)
    elif is_multi_tensor(name):
        kind = "optimizer"
    dtype = operator.inputs[0].dtype if operator.inputs else "float32"
    return Work(kind, flops, moved, (machine.roofline_s(flops, moved, dtype),))


def _on_gpu(operator: Operator, machine: Machine, previous: Tensor | None = None) -> Work:
    name, moved = operator.name, operator.read + operator.written
    if name == SYNCHRONIZE:
        return Work("wait", 0, 0, (constant("kernel"),))
    if any(tensor.elements == 0 for tensor in operator.inputs) and not is_multi_tensor(name):
        # The result, if it has elements, is filled.
        return Work("memory", 0, moved, (moved / machine.plain_rate + constant("kernel"),))
    if name in _PRODUCTS and len(operator.inputs) > 1:
        product = product_of(operator)
        if operator.compiled:
            # inductor fills odd sizes up (torch/_inductor/fx_passes/pad_mm.py).
            product = replace(product, alignment=16)
        return Work("matmul", product.flops, moved, (product_s(machine, product),))
    if name in _GROUPED:
        product = grouped_product_of(operator)
        return Work("matmul", product.flops, moved, (product_s(machine, product),))
    if name in _CONVOLUTIONS:
        seconds = convolutions.kernels(operator, machine)
        return Work("matmul", convolutions.flops(operator), moved, tuple(seconds))
    if is_attention(name):
        return Work("attention", attention.flops(operator), moved, tuple(attention.kernels(operator, machine)))
    kind = "optimizer" if is_multi_tensor(name) else "memory"
    return Work(kind, 0, moved, tuple(memory_bound.kernels(operator, machine, previous)))


def is_fusible(operator: Operator) -> bool:
    """Return whether torch.compile makes one kernel of it and its neighbors."""
    products = operator.name in (*_PRODUCTS, *_GROUPED, *_CONVOLUTIONS) or is_attention(operator.name)
    apart = operator.name == SYNCHRONIZE or is_multi_tensor(operator.name) or operator.name in memory_bound.SORTED
    return operator.compiled and not products and not apart
