"""Matches the same transfer on all ranks by name and order, to find out when every rank was ready for it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from paceline.doctor.timeline_model import Rank

_TWO_SIDED = "send/recv"
"""Operations with a single peer, which their names do not contain."""


@dataclass(slots=True)
class Transfer:
    """A tensor that a coordinator handled, or an operation that was started directly, as one rank saw it.

    A tensor is ready when the rank requests it. For an operation that is started directly (torch.distributed), only its
    beginning is known: with DDP, the moment at which its bucket is full.
    """

    name: str
    call: str
    size: int
    """Bytes."""
    operation: int
    ready: int
    begun: int
    end: int
    all_ready: int = 0
    """When the last rank was ready, but not after the end here."""
    all_begun: int = 0
    """From then on it moves, because every rank has begun it."""
    last: int | None = None
    """The rank that was ready last; None if no other rank is known to take part."""


def transfers_of(rank: Rank) -> list[Transfer]:
    """Return a rank's transfers by readiness, not yet compared with other ranks'."""
    operations = {operation.number: operation for operation in rank.operations}
    handled = {tensor.operation for tensor in rank.tensors}
    transfers = [
        Transfer(it.name, it.call, it.size, it.number, it.begin, it.begin, it.end)
        for it in rank.operations
        if it.number not in handled
    ]
    for tensor in rank.tensors:
        operation = operations.get(tensor.operation)
        # The agreement of ranks is recorded just after the operation has begun.
        begun = min(tensor.agreed, operation.begin) if operation else tensor.agreed
        call = operation.call if operation else ""
        ready = tensor.requested
        transfers.append(
            Transfer(tensor.name, call, tensor.size, tensor.operation, ready, max(ready, begun), tensor.done)
        )
    for transfer in transfers:
        transfer.all_ready, transfer.all_begun = transfer.ready, transfer.begun
    return sorted(transfers, key=lambda it: (it.ready, it.operation, it.name))


def match(ranks: Mapping[int, Sequence[Transfer]]) -> None:
    """Match the transfers of ranks in one step: the first of a name is the first on every rank, and so on.

    A rank that was ready only after the end on this rank is left out, because nothing waited for it: it is the receiver
    of a broadcast, or in a group of other ranks whose operations have the same names.
    """
    turns: dict[tuple[str, str, int], list[tuple[int, Transfer]]] = defaultdict(list)
    for rank, transfers in ranks.items():
        seen: dict[tuple[str, str], int] = defaultdict(int)
        for transfer in transfers:
            key = transfer.name, transfer.call
            turns[*key, seen[key]].append((rank, transfer))
            seen[key] += 1
    for (_, call, _), same in turns.items():
        if len(same) > 1 and call != _TWO_SIDED:
            _compare(same)


def _compare(same: list[tuple[int, Transfer]]) -> None:
    same.sort(key=lambda pair: (pair[1].ready, -pair[0]))
    readies = [other.ready for _, other in same]
    begins = list(accumulate((other.begun for _, other in same), max))
    for _, transfer in same:
        slowest = bisect_right(readies, transfer.end) - 1
        transfer.last, transfer.all_ready = same[slowest][0], readies[slowest]
        transfer.all_begun = max(transfer.all_ready, min(begins[slowest], transfer.end))
