"""Operators as measured on a device: how much longer than modeled they took, between the sizes that were measured.

What is interpolated is the ratio of the measured to the modeled time, so the model carries a size to others. Operators
of a class (the same kernel and dtype) are points in the logarithms of their sizes, and planes lie between them. Layouts
and phases are coordinates as well: another layout is as far away as twice or four times the size.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import cast

from paceline.operators import attention
from paceline.operators.operator import Operator, Tensor, operands_of
from paceline.operators.products import product_of

_NEIGHBORS = 24
_LEAST_POINTS = 3
"""Of a class with fewer, a more general one is taken."""
_SHRINKING = 0.1
"""Of slopes: the variance, in powers of two, below which sizes do not tell them."""
_NEAR = 0.25
"""Square of a distance, in powers of two, within which points count alike: noise is averaged."""
_LARGE = 8.0
_SAME = {
    "cudnn_batch_norm": "native_batch_norm",
    "cudnn_batch_norm_backward": "native_batch_norm_backward",
}
"""Names under which a device's operators are found, if a recording without it has others."""
_LAST = " in channels_last"
_VECTOR, _NARROW = 16, 8
"""Channels that fill vectors, or rows of a tile; and fewer than those are a first layer's."""
Class = tuple[object, ...]
Place = tuple[float, ...]


class Measured:
    """The operators that were measured on one device."""

    def __init__(self, measured: Iterable[tuple[Operator, str, float]]) -> None:
        """Take the operators, the kind of their work, and the ratios of measured to modeled time."""
        self._points: dict[Class, list[tuple[Place, float]]] = defaultdict(list)
        for operator, kind, ratio in measured:
            classes, place = classified(operator, kind)
            for each in classes:
                self._points[each].append((place, math.log(ratio)))
        self._ratio = lru_cache(maxsize=65536)(self._interpolated)

    def ratio(self, operator: Operator, kind: str) -> float:
        """Return how many times its modeled time an operator takes; 1 if nothing like it was measured."""
        return self._ratio(*classified(operator, kind))

    def _interpolated(self, classes: tuple[Class, ...], place: Place) -> float:
        few = [each for each in classes if len(self._points.get(each, ())) >= _LEAST_POINTS]
        known = few or [each for each in classes if each in self._points]
        if not known:
            return 1.0
        return math.exp(interpolated(self._points[known[0]], place))


def interpolated(points: Sequence[tuple[Place, float]], place: Place) -> float:
    """Return the value at a place of the plane through the nearest points.

    Points count by the inverse of their distance to the sixth power. The plane's slopes are shrunk (ridge regression),
    so that few points, or noisy ones, give their weighted mean (W. S. Cleveland, Robust locally weighted regression,
    1979). Beyond the points it is level.

    Args:
        points: Places and values.
        place: Where the value is wanted.
    """
    near = heapq.nsmallest(
        _NEIGHBORS,
        ((sum((a - b) ** 2 for a, b in zip(other, place, strict=True)), other, value) for other, value in points),
    )
    weights = [(distance + _NEAR) ** -3 for distance, *_ in near]
    whole = sum(weights)
    size = len(place)
    center = [sum(w * other[d] for w, (_, other, _) in zip(weights, near, strict=True)) / whole for d in range(size)]
    mean = sum(w * value for w, (*_, value) in zip(weights, near, strict=True)) / whole
    matrix = [[_SHRINKING * whole * (row == column) for column in range(size)] for row in range(size)]
    right = [0.0] * size
    for weight, (_, other, value) in zip(weights, near, strict=True):
        offset = [a - b for a, b in zip(other, center, strict=True)]
        for row in range(size):
            right[row] += weight * offset[row] * (value - mean)
            for column in range(size):
                matrix[row][column] += weight * offset[row] * offset[column]
    slopes = _solved(matrix, right)
    sides = list(zip(*(other for _, other, _ in near), strict=True))
    inside = [min(max(a, min(side)), max(side)) for a, side in zip(place, sides, strict=True)]
    plane = mean + sum(slope * (a - b) for slope, a, b in zip(slopes, inside, center, strict=True))
    values = [value for *_, value in near]
    return float(min(max(plane, min(values)), max(values)))


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Return the solution of a positive definite system of equations, by elimination."""
    size = len(right)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            right[row] -= factor * right[pivot]
            for column in range(pivot, size):
                matrix[row][column] -= factor * matrix[pivot][column]
    solution = [0.0] * size
    for row in reversed(range(size)):
        rest = sum(matrix[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (right[row] - rest) / matrix[row][row]
    return solution


def classified(operator: Operator, kind: str) -> tuple[tuple[Class, ...], Place]:
    """Return the classes of an operator, the most special first, and its place among those of its class.

    Args:
        operator: What is dispatched.
        kind: Of its work (`Work.kind`).
    """
    if kind == "matmul":
        if "convolution" in operator.name:
            return _convolution(operator)
        return _product(operator)
    if kind == "attention":
        name, sizes = operator.name, attention.sizes(operator)
        return (("attention", name, attention.is_causal(operator)), ("attention", name)), _place(sizes)
    return _memory_bound(operator, kind)


def _place(sizes: Iterable[float]) -> Place:
    return tuple(math.log2(max(1.0, size)) for size in sizes)


def _saturated(logarithm: float) -> float:
    """Return a size's logarithm; of sizes beyond `_LARGE` a quarter counts, as kernels are as fast as they become."""
    return logarithm if logarithm < _LARGE else _LARGE + (logarithm - _LARGE) / 4


def _product(operator: Operator) -> tuple[tuple[Class, ...], Place]:
    if len(operator.inputs) < 2:
        return (("product",),), (0.0,) * 6
    product = product_of(operator)
    turned = tuple(float(tensor.strides[-1] != 1) for tensor in operands_of(operator))
    special = ("product", product.batch > 1, product.dtype, operator.tf32)
    batch, *sizes = _place((product.batch, product.m, product.n, product.k))
    return (special, ("product",)), (batch, *map(_saturated, sizes), *turned)


def _convolution(operator: Operator) -> tuple[tuple[Class, ...], Place]:
    backward = operator.name != "convolution"
    image, weight = operator.inputs[1:3] if backward else operator.inputs[:2]
    result = operator.inputs[0] if backward else operator.outputs[0]
    groups = cast("int", operator.attributes.get("groups", 1))
    mask = cast("Sequence[bool]", operator.attributes.get("output_mask", (False,)))
    after, before = weight.shape[:2]
    grouping = "single" if groups == 1 else "depthwise" if before == 1 else "grouped"
    special = ("convolution", operator.name, len(weight.shape), grouping, image.dtype)
    window, pixels = math.prod(weight.shape[2:]), math.prod(result.shape[2:])
    stride = math.prod(cast("Sequence[int]", operator.attributes.get("stride", (1,))))
    rows, side, first, second, divided, width, step = _place(
        (result.shape[0] * pixels, pixels, before, after / groups, groups, window, stride)
    )
    kinds = (
        2.0 * (window == 1),
        2.0 * (before < _NARROW and groups == 1),
        1.0 * (before % _VECTOR == 0 and after % _VECTOR == 0),
        2.0 * (image.innermost == 1 and before > 1),
        1.0 * mask[0],
    )
    channels = _saturated(first), _saturated(second)
    place = (_saturated(rows / 2), side / 4, *channels, divided / 2, width / 2, step, *kinds)
    return (special, special[:2], ("convolution",)), place


def _memory_bound(operator: Operator, kind: str) -> tuple[tuple[Class, ...], Place]:
    largest = max((*operator.inputs, *operator.outputs), key=lambda tensor: tensor.elements, default=None)
    item, row = (4, 1) if largest is None or not largest.shape else (largest.item_bytes, largest.shape[-1])
    words = [value for value in operator.attributes.values() if isinstance(value, str)]
    name = " ".join([_SAME.get(operator.name, operator.name), *words])
    layout = _layout(operator)
    moved, last, size = _place((operator.read + operator.written, row, item))
    kinds = [2.0 * (layout.startswith(one)) for one in ("turned", "broadcast")]
    kinds += [2.0 * layout.endswith(_LAST), *(1.0 * (operator.phase == phase) for phase in ("backward", "update"))]
    return ((kind, name), (kind, "", layout), (kind,)), (moved, last / 4, size, *kinds)


def _layout(operator: Operator) -> str:
    """Return how the operands of a memory-bound operator lie: as the result, broadcast, or in another order."""
    if not operator.outputs:
        return "dense"
    result = operator.outputs[0]
    last = _LAST * (len(result.shape) == 4 and result.innermost == 1)
    images = [tensor for tensor in operator.inputs if tensor.elements > 1]
    if all(tensor.is_laid_out_as(result) for tensor in images):
        return "dense"
    if any(tensor.elements == result.elements and _turned(tensor, result) for tensor in images):
        return f"turned{last}"
    return f"broadcast{last}"


def _turned(tensor: Tensor, result: Tensor) -> bool:
    return len(tensor.shape) != len(result.shape) or tensor.innermost != result.innermost
