"""Operations that take apart and put together: all-gather, gather, scatter, reduce-scatter, all-to-all.

Parts are of equal length unless `counts` says how many elements each rank has. Where `out` is left out and `array` is
numpy's, an array for the result is made. Results come in rank order. With `async_`, each gives a `Handle` of its
result.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline._core import UserError
from paceline.job_arrays import Array, memory, new_array
from paceline.job_group import GroupBase, How, Op, shares

Counts = Sequence[int] | None


class Exchanges(GroupBase):
    """Operations with an input and an output."""

    def all_gather(
        self,
        array: Array,
        out: Array = None,
        *,
        counts: Counts = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Array:
        """The elements of all ranks, at all ranks: `out`, of shape (size, *array.shape), or flat with `counts`."""
        counts, given = shares("counts", counts, self.size), memory(array, "array", dtype=dtype)
        if out is None:
            out = new_array(array, self._gathered(array, counts), "all_gather: out")
        taken = memory(out, "out", dtype=dtype, writable=True)
        handle = self._begin("all_gather", out, given, taken, counts=counts, label=name, background=async_)
        return self._end(handle, async_)

    def gather(
        self,
        array: Array,
        out: Array = None,
        root: int = 0,
        *,
        counts: Counts = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Array:
        """The elements of all ranks, at `root`: there `out` as all_gather gives it, elsewhere None."""
        is_root = self._other("root", root) == self.rank
        counts, given = shares("counts", counts, self.size), memory(array, "array", dtype=dtype)
        if out is None and is_root:
            out = new_array(array, self._gathered(array, counts), "gather: out")
        if out is not None and not is_root:
            raise UserError(f"gather: out is for root, rank {root}; leave it out at rank {self.rank}")
        taken = memory(out, "out", dtype=dtype, writable=True) if is_root else None
        counts = counts if is_root else None
        handle = self._begin("gather", out, given, taken, root=root, counts=counts, label=name, background=async_)
        return self._end(handle, async_)

    def scatter(
        self,
        out: Array,
        array: Array = None,
        root: int = 0,
        *,
        counts: Counts = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Array:
        """Give each rank its part of `array`, which only `root` has; it arrives in `out`."""
        is_root = self._other("root", root) == self.rank
        if (array is not None) != is_root:
            raise UserError(f"scatter: array is for root, rank {root}, and for it alone; this is rank {self.rank}")
        counts = shares("counts", counts, self.size) if is_root else None
        given = memory(array, "array", dtype=dtype) if is_root else None
        taken = memory(out, "out", dtype=dtype, writable=True)
        handle = self._begin("scatter", out, given, taken, root=root, counts=counts, label=name, background=async_)
        return self._end(handle, async_)

    def reduce_scatter(
        self,
        array: Array,
        op: Op = "sum",
        out: Array = None,
        *,
        counts: Counts = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Array:
        """Combine the arrays of all ranks and give each its part: `out`, an equal share of the rows, or `counts`."""
        counts, given = shares("counts", counts, self.size), memory(array, "array", dtype=dtype)
        how = How(counts=counts, label=name, background=async_)
        how["op"], how["postscale"] = self._combine("reduce_scatter", op, given.dtype)
        if out is None:
            out = new_array(array, self._part(array, counts), "reduce_scatter: out")
        taken = memory(out, "out", dtype=dtype, writable=True)
        handle = self._begin("reduce_scatter", out, given, taken, **how)
        return self._end(handle, async_)

    def all_to_all(
        self,
        array: Array,
        out: Array = None,
        *,
        counts: Counts = None,
        out_counts: Counts = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Array:
        """Send part i of `array` to rank i; part i of `out` comes from rank i. `counts` are sent, `out_counts` come."""
        counts, out_counts = shares("counts", counts, self.size), shares("out_counts", out_counts, self.size)
        given = memory(array, "array", dtype=dtype)
        if out is None:
            if counts is not None and out_counts is None:
                raise UserError("all_to_all: counts without out_counts and out; say how many elements come")
            shape = (sum(out_counts),) if out_counts is not None else getattr(array, "shape", ())
            out = new_array(array, shape, "all_to_all: out")
        taken = memory(out, "out", dtype=dtype, writable=True)
        how = How(counts=counts, out_counts=out_counts, label=name, background=async_)
        handle = self._begin("all_to_all", out, given, taken, **how)
        return self._end(handle, async_)

    def _gathered(self, array: Array, counts: list[int] | None) -> tuple[int, ...]:
        return (sum(counts),) if counts is not None else (self.size, *getattr(array, "shape", ()))

    def _part(self, array: Array, counts: list[int] | None) -> tuple[int, ...]:
        if counts is not None:
            return (counts[self.rank],)
        shape = getattr(array, "shape", ())
        if shape and shape[0] % self.size:
            raise UserError(
                f"reduce_scatter: {shape[0]} rows of array cannot be shared equally by {self.size} ranks; give counts, "
                "the elements of each rank"
            )
        return (shape[0] // self.size, *shape[1:]) if shape else ()
