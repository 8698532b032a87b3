"""Small messages between the ranks of a process set: bytes and numbers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

from paceline._core import NamedOperation
from paceline.hvd.handles import PendingOperation
from paceline.hvd.members import Members
from paceline.job.arrays import memory


def gather_bytes(members: Members, name: str | None, own: bytes | bytearray) -> list[bytes]:
    """Return the bytes of all ranks, in rank order; a rank that has joined contributes none."""

    def make(full: str) -> PendingOperation[list[bytes]]:
        sent = memory(bytearray(own), full)
        operation = members.coordinator.request(
            "all_gather", full, inputs=sent.regions, dtype="uint8", own=[len(own)], keep=sent.keep
        )
        return PendingOperation(operation, _parts)

    return members.begin("allgather", name, make, waits=True)()


def _parts(operation: NamedOperation) -> list[bytes]:
    lengths = [own[0] if own else 0 for own in operation.own()]
    data = bytes(operation.data())
    return [data[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]


def broadcast_bytes(members: Members, name: str, data: bytearray, root: int) -> bytearray:
    """Overwrite `data`, which has the same length on all ranks, with that of `root`, a rank of the process set."""

    def make(full: str) -> PendingOperation[bytearray]:
        sent = memory(data, full, writable=True)
        operation = members.coordinator.request(
            "broadcast", full, inputs=sent.regions, dtype="uint8", shape=[len(data)], root=root, keep=sent.keep
        )
        return PendingOperation(operation, lambda _: data)

    return members.begin("broadcast", name, make, waits=True)()


def gather_numbers(members: Members, name: str, numbers: Sequence[int]) -> list[list[int]]:
    """Return the numbers of all ranks, in rank order."""
    each = gather_bytes(members, name, struct.pack(f"={len(numbers)}q", *numbers))
    return [list(struct.unpack(f"={len(part) // 8}q", part)) for part in each]


def any_rank(members: Members, name: str, own: bool) -> bool:
    """Return whether it is true on any rank."""
    return any(part != b"\0" for part in gather_bytes(members, name, b"\1" if own else b"\0"))
