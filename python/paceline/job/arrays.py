"""Arrays as arguments: how the memory of numpy arrays and similar objects reaches the runtime.

An array is an object with `__array_interface__` (numpy) or the buffer protocol (bytearray, array.array, mmap), or a
list or tuple of such objects, which are processed in order as if they were one. Nothing is copied: the memory must be
contiguous, and writable where a result is written.

An array on a CUDA device is an object with `__cuda_array_interface__` (CuPy, Numba, torch, JAX; CUDA array interface,
version 3). What was submitted to its stream before the call is done before it is read, and what is submitted to it
after the operation has been waited for sees the result. Objects with none of these may offer DLPack, on a device in the
order of its default stream.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import InvalidArgumentError
from paceline.job import dlpack

if TYPE_CHECKING:
    import numpy.typing as npt

    # In collections.abc from Python 3.12 on; type checkers know it under this name in all versions.
    from typing_extensions import Buffer


class SupportsCudaArrayInterface(Protocol):
    """An array on a CUDA device (CUDA array interface, version 3)."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Address on the device, shape, strides, type of the elements, and stream."""


class SupportsArrayInterface(Protocol):
    """An object that describes its memory as numpy arrays do (numpy's array interface, version 3)."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Address, shape, strides and type of the elements."""


class SupportsDLPack(Protocol):
    """An array that another library can take over (DLPack, Python specification)."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        """Return a capsule that describes the memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return kind and number of the device."""


if TYPE_CHECKING:
    ArrayLike = SupportsArrayInterface | SupportsCudaArrayInterface | SupportsDLPack | Buffer
    """One array: numpy's, or another object that exposes its memory."""
    Array = ArrayLike | Sequence[ArrayLike]
    """An array, or several of one dtype that are processed as if they were one."""
else:
    ArrayLike = Array = Any

Region = tuple[int, int]
"""The address of the first element, and the number of elements."""

DTYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint8": 1}
"""The dtypes that can be reduced, and the bytes of an element."""
# As in __array_interface__ and in the buffer protocol, where the size of `l` and `q` is given separately.
_KINDS = {"f4": "float32", "f8": "float64", "f2": "float16", "i4": "int32", "i8": "int64", "u1": "uint8"}
_CODES = {"f": "f4", "d": "f8", "e": "f2", "B": "u1", "c": "S1", "b": "i1", "?": "b1"}
# As numpy does.
_CHARS = {"f": "float32", "d": "float64", "e": "float16", "B": "uint8"}
_CHARS |= {code: f"int{8 * struct.calcsize(code)}" for code in "ilq"}
_NATIVE = "<" if sys.byteorder == "little" else ">"


@dataclass(slots=True)
class Memory:
    """The memory of one argument of an operation."""

    regions: list[Region]
    dtype: str
    keep: object
    """The owner of the memory, which must be kept until the operation has finished."""
    stream: int | None = None
    """For memory on a CUDA device: the stream (`CUstream`) in whose order it is read and written."""

    @property
    def elements(self) -> int:
        """Number of elements in all regions."""
        return sum(count for _, count in self.regions)


def memory(value: Array | None, what: str, *, dtype: str | None = None, writable: bool = False) -> Memory:
    """Return the memory of an array, or of a list or tuple of arrays.

    Args:
        value: The array.
        what: Its name in error messages.
        dtype: Element type where the array cannot express it: "bfloat16" over uint16.
        writable: Whether a result is written there.

    Returns:
        Addresses and lengths, and the owner of the memory, which must be kept until the operation has finished.

    Raises:
        InvalidArgumentError: It is not an array, has another dtype, is not contiguous, or cannot be written.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and dtype is None:
        # The usual case, recognized in 2 µs; __array_interface__ takes 6.
        array: Any = value
        name = _CHARS.get(array.dtype.char)
        if name is not None and array.dtype.isnative and array.flags.carray and array.size:
            return Memory([(_writable_address(array), array.size)], name, array)
    if not isinstance(value, list | tuple):
        address, count, kind, keep, stream = _look(value, what, writable)
        return Memory([(address, count)] if count else [], _checked_dtype(kind, dtype, what), keep, stream)
    if not value:
        raise InvalidArgumentError(f"{what}: an empty list", remedy="at least one array")
    parts = [memory(part, f"{what}[{index}]", dtype=dtype, writable=writable) for index, part in enumerate(value)]
    for index, part in enumerate(parts):
        if part.dtype != parts[0].dtype:
            raise InvalidArgumentError(
                f"{what}[{index}]: arrays of one call must have one dtype, not {part.dtype} and {parts[0].dtype}",
                remedy="a call for each dtype",
            )
        check_place(parts[0], part, f"{what}[0]", f"{what}[{index}]")
    regions = [region for part in parts for region in part.regions]
    if writable:
        spans = sorted((address, address + count * DTYPES[parts[0].dtype]) for address, count in regions)
        if any(after[0] < before[1] for before, after in pairwise(spans)):
            raise InvalidArgumentError(f"{what}: two of the arrays share memory", remedy="each array once")
    return Memory(regions, parts[0].dtype, [part.keep for part in parts], parts[0].stream)


def check_place(first: Memory, second: Memory, its_name: str, other_name: str) -> None:
    """Raise InvalidArgumentError unless both are in host memory, or on a device and in the order of one stream."""
    if first.stream == second.stream:
        return
    place = [
        f"{name} is {'in host memory' if given.stream is None else f'on a device, in stream {given.stream}'}"
        for name, given in ((its_name, first), (other_name, second))
    ]
    raise InvalidArgumentError(
        f"{' and '.join(place)}: the arrays of one call must be in one place",
        remedy="all on the host, or all on one device",
    )


def check_apart(inputs: Memory, outputs: Memory, call: str) -> None:
    """Raise InvalidArgumentError if the output shares memory with the input."""
    size = DTYPES[inputs.dtype]
    for address, count in inputs.regions:
        if any(begin < address + count * size and address < begin + many * size for begin, many in outputs.regions):
            raise InvalidArgumentError(f"{call}: out shares memory with array", remedy="out = array.copy()")


def new_array(like: Array, shape: Sequence[int], what: str) -> npt.NDArray[Any]:
    """Return a new numpy array for a result if `like` is a numpy array.

    Raises:
        InvalidArgumentError: It is another kind of array, and the caller must give the output.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(like, numpy.ndarray):
        raise InvalidArgumentError(
            f"{what} is missing, as only numpy arrays are created", remedy=f"{what}=an array for the result"
        )
    made: npt.NDArray[Any] = numpy.empty(tuple(shape), dtype=like.dtype)
    return made


def _look(value: object, what: str, writable: bool) -> tuple[int, int, str, object, int | None]:
    """Return address, elements, dtype, owner and stream of one array; unknown dtypes begin with '?'."""
    interface, stream = getattr(value, "__array_interface__", None), None
    if interface is None:
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None and dlpack.offers(value):
            return _from_dlpack(value, what)
        if interface is None:
            return *_buffer(value, what, writable), None
        stream = _stream(value, interface)
    numpy = sys.modules.get("numpy")
    if not isinstance(interface["data"], tuple) or (numpy is not None and isinstance(value, numpy.generic)):
        raise InvalidArgumentError(f"{what}: {type(value).__name__} does not own memory", remedy="numpy.array(...)")
    address, read_only = interface["data"]
    kind, shape = interface["typestr"], interface["shape"]
    if kind[0] not in (_NATIVE, "|"):
        raise InvalidArgumentError(
            f"{what}: has the byte order of other machines", remedy="array.astype(array.dtype.newbyteorder('='))"
        )
    dtype = _KINDS.get(kind[1:])
    if dtype is None:
        name = str(getattr(value, "dtype", kind))
        dtype = "bfloat16" if name == "bfloat16" else f"?{name}"
    _check_contiguous(shape, interface.get("strides"), DTYPES.get(dtype, 2), what)
    if writable and read_only:
        raise InvalidArgumentError(
            f"{what}: is read-only, and the result would be written there", remedy="array.copy()"
        )
    return address, math.prod(shape), dtype, value, stream


def _from_dlpack(value: object, what: str) -> tuple[int, int, str, object, int | None]:
    address, count, kind, keep, stream, (shape, strides) = dlpack.look(value, what)
    _check_contiguous(shape, strides, 1, what)
    return address, count, kind, keep, stream


def _stream(value: Any, interface: Mapping[str, Any]) -> int:  # noqa: ANN401 - any object of another library
    """Return the stream in whose order the array is used: its own, torch's current one, or the default stream."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return int(torch.cuda.current_stream(value.device).cuda_stream)
    return int(interface.get("stream") or 1)


def _check_contiguous(shape: Sequence[int], strides: Sequence[int] | None, item: int, what: str) -> None:
    if not _contiguous(shape, strides, item):
        raise InvalidArgumentError(
            f"{what}: is not contiguous", remedy="numpy.ascontiguousarray(...) (then copy the result back)"
        )


def _contiguous(shape: Sequence[int], strides: Sequence[int] | None, item: int) -> bool:
    if strides is None or 0 in shape:
        return True
    expected = item
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _buffer(value: Any, what: str, writable: bool) -> tuple[int, int, str, object]:  # noqa: ANN401 - checked here
    try:
        view = memoryview(value)
    except TypeError:
        raise InvalidArgumentError(
            f"{what}: {type(value).__name__} is not an array",
            remedy="a numpy array or a buffer (bytearray, array.array)",
        ) from None
    if not view.c_contiguous:
        raise InvalidArgumentError(f"{what}: is not contiguous", remedy="bytearray(...)")
    if writable and view.readonly:
        raise InvalidArgumentError(
            f"{what}: is read-only, and the result would be written there", remedy="bytearray(...)"
        )
    code = view.format.lstrip("@=" + _NATIVE)
    kind = _CODES.get(code) or {"i": "i", "l": "i", "q": "i", "H": "u"}.get(code, code) + str(view.itemsize)
    dtype = _KINDS.get(kind) or ("?uint16" if kind == "u2" else f"?{view.format}")
    # The view keeps the memory in place for the whole operation: meanwhile a bytearray cannot be resized.
    return (_address(view), view.nbytes // view.itemsize, dtype, view) if view.nbytes else (0, 0, dtype, view)


def _address(view: memoryview) -> int:
    if not view.readonly:
        return _writable_address(view)
    ctypes, py_buffer = _ctypes()
    buffer = py_buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = int(buffer[0])
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address


def _writable_address(value: Buffer) -> int:
    ctypes, _ = _ctypes()
    address: int = ctypes.addressof(ctypes.c_char.from_buffer(value))
    return address


@cache
def _ctypes() -> tuple[Any, Any]:
    """Return ctypes, which is slow to load, and space for a Py_buffer: 11 words, the first of which is the address."""
    import ctypes

    return ctypes, ctypes.c_void_p * 11


def _checked_dtype(own: str, dtype: str | None, what: str) -> str:
    if dtype is not None:
        if dtype not in DTYPES:
            raise InvalidArgumentError(f"dtype: unknown dtype '{dtype!s:.80}'", remedy=f"one of {', '.join(DTYPES)}")
        if dtype == own or (dtype == "bfloat16" and own in ("?uint16", "?|V2", "?V2")):
            return dtype
        remedy = "drop dtype" if not own.startswith("?") else "dtype='bfloat16' with an array of uint16"
        raise InvalidArgumentError(f"{what}: {own.lstrip('?')}, and dtype says {dtype}", remedy=remedy)
    if own.startswith("?"):
        hint = ", dtype='bfloat16' if it holds such" if own == "?uint16" else ""
        raise InvalidArgumentError(
            f"{what}: {own[1:]} is not one of {', '.join(DTYPES)}",
            remedy=f"array.astype(...){hint}, or array.view('uint8')",
        )
    return own
