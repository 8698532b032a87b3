"""Convolutions: implicit products in NHWC, and depthwise ones on the lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from paceline.operators.machine import Machine, constant
from paceline.operators.operator import Operator, Tensor
from paceline.operators.products import Product, product_s

_ALIGNED = 8
"""Channels of an implicit product are filled up to multiples of it."""
_NARROW = 16
"""Channels of a group below which no product is made of it."""


def flops(operator: Operator) -> int:
    """Return the FLOPs of a convolution, or of the parts of its backward pass that are wanted."""
    if operator.name == "convolution":
        return _flops(operator.inputs[1], operator.outputs[0])
    image, weight = operator.inputs[1:3]
    gradient = operator.inputs[0]
    parts = sum(bool(part) for part in _list(operator, "output_mask")[:2])
    transposed = bool(operator.attributes.get("transposed"))
    return parts * _flops(weight, image if transposed else gradient)


def _flops(weight: Tensor, result: Tensor) -> int:
    return 2 * result.elements * math.prod(weight.shape[1:])


def kernels(operator: Operator, machine: Machine) -> list[float]:
    """Return the seconds of each kernel."""
    if operator.name == "convolution":
        image, weight = operator.inputs[:2]
        return [_kernel(operator, machine, (image, weight, operator.outputs[0]), "forward")]
    gradient, image, weight = operator.inputs[:3]
    mask = _list(operator, "output_mask")
    seconds = []
    if gradient.innermost != image.innermost:
        # It is copied to the layout of the image first; every lane reads another sector.
        copy = 2 * gradient.bytes / machine.plain_rate
        seconds.append(max(copy, 80 * gradient.elements / machine.lane_rate) + constant("kernel"))
    if mask[0]:
        seconds.append(_kernel(operator, machine, (image, weight, gradient), "data"))
    if mask[1]:
        seconds.append(_kernel(operator, machine, (image, weight, gradient), "weight"))
    if mask[2]:
        seconds.append(gradient.bytes / (machine.plain_rate * constant("memory.reduction")) + constant("kernel"))
    return seconds


def _list(operator: Operator, name: str) -> Sequence[int]:
    return cast("Sequence[int]", operator.attributes[name])


def _kernel(operator: Operator, machine: Machine, tensors: tuple[Tensor, Tensor, Tensor], part: str) -> float:
    image, weight, result = tensors
    groups = cast("int", operator.attributes["groups"])
    moved = image.bytes + weight.bytes + result.bytes
    if operator.attributes.get("transposed"):
        image, result = result, image
        part = {"forward": "data", "data": "forward"}.get(part, part)
    channels, per_group = weight.shape[:2]
    window = math.prod(weight.shape[2:])
    if groups > 1 and per_group < _NARROW:
        work = _flops(weight, result) / machine.depthwise_rate
        return max(work, moved / machine.plain_rate) + constant("kernel")
    filled = max(_ALIGNED, -(-per_group // _ALIGNED) * _ALIGNED)
    pixels = result.elements // result.shape[1]
    m, n, k = pixels, channels // groups, filled * window
    if part == "data":
        stride = math.prod(_list(operator, "stride")) ** (2 if len(_list(operator, "stride")) == 1 else 1)
        m, n, k = image.elements // image.shape[1], filled, -(-(channels // groups * window) // stride)
    elif part == "weight":
        m, n, k = channels // groups, filled * window, pixels
    share = constant("product.implicit")
    return product_s(machine, Product(groups, m, n, k, image.dtype, moved, share=share, tf32=operator.tf32))
