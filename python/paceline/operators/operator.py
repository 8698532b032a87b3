"""Operators with the shapes, dtypes and layouts of their tensors, as torch dispatches them below autograd."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

ITEM_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "bool": 1,
    **dict.fromkeys(("uint8", "int8", "quint8", "qint8"), 1),
    **dict.fromkeys(("uint16", "int16"), 2),
    **dict.fromkeys(("uint32", "int32", "qint32"), 4),
    **dict.fromkeys(("uint64", "int64"), 8),
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of an element, by torch's name of the dtype."""


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element by torch's name of the dtype; those of FP32 if it is unknown."""
    return ITEM_BYTES.get(dtype, ITEM_BYTES["float32"])


@dataclass(frozen=True)
class Tensor:
    """Shape, dtype and strides of a tensor, in elements; a stride of 0 is a dimension that was broadcast."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @cached_property
    def elements(self) -> int:
        """Number of elements, broadcast ones included."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return item_bytes(self.dtype)

    @cached_property
    def bytes(self) -> int:
        """Bytes in memory: a broadcast dimension is there once."""
        dimensions = zip(self.shape, self.strides, strict=True)
        return math.prod(size for size, stride in dimensions if stride != 0 or size == 0) * self.item_bytes

    @property
    def innermost(self) -> int:
        """The dimension along which neighbors in memory lie; -1 if no dimension has more than one element."""
        dimensions = [
            (stride, -place)
            for place, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True))
            if size > 1 and stride
        ]
        return -min(dimensions)[1] if dimensions else -1

    def is_laid_out_as(self, other: Tensor) -> bool:
        """Return whether an element lies at the same offset in both."""
        return self.shape == other.shape and all(
            mine == others
            for mine, others, size in zip(self.strides, other.strides, self.shape, strict=True)
            if size != 1
        )


def contiguous(shape: Sequence[int], dtype: str) -> Tensor:
    """Return a tensor of this shape in row-major order."""
    strides = [1] * len(shape)
    for place in range(len(shape) - 2, -1, -1):
        strides[place] = strides[place + 1] * shape[place + 1]
    return Tensor(tuple(shape), dtype, tuple(strides))


@dataclass(frozen=True)
class Operator:
    """One operator of a step: what is dispatched to the GPU, or a wait of the host for it."""

    name: str
    """torch's name without namespace and overload: `mm`, `_scaled_dot_product_flash_attention`."""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    attributes: Mapping[str, object] = field(default_factory=dict)
    """Arguments that are numbers, truth values, or lists of them, by name."""
    compiled: bool = False
    """Whether torch.compile may fuse it with its neighbors."""
    phase: str = "forward"
    """`forward`, `backward` or `update`."""
    sources: tuple[int, ...] = ()
    """For each input, the place in the list of the operator that wrote it last; -1 if none did."""
    tf32: bool = False
    """Whether products in FP32 may use TF32."""
    launches: int = 1
    """Kernels that a library launches one by one, such as a product for each expert."""
    host: float = 1.0
    """The host's time to dispatch it, relative to an operator of torch."""
    in_graph: bool = False
    """Whether it is part of a CUDA graph, which the host launches as a whole."""

    @cached_property
    def read(self) -> int:
        """Bytes of the inputs."""
        return sum(tensor.bytes for tensor in self.inputs)

    @cached_property
    def written(self) -> int:
        """Bytes of the outputs."""
        return sum(tensor.bytes for tensor in self.outputs)


SYNCHRONIZE = "synchronize"
"""The name of an operator with which the host waits for the GPU (`.item()`)."""


def is_multi_tensor(name: str) -> bool:
    """Return whether an operator is an optimizer's, over many tensors at once."""
    return name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "multi_tensor_"))


def is_attention(name: str) -> bool:
    """Return whether an operator is fused attention."""
    return name.startswith("_scaled_dot_product") or name in ("_flash_attention_forward", "_flash_attention_backward")


def is_flash_attention(name: str) -> bool:
    """Return whether attention is FlashAttention called by itself, with heads after the length."""
    return name.startswith("_flash_attention")


def operands_of(operator: Operator) -> tuple[Tensor, ...]:
    """Return both operands of a product, or queries, keys and values of attention.

    `addmm` has what is added before its operands, `_scaled_mm` and grouped products have scales and offsets after
    them, and attention's backward pass has its gradient before them.
    """
    if is_attention(operator.name):
        start = 1 if "backward" in operator.name else 0
        return operator.inputs[start : start + 3]
    if operator.name in ("_scaled_mm", "_grouped_mm", "_scaled_grouped_mm"):
        return operator.inputs[:2]
    return operator.inputs[-2:]
