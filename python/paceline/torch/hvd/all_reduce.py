"""All-reduces: tensors of all ranks, combined, to all ranks."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from paceline.torch.hvd.compression import Compression, Compressor
from paceline.torch.hvd.handles import Handle
from paceline.torch.hvd.operators import operator_of
from paceline.torch.hvd.process_sets import ProcessSet, global_process_set
from paceline.torch.hvd.reducing import AllReduce, GroupedAllReduce, ReduceArgs
from paceline.torch.hvd.sparse import is_sparse


def _terms(
    op: int | None, average: bool | None, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> ReduceArgs:
    return ReduceArgs(operator_of(op, average), prescale_factor, postscale_factor, process_set)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the tensors of all ranks: a new tensor of the same shape and dtype. Differentiable.

    `op` is Average (the default), Sum, Min, Max or Product; `average` is its older form. All ranks give the same shape
    and dtype; any device, layout in memory, and dtype that `paceline.torch.backend.reductions` lists. Averages
    and multiples of integers are rounded toward zero. The factors multiply each tensor before and the result after.

    Raises JobError (`hvd.HorovodInternalError`) naming tensor and ranks if they differ, or if a rank is gone; TypeError
    for a dtype that has no such reduction; ValueError for an unknown `op` or at a rank outside of `process_set`.
    """
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    if is_sparse(tensor):
        return terms.begin(tensor, name, in_place=False, waits=True)()
    small, context = compression.compress(tensor)
    return compression.decompress(AllReduce.apply(small, name, terms), context)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Begin an `allreduce`; `synchronize` gives the new tensor. It has no gradient."""
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin(tensor, name, in_place=False)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """As `allreduce`, in place."""
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin(tensor, name, in_place=True, waits=True)()


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Begin an all-reduce in place. The tensor is not to be touched until `synchronize`, which gives it back."""
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin(tensor, name, in_place=True)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """`allreduce` of several tensors, which begin together. Differentiable. Raises ValueError for an empty list."""
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = cast("tuple[Tensor, ...]", GroupedAllReduce.apply(name, terms, *(small for small, _ in pairs)))
    return [compression.decompress(small, pair[1]) for small, pair in zip(reduced, pairs, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Begin a `grouped_allreduce`; `synchronize` gives the list of new tensors. They have no gradient."""
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin_group(tensors, name, in_place=False)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """As `grouped_allreduce`, in place."""
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin_group(tensors, name, in_place=True, waits=True)()


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Begin a `grouped_allreduce` in place."""
    terms = _terms(op, average, prescale_factor, postscale_factor, process_set)
    return terms.begin_group(tensors, name, in_place=True)
