"""Kernels that torch.compile makes of chains of memory-bound operators between matrix products.

A chain reads what others have stored and writes what others will read: its own intermediate results stay in registers.
What only the backward pass reads is computed again there from what is stored, as AOT autograd's partitioner has it
(torch/_functorch/partitioners.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from paceline.operators.kernels import Work, is_fusible
from paceline.operators.machine import Machine, constant
from paceline.operators.memory_bound import lanes_of
from paceline.operators.operator import Operator, Tensor

_SMALL = 64
"""Tensors with so many times fewer elements than the largest are stored: statistics of norms, sums of rows."""
_LONG_ROW = 4096
"""Elements of a row that a block does not hold: softmax reads longer ones twice."""
_BY_COLUMN = (
    *("native_layer_norm_backward", "_fused_rms_norm_backward", "native_batch_norm", "native_batch_norm_backward"),
    *("_native_batch_norm_legit", "cudnn_batch_norm", "cudnn_batch_norm_backward"),
)
_Place = tuple[int, int]
"""Of a tensor: the operator that wrote it, and which of its outputs."""


class Fusion:
    """Chains of a list of operators, whose later readers are known."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        """Take the operators of whole steps."""
        self._operators = operators
        self._runs: list[int] = []
        """For each operator the number of its chain; -1 if it is in none."""
        self.chains: list[list[int]] = []
        """The places of each chain's operators, in order."""
        last: Operator | None = None
        for place, operator in enumerate(operators):
            fusible = is_fusible(operator)
            if fusible:
                if last is None or last.phase != operator.phase:
                    self.chains.append([])
                self.chains[-1].append(place)
                last = operator
            elif not (operator.name == "add_" and operator.phase == "backward"):
                # Gradients are added up after the whole graph, not within a chain.
                last = None
            self._runs.append(len(self.chains) - 1 if fusible else -1)
        self._stored = set(self._read_elsewhere())
        self._known_roots: dict[tuple[int, int], dict[_Place, int]] = {}
        """Of operators that are computed again, by place and depth."""

    def work_of(self, chain: Sequence[int], machine: Machine) -> Work:
        """Return what the kernels of a chain cost."""
        read: dict[_Place, int] = {}
        again: dict[_Place, int] = {}
        members = set(chain)
        written, lanes, kernels = 0, 0.0, 0
        largest = max((t.elements for p in chain for t in self._tensors(p)), default=0)
        sizes: set[int] = set()
        for place in chain:
            operator = self._operators[place]
            lanes += lanes_of(operator)
            sources = self._roots(place, members)
            by_column = self._is_by_column(operator, largest)
            if by_column:
                again |= sources or {(place, 0): operator.read}
                kernels += 1
            if not by_column or operator.name in _BY_COLUMN:
                read |= sources
                sizes |= {t.elements for t in operator.outputs if t.elements * _SMALL > largest}
            if operator.name.startswith(("_log_softmax", "_softmax")) and _row(operator.inputs[0]) > _LONG_ROW:
                again |= {(place, 0): operator.inputs[0].bytes}
            for number, tensor in enumerate(operator.outputs):
                if (place, number) in self._stored:
                    written += tensor.bytes
        kernels = max(1, kernels + len(sizes))
        moved = sum(read.values()) + sum(again.values()) + written
        seconds = max(moved / machine.plain_rate, lanes / machine.lane_rate) + kernels * constant("kernel")
        return Work("memory", 0, moved, (seconds,))

    def _tensors(self, place: int) -> tuple[Tensor, ...]:
        operator = self._operators[place]
        return (*operator.inputs, *operator.outputs)

    def _read_elsewhere(self) -> Iterator[_Place]:
        """Yield results of chains that another chain of the same phase reads, or what is no chain."""
        readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for place, operator in enumerate(self._operators):
            for number, source in enumerate(operator.sources):
                if source >= 0 and self._runs[source] >= 0 and self._runs[source] != self._runs[place]:
                    readers[source].append((place, number))
        for source, those in readers.items():
            for place, number in those:
                tensor = self._operators[place].inputs[number]
                output = self._output(source, tensor)
                same = self._operators[place].phase == self._operators[source].phase
                small = tensor.elements * _SMALL < max((t.elements for t in self._tensors(source)), default=0)
                if same or self._runs[place] < 0 or small:
                    yield source, output

    def _output(self, source: int, tensor: Tensor) -> int:
        """Return which output of an operator a later one reads, by its size."""
        outputs = self._operators[source].outputs
        return next((n for n, out in enumerate(outputs) if out.elements >= tensor.elements), 0)

    def _recomputed(self, place: int, depth: int) -> dict[_Place, int]:
        """Return the roots of an operator of the forward pass that is computed again."""
        if (place, depth) not in self._known_roots:
            self._known_roots[place, depth] = self._roots(place, (), depth)
        return self._known_roots[place, depth]

    def _roots(self, place: int, chain: Container[int], depth: int = 0) -> dict[_Place, int]:
        """Return what is read from memory so that an operator of a chain can be computed, and its bytes."""
        operator = self._operators[place]
        roots: dict[_Place, int] = {}
        for number, tensor in enumerate(operator.inputs):
            source = operator.sources[number] if number < len(operator.sources) else -1
            if source in chain:
                continue
            output = self._output(source, tensor) if source >= 0 else 0
            computed = source >= 0 and self._runs[source] >= 0 and (source, output) not in self._stored
            if computed and depth < _DEPTH:
                # A chain of the forward pass, which is computed again.
                roots |= self._recomputed(source, depth + 1)
            else:
                roots[(source, output) if source >= 0 else (-1 - number, place)] = tensor.bytes
        return roots

    @staticmethod
    def _is_by_column(operator: Operator, largest: int) -> bool:
        """Return whether it sums over rows, so that a kernel of its own reads its input."""
        if operator.name in _BY_COLUMN:
            return True
        if operator.name not in ("sum", "mean") or not operator.inputs:
            return False
        image = operator.inputs[0]
        dimensions = operator.attributes.get("dim") or ()
        last = len(image.shape) - 1
        if not (isinstance(dimensions, list | tuple) and image.shape):
            return False
        along = {d % (last + 1) for d in dimensions if isinstance(d, int)}
        return image.elements * _SMALL > largest and bool(along) and last not in along


def _row(tensor: Tensor) -> int:
    return tensor.shape[-1] if tensor.shape else 1


_DEPTH = 12
"""Operators in a row that are computed again, at most."""
