"""All-reduces of sparse tensors: they concatenate indices and values of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.hvd.handles import Handle
from paceline.hvd.members import Members
from paceline.hvd.operators import Operator, operator_of
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of
from paceline.torch.backend.sparse import is_sparse
from paceline.torch.hvd.gathering import gathered


def sparse_allreduce_async(
    tensor: Tensor, name: str | None = None, op: int | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Start a sum or average of sparse tensors without waiting for it.

    Args:
        tensor: Sparse tensor in COO layout; each rank may have any number of values.
        name: Name by which the ranks match the operation, also used in error messages.
        op: `hvd.Average` (the default) or `hvd.Sum`.
        process_set: The ranks that take part; by default all.

    Returns:
        A handle; `hvd.synchronize(handle)`, or calling the handle as in Horovod, returns a new sparse tensor, which is
        not coalesced.

    Raises:
        ValueError: The tensor is dense, `op` is another reduction, or this rank is not in `process_set`.

    Example:
        >>> tensor = torch.sparse_coo_tensor([[1]], [2.0], (3,))
        >>> hvd.sparse_allreduce_async(tensor)().to_dense()
        tensor([0., 2., 0.])
    """
    return sparse_allreduce(members_of(process_set), tensor, name, operator_of(op))


def sparse_allreduce(
    members: Members,
    tensor: Tensor,
    name: str | None,
    op: Operator,
    factor: float = 1.0,
    *,
    in_place: bool = False,
    waits: bool = False,
) -> Handle[Tensor]:
    """Start a sum or average of sparse tensors, times `factor`."""
    with members.naming("sparse_allreduce" if name is None else "allgather", name) as full:
        if not is_sparse(tensor):
            raise ValueError(f"'{full}': is not a tensor with the layout sparse_coo; use allreduce for others")
        if op not in (Operator.Average, Operator.Sum):
            raise ValueError(
                f"'{full}': {op.name} of sparse tensors is not defined; use Sum or Average, or .to_dense()"
            )
        # Rows are gathered, so indices are sent as one row per value.
        indices = gathered(members, f"{full}.indices", tensor._indices().transpose(0, 1))
        values = gathered(members, f"{full}.values", tensor._values())

    def finish() -> Tensor:
        rows = indices.finish(indices.operation).tensor
        received = values.finish(values.operation).tensor
        whole = not (received.is_floating_point() or received.is_complex())
        if factor != 1.0:
            received = (received.double() * factor).to(received.dtype) if whole else received.mul_(factor)
        if op is Operator.Average:
            received = received.div_(members.size, rounding_mode="trunc" if whole else None)
        try:
            # Shapes have not been compared, and torch would read out of bounds for an index that is too large.
            result = torch.sparse_coo_tensor(rows.transpose(0, 1), received, tensor.shape, check_invariants=True)
        except RuntimeError as error:
            raise ValueError(f"'{full}': has a shape other than {list(tensor.shape)} on some rank: {error}") from None
        if not in_place:
            return result
        with torch.no_grad():
            return tensor.zero_().add_(result)

    operations = [indices.operation, values.operation]
    return members.ask(name, Handle(full, operations, finish), operations, waits=waits)
