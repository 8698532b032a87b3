"""Matrix products: tiles, waves over the multiprocessors, split-K, alignment, and bytes through L2 and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from paceline.catalog.constants import Constant, assumed
from paceline.operators.machine import Machine, constant
from paceline.operators.operator import Operator, item_bytes, operands_of

_TILES = (
    *((128, 256), (256, 128), (192, 192), (128, 192), (192, 128), (128, 128)),
    *((256, 64), (64, 256), (128, 64), (64, 128), (64, 64)),
)
_CORES_TILES = ((128, 128), (128, 64), (64, 128), (64, 64))
"""Of FP32 products on CUDA cores."""
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 132)
_LEAST_DEPTH = 256
"""Inner dimension of a split product, at least."""
_TILE = 128 * 256
_ROW_BYTES = 16
"""Rows that begin at multiples of it are loaded by TMA."""
_REDUCE_S = 1.5e-6
"""Of the kernel that adds the parts of a split product."""


@dataclass(frozen=True)
class Product:
    """`batch` products of M x K by K x N; `moved`: bytes of operands and result."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    moved: int
    alignment: int = _ROW_BYTES
    """Bytes of which the operands' rows are multiples, up to 16."""
    share: float = 1.0
    """Of a product's rate: 1, or less for an implicit product."""
    tf32: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k


def product_s(machine: Machine, product: Product) -> float:
    """Return the seconds of one kernel, the fastest of those that a library chooses among."""
    return fastest_s(machine, product, frozenset(assumed().items()))


@lru_cache(maxsize=65536)
def fastest_s(machine: Machine, product: Product, _: frozenset[tuple[Constant, float]]) -> float:
    """Return the same, once for each set of constants with other values."""
    rate = machine.product_rate(product.dtype, tf32=product.tf32) * product.share
    if product.alignment < _ROW_BYTES:
        share = constant("product.unaligned") * (0.5 if product.alignment < 4 else 1.0)
        rate = min(rate, machine.half_peak * share)
    item = item_bytes(product.dtype)
    through_memory = product.moved / (machine.plain_rate * 0.95)
    best = math.inf
    on_cores = product.dtype == "float32" and not product.tf32
    for rows, columns in _CORES_TILES if on_cores else _TILES:
        narrow = constant("product.cores.narrow") if on_cores and rows * columns < 128 * 128 else 1.0
        tiles = product.batch * math.ceil(product.m / rows) * math.ceil(product.n / columns)
        deep = 2 * rows * columns / (rate * narrow / machine.multiprocessors)
        fed = 0.75 * item * (rows + columns) / (machine.feed_rate / machine.multiprocessors)
        ends = constant("product.tile") * math.sqrt(rows * columns / _TILE)
        for split in _SPLITS:
            if split > 1 and product.k / split < _LEAST_DEPTH:
                break
            waves = math.ceil(tiles * split / machine.multiprocessors)
            seconds = waves * (product.k / split * max(deep, fed) + ends)
            if split > 1:
                partial = 4 * product.batch * product.m * product.n
                seconds += (split + 1) * partial / machine.feed_rate + _REDUCE_S
            best = min(best, max(seconds, through_memory))
    return best + constant("kernel")


def grouped_product_of(operator: Operator) -> Product:
    """Return the products of `_grouped_mm`, as if the groups (experts) were equally large.

    Rows of the left operand are grouped, or columns of the right one; or both, and their inner dimension with them.
    """
    left, right = operands_of(operator)
    result = operator.outputs[0]
    groups = next(t.shape[0] for t in (left, right, result) if len(t.shape) == 3)
    (m, k), n = left.shape[-2:], right.shape[-1]
    if len(left.shape) == len(right.shape) == 2:
        k = -(-k // groups)
    elif len(left.shape) == 2:
        m = -(-m // groups)
    elif len(right.shape) == 2:
        n = -(-n // groups)
    return Product(groups, m, n, k, left.dtype, left.bytes + right.bytes + result.bytes)


def product_of(operator: Operator) -> Product:
    """Return the product of `mm`, `addmm`, `bmm`, `baddbmm` or `_scaled_mm`."""
    left, right = operands_of(operator)
    result = operator.outputs[0]
    batch = left.shape[0] if len(left.shape) == 3 else 1
    (m, k), n = left.shape[-2:], right.shape[-1]
    rows = [max(t.strides[-2:]) * t.item_bytes for t in (left, right, result) if max(t.strides[-2:]) > 1]
    alignment = min((math.gcd(row, _ROW_BYTES) for row in rows), default=_ROW_BYTES)
    moved = operator.read + operator.written
    return Product(batch, m, n, k, left.dtype, moved, alignment, tf32=operator.tf32)
