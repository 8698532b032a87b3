"""Named operations on numpy arrays, for frameworks that give their tensors as such.

| dtype | how it is reduced |
| --- | --- |
| float32, float64, float16, bfloat16 (ml_dtypes), int32, int64 | directly |
| uint8 | directly; averages and multiples in int32, and back |
| int8, int16, uint16 | in int32, and back: sums and products wrap as they do in the dtype itself |
| uint32 | in int64, and back |
| bool | as uint8: sum and maximum are "or", product and minimum are "and" |
| complex64, complex128 | sum and average, of the real and imaginary parts |

Averages of integers are the sum divided by the number of ranks, rounded toward zero. Operations that only move data
treat dtypes that the runtime does not reduce as bytes.
"""

# ruff: noqa: PLR0917 - what is reduced how
from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline._core import NamedOperation
from paceline.hvd.handles import PendingOperation
from paceline.hvd.members import Members
from paceline.hvd.operators import Operator
from paceline.job.arrays import DTYPES

Array = npt.NDArray[Any]
ALIGNMENT = 64
"""Bytes: TensorFlow takes the memory of an array as a tensor without copying if it is aligned to this."""
_WIDER = {"int8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
_WIDER_IN_PRODUCTS = {**_WIDER, "uint8": "int32"}
_BOOL = {Operator.Sum: "max", Operator.Max: "max", Operator.Product: "min", Operator.Min: "min"}
_PARTS = {"complex64": "float32", "complex128": "float64"}


class Reduction(NamedTuple):
    """The runtime's reduction: `op` on elements of `dtype`, and factors of the inputs and of the result."""

    op: str
    dtype: str
    prescale: float
    postscale: float


@lru_cache(256)
def lowered(op: Operator, dtype: str, size: int, prescale: float = 1.0, postscale: float = 1.0) -> Reduction:
    """Choose how arrays of `size` ranks are reduced. Raises TypeError with the remedy if the runtime cannot."""
    scaled = (prescale, postscale) != (1.0, 1.0)
    if op is Operator.Average:
        postscale /= size
    summed = op in (Operator.Average, Operator.Sum)
    real = _PARTS.get(dtype, dtype)
    if real.startswith(("float", "bfloat")) and real in DTYPES and (summed or real == dtype):
        return Reduction("sum" if summed else op.name.lower(), real, prescale, postscale)
    if dtype == "bool":
        if scaled:
            raise TypeError("bool cannot be scaled; leave prescale_factor and postscale_factor out")
        if op in _BOOL:
            return Reduction(_BOOL[op], "uint8", 1.0, 1.0)
    elif dtype in DTYPES or dtype in _WIDER:
        wider = _WIDER_IN_PRODUCTS if scaled or op is Operator.Average else _WIDER
        return Reduction("sum" if summed else op.name.lower(), wider.get(dtype, dtype), prescale, postscale)
    remedy = "sum and average are" if dtype in _PARTS else "convert it to float32, int32 or int64 first"
    raise TypeError(f"{op.name} of {dtype} is not defined; {remedy}")


_free: dict[int, deque[Array]] = {}
"""Memory that is not in use, by size: new memory costs a page fault for each 4 KiB, more than the copy itself."""
_KEPT = 1 << 30
"""Bytes in buffers of one size that are kept at most."""
_SMALL = 1 << 16
"""Bytes below which memory is not worth keeping: malloc does."""


class _Loan:
    """Memory that returns to the free list when the last array over it is gone, whoever has held that."""

    __slots__ = ("__array_interface__", "_keep", "_raw")

    def __init__(self, raw: Array, size: int) -> None:
        start = address(raw)
        self._raw = raw
        # At the end of the interpreter, the names of this module may be gone.
        self._keep = _free.setdefault(raw.nbytes, deque(maxlen=max(2, _KEPT // raw.nbytes))).append
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (start + -start % ALIGNMENT, False),
        }

    def __del__(self) -> None:
        self._keep(self._raw)


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Return a new array whose memory TensorFlow can take as it is."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < _SMALL:
        raw = np.empty(size + ALIGNMENT, np.uint8)
        offset = -address(raw) % ALIGNMENT
        return raw[offset : offset + size].view(kind).reshape(shape)
    try:
        raw = _free[size + ALIGNMENT].pop()
    except (KeyError, IndexError):
        raw = np.empty(size + ALIGNMENT, np.uint8)
    return np.asarray(_Loan(raw, size)).view(kind).reshape(shape)


def address(array: Array) -> int:
    """Return the address of the first element."""
    pointer: int = array.__array_interface__["data"][0]
    return pointer


def copied(array: Array) -> Array:
    """Return a dense and aligned copy."""
    copy = empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def reduced(
    members: Members,
    full: str,
    array: Array,
    op: Operator,
    prescale: float,
    postscale: float,
    *,
    in_place: bool = False,
) -> PendingOperation[Array]:
    """All-reduce an array, into a new one or, if it is dense, in place.

    The result of an operation in place is `array` itself, unless its dtype had to be widened or it is not dense.
    """
    reduction = _plan(full, op, array, members, prescale, postscale)
    in_place = in_place and array.flags.c_contiguous
    work = _viewed(array, reduction) if in_place else _read(array, reduction, copy=True)
    operation = _request(members, "all_reduce", full, work, reduction)
    whole = array if in_place and address(work) == address(array) else None
    return PendingOperation(operation, lambda _: _back(work, array) if whole is None else whole)


def _request(members: Members, call: str, full: str, work: Array, reduction: Reduction) -> NamedOperation:
    return members.coordinator.request(
        call,
        full,
        inputs=[(address(work), work.size)],
        dtype=reduction.dtype,
        shape=list(work.shape),
        op=reduction.op,
        prescale=reduction.prescale,
        postscale=reduction.postscale,
        keep=work,
    )


def _plan(full: str, op: Operator, array: Array, members: Members, prescale: float, postscale: float) -> Reduction:
    try:
        return lowered(op, array.dtype.name, members.size, prescale, postscale)
    except TypeError as error:
        raise TypeError(f"'{full}': {error}") from None


def _viewed(array: Array, reduction: Reduction) -> Array:
    """Return a dense array as elements of the reduction's dtype: over the same memory, if the dtypes have one size."""
    name = array.dtype.name
    if name == reduction.dtype:
        return array
    if name in _PARTS:
        return array.view(reduction.dtype) if array.ndim else array.reshape(1).view(reduction.dtype)
    if name == "bool":
        return array.view(np.uint8)
    return array.astype(reduction.dtype)


def _read(array: Array, reduction: Reduction, *, copy: bool) -> Array:
    """Return a dense array of the reduction's dtype with these values, which is a new one if `copy`."""
    dense = copied(array) if copy or not array.flags.c_contiguous else array
    return _viewed(dense, reduction)


def _back(work: Array, like: Array) -> Array:
    """Return a result in the shape and dtype of the call's array."""
    if work.dtype == like.dtype:
        return work
    name = like.dtype.name
    if name in _PARTS or name == "bool":
        return work.view(like.dtype).reshape(like.shape)
    copy = empty(like.shape, like.dtype)
    np.copyto(copy, work, casting="unsafe")
    return copy


class _Moved(NamedTuple):
    """How an array is moved: as elements of a dtype of the runtime, or as bytes."""

    dtype: str
    units: int
    more: list[int]
    """A further dimension, of the bytes of an element."""


def _moved(dtype: np.dtype[Any]) -> _Moved:
    if dtype.name in DTYPES:
        return _Moved(dtype.name, 1, [])
    return _Moved(dtype.name, dtype.itemsize, [dtype.itemsize] if dtype.itemsize > 1 else [])


def _result(operation: NamedOperation, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    data = operation.data()
    if len(data) == 0:
        return empty(shape, dtype)
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def broadcast(
    members: Members, full: str, array: Array, root: int, *, in_place: bool = False
) -> PendingOperation[Array]:
    """Copy the array of `root`, a rank of the process set, to all; into a new one or, if it is dense, in place."""
    how = _moved(array.dtype)
    work = array
    if not (in_place and array.flags.c_contiguous):
        work = copied(array) if members.rank == root else empty(array.shape, array.dtype)
    operation = members.coordinator.request(
        "broadcast",
        full,
        inputs=[(address(work), work.size * how.units)],
        dtype=how.dtype,
        shape=[*work.shape, *how.more],
        root=root,
        keep=work,
    )
    return PendingOperation(operation, lambda _: work)


class Gathered(NamedTuple):
    """All rows in rank order, and the number from each rank."""

    array: Array
    rows: list[int]

    def part(self, rank: int) -> Array:
        """Return the rows of a rank."""
        end = list(accumulate(self.rows))[rank]
        return self.array[end - self.rows[rank] : end]


def gathered(members: Members, full: str, array: Array) -> PendingOperation[Gathered]:
    """Gather all ranks' rows. A scalar counts as one row. Other dimensions are the same on all ranks."""
    rows = np.ascontiguousarray(array if array.ndim else array.reshape(1))
    how = _moved(rows.dtype)
    operation = members.coordinator.request(
        "all_gather",
        full,
        inputs=[(address(rows), rows.size * how.units)],
        dtype=how.dtype,
        shape=[*rows.shape[1:], *how.more],
        own=[rows.shape[0]],
        keep=rows,
    )

    def finish(operation: NamedOperation) -> Gathered:
        counts = [own[0] if own else 0 for own in operation.own()]
        return Gathered(_result(operation, rows.dtype, [sum(counts), *rows.shape[1:]]), counts)

    return PendingOperation(operation, finish)


def exchanged(members: Members, full: str, array: Array, splits: Sequence[int] | None) -> PendingOperation[Gathered]:
    """Send some rows to every rank. Raises ValueError if `splits`, rows by rank, do not fit the array."""
    sent = _splits(f"'{full}'", array, splits, members.size)
    rows = np.ascontiguousarray(array[: sum(sent)])
    how = _moved(rows.dtype)
    operation = members.coordinator.request(
        "all_to_all",
        full,
        inputs=[(address(rows), rows.size * how.units)],
        dtype=how.dtype,
        shape=[*rows.shape[1:], *how.more],
        own=sent,
        keep=rows,
    )

    def finish(operation: NamedOperation) -> Gathered:
        counts = [own[members.rank] if own else 0 for own in operation.own()]
        return Gathered(_result(operation, rows.dtype, [sum(counts), *rows.shape[1:]]), counts)

    return PendingOperation(operation, finish)


def _splits(what: str, array: Array, splits: Sequence[int] | None, size: int) -> list[int]:
    if array.ndim == 0:
        raise ValueError(f"{what}: has no dimension to split; give one row for each rank, or splits")
    rows = array.shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(f"{what}: {rows} rows cannot be split equally among {size} ranks; give splits")
        return [rows // size] * size
    given = [int(count) for count in splits]
    if len(given) != size or min(given) < 0:
        raise ValueError(f"{what}: splits {given!r:.80}; give {size} whole numbers of rows, one for each rank")
    if sum(given) > rows:
        raise ValueError(f"{what}: splits {given} are {sum(given)} rows, the tensor has {rows}")
    return given


def scattered(
    members: Members, full: str, array: Array, op: Operator, prescale: float, postscale: float
) -> PendingOperation[Array]:
    """Reduce-scatter an array by rows, shared as equally as possible; the first ranks have one more."""
    if array.ndim == 0:
        raise ValueError(f"'{full}': has no dimension to scatter; use allreduce")
    reduction = _plan(full, op, array, members, prescale, postscale)
    # A row of one complex number is two numbers.
    by_rows = array.reshape(-1, 1) if array.ndim == 1 and array.dtype.name in _PARTS else array
    work = _read(by_rows, reduction, copy=False)
    operation = _request(members, "reduce_scatter", full, work, reduction)
    each, more = divmod(array.shape[0], members.size)
    rows = each + (members.rank < more)

    def finish(operation: NamedOperation) -> Array:
        own = _result(operation, work.dtype, [rows, *work.shape[1:]])
        return _back(own, np.empty((rows, *array.shape[1:]), array.dtype))

    return PendingOperation(operation, finish)
