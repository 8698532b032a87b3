"""Compression of what an all-reduce moves: halves in place of floats.

A compressor of one's own is a class with these two static methods, as in Horovod.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Compressor:
    """Changes a tensor before it is moved, and back afterwards."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """The tensor to move, and what `decompress` has to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """What came of it, as the tensor was before."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Moves tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """The tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Moves floating-point tensors as float16, which overflows above 65,504."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """The values in float16, and the dtype they had."""
        return _narrow(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """The values in the dtype they had."""
        return tensor if ctx is None else tensor.to(ctx)


class BF16Compressor(Compressor):
    """Moves floating-point tensors as bfloat16: the range of float32, 8 bits of precision."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """The values in bfloat16, and the dtype they had."""
        return _narrow(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """The values in the dtype they had."""
        return tensor if ctx is None else tensor.to(ctx)


def _narrow(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, torch.dtype | None]:
    return (tensor.to(dtype), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, None)


class Compression:
    """The compressors: `hvd.Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
