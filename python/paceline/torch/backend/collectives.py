"""The collective operations under c10d's names, with one tensor, or a list with one tensor per rank."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import ReduceOp

from paceline.torch.backend.buffers import REDUCIBLE, Memory, Region, check, describe, elements, is_dense, region
from paceline.torch.backend.group import Group, Loose, one, parts
from paceline.torch.backend.monitored_barrier import meet
from paceline.torch.backend.reductions import AT_ONCE, lowered
from paceline.torch.backend.sparse import Gathering, all_reduce_sparse, is_sparse
from paceline.torch.backend.work import CombinedWork, Work


def root_of(options: Loose, root: int | None) -> int:
    """Return the root of a call, given directly or in the options."""
    if root is not None:
        return root
    return options if isinstance(options, int) else int(options.rootRank)


def operator_of(options: Loose, op: Loose = None) -> Any:  # noqa: ANN401 - torch's ReduceOp, or its kind alone
    """Return the reduction of a call, given directly or in the options; by default a sum."""
    if op is not None:
        return op
    if options is None or isinstance(options, int | timedelta):
        return ReduceOp.SUM
    return getattr(options, "reduceOp", options)


class Collectives(Group):
    """Collective operations. Sizes may differ by rank where torch's lists allow it and all ranks agree."""

    def allreduce(
        self,
        tensors: Loose,
        opts: Loose = None,
        timeout: timedelta | None = None,
        *,
        op: Loose = None,
        strategy: str | None = None,
        prescale: float = 1.0,
    ) -> Work | CombinedWork | None:
        """Reduce in place on every rank. `strategy` and `prescale` are Paceline's own (see `hook`).

        Sparse tensors are gathered, whatever the strategy.

        Returns None if the caller wanted no handle and the sum is complete, as in c10d.
        """
        if timeout is None and op is None and strategy is None and self._reduced(tensors, opts):
            return None
        call, tensor = "all_reduce", one("all_reduce", tensors)
        if is_sparse(tensor):
            return all_reduce_sparse(
                cast("Gathering", self), tensor, operator_of(opts, op), opts, timeout, prescale=prescale
            )
        check(call, "tensor", [tensor])
        reduction = lowered(call, operator_of(opts, op), tensor.dtype, self._comm.size)
        memory = Memory([tensor], [tensor])
        where = [region(reduction.update(memory, tensor))]
        todo = reduction.call(inputs=where, strategy=strategy)
        todo["prescale"] *= prescale
        return self._begin(call, memory, timeout or opts, **todo)

    def _reduced(self, tensors: Loose, opts: Loose) -> bool:
        """Reduce at once if the call is a simple one: small tensors take longer to prepare than to reduce."""
        if not self._plain or getattr(opts, "asyncOp", True) or self._gathered is not None or self._estimates.running:
            return False
        tensor = tensors[0]
        dtype = REDUCIBLE.get(tensor.dtype)
        if dtype is None or len(tensors) != 1 or not tensor.is_cpu or tensor.layout is not torch.strided:
            return False
        operator = AT_ONCE.get(opts.reduceOp.op)
        if operator is None or not is_dense(tensor) or self._job.broken is not None:
            return False
        if self._job.completion.wanted:
            self._job.completion.begin(self._name)
        began = self._job.completion.wait_begins()
        self._comm.all_reduce(tensor.data_ptr(), tensor.numel(), dtype, operator)
        if began:
            self._job.completion.waited(self._label("all_reduce", [tensor]), began)
        return True

    def broadcast(
        self, tensors: Loose, opts: Loose = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Work:
        """Copy the root's tensor to all."""
        call, tensor, source = "broadcast", one("broadcast", tensors), root_of(opts, root)
        check(call, "tensor", [tensor])
        dtype, scale = elements(tensor.dtype)
        memory = Memory([tensor], [tensor])
        dense = memory.read(tensor) if self._comm.rank == source else memory.write(tensor)
        return self._begin(call, memory, timeout or opts, inputs=[region(dense, scale)], dtype=dtype, root=source)

    def reduce(
        self,
        tensors: Loose,
        opts: Loose = None,
        op: Loose = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        """Reduce into the root's tensor; those of the others keep their values."""
        call, tensor, target = "reduce", one("reduce", tensors), root_of(opts, root)
        check(call, "tensor", [tensor])
        reduction = lowered(call, operator_of(opts, op), tensor.dtype, self._comm.size)
        memory = Memory([tensor], [tensor])
        dense = reduction.update(memory, tensor) if self._comm.rank == target else reduction.read(memory, tensor)
        return self._begin(call, memory, timeout or opts, **reduction.call(inputs=[region(dense)], root=target))

    def allgather(
        self, output_tensors: Loose, input_tensors: Loose, opts: Loose = None, timeout: timedelta | None = None
    ) -> Work:
        """Send every rank's tensor to every rank."""
        call, tensor = "all_gather", one("all_gather", input_tensors, "input")
        outputs = parts(call, output_tensors, self._comm.size, "output")
        check(call, "input", [tensor])
        check(call, "output", outputs, tensor.dtype)
        self._own_part(call, "output", outputs, tensor)
        dtype, scale = elements(tensor.dtype)
        memory = Memory([tensor], outputs, [tensor])
        own = [region(memory.read(tensor), scale)]
        into = self._from_each(memory, tensor, outputs, scale)
        counts = uneven([count for _, count in into])
        return self._begin(call, memory, timeout or opts, inputs=own, outputs=into, dtype=dtype, counts=counts)

    def gather(
        self,
        output_tensors: Loose,
        input_tensors: Loose,
        opts: Loose = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        """Send every rank's tensor to the root; all have the same size."""
        call, tensor, target = "gather", one("gather", input_tensors, "input"), root_of(opts, root)
        check(call, "input", [tensor])
        outputs = self._at_root(call, "output", output_tensors, tensor, target)
        dtype, scale = elements(tensor.dtype)
        memory = Memory([tensor], outputs, [tensor])
        own = [region(memory.read(tensor), scale)]
        into = self._from_each(memory, tensor, outputs, scale)
        return self._begin(call, memory, timeout or opts, inputs=own, outputs=into, dtype=dtype, root=target)

    def scatter(
        self,
        output_tensors: Loose,
        input_tensors: Loose,
        opts: Loose = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        """Send the root's i-th tensor to rank i; all have the same size."""
        call, tensor, source = "scatter", one("scatter", output_tensors, "output"), root_of(opts, root)
        check(call, "output", [tensor])
        inputs = self._at_root(call, "input", input_tensors, tensor, source)
        dtype, scale = elements(tensor.dtype)
        memory = Memory([tensor], [tensor], inputs)
        parted = [region(memory.read(part), scale) for part in inputs]
        into = [region(memory.write(tensor, inputs[self._comm.rank].data_ptr() if inputs else None), scale)]
        return self._begin(call, memory, timeout or opts, inputs=parted, outputs=into, dtype=dtype, root=source)

    def reduce_scatter(
        self,
        output_tensors: Loose,
        input_tensors: Loose,
        opts: Loose = None,
        timeout: timedelta | None = None,
        *,
        op: Loose = None,
    ) -> Work:
        """Reduce the i-th tensors of all ranks into rank i's."""
        call, tensor = "reduce_scatter", one("reduce_scatter", output_tensors, "output")
        inputs = parts(call, input_tensors, self._comm.size, "input")
        check(call, "output", [tensor])
        check(call, "input", inputs, tensor.dtype)
        self._own_part(call, "input", inputs, tensor)
        reduction = lowered(call, operator_of(opts, op), tensor.dtype, self._comm.size)
        memory = Memory([tensor], [tensor], inputs)
        parted = [region(reduction.read(memory, part)) for part in inputs]
        into = [region(reduction.write(memory, tensor, inputs[self._comm.rank].data_ptr()))]
        counts = uneven([count for _, count in parted])
        return self._begin(call, memory, timeout or opts, **reduction.call(inputs=parted, outputs=into, counts=counts))

    def alltoall(
        self,
        output_tensors: list[Tensor],
        input_tensors: list[Tensor],
        opts: Loose = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send the i-th input to rank i, receive the i-th output from rank i; of any sizes."""
        call, size = "all_to_all", self._comm.size
        inputs, outputs = parts(call, [input_tensors], size, "input"), parts(call, [output_tensors], size, "output")
        check(call, "input", inputs)
        check(call, "output", outputs, inputs[0].dtype)
        dtype, scale = elements(inputs[0].dtype)
        memory = Memory(inputs, outputs, inputs)
        sent = [region(memory.read(tensor), scale) for tensor in inputs]
        got = [region(memory.write(tensor), scale) for tensor in outputs]
        counts, out_counts = [count for _, count in sent], [count for _, count in got]
        options = timeout or opts
        return self._begin(
            call, memory, options, inputs=sent, outputs=got, dtype=dtype, counts=counts, out_counts=out_counts
        )

    def barrier(self, opts: Loose = None, timeout: timedelta | None = None) -> Work:
        """Wait until every rank has reached the barrier."""
        return self._begin("barrier", Memory([], []), timeout or opts)

    def monitored_barrier(self, timeout: Loose = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says on rank 0 who is missing after `timeout`: the first one, or all of them.

        Raises:
            JobError: A rank is missing, in torch's words.
        """
        given = timeout if timeout is None or isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        limit_s = given.total_seconds() if given is not None else self._timeout_s or self._job.timeout_s
        self._meetings += 1
        store = PrefixStore(f"paceline/monitored_barrier/{self._name}/{self._meetings}", self._store)
        meet(store, self._comm.rank, self._comm.size, limit_s, self._job, every=wait_all_ranks)

    def _from_each(self, memory: Memory, own: Tensor, outputs: list[Tensor], scale: int) -> list[Region]:
        """Return where the part of each rank arrives; `own` is this rank's, which may be in its place already."""
        rank, here = self._comm.rank, own.data_ptr()
        return [
            region(memory.write(output, here if source == rank else None), scale)
            for source, output in enumerate(outputs)
        ]

    def _own_part(self, call: str, role: str, tensors: list[Tensor], own: Tensor) -> None:
        mine = tensors[self._comm.rank]
        if mine.numel() != own.numel():
            raise ValueError(
                f"{call}: {describe(role, self._comm.rank, mine)} is this rank's part and should have "
                f"{own.numel()} elements, shape {list(own.shape)}"
            )

    def _at_root(self, call: str, role: str, lists: Loose, own: Tensor, root: int) -> list[Tensor]:
        """Return the tensors for all ranks at the root, each of the size of `own`; elsewhere none."""
        if self._comm.rank != root:
            if any(lists):
                raise ValueError(f"{call}: rank {self._comm.rank} gives {role}s, the root is {root}; give none here")
            return []
        tensors = parts(call, lists, self._comm.size, role)
        check(call, role, tensors, own.dtype)
        for index, tensor in enumerate(tensors):
            if tensor.numel() != own.numel():
                raise ValueError(
                    f"{call}: {describe(role, index, tensor)} should have the {own.numel()} elements of this rank's "
                    f"own tensor, shape {list(own.shape)}; all ranks must have tensors of the same size"
                )
        return tensors


def uneven(counts: list[int]) -> list[int] | None:
    """Return the counts by rank, or None if they are all equal."""
    return counts if any(count != counts[0] for count in counts) else None


# Sends and receives between two ranks, matched by tag and in order.


ANY_SOURCE = -1


class PointToPoint(Group):
    """Ranks are numbers within the group."""

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
        """Receive into a tensor of the same size as the sent one."""
        tensor = one("recv", tensors)
        check("recv", "tensor", [tensor])
        if src != ANY_SOURCE:
            self._peer("recv", src)
        dtype, scale = elements(tensor.dtype)
        memory = Memory([tensor], [tensor])
        where = [region(memory.write(tensor), scale)]
        return self._begin("recv", memory, None, outputs=where, dtype=dtype, root=src, tag=tag)

    def recv_anysource(self, tensors: Loose, tag: int = 0) -> Work:
        """Receive from whichever rank sends first; `source_rank` of the work returns it."""
        return self.recv(tensors, ANY_SOURCE, tag)

    recvAnysource = recv_anysource

    def _peer(self, call: str, rank: int) -> None:
        if not 0 <= rank < self._comm.size:
            raise ValueError(f"{call}: there is no rank {rank} in this group of {self._comm.size}")
        if rank == self._comm.rank:
            raise ValueError(f"{call}: rank {rank} is this rank itself; copy the tensor instead")
