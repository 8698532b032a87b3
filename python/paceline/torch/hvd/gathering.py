"""Gathers the rows of all ranks at all ranks; `allgather`, objects and process sets are built on this."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline._core import NamedOperation
from paceline.torch.backend.buffers import Memory, region
from paceline.torch.hvd.handles import PendingOperation
from paceline.torch.hvd.members import Members, checked, moved, on_host, tensor_of


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


def gather_numbers(members: Members, name: str, numbers: Sequence[int]) -> list[list[int]]:
    """Return the numbers of all ranks, in rank order."""
    own = torch.tensor(list(numbers), dtype=torch.int64)
    handle = members.begin("allgather", name, lambda full: gathered(members, full, own), waits=True)
    return [part.tolist() for part in handle().parts()]
