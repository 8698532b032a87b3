"""Gathers the rows of all ranks at all ranks; `allgather` is built on this."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from torch import Tensor

from paceline._core import NamedOperation
from paceline.hvd.handles import PendingOperation
from paceline.hvd.members import Members
from paceline.torch.backend.buffers import Memory, region
from paceline.torch.hvd.tensors import checked, moved, on_host, tensor_of


class Gathered(NamedTuple):
    """All rows in rank order, and the number from each rank."""

    tensor: Tensor
    rows: list[int]

    def parts(self) -> list[Tensor]:
        """Return the rows of each rank."""
        ends = itertools.accumulate(self.rows)
        return [self.tensor[end - rows : end] for end, rows in zip(ends, self.rows, strict=True)]


def gathered(members: Members, full: str, tensor: Tensor) -> PendingOperation[Gathered]:
    """Gather all ranks' rows. A scalar counts as one row. Other dimensions are the same on all ranks."""
    tensor = checked(f"'{full}'", tensor)
    rows = tensor if tensor.dim() else tensor.reshape(1)
    memory = Memory([tensor], [])
    dtype, more, scale = moved(tensor.dtype)
    dense = memory.read(on_host(rows))
    operation = members.coordinator.request(
        "all_gather",
        full,
        inputs=[region(dense, scale)],
        dtype=dtype,
        shape=[*rows.shape[1:], *more],
        own=[rows.shape[0]],
        keep=memory.keep,
    )

    def finish(operation: NamedOperation) -> Gathered:
        counts = [own[0] if own else 0 for own in operation.own()]
        shape = [sum(counts), *rows.shape[1:]]
        return Gathered(tensor_of(operation.data(), tensor.dtype, shape).to(tensor.device), counts)

    return PendingOperation(operation, finish)
