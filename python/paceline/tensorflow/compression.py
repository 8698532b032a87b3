"""Compression of gradients for all-reduce: 16-bit floats in place of wider ones.

A custom compressor is a class with these two static methods, as in Horovod.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from paceline.tensorflow.execution import Tensor


class Compressor:
    """Converts a tensor before it is sent, and back afterwards."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return the tensor to send, and the context for `decompress`."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:  # noqa: ANN401 - what compress returned
        """Return the received tensor in the original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:  # noqa: ANN401
        """Return the tensor itself."""
        return tensor


class _Narrow(Compressor):
    dtype: Any

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """Return floating-point values in 16 bits, and their dtype."""
        tensor = tf.convert_to_tensor(tensor)
        return (tf.cast(tensor, cls.dtype), tensor.dtype) if tensor.dtype.is_floating else (tensor, None)

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:  # noqa: ANN401
        """Return the values in their original dtype."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Narrow):
    """Sends floating-point tensors as float16, which overflows above 65,504."""

    dtype = tf.float16


class BF16Compressor(_Narrow):
    """Sends floating-point tensors as bfloat16: the range of float32 with 8 bits of precision."""

    dtype = tf.bfloat16


class Compression:
    """The compressors, such as `hvd.Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
