"""Operators that are bound by memory or by instructions: passes over memory, short rows, strides, reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

from paceline.operators.machine import Machine, constant
from paceline.operators.operator import Operator, Tensor, is_multi_tensor

_ARITHMETIC = {
    "gelu": 35,
    "gelu_backward": 50,
    "tanh": 30,
    "silu": 25,
    "silu_backward": 35,
    "sigmoid": 25,
    "exp": 20,
    "erf": 30,
    "native_dropout": 30,
    "cat": 40,
    "constant_pad_nd": 40,
    "roll": 60,
}
"""Instructions of a lane for an element: erff, expf, divisions, Philox, and offsets that are not merged."""
_SIMPLE = 4
"""Of others, in a fused kernel."""
SORTED = ("embedding_dense_backward", "index_put", "index_put_", "_index_put_impl_")
"""Operators that sort rows by their index, and add those of the same one."""
_MULTIPASS_BYTES = 8192
"""Rows of softmax beyond it are read more than once."""
_SHARED_BYTES = 200e3
"""Rows of softmax up to it are held in shared memory, if they are aligned."""


def instructions(tensors: Sequence[Tensor]) -> int:
    """Return the instructions of a lane for an element of a pointwise kernel; 0 if loads are vectors.

    12 for loads, arithmetic and the store; for each dimension that is not merged with another, 5 for its division and
    one for each operand; and 40 if every lane reads another sector.

    Args:
        tensors: The result, then the operands.
    """
    result = tensors[0]
    rank = len(result.shape)

    def stride(tensor: Tensor, dimension: int) -> int:
        place = dimension - (rank - len(tensor.shape))
        return 0 if place < 0 or tensor.shape[place] == 1 else tensor.strides[place]

    merged: list[list[int]] = []
    order = sorted((d for d in range(rank) if result.shape[d] > 1), key=lambda d: (result.strides[d], -d))
    for dimension in order:
        row = [result.shape[dimension], *(stride(tensor, dimension) for tensor in tensors)]
        if merged and all(a * merged[-1][0] == b for a, b in zip(merged[-1][1:], row[1:], strict=True)):
            merged[-1][0] *= row[0]
        else:
            merged.append(row)
    if not merged or (len(merged) == 1 and all(step == 1 for step in merged[0][1:])):
        return 0
    return 12 + len(merged) * (5 + len(tensors)) + 40 * any(step > 1 for step in merged[0][1:])


class _Timer:
    """Seconds of kernels on one GPU."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.kernel = constant("kernel")

    def pass_over(self, moved: float, share: float = 1.0, lanes: float = 0.0) -> float:
        """One kernel: bytes at a share of the plain rate, or so many instructions of lanes."""
        seconds = moved / (self.machine.plain_rate * share)
        return max(seconds, lanes / self.machine.lane_rate) + self.kernel


_Rule = Callable[[Operator, _Timer, float], list[float]]


def kernels(operator: Operator, machine: Machine, previous: Tensor | None) -> list[float]:
    """Return the seconds of each kernel.

    Args:
        operator: What is dispatched.
        machine: The GPU.
        previous: What the kernel before has written, which L2 may hold.
    """
    timer = _Timer(machine)
    read = float(operator.read)
    for tensor in operator.inputs:
        same = previous is not None and (tensor.shape, tensor.dtype) == (previous.shape, previous.dtype)
        if same and tensor.bytes < machine.hardware.l2_bytes / 2:
            read -= tensor.bytes * (1 - 1 / constant("memory.l2"))
            break
    rule = _RULES.get(operator.name)
    if rule is not None:
        return rule(operator, timer, read)
    if is_multi_tensor(operator.name):
        return _optimizer(operator, timer)
    if operator.name.endswith("_") and not operator.outputs:
        return [timer.pass_over(read + operator.inputs[0].bytes if operator.inputs else 0)]
    if not operator.outputs:
        return [timer.kernel]
    return _pointwise(operator, timer, read)


def _pointwise(operator: Operator, timer: _Timer, read: float) -> list[float]:
    result = operator.outputs[0]
    operands = [t for t in operator.inputs if t.elements > 1 and len(t.shape) <= len(result.shape)]
    each = _ARITHMETIC.get(operator.name) or instructions([result, *operands])
    return [timer.pass_over(read + operator.written, lanes=each * result.elements)]


def _optimizer(operator: Operator, timer: _Timer) -> list[float]:
    moved: float = operator.read + operator.written
    if operator.name.startswith("_fused_adam"):
        # Parameters, gradients and both moments are read, and all but gradients written: 7 of 4 passes.
        moved = operator.read * 7 / 4
    if moved <= 1e6:
        return [timer.kernel] * (1 + len(operator.inputs) // 100)
    return [timer.pass_over(moved, constant("memory.optimizer"))]


def _layer_norm(operator: Operator, timer: _Timer, read: float) -> list[float]:
    image = operator.inputs[0]
    shape = cast("Sequence[int]", operator.attributes["normalized_shape"])
    rows = image.elements / math.prod(shape) * constant("row")
    share = constant("memory.reduction")
    forward = timer.pass_over(read + operator.written, share)
    if not operator.name.endswith("backward"):
        return [max(forward, rows)]
    columns = timer.pass_over(operator.inputs[0].bytes + operator.inputs[1].bytes, share)
    return [max(forward, 2 * rows), max(columns, 2 * rows)]


def _batch_norm(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    image, share = operator.inputs[0].bytes, constant("memory.batch-norm")
    return [timer.pass_over(image, share), timer.kernel, timer.pass_over(2 * image, share)]


def _batch_norm_backward(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    image, share = operator.inputs[0].bytes, constant("memory.batch-norm")
    return [timer.pass_over(2 * image, share), timer.pass_over(3 * image, share)]


def _softmax(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    image = operator.inputs[0]
    row = image.shape[-1] * image.item_bytes if image.shape else 0
    held = row <= _MULTIPASS_BYTES or (row <= _SHARED_BYTES and row % 16 == 0)
    share = 1.0 if row > _MULTIPASS_BYTES else constant("memory.reduction")
    return [timer.pass_over(image.bytes * (1 if held else 3) + operator.written, share)]


def _softmax_backward(operator: Operator, timer: _Timer, read: float) -> list[float]:
    image = operator.inputs[0]
    long = bool(image.shape) and image.shape[-1] > 1024
    share = 1.0 if long else constant("memory.reduction")
    return [timer.pass_over(read + operator.written + (image.bytes if long else 0), share)]


def _reduction(operator: Operator, timer: _Timer, read: float) -> list[float]:
    return [timer.pass_over(read + operator.written, constant("memory.reduction"))]


def _filled(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    written = operator.written or (operator.inputs[0].bytes if operator.inputs else 0)
    return [timer.pass_over(written)]


def _copy(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    target, source = operator.inputs[0], operator.inputs[-1]
    strided = 0 if target.is_laid_out_as(source) else 40 * target.elements
    return [timer.pass_over(source.bytes + target.bytes, lanes=strided)]


def _slice_backward(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    gradient = operator.inputs[0]
    return [timer.pass_over(operator.written), timer.pass_over(2 * operator.read, lanes=40 * gradient.elements)]


def _sorted(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    """Rows are sorted by their index in about ten kernels, and summed."""
    summed = timer.pass_over(2 * operator.read, constant("memory.reduction")) + 20e-6
    return [timer.pass_over(operator.written), *[1.5 * timer.kernel] * 10, summed]


def _looked_up(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    return [timer.pass_over(2 * operator.written, constant("memory.reduction"))]


def _pool(operator: Operator, timer: _Timer, read: float) -> list[float]:
    return [timer.pass_over(read + operator.written, constant("memory.batch-norm"))]


def _pool_backward(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    gradient, result = operator.inputs[0].bytes, operator.outputs[0].bytes
    indices = operator.inputs[-1].bytes
    return [timer.pass_over(result), timer.pass_over(gradient + indices + result, constant("memory.batch-norm"))]


def _dropout(operator: Operator, timer: _Timer, read: float) -> list[float]:
    elements = operator.outputs[0].elements
    return [timer.pass_over(read + operator.written, lanes=_ARITHMETIC["native_dropout"] * elements)]


def _loss(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    return [2 * timer.kernel]


def _loss_backward(operator: Operator, timer: _Timer, _read: float) -> list[float]:
    return [timer.pass_over(operator.written), timer.kernel]


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        ("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"), _layer_norm
    ),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), _batch_norm),
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward"), _batch_norm_backward),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    **dict.fromkeys(("sum", "mean", "cumsum", "var", "var_mean", "amax", "argmax", "linalg_vector_norm"), _reduction),
    **dict.fromkeys(
        (
            "zeros",
            "ones",
            "full",
            "fill_",
            "zero_",
            "zeros_like",
            "ones_like",
            "full_like",
            "new_zeros",
            "new_ones",
            "new_full",
            "arange",
            "rand",
            "randn",
            "uniform_",
            "normal_",
            "eye",
            "bernoulli_",
            "exponential_",
        ),
        _filled,
    ),
    "copy_": _copy,
    **dict.fromkeys(("slice_backward", "select_backward"), _slice_backward),
    **dict.fromkeys(SORTED, _sorted),
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take"), _looked_up),
    "max_pool2d_with_indices": _pool,
    "max_pool2d_with_indices_backward": _pool_backward,
    "native_dropout": _dropout,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _loss_backward),
}


def lanes_of(operator: Operator) -> float:
    """Return the instructions of all lanes for an operator within a fused kernel, whose offsets are merged."""
    elements = max((t.elements for t in (*operator.inputs, *operator.outputs)), default=0)
    return _ARITHMETIC.get(operator.name, _SIMPLE) * elements
