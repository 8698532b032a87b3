"""Compression of gradients for all-reduce: 16-bit floats in place of wider ones.

A custom compressor is a class with these two static methods, as in Horovod.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Compressor:
    """Converts a tensor before it is sent, and back afterwards."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Return the tensor to send, and the context for `decompress`."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Return the received tensor in the original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Return the tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16, which overflows above 65,504."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Return the values as float16, and their dtype."""
        return _narrow(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Return the values in their original dtype."""
        return tensor if ctx is None else tensor.to(ctx)


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 8 bits of precision."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Return the values as bfloat16, and their dtype."""
        return _narrow(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Return the values in their original dtype."""
        return tensor if ctx is None else tensor.to(ctx)


def _narrow(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, torch.dtype | None]:
    return (tensor.to(dtype), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, None)


class Compression:
    """The compressors, such as `hvd.Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
