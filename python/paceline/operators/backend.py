"""Which kernel torch's attention takes (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from paceline.operators.operator import Tensor

Backend = Literal["cudnn", "flash", "efficient", "math"]
_CUDNN_TAKES_ANY_DROPOUT = True
"""In torch 2.11, whose kernels were measured. From 2.12 on, cuDNN's attention drops by sixteenths (pytorch#174245)."""
_CAPABILITIES = {
    "maxwell": (5, 2),
    "pascal": (6, 1),
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
    "blackwell-rtx": (12, 0),
    # Of AMD's GPUs, torch has attention kernels of flash and efficient, as on Ampere, and none of cuDNN.
    "cdna2": (8, 0),
    "cdna3": (8, 0),
    "cdna4": (8, 0),
}


def capability(architecture: str) -> tuple[int, int]:
    """Return the CUDA compute capability, by which torch and scripts choose kernels."""
    return _CAPABILITIES[architecture]


@dataclass(frozen=True)
class Enabled:
    """The kernels that a script has not switched off (`torch.backends.cuda.enable_flash_sdp` and others)."""

    cudnn: bool = True
    flash: bool = True
    efficient: bool = True


def backend_of(
    sm: tuple[int, int],
    tensors: tuple[Tensor, Tensor, Tensor],
    dropout: float = 0.0,
    *,
    trains: bool = True,
    has_mask: bool = False,
    mask_trains: bool = False,
    is_causal: bool = False,
    enable_gqa: bool = False,
    enabled: Enabled = Enabled(),
) -> Backend:
    """Return the kernel that attention takes.

    Args:
        sm: The GPU's compute capability.
        tensors: Query, key and value: batch x heads x length x size of a head; the last two maybe of fewer heads.
        dropout: The probability.
        trains: Whether a gradient is needed.
        has_mask: Whether a mask is given.
        mask_trains: Whether it has a gradient.
        is_causal: Whether later keys are masked.
        enable_gqa: Whether heads share keys and values.
        enabled: The kernels that may be used.
    """
    query, key, value = tensors
    if any(len(t.shape) != 4 for t in tensors):
        return "math"
    heads, others = query.shape[1], {key.shape[1], value.shape[1]}
    grouped = others != {heads}
    if grouped and not (enable_gqa and len(others) == 1 and heads % key.shape[1] == 0):
        return "math"
    half = query.dtype in (("float16", "bfloat16") if sm >= (8, 0) else ("float16",))
    rows = all(t.strides[-1] == 1 or t.shape[-1] == 1 for t in tensors)
    size, same = query.shape[-1], query.shape[-1] == key.shape[-1] == value.shape[-1]

    def cudnn() -> bool:
        sixteenths = (dropout * 16).is_integer() or _CUDNN_TAKES_ANY_DROPOUT
        limit = 256 if sm[0] in (9, 10) and (size <= 128 or size == 256) else 128
        sizes = all(s <= limit and s % 8 == 0 for s in (size, value.shape[-1]))
        able = enabled.cudnn and sm >= (8, 0) and half and not mask_trains
        return able and sixteenths and sizes and rows and key.shape[2] > 1

    def flash() -> bool:
        square = not is_causal or query.shape[2] == key.shape[2]
        small = sm not in ((8, 6), (8, 9), (12, 0)) or not trains or size <= 192 or (size > 224 and not dropout)
        fits = same and size <= 256 and square and small
        return enabled.flash and sm >= (8, 0) and half and not has_mask and fits and rows

    def efficient() -> bool:
        kinds = ("float16", "float32", *(("bfloat16",) if sm >= (8, 0) else ()))
        alignment = 1
        if sm >= (8, 0) or (sm >= (7, 0) and query.item_bytes == 2):
            alignment = 16 // query.item_bytes
        aligned = query.shape[-1] == key.shape[-1] and all(s % alignment == 0 for s in (size, value.shape[-1]))
        return enabled.efficient and query.dtype in kinds and aligned and rows

    order: list[tuple[Backend, Callable[[], bool]]] = [("flash", flash), ("efficient", efficient)]
    if sm[0] in (9, 10):
        order.insert(0, ("cudnn", cudnn))
    return next((name for name, takes in order if takes()), "math")
