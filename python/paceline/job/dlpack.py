"""Arrays that offer DLPack alone: torch's on the host, and those of libraries without an interface of their own.

An array has `__dlpack__` and `__dlpack_device__` (DLPack, Python specification; `DLManagedTensor` of dlpack.h 0.8).
What it describes is looked at, and the capsule kept until the operation has finished.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from paceline.errors import InvalidArgumentError

CPU, CUDA, CUDA_HOST = 1, 2, 3
"""Kinds of devices; page-locked memory is of the host."""
_KINDS = {(0, 32): "int32", (0, 64): "int64", (1, 8): "uint8", (2, 16): "float16", (2, 32): "float32"}
_KINDS |= {(2, 64): "float64", (4, 16): "bfloat16"}
"""Code and bits of an element."""
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
DEFAULT_STREAM = 1
"""CUDA's legacy default stream, of which the producer is told, and in which the result is used."""


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """Also the beginning of a `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dims", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


def offers(value: object) -> bool:
    """Return whether an object has DLPack's two methods."""
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def look(value: Any, what: str) -> tuple[int, int, str, object, int | None, tuple[list[int], list[int] | None]]:  # noqa: ANN401 - any object of another library
    """Return address, elements, dtype, owner, stream (None: memory of the host), and shape and strides in elements.

    Raises InvalidArgumentError if it is on another device than the host or CUDA's, or the library refuses.
    """
    kind = int(value.__dlpack_device__()[0])
    if kind not in (CPU, CUDA, CUDA_HOST):
        raise InvalidArgumentError(
            f"{what}: is on a device of kind {kind} (DLPack)", remedy="memory of the host, or of CUDA"
        )
    stream = DEFAULT_STREAM if kind == CUDA else None
    try:
        capsule = value.__dlpack__() if stream is None else value.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{what}: {type(value).__name__} does not give its memory: {error}", remedy="numpy.array(...)"
        ) from None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    shape = list(tensor.shape[: tensor.dims])
    strides = list(tensor.strides[: tensor.dims]) if tensor.strides else None
    name = _KINDS.get((tensor.type.code, tensor.type.bits)) if tensor.type.lanes == 1 else None
    name = name or f"?{_CODES.get(tensor.type.code, 'code ' + str(tensor.type.code))}{tensor.type.bits}"
    return (tensor.data or 0) + tensor.offset, math.prod(shape), name, capsule, stream, (shape, strides)
