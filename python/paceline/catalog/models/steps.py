"""Layers of other kinds than attention and MLPs, step by step: products, norms, convolutions, scans, joint attention.

A step reads what the steps before it have written, as rows of a sample: sizes are what counts, not which columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Product:
    """Rows times a weight."""

    name: str
    """Of the weight within its layer."""
    inner: int
    outer: int
    rows: int
    bias: bool = False
    again: bool = False
    """Whether it reads what the product before has read."""
    groups: int = 1
    """Groups of columns that are multiplied apart: the weight is outer by inner, both of one group's inputs."""


@dataclass(frozen=True)
class Batched:
    """Products of activations: so many matrices of a sample."""

    matrices: int
    rows: int
    inner: int
    outer: int
    again: bool = False
    """Whether it reads what is kept already, or is computed again in the backward pass."""

    @property
    def flops(self) -> float:
        """Of the forward pass."""
        return 2.0 * self.matrices * self.rows * self.inner * self.outer


@dataclass(frozen=True)
class Norm:
    """Normalized rows."""

    name: str
    width: int
    rows: int
    vectors: int = 1
    """2 with a bias, 1 without, 0 for no weight."""
    rms: bool = True


@dataclass(frozen=True)
class Pointwise:
    """An operator by element, by torch's name, such as `silu`, `mul` or `add`."""

    what: Literal["gelu", "silu", "relu", "mul", "add", "softmax", "topk"]
    width: int
    rows: int


@dataclass(frozen=True)
class Attend:
    """Fused scaled dot-product attention."""

    queries: int
    keys: int
    heads: int
    size: int
    causal: bool
    kv_heads: int = 0
    """As many as heads if 0."""


@dataclass(frozen=True)
class Convolve:
    """A causal depthwise convolution over tokens, with its activation (`causal_conv1d`)."""

    name: str
    width: int
    kernel: int
    rows: int
    bias: bool


@dataclass(frozen=True)
class Scan:
    """A recurrence over states of chunks, in FP32: bound by the bytes that it reads and writes."""

    states: int
    """Elements of all states of a sample."""


@dataclass(frozen=True)
class Weight:
    """A parameter that other steps' kernels read."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Add:
    """Adds to the residual stream."""

    width: int
    rows: int


Step = Product | Batched | Norm | Pointwise | Attend | Convolve | Scan | Weight | Add
