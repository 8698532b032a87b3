"""Sends and receives between two ranks, matched by tag and in order."""

from __future__ import annotations

from paceline.torch.buffers import Memory, check, elements, region
from paceline.torch.group import Group, Loose, one
from paceline.torch.work import Work

ANY_SOURCE = -1


class PointToPoint(Group):
    """Ranks are those of the group."""

    def send(self, tensors: Loose, dst: int, tag: int = 0) -> Work:
        """Send a tensor; it is free for other use once the work has finished."""
        tensor = one("send", tensors)
        check("send", "tensor", [tensor])
        self._peer("send", dst)
        dtype, scale = elements(tensor.dtype)
        memory = Memory([tensor], [tensor])
        where = [region(memory.read(tensor), scale)]
        return self._begin("send", memory, None, inputs=where, dtype=dtype, root=dst, tag=tag)

    def recv(self, tensors: Loose, src: int, tag: int = 0) -> Work:
        """Receive into a tensor of the size that was sent."""
        tensor = one("recv", tensors)
        check("recv", "tensor", [tensor])
        if src != ANY_SOURCE:
            self._peer("recv", src)
        dtype, scale = elements(tensor.dtype)
        memory = Memory([tensor], [tensor])
        where = [region(memory.write(tensor), scale)]
        return self._begin("recv", memory, None, outputs=where, dtype=dtype, root=src, tag=tag)

    def recv_anysource(self, tensors: Loose, tag: int = 0) -> Work:
        """Receive from whoever sends first; `source_rank` of the work says who it was."""
        return self.recv(tensors, ANY_SOURCE, tag)

    recvAnysource = recv_anysource

    def _peer(self, call: str, rank: int) -> None:
        if not 0 <= rank < self._comm.size:
            raise ValueError(f"{call}: there is no rank {rank} in this group of {self._comm.size}")
        if rank == self._comm.rank:
            raise ValueError(f"{call}: rank {rank} is this rank itself; copy the tensor instead")
