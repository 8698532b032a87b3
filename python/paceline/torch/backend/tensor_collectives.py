"""Collectives on one tensor that contains the parts of all ranks, and their coalesced forms.

Several tensors are one operation: memory is a list of regions that count as one, so the parts of all tensors for rank 0
come first, then those for rank 1, without a copy. Tensors of different dtypes need one operation for each dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work as C10dWork

from paceline.torch.backend.buffers import Memory, Region, check, describe, elements, region
from paceline.torch.backend.collectives import Collectives, operator_of, root_of
from paceline.torch.backend.group import Loose
from paceline.torch.backend.reductions import lowered
from paceline.torch.backend.work import CoalescedWork, Work

T = TypeVar("T")


class TensorCollectives(Collectives):
    """Single-tensor and coalesced collectives, under c10d's old names and its new ones: callers differ by version."""

    def all_gather_single(
        self, output: Tensor, input: Tensor, opts: Loose = None, timeout: timedelta | None = None
    ) -> Work:
        """Gather every rank's input, in rank order, into `output`, which has world size times its elements."""
        return self._all_gather_all("all_gather_into_tensor", [output], [input], timeout or opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, output_lists: list[Tensor], input_list: list[Tensor], opts: Loose = None
    ) -> C10dWork:
        """Run `all_gather_single` for several pairs."""
        call = "all_gather_into_tensor_coalesced"
        paired(call, output_lists, input_list)
        return joined(
            [
                self._all_gather_all(call, pick(output_lists, at), pick(input_list, at), opts)
                for at in by_dtype(input_list)
            ]
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather_all(self, call: str, outputs: list[Tensor], inputs: list[Tensor], opts: Loose) -> Work:
        check(call, "input", inputs)
        check(call, "output", outputs, inputs[0].dtype)
        self._world_times(call, outputs, inputs, ("output", "input"))
        dtype, scale = elements(inputs[0].dtype)
        memory = Memory(inputs, outputs, inputs)
        own = [region(memory.read(tensor), scale) for tensor in inputs]
        written = [
            memory.write(output, self._part_of(output, tensor)) for output, tensor in zip(outputs, inputs, strict=True)
        ]
        into = self._by_rank(written, [count for _, count in own], scale)
        return self._begin("all_gather", memory, opts, inputs=own, outputs=into, dtype=dtype)

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Loose = None
    ) -> C10dWork:
        """Run `allgather` for several tensors: `output_lists[i][j]` is rank i's `input_list[j]`."""
        if len(output_lists) != self._comm.size:
            raise ValueError(
                f"all_gather_coalesced: {len(output_lists)} lists of outputs for {self._comm.size} ranks; "
                "give one list for every rank of the group"
            )
        works = []
        for index, tensor in enumerate(input_list):
            works.append(self.allgather([[outputs[index] for outputs in output_lists]], [tensor], opts))
        return joined(works)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Loose = None, *, op: Loose = None) -> Work:
        """Reduce `input`, which has world size times the elements of `output`; rank i gets the i-th part."""
        return self._reduce_scatter_all("reduce_scatter_tensor", [output], [input], opts, op)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputTensors: list[Tensor], inputTensors: list[Tensor], opts: Loose = None
    ) -> C10dWork:
        """Run `reduce_scatter_single` for several pairs."""
        call = "reduce_scatter_tensor_coalesced"
        paired(call, outputTensors, inputTensors)
        return joined(
            [
                self._reduce_scatter_all(call, pick(outputTensors, at), pick(inputTensors, at), opts)
                for at in by_dtype(inputTensors)
            ]
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_all(
        self, call: str, outputs: list[Tensor], inputs: list[Tensor], opts: Loose, op: Loose = None
    ) -> Work:
        check(call, "output", outputs)
        check(call, "input", inputs, outputs[0].dtype)
        self._world_times(call, inputs, outputs, ("input", "output"))
        reduction = lowered(call, operator_of(opts, op), outputs[0].dtype, self._comm.size)
        memory = Memory(outputs, outputs, inputs)
        into = [
            region(reduction.write(memory, output, self._part_of(tensor, output)))
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        parted = self._by_rank([reduction.read(memory, tensor) for tensor in inputs], [count for _, count in into])
        return self._begin("reduce_scatter", memory, opts, **reduction.call(inputs=parted, outputs=into))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Loose = None) -> C10dWork:
        """Reduce several tensors in place, those of one dtype as one operation."""
        call, works = "all_reduce_coalesced", []
        for at in by_dtype(tensors):
            group = pick(tensors, at)
            check(call, "tensor", group)
            reduction = lowered(call, operator_of(opts), group[0].dtype, self._comm.size)
            memory = Memory(group, group)
            where = [region(reduction.update(memory, tensor)) for tensor in group]
            works.append(self._begin("all_reduce", memory, opts, **reduction.call(inputs=where)))
        return joined(works)

    def gather_single(self, output: Tensor, input: Tensor, opts: Loose = None, *, root: int | None = None) -> Work:
        """Gather every rank's input, in rank order, into the root's `output`; elsewhere `output` is ignored."""
        call, target = "gather_into_tensor", root_of(opts, root)
        check(call, "input", [input])
        here = [output] if self._comm.rank == target else []
        check(call, "output", here, input.dtype)
        self._world_times(call, here, [input] * len(here), ("output", "input"))
        dtype, scale = elements(input.dtype)
        memory = Memory([input], here, [input])
        own = [region(memory.read(input), scale)]
        into = [region(memory.write(tensor, self._part_of(tensor, input)), scale) for tensor in here]
        return self._begin("gather", memory, opts, inputs=own, outputs=into, dtype=dtype, root=target)

    gather_into_tensor = gather_single

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Loose = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        """Exchange rows: with each rank the numbers in the splits, or equally many."""
        call = "all_to_all_single"
        check(call, "input", [input])
        check(call, "output", [output], input.dtype)
        dtype, scale = elements(input.dtype)
        counts = self._splits(call, "input", input, input_split_sizes, scale)
        out_counts = self._splits(call, "output", output, output_split_sizes, scale)
        memory = Memory([input], [output], [input])
        sent, got = [region(memory.read(input), scale)], [region(memory.write(output), scale)]
        options = timeout or opts
        return self._begin(
            "all_to_all", memory, options, inputs=sent, outputs=got, dtype=dtype, counts=counts, out_counts=out_counts
        )

    alltoall_base = all_to_all_single

    def _splits(self, call: str, role: str, tensor: Tensor, splits: Sequence[int], scale: int) -> list[int]:
        """Return the number of elements of each rank's part, given its rows."""
        size, rows = self._comm.size, tensor.size(0) if tensor.dim() else 1
        if not splits:
            if rows % size:
                raise ValueError(
                    f"{call}: {describe(role, 0, tensor)}: {rows} rows are not divisible by {size} ranks; give "
                    f"{role}_split_sizes"
                )
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows or min(splits) < 0:
            raise ValueError(
                f"{call}: {role}_split_sizes {list(splits)} are not {size} numbers, one per rank, that add up to "
                f"the {rows} rows of {describe(role, 0, tensor)}"
            )
        row = tensor.numel() // rows * scale if rows else 0
        return [part * row for part in splits]

    def _world_times(self, call: str, wholes: list[Tensor], own: list[Tensor], roles: tuple[str, str]) -> None:
        size = self._comm.size
        for index, (whole, part) in enumerate(zip(wholes, own, strict=True)):
            if whole.numel() != size * part.numel():
                raise ValueError(
                    f"{call}: {describe(roles[0], index, whole)} has {whole.numel()} elements; it needs {size} (ranks) "
                    f"times the {part.numel()} of {describe(roles[1], index, part)}"
                )

    def _part_of(self, whole: Tensor, own: Tensor) -> int:
        """Return where this rank's part of a tensor begins, which has the size of `own`."""
        return whole.data_ptr() + self._comm.rank * own.nbytes

    def _by_rank(self, wholes: list[Tensor], counts: list[int], scale: int = 1) -> list[Region]:
        """Return the parts of all tensors, rank after rank; `counts` are of one rank, in units of 1/`scale`."""
        if len(wholes) == 1:
            return [region(wholes[0], scale)]
        regions = []
        for rank in range(self._comm.size):
            for tensor, count in zip(wholes, counts, strict=True):
                regions.append((tensor.data_ptr() + rank * count * tensor.element_size() // scale, count))
        return regions


def by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of the tensors of each dtype, in the order in which the dtypes occur."""
    groups: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(index)
    return list(groups.values())


def pick(tensors: Sequence[T], indices: list[int]) -> list[T]:
    """Return the tensors with these indices."""
    return [tensors[index] for index in indices]


def joined(works: Sequence[C10dWork]) -> C10dWork:
    """Return one handle for all."""
    return works[0] if len(works) == 1 else CoalescedWork(list(works))


def paired(call: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Raise unless there is an output for every input."""
    if len(outputs) != len(inputs):
        raise ValueError(f"{call}: {len(outputs)} outputs and {len(inputs)} inputs; give the same number of both")
