"""Operations between the ranks of a group, on arrays: all-reduce, broadcast, reduce, barrier, send and receive.

All ranks of a group call the same operations in the same order, with the same lengths and dtypes; sends and receives
are outside of that order. What an array is says `job_arrays`. Roots, senders and receivers are ranks of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from paceline._core import Communicator, Operation
from paceline.errors import InvalidArgumentError, JobError
from paceline.job.arrays import Array, Memory, check_apart, memory, new_array

if TYPE_CHECKING:
    from paceline.job.job import Job

A = TypeVar("A")
Op = Literal["sum", "average", "min", "max", "product"]
_NATIVE = ("sum", "min", "max", "product")
_OPS = ("sum", "average", "min", "max", "product")


class SubmitOptions(TypedDict, total=False):
    """What `Communicator.submit` is told besides the call and its arrays."""

    op: str
    root: int
    tag: int
    counts: list[int] | None
    out_counts: list[int] | None
    postscale: float
    step: tuple[bool, int]
    pull_only: bool
    strategy: str | None
    label: str
    background: bool
    bucket: int | None


class Handle(Generic[A]):
    """An operation in flight. Its arrays are held, and must be left alone, until it is over."""

    __slots__ = ("_from_anybody", "_job", "_operation", "_result")

    def __init__(self, operation: Operation, result: A, job: Job, from_anybody: bool = False) -> None:
        """Made by operations with `async_=True`."""
        self._operation, self._result, self._job, self._from_anybody = operation, result, job, from_anybody

    def wait(self, timeout_s: float | None = None) -> A:
        """What the operation gives without `async_`, once it is over.

        Raises JobError if it failed, which names ranks and hosts; TimeoutError if it is not over after `timeout_s`
        seconds (it goes on, and can be waited for again).
        """
        self._job.check()
        if not self._operation.wait(timeout_s):
            raise TimeoutError(f"not over after {timeout_s:g} s; it goes on")
        return self._operation.source() if self._from_anybody else self._result  # type: ignore[return-value]

    def done(self) -> bool:
        """Whether it is over, or has failed: wait() returns or raises at once."""
        return self._operation.done()


class GroupBase:
    """What a group is, without its operations."""

    def __init__(self, job: Job, communicator: Communicator, name: str) -> None:
        """Made by `Job.group`."""
        self._job = job
        self._communicator: Communicator | None = communicator
        self.name = name
        self.rank: int = communicator.rank
        """This process's place in the group."""
        self.ranks: list[int] = list(communicator.ranks)
        """The group's ranks in the job, in order."""
        self.size: int = len(self.ranks)

    def choices(self) -> list[tuple[int, str]]:
        """Which strategy all-reduces of up to so many bytes take, unless they name one."""
        return self._live().choices()

    def _live(self) -> Communicator:
        self._job.check()
        if self._communicator is None:
            raise JobError("the job has been closed; join again")
        return self._communicator

    def _begin(
        self, call: str, result: A, inputs: Memory | None, outputs: Memory | None, **how: Unpack[SubmitOptions]
    ) -> Handle[A]:
        communicator, some = self._live(), inputs or outputs
        if inputs and outputs:
            if inputs.dtype != outputs.dtype:
                raise InvalidArgumentError(
                    f"{call}: array is {inputs.dtype}, out is {outputs.dtype}; give them one dtype"
                )
            check_apart(inputs, outputs, call)
        operation = communicator.submit(
            call,
            inputs=inputs.regions if inputs else (),
            outputs=outputs.regions if outputs else (),
            dtype=some.dtype if some else "uint8",
            keep=(inputs, outputs),
            **how,
        )
        return Handle(operation, result, self._job, from_anybody=how.get("root") == -1)

    def _end(self, handle: Handle[A], async_: bool) -> A | Handle[A]:
        return handle if async_ else handle.wait()

    def _combine(self, call: str, op: str, dtype: str) -> tuple[str, float]:
        if op not in _OPS:
            raise InvalidArgumentError(f"{call}: op '{op!s:.80}' is none of {', '.join(_OPS)}")
        if op != "average":
            return op, 1.0
        if dtype == "uint8":
            raise InvalidArgumentError(
                f"{call}: the sum of uint8 wraps before it is divided; convert it: array.astype('int32')"
            )
        return "sum", 1.0 / self.size

    def _other(self, what: str, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise InvalidArgumentError(f"{what}: there is no rank {rank} in a group of {self.size}")
        return rank


class Collectives(GroupBase):
    """Operations in place, and transfers."""

    @overload
    def all_reduce(
        self,
        array: A,
        op: Op = ...,
        *,
        strategy: str | None = ...,
        dtype: str | None = ...,
        name: str = ...,
        bucket: int | None = ...,
    ) -> A: ...
    @overload
    def all_reduce(
        self,
        array: A,
        op: Op = ...,
        *,
        strategy: str | None = ...,
        dtype: str | None = ...,
        name: str = ...,
        bucket: int | None = ...,
        async_: Literal[True],
    ) -> Handle[A]: ...
    def all_reduce(
        self,
        array: A,
        op: Op = "sum",
        *,
        strategy: str | None = None,
        dtype: str | None = None,
        name: str = "",
        bucket: int | None = None,
        async_: bool = False,
    ) -> A | Handle[A]:
        """Combine the arrays of all ranks, element by element; `array` becomes the result, the same bits on all ranks.

        `strategy` is one of `paceline strategies`; without it and PACELINE_STRATEGY, what measured fastest for the
        size. `dtype="bfloat16"` takes uint16 as such. Messages call the array `name`. Integers wrap; their
        average is rounded toward zero. Server `bucket` modulo their number adds it up; without it, servers take turns.
        """
        given = memory(array, "array", dtype=dtype, writable=True)
        if bucket is not None and not 0 <= bucket < 1 << 32:
            raise InvalidArgumentError(f"bucket: {bucket} is not between 0 and {(1 << 32) - 1}")
        if op in _NATIVE and len(given.regions) == 1 and not (async_ or strategy or name or bucket is not None):
            # The short way: half of the time that a small all-reduce takes would be spent in Python.
            self._live().all_reduce(*given.regions[0], given.dtype, op)
            return array
        how = SubmitOptions(strategy=strategy, label=name, background=async_, bucket=bucket)
        how["op"], how["postscale"] = self._combine("all_reduce", op, given.dtype)
        return self._end(self._begin("all_reduce", array, given, None, **how), async_)

    @overload
    def broadcast(self, array: A, root: int = ..., *, dtype: str | None = ..., name: str = ...) -> A: ...
    @overload
    def broadcast(
        self, array: A, root: int = ..., *, dtype: str | None = ..., name: str = ..., async_: Literal[True]
    ) -> Handle[A]: ...
    def broadcast(
        self, array: A, root: int = 0, *, dtype: str | None = None, name: str = "", async_: bool = False
    ) -> A | Handle[A]:
        """Give `root`'s elements to all: there `array` is read, elsewhere it is written."""
        self._other("root", root)
        given = memory(array, "array", dtype=dtype, writable=self.rank != root)
        handle = self._begin("broadcast", array, given, None, root=root, label=name, background=async_)
        return self._end(handle, async_)

    @overload
    def reduce(self, array: A, op: Op = ..., root: int = ..., *, dtype: str | None = ..., name: str = ...) -> A: ...
    @overload
    def reduce(
        self,
        array: A,
        op: Op = ...,
        root: int = ...,
        *,
        dtype: str | None = ...,
        name: str = ...,
        async_: Literal[True],
    ) -> Handle[A]: ...
    def reduce(
        self,
        array: A,
        op: Op = "sum",
        root: int = 0,
        *,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> A | Handle[A]:
        """Combine the arrays of all ranks; `array` becomes the result at `root`, and stays as it is elsewhere."""
        self._other("root", root)
        given = memory(array, "array", dtype=dtype, writable=self.rank == root)
        how = SubmitOptions(root=root, label=name, background=async_)
        how["op"], how["postscale"] = self._combine("reduce", op, given.dtype)
        return self._end(self._begin("reduce", array, given, None, **how), async_)

    @overload
    def barrier(self, *, name: str = ...) -> None: ...
    @overload
    def barrier(self, *, name: str = ..., async_: Literal[True]) -> Handle[None]: ...
    def barrier(self, *, name: str = "", async_: bool = False) -> Handle[None] | None:
        """No rank goes on before all have come."""
        return self._end(self._begin("barrier", None, None, None, label=name, background=async_), async_)

    @overload
    def send(self, array: Array, to: int, *, tag: int = ..., dtype: str | None = ..., name: str = ...) -> None: ...
    @overload
    def send(
        self, array: Array, to: int, *, tag: int = ..., dtype: str | None = ..., name: str = ..., async_: Literal[True]
    ) -> Handle[None]: ...
    def send(
        self, array: Array, to: int, *, tag: int = 0, dtype: str | None = None, name: str = "", async_: bool = False
    ) -> Handle[None] | None:
        """Send elements to a rank, which receives as many under the same tag. Messages of one tag keep their order."""
        self._other("to", to)
        given = memory(array, "array", dtype=dtype)
        begun = self._begin("send", None, given, None, root=to, tag=_tag(tag), label=name, background=async_)
        return self._end(begun, async_)

    @overload
    def recv(
        self, array: Array, source: int | None = ..., *, tag: int = ..., dtype: str | None = ..., name: str = ...
    ) -> int: ...
    @overload
    def recv(
        self,
        array: Array,
        source: int | None = ...,
        *,
        tag: int = ...,
        dtype: str | None = ...,
        name: str = ...,
        async_: Literal[True],
    ) -> Handle[int]: ...
    def recv(
        self,
        array: Array,
        source: int | None = None,
        *,
        tag: int = 0,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> int | Handle[int]:
        """Receive into `array` from `source`, or from whoever sends first; gives the rank that it came from."""
        root = -1 if source is None else self._other("source", source)
        given = memory(array, "array", dtype=dtype, writable=True)
        begun = self._begin("recv", root, None, given, root=root, tag=_tag(tag), label=name, background=async_)
        return self._end(begun, async_)


def _tag(tag: int) -> int:
    if not 0 <= tag < 1 << 32:
        raise InvalidArgumentError(f"tag: {tag} is not between 0 and {(1 << 32) - 1}")
    return tag


def shares(what: str, counts: Sequence[int] | None, size: int) -> list[int] | None:
    """The elements of each rank, checked. Raises InvalidArgumentError."""
    if counts is None:
        return None
    given = list(counts)
    if len(given) != size or min(given) < 0:
        raise InvalidArgumentError(f"{what}: {given!s:.200} must be {size} numbers, the elements of each rank")
    return given


# Operations that take apart and put together: all-gather, gather, scatter, reduce-scatter, all-to-all.


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
            raise InvalidArgumentError(f"gather: out is for root, rank {root}; leave it out at rank {self.rank}")
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
            raise InvalidArgumentError(
                f"scatter: array is for root, rank {root}, and for it alone; this is rank {self.rank}"
            )
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
        how = SubmitOptions(counts=counts, label=name, background=async_)
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
                raise InvalidArgumentError("all_to_all: counts without out_counts and out; say how many elements come")
            shape = (sum(out_counts),) if out_counts is not None else getattr(array, "shape", ())
            out = new_array(array, shape, "all_to_all: out")
        taken = memory(out, "out", dtype=dtype, writable=True)
        how = SubmitOptions(counts=counts, out_counts=out_counts, label=name, background=async_)
        handle = self._begin("all_to_all", out, given, taken, **how)
        return self._end(handle, async_)

    def _gathered(self, array: Array, counts: list[int] | None) -> tuple[int, ...]:
        return (sum(counts),) if counts is not None else (self.size, *getattr(array, "shape", ()))

    def _part(self, array: Array, counts: list[int] | None) -> tuple[int, ...]:
        if counts is not None:
            return (counts[self.rank],)
        shape = getattr(array, "shape", ())
        if shape and shape[0] % self.size:
            raise InvalidArgumentError(
                f"reduce_scatter: {shape[0]} rows of array cannot be shared equally by {self.size} ranks; give counts, "
                "the elements of each rank"
            )
        return (shape[0] // self.size, *shape[1:]) if shape else ()
