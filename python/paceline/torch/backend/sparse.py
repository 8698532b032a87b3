"""The all-reduce of sparse tensors: indices and values of all ranks are gathered, and each rank adds them.

That is gloo's way, too. DDP needs it for the gradients of `torch.nn.Embedding(sparse=True)`.
"""

from __future__ import annotations

import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from paceline.torch.backend.buffers import assign, describe
from paceline.torch.backend.work import CombinedWork

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Work as C10dWork

    from paceline.torch.backend.group import Loose

_DEFINED = (ReduceOp.SUM, ReduceOp.AVG)


class Gathering(Protocol):
    """Group of ranks whose tensors can be gathered."""

    def size(self) -> int:
        """Return the number of ranks."""
        ...

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Loose, timeout: timedelta | None) -> C10dWork:
        """Gather every rank's input into `output`."""
        ...

    def allgather(
        self, output_tensors: Loose, input_tensors: Loose, opts: Loose, timeout: timedelta | None
    ) -> C10dWork:
        """Send every rank's tensor to every rank."""
        ...


def is_sparse(tensor: object) -> bool:
    """Return whether it is a sparse tensor in COO layout."""
    return isinstance(tensor, Tensor) and tensor.layout is torch.sparse_coo


def all_reduce_sparse(
    group: Gathering,
    tensor: Tensor,
    operator: Loose,
    options: Loose,
    timeout: timedelta | None,
    *,
    prescale: float = 1.0,
) -> CombinedWork:
    """Start a sum or average in place. The numbers of non-zero elements are exchanged before this returns.

    Args:
        group: All its ranks call this, with tensors of one shape, dtype and number of sparse dimensions.
        tensor: A sparse tensor on the CPU.
        operator: torch's ReduceOp, or its kind alone.
        options: c10d's.
        timeout: Limit for each exchange.
        prescale: Values are multiplied by it first.

    Returns:
        A handle.

    Raises:
        TypeError: Another reduction.
        ValueError: The ranks have different shapes or dtypes, or the tensor is not on the CPU.
    """
    call, kind = "all_reduce", getattr(operator, "op", operator)
    if kind not in _DEFINED:
        raise TypeError(f"{call}: {kind} of sparse tensors is not defined; sum and average are; use .to_dense()")
    if not tensor.is_cpu:
        raise ValueError(
            f"{call}: {describe('tensor', 0, tensor)} is on {tensor.device}, and sparse tensors are reduced on the CPU "
            "alone; for an embedding under DDP, use sparse=False, otherwise .to_dense() or .cpu()"
        )
    with torch.no_grad():
        own = tensor.detach().coalesce()
        if prescale != 1.0:
            own = own * prescale
    size, dims, entries = group.size(), own.sparse_dim(), own._nnz()
    form = f"{own.dtype} {list(own.shape)} {dims}"
    mine = torch.tensor([entries, zlib.crc32(form.encode())], dtype=torch.int64)
    all_of = torch.empty(2 * size, dtype=torch.int64)
    group.all_gather_single(all_of, mine, None, timeout).wait()
    counts, forms = all_of.view(size, 2).unbind(1)
    different = [rank for rank in range(size) if int(forms[rank]) != int(mine[1])]
    if different:
        ranks = ", ".join(map(str, different))
        raise ValueError(
            f"{call}: {describe('tensor', 0, tensor)} with {dims} sparse dimensions is unlike that of rank {ranks}; "
            "give all ranks the same shape, dtype and number of sparse dimensions"
        )
    each = [int(count) for count in counts]
    indices = [torch.empty(dims, count, dtype=torch.int64) for count in each]
    values = [torch.empty(count, *own.shape[dims:], dtype=own.dtype) for count in each]
    works = [
        group.allgather([indices], [own.indices().contiguous()], options, timeout),
        group.allgather([values], [own.values().contiguous()], options, timeout),
    ]

    def add() -> list[Tensor]:
        with torch.no_grad():
            summed = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), tensor.shape, is_coalesced=False)
            total = summed.coalesce()
            if kind == ReduceOp.AVG:
                rounding = None if total.dtype.is_floating_point or total.dtype.is_complex else "trunc"
                whole = torch.div(total.values(), size, rounding_mode=rounding)
                total = torch.sparse_coo_tensor(total.indices(), whole, tensor.shape, is_coalesced=True)
        assign(tensor, total)
        return [tensor]

    return CombinedWork(works, add)
