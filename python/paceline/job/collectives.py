"""Collective and point-to-point operations on arrays: all-reduce, broadcast, all-gather, send, receive and others.

All ranks of a group call the same collectives in the same order, with the same lengths and dtypes; sends and receives
are not part of that order. `paceline.job.arrays` defines what counts as an array. Roots, senders and receivers are
ranks of the group, not of the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from paceline._core import Communicator, Operation
from paceline.catalog import names
from paceline.errors import InvalidArgumentError, JobError
from paceline.job.arrays import Array, Memory, check_apart, check_place, memory, new_array

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


T = TypeVar("T")
A = TypeVar("A", bound="Array")
S = TypeVar("S", bound="np.generic")
"""The scalar type of a numpy array created for a result."""
Counts = Sequence[int] | None
Op = Literal["sum", "average", "min", "max", "product"]
_NATIVE = ("sum", "min", "max", "product")
_OPS = ("sum", "average", "min", "max", "product")


class SubmitOptions(TypedDict, total=False):
    """Arguments of `Communicator.submit` other than the call and its arrays."""

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


class Named(TypedDict, total=False):
    """Keywords of every operation."""

    name: str


class Labeled(Named, total=False):
    """Keywords of operations on arrays."""

    dtype: str | None


class Tagged(Labeled, total=False):
    """Keywords of messages."""

    tag: int


class Counted(Labeled, total=False):
    """Keywords of operations on shares."""

    counts: Counts


class Planned(Counted, total=False):
    """Keywords of operations on shares by a strategy."""

    strategy: names.Strategy | None


class Exchanged(Counted, total=False):
    """Keywords of all-to-all."""

    out_counts: Counts


class Reduced(Labeled, total=False):
    """Keywords of all-reduce."""

    strategy: names.Strategy | None
    bucket: int | None


class Joined(Protocol):
    """The job of a group."""

    def check(self) -> None:
        """Raise JobError if the job cannot be used any more."""


class Handle(Generic[T]):
    """An operation in flight, returned by every operation called with `async_=True`.

    It keeps the arrays of the operation, which must not be touched until the operation has finished.
    """

    __slots__ = ("_from_anybody", "_job", "_operation", "_result")

    def __init__(self, operation: Operation, result: T, job: Joined, from_anybody: bool = False) -> None:
        """Made by operations called with `async_=True`."""
        self._operation, self._result, self._job, self._from_anybody = operation, result, job, from_anybody

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait for the operation and return its result.

        Args:
            timeout_s: Maximum number of seconds to wait; `None` waits until the operation has finished or failed.

        Returns:
            The result of the operation, as without `async_`.

        Raises:
            JobError: The operation failed; the message names ranks and hosts.
            TimeoutError: The operation is still in flight after `timeout_s`; it continues, and can be waited for again.

        Example:
            >>> array = np.ones(4, "float32")
            >>> handle = job.all_reduce(array, async_=True)
            >>> handle.wait() is array
            True
        """
        self._job.check()
        if not self._operation.wait(timeout_s):
            raise TimeoutError(f"still in flight after {timeout_s:g} s; it continues")
        return self._operation.source() if self._from_anybody else self._result  # type: ignore[return-value]

    def done(self) -> bool:
        """Return whether the operation has finished or failed, so that `wait` returns or raises at once."""
        return self._operation.done()


class GroupBase:
    """A group of ranks without its operations."""

    def __init__(self, job: Joined, communicator: Communicator, name: str) -> None:
        """Made by `Job.group`."""
        self._job = job
        self._communicator: Communicator | None = communicator
        self.name = name
        """The group's name in error messages."""
        self.rank: int = communicator.rank
        """Rank of this process in the group, from 0."""
        self.ranks: list[int] = list(communicator.ranks)
        """Ranks of the members in the job, in the order of their ranks in the group."""
        self.size: int = len(self.ranks)
        """Number of ranks in the group."""

    def choices(self) -> list[tuple[int, str]]:
        """Return the strategy for each message size, as measured when the group was created.

        Returns:
            Pairs (upper limit in bytes, strategy) in ascending order of size; all-reduces up to the limit use the
            strategy unless they name one themselves.
        """
        return self._live().choices()

    def _live(self) -> Communicator:
        self._job.check()
        if self._communicator is None:
            raise JobError("the job has been closed", remedy="paceline.job.join()")
        return self._communicator

    def _begin(
        self, call: str, result: T, inputs: Memory | None, outputs: Memory | None, **options: Unpack[SubmitOptions]
    ) -> Handle[T]:
        communicator, some = self._live(), inputs or outputs
        if inputs and outputs:
            if inputs.dtype != outputs.dtype:
                raise InvalidArgumentError(
                    f"{call}: array is {inputs.dtype}, out is {outputs.dtype}", remedy=f"out.astype('{inputs.dtype}')"
                )
            check_place(inputs, outputs, f"{call}: array", "out")
            check_apart(inputs, outputs, call)
        operation = communicator.submit(
            call,
            inputs=inputs.regions if inputs else (),
            outputs=outputs.regions if outputs else (),
            dtype=some.dtype if some else "uint8",
            keep=(inputs, outputs),
            stream=some.stream if some else None,
            **options,
        )
        return Handle(operation, result, self._job, from_anybody=options.get("root") == -1)

    def _end(self, handle: Handle[T], async_: bool) -> T | Handle[T]:
        return handle if async_ else handle.wait()

    def _combine(self, call: str, op: str, dtype: str) -> tuple[str, float]:
        if op not in _OPS:
            raise InvalidArgumentError(f"{call}: unknown op '{op!s:.80}'", remedy=f"one of {', '.join(_OPS)}")
        if op != "average":
            return op, 1.0
        if dtype == "uint8":
            raise InvalidArgumentError(
                f"{call}: the sum of uint8 wraps before it is divided", remedy="array.astype('int32')"
            )
        return "sum", 1.0 / self.size

    def _other(self, what: str, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise InvalidArgumentError(
                f"{what}: there is no rank {rank} in a group of {self.size}", remedy=f"0-{self.size - 1}"
            )
        return rank


class Collectives(GroupBase):
    """All-reduce, broadcast, reduce, barrier, send and receive."""

    @overload
    def all_reduce(self, array: A, op: Op = ..., **options: Unpack[Reduced]) -> A: ...
    @overload
    def all_reduce(self, array: A, op: Op = ..., *, async_: Literal[True], **options: Unpack[Reduced]) -> Handle[A]: ...
    def all_reduce(
        self,
        array: A,
        op: Op = "sum",
        *,
        strategy: names.Strategy | None = None,
        dtype: str | None = None,
        name: str = "",
        bucket: int | None = None,
        async_: bool = False,
    ) -> A | Handle[A]:
        """Reduce the arrays of all ranks element by element, in place: every rank ends with the same bits.

        Args:
            array: Contiguous, writable array of any shape, or a list of arrays of one dtype that are reduced as if they
                were one. The dtype is float16, bfloat16, float32, float64, int32, int64 or uint8. All ranks give the
                same number of elements.
            op: The reduction. Integers wrap around on overflow; their average is rounded toward zero.
            strategy: One that `paceline list strategies` lists. By default PACELINE_STRATEGY, or the one measured as
                fastest for this message size.
            dtype: Element type where the array cannot express it: `"bfloat16"` for an array of uint16.
            name: The array's name in error messages.
            bucket: Selects the parameter server: server `bucket` modulo the number of servers. By default servers take
                turns.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `array`, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: The array cannot be reduced, or `op`, `strategy` or `bucket` is invalid.
            JobError: A rank has left, or called a different operation.

        Example:
            >>> gradient = np.full(3, job.rank + 1.0, "float32")
            >>> job.all_reduce(gradient, "average")
            array([1., 1., 1.], dtype=float32)
        """
        given = memory(array, "array", dtype=dtype, writable=True)
        if bucket is not None and not 0 <= bucket < 1 << 32:
            raise InvalidArgumentError(f"bucket: must be 0-{(1 << 32) - 1}, not {bucket}", remedy="bucket=0")
        plain = not (async_ or strategy or name or bucket is not None or given.stream is not None)
        if plain and op in _NATIVE and len(given.regions) == 1:
            # A fast path: half the time of a small all-reduce would otherwise be spent in Python.
            self._live().all_reduce(*given.regions[0], given.dtype, op)
            return array
        options = SubmitOptions(strategy=strategy, label=name, background=async_, bucket=bucket)
        options["op"], options["postscale"] = self._combine("all_reduce", op, given.dtype)
        return self._end(self._begin("all_reduce", array, given, None, **options), async_)

    @overload
    def broadcast(self, array: A, root: int = ..., **options: Unpack[Labeled]) -> A: ...
    @overload
    def broadcast(
        self, array: A, root: int = ..., *, async_: Literal[True], **options: Unpack[Labeled]
    ) -> Handle[A]: ...
    def broadcast(
        self, array: A, root: int = 0, *, dtype: str | None = None, name: str = "", async_: bool = False
    ) -> A | Handle[A]:
        """Copy the root's elements to all ranks, in place.

        Args:
            array: Contiguous array, or list of arrays; read at `root`, written elsewhere. Any dtype that `all_reduce`
                takes.
            root: Rank of the group that has the data.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `array`, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: The array or `root` is invalid.
            JobError: A rank has left, or called a different operation.

        Example:
            >>> job.broadcast(np.arange(3))
            array([0, 1, 2])
        """
        self._other("root", root)
        given = memory(array, "array", dtype=dtype, writable=self.rank != root)
        handle = self._begin("broadcast", array, given, None, root=root, label=name, background=async_)
        return self._end(handle, async_)

    @overload
    def reduce(self, array: A, op: Op = ..., root: int = ..., **options: Unpack[Labeled]) -> A: ...
    @overload
    def reduce(
        self, array: A, op: Op = ..., root: int = ..., *, async_: Literal[True], **options: Unpack[Labeled]
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
        """Reduce the arrays of all ranks; the result replaces `array` at the root and leaves it unchanged elsewhere.

        Args:
            array: As for `all_reduce`; it must be writable at `root` only.
            op: The reduction, as for `all_reduce`.
            root: Rank of the group that receives the result.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `array`, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: The array, `op` or `root` is invalid.
            JobError: A rank has left, or called a different operation.

        Example:
            >>> job.reduce(np.array([2.0, 3.0]), "max")
            array([2., 3.])
        """
        self._other("root", root)
        given = memory(array, "array", dtype=dtype, writable=self.rank == root)
        options = SubmitOptions(root=root, label=name, background=async_)
        options["op"], options["postscale"] = self._combine("reduce", op, given.dtype)
        return self._end(self._begin("reduce", array, given, None, **options), async_)

    @overload
    def barrier(self, **options: Unpack[Named]) -> None: ...
    @overload
    def barrier(self, *, async_: Literal[True], **options: Unpack[Named]) -> Handle[None]: ...
    def barrier(self, *, name: str = "", async_: bool = False) -> Handle[None] | None:
        """Wait until all ranks of the group have reached the barrier.

        Args:
            name: The barrier's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `None`, or a handle to wait with.

        Raises:
            JobError: A rank has left, or called a different operation.
        """
        return self._end(self._begin("barrier", None, None, None, label=name, background=async_), async_)

    @overload
    def send(self, array: Array, to: int, **options: Unpack[Tagged]) -> None: ...
    @overload
    def send(self, array: Array, to: int, *, async_: Literal[True], **options: Unpack[Tagged]) -> Handle[None]: ...
    def send(
        self, array: Array, to: int, *, tag: int = 0, dtype: str | None = None, name: str = "", async_: bool = False
    ) -> Handle[None] | None:
        """Send elements to a rank, which receives the same number under the same tag.

        Messages between two ranks with the same tag arrive in the order in which they were sent.

        Args:
            array: Contiguous array, or list of arrays. Any dtype that `all_reduce` takes.
            to: Rank of the group that receives.
            tag: Number from 0 to 2**32 - 1 by which the receiver distinguishes messages.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `None`, or a handle to wait with.

        Raises:
            InvalidArgumentError: The array, `to` or `tag` is invalid.
            JobError: The receiver has left, or expects a different number of elements.

        Example:
            >>> if job.size > 1:  # a rank cannot send to itself
            ...     if job.rank == 0:
            ...         job.send(np.arange(2), to=1, tag=7)
            ...     elif job.rank == 1:
            ...         sender = job.recv(np.empty(2, "int64"), source=0, tag=7)
        """
        self._other("to", to)
        given = memory(array, "array", dtype=dtype)
        begun = self._begin("send", None, given, None, root=to, tag=_tag(tag), label=name, background=async_)
        return self._end(begun, async_)

    @overload
    def recv(self, array: Array, source: int | None = ..., **options: Unpack[Tagged]) -> int: ...
    @overload
    def recv(
        self, array: Array, source: int | None = ..., *, async_: Literal[True], **options: Unpack[Tagged]
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
        """Receive into `array` from a rank, or from whichever rank sends first.

        Args:
            array: Contiguous, writable array, or list of arrays, of as many elements as are sent.
            source: Rank of the group that sends; `None` accepts a message from any rank.
            tag: Number from 0 to 2**32 - 1 that the sender gave.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            The rank that sent the message, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: The array, `source` or `tag` is invalid.
            JobError: The sender has left, or sent a different number of elements.
        """
        root = -1 if source is None else self._other("source", source)
        given = memory(array, "array", dtype=dtype, writable=True)
        begun = self._begin("recv", root, None, given, root=root, tag=_tag(tag), label=name, background=async_)
        return self._end(begun, async_)


def _tag(tag: int) -> int:
    if not 0 <= tag < 1 << 32:
        raise InvalidArgumentError(f"tag: must be 0-{(1 << 32) - 1}, not {tag}", remedy="tag=0")
    return tag


def shares(what: str, counts: Sequence[int] | None, size: int) -> list[int] | None:
    """Check that `counts` has one number of elements for each rank. Raises InvalidArgumentError."""
    if counts is None:
        return None
    given = list(counts)
    if len(given) != size or min(given) < 0:
        raise InvalidArgumentError(
            f"{what}: must be {size} numbers, the elements of each rank, not {given!s:.200}",
            remedy=f"{what}={[1] * min(size, 8)}",
        )
    return given


class Exchanges(GroupBase):
    """All-gather, gather, scatter, reduce-scatter and all-to-all: operations with an input and an output."""

    @overload
    def all_gather(self, array: npt.NDArray[S], out: None = ..., **options: Unpack[Planned]) -> npt.NDArray[S]: ...
    @overload
    def all_gather(
        self, array: npt.NDArray[S], out: None = ..., *, async_: Literal[True], **options: Unpack[Planned]
    ) -> Handle[npt.NDArray[S]]: ...
    @overload
    def all_gather(self, array: Array, out: A, **options: Unpack[Planned]) -> A: ...
    @overload
    def all_gather(self, array: Array, out: A, *, async_: Literal[True], **options: Unpack[Planned]) -> Handle[A]: ...
    def all_gather(
        self,
        array: Array,
        out: Array | None = None,
        *,
        counts: Counts = None,
        strategy: names.Strategy | None = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Any:
        """Gather the elements of all ranks at all ranks.

        Args:
            array: Contiguous array. Without `counts`, all ranks give the same shape.
            out: Where the result goes: an array of shape `(size, *array.shape)`, or of `sum(counts)` elements. It may
                be left out if `array` is a numpy array; then a new one is returned.
            counts: Elements of each rank, in rank order, where they differ.
            strategy: A strategy that has an all-gather; not where `counts` differ. By default PACELINE_STRATEGY if it
                has one, otherwise parts are sent directly to all ranks.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `out`, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: An array, `counts` or `strategy` is invalid, or `array` and `out` overlap.
            JobError: A rank has left, or called a different operation.

        Example:
            >>> job.all_gather(np.array([3, 4])).shape == (job.size, 2)
            True
        """
        counts, given = shares("counts", counts, self.size), memory(array, "array", dtype=dtype)
        if out is None:
            out = new_array(array, self._gathered(array, counts), "all_gather: out")
        taken = memory(out, "out", dtype=dtype, writable=True)
        options = SubmitOptions(counts=counts, strategy=strategy, label=name, background=async_)
        handle = self._begin("all_gather", out, given, taken, **options)
        return self._end(handle, async_)

    @overload
    def gather(
        self, array: npt.NDArray[S], out: None = ..., root: int = ..., **options: Unpack[Counted]
    ) -> npt.NDArray[S] | None: ...
    @overload
    def gather(
        self,
        array: npt.NDArray[S],
        out: None = ...,
        root: int = ...,
        *,
        async_: Literal[True],
        **options: Unpack[Counted],
    ) -> Handle[npt.NDArray[S] | None]: ...
    @overload
    def gather(self, array: Array, out: A, root: int = ..., **options: Unpack[Counted]) -> A: ...
    @overload
    def gather(
        self, array: Array, out: A, root: int = ..., *, async_: Literal[True], **options: Unpack[Counted]
    ) -> Handle[A]: ...
    def gather(
        self,
        array: Array,
        out: Array | None = None,
        root: int = 0,
        *,
        counts: Counts = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Any:
        """Gather the elements of all ranks at the root.

        Args:
            array: As for `all_gather`.
            out: As for `all_gather`; given at `root` only.
            root: Rank of the group that receives.
            counts: Elements of each rank, in rank order, where they differ.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `out` at the root, `None` elsewhere, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: An array, `root` or `counts` is invalid, or `out` is given at another rank.
            JobError: A rank has left, or called a different operation.

        Example:
            >>> job.gather(np.array([job.rank]))
            array([[0]])
        """
        is_root = self._other("root", root) == self.rank
        counts, given = shares("counts", counts, self.size), memory(array, "array", dtype=dtype)
        if out is None and is_root:
            out = new_array(array, self._gathered(array, counts), "gather: out")
        if out is not None and not is_root:
            raise InvalidArgumentError(
                f"gather: out is for root, rank {root}, and this is rank {self.rank}", remedy="drop out"
            )
        taken = memory(out, "out", dtype=dtype, writable=True) if is_root else None
        counts = counts if is_root else None
        handle = self._begin("gather", out, given, taken, root=root, counts=counts, label=name, background=async_)
        return self._end(handle, async_)

    @overload
    def scatter(self, out: A, array: Array | None = ..., root: int = ..., **options: Unpack[Counted]) -> A: ...
    @overload
    def scatter(
        self, out: A, array: Array | None = ..., root: int = ..., *, async_: Literal[True], **options: Unpack[Counted]
    ) -> Handle[A]: ...
    def scatter(
        self,
        out: A,
        array: Array | None = None,
        root: int = 0,
        *,
        counts: Counts = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> A | Handle[A]:
        """Give each rank its part of an array at the root.

        Args:
            out: Contiguous, writable array that receives this rank's part.
            array: The parts of all ranks, in rank order; given at `root` only.
            root: Rank of the group that has `array`.
            counts: Elements of each rank, in rank order, where they differ.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `out`, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: An array, `root` or `counts` is invalid, or `array` is missing at the root or given
                elsewhere.
            JobError: A rank has left, or called a different operation.

        Example:
            >>> job.scatter(np.empty(2), np.array([5.0, 6.0]))
            array([5., 6.])
        """
        is_root = self._other("root", root) == self.rank
        if (array is not None) != is_root:
            raise InvalidArgumentError(
                f"scatter: array is for root, rank {root}, and for it alone; this is rank {self.rank}",
                remedy="array at root, None elsewhere",
            )
        counts = shares("counts", counts, self.size) if is_root else None
        given = memory(array, "array", dtype=dtype) if is_root else None
        taken = memory(out, "out", dtype=dtype, writable=True)
        handle = self._begin("scatter", out, given, taken, root=root, counts=counts, label=name, background=async_)
        return self._end(handle, async_)

    @overload
    def reduce_scatter(
        self, array: npt.NDArray[S], op: Op = ..., out: None = ..., **options: Unpack[Planned]
    ) -> npt.NDArray[S]: ...
    @overload
    def reduce_scatter(
        self, array: npt.NDArray[S], op: Op = ..., out: None = ..., *, async_: Literal[True], **options: Unpack[Planned]
    ) -> Handle[npt.NDArray[S]]: ...
    @overload
    def reduce_scatter(self, array: Array, op: Op = ..., *, out: A, **options: Unpack[Planned]) -> A: ...
    @overload
    def reduce_scatter(
        self, array: Array, op: Op = ..., *, out: A, async_: Literal[True], **options: Unpack[Planned]
    ) -> Handle[A]: ...
    def reduce_scatter(
        self,
        array: Array,
        op: Op = "sum",
        out: Array | None = None,
        *,
        counts: Counts = None,
        strategy: names.Strategy | None = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Any:
        """Reduce the arrays of all ranks and give each rank its part of the result.

        Args:
            array: Contiguous array of the same shape at all ranks. Without `counts`, its rows are shared equally.
            op: The reduction, as for `all_reduce`.
            out: Receives this rank's part: rows `rank * n` to `(rank + 1) * n` of the result, where n is the number of
                rows divided by `size`, or `counts[rank]` elements. It may be left out if `array` is a numpy array.
            counts: Elements of each rank's part, in rank order.
            strategy: A strategy that has a reduce-scatter; not where `counts` differ. By default PACELINE_STRATEGY if
                it has one, otherwise parts are sent directly to their owners.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `out`, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: An array, `op`, `counts` or `strategy` is invalid, or rows cannot be shared equally.
            JobError: A rank has left, or called a different operation.

        Example:
            >>> job.reduce_scatter(np.ones((2 * job.size, 3))).shape
            (2, 3)
        """
        counts, given = shares("counts", counts, self.size), memory(array, "array", dtype=dtype)
        options = SubmitOptions(counts=counts, strategy=strategy, label=name, background=async_)
        options["op"], options["postscale"] = self._combine("reduce_scatter", op, given.dtype)
        if out is None:
            out = new_array(array, self._part(array, counts), "reduce_scatter: out")
        taken = memory(out, "out", dtype=dtype, writable=True)
        handle = self._begin("reduce_scatter", out, given, taken, **options)
        return self._end(handle, async_)

    @overload
    def all_to_all(self, array: npt.NDArray[S], out: None = ..., **options: Unpack[Exchanged]) -> npt.NDArray[S]: ...
    @overload
    def all_to_all(
        self, array: npt.NDArray[S], out: None = ..., *, async_: Literal[True], **options: Unpack[Exchanged]
    ) -> Handle[npt.NDArray[S]]: ...
    @overload
    def all_to_all(self, array: Array, out: A, **options: Unpack[Exchanged]) -> A: ...
    @overload
    def all_to_all(self, array: Array, out: A, *, async_: Literal[True], **options: Unpack[Exchanged]) -> Handle[A]: ...
    def all_to_all(
        self,
        array: Array,
        out: Array | None = None,
        *,
        counts: Counts = None,
        out_counts: Counts = None,
        dtype: str | None = None,
        name: str = "",
        async_: bool = False,
    ) -> Any:
        """Send part i of `array` to rank i; part i of `out` comes from rank i.

        Args:
            array: Contiguous array of the parts for all ranks, in rank order; equal parts unless `counts` says
                otherwise.
            out: Receives the parts from all ranks, in rank order. It may be left out if `array` is a numpy array.
            counts: Elements sent to each rank.
            out_counts: Elements received from each rank; needed with `counts` unless `out` is given.
            dtype: As for `all_reduce`.
            name: The array's name in error messages.
            async_: Return a `Handle` at once instead of waiting.

        Returns:
            `out`, or a handle whose `wait` returns it.

        Raises:
            InvalidArgumentError: An array, `counts` or `out_counts` is invalid.
            JobError: A rank has left, or called a different operation.

        Example:
            >>> job.all_to_all(np.arange(job.size))
            array([0])
        """
        counts, out_counts = shares("counts", counts, self.size), shares("out_counts", out_counts, self.size)
        given = memory(array, "array", dtype=dtype)
        if out is None:
            if counts is not None and out_counts is None:
                raise InvalidArgumentError(
                    "all_to_all: counts need out_counts and out", remedy="out_counts=…, the elements to receive"
                )
            shape = (sum(out_counts),) if out_counts is not None else getattr(array, "shape", ())
            out = new_array(array, shape, "all_to_all: out")
        taken = memory(out, "out", dtype=dtype, writable=True)
        options = SubmitOptions(counts=counts, out_counts=out_counts, label=name, background=async_)
        handle = self._begin("all_to_all", out, given, taken, **options)
        return self._end(handle, async_)

    def _gathered(self, array: Array, counts: list[int] | None) -> tuple[int, ...]:
        return (sum(counts),) if counts is not None else (self.size, *getattr(array, "shape", ()))

    def _part(self, array: Array, counts: list[int] | None) -> tuple[int, ...]:
        if counts is not None:
            return (counts[self.rank],)
        shape = getattr(array, "shape", ())
        if shape and shape[0] % self.size:
            raise InvalidArgumentError(
                f"reduce_scatter: {shape[0]} rows of array cannot be shared equally by {self.size} ranks",
                remedy="counts=…, the elements of each rank",
            )
        return (shape[0] // self.size, *shape[1:]) if shape else ()
