"""Costs of each module's operators, in the forward and in the backward pass."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from paceline.operators.kernels import Work
from paceline.torch.recorder.backward import inside_backward
from paceline.torch.simulated.calls import memory_of, tensors_in
from paceline.torch.simulated.compiled import Compiled

_WITHOUT_GRADIENTS = (
    "a pass without gradients, as of DPO's reference (--loss dpo) or an evaluation, is not in the trace"
)


@dataclass
class Totals:
    """Sums over operators."""

    operators: int = 0
    flops: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, cost: Work) -> None:
        """Count an operator."""
        self.operators += 1
        self.flops += cost.flops
        self.bytes += cost.bytes
        self.seconds += cost.seconds

    def per_step(self, steps: int) -> dict[str, float]:
        """Return the means for JSON."""
        return {
            "operators": round(self.operators / steps),
            "flops": round(self.flops / steps),
            "bytes": round(self.bytes / steps),
            "time_s": self.seconds / steps,
        }


@dataclass
class BackwardMemory:
    """Allocations of a backward pass, and when they are freed, until an optimizer begins.

    What a module's operators make counts during its backward pass and that of the next module: what lives longer is
    gradients of a parameter that several modules share, which are added up. Recomputed activations count as long as
    they live.
    """

    _alive: dict[int, tuple[int, int, weakref.ref[torch.UntypedStorage]]] = field(default_factory=dict)
    """Numbers and bytes of the storages that are alive."""
    _events: list[tuple[int | None, int, int]] = field(default_factory=list)
    """Module, unless it is recomputed or freed; number of the storage; and bytes, negative where it is freed."""
    _made: int = 0

    def add(
        self, owner: int, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor], *, recomputed: bool
    ) -> None:
        """Count what an operator of a module made."""
        known = {memory_of(tensor)._cdata for tensor in inputs}
        for tensor in outputs:
            storage = memory_of(tensor)
            key, size = storage._cdata, storage.nbytes()
            if key in known or key in self._alive:
                continue
            self._made += 1
            self._alive[key] = self._made, size, weakref.ref(storage, partial(self._freed, key))
            self._events.append((None if recomputed else owner, self._made, size))

    def end(self) -> dict[int, int]:
        """Forget it; return the most bytes at once in the operators of each module, without what is left: gradients."""
        left = {number for number, *_ in self._alive.values()}
        most: dict[int, int] = defaultdict(int)
        counted: dict[int, int] = {}
        before: list[int] = []
        own: list[int] = []
        running = None
        for owner, number, size in self._events:
            if number in left:
                continue
            if size < 0:
                counted.pop(number, None)
                continue
            if owner is not None:
                if owner != running:
                    for old in before:
                        counted.pop(old, None)
                    running, before, own = owner, own, []
                own.append(number)
            counted[number] = size
            if running is not None:
                most[running] = max(most[running], sum(counted.values()))
        self._alive.clear()
        self._events.clear()
        return most

    def _freed(self, key: int, _: object) -> None:
        number, size, _ref = self._alive.pop(key)
        self._events.append((None, number, -size))


@dataclass
class Account:
    """Attributes operators to the innermost module that runs, and backward operators to the module of their node.

    Autograd numbers nodes in the order in which forward operators make them, so the module that was running when a
    number was given out is known in the backward pass.
    """

    places: dict[tuple[int, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    """By module and phase, the places of its operators in the list of all."""
    steps: int = 0
    kept: tuple[tuple[int, int], ...] = ()
    """Modules in the order in which the last step called them, and the bytes that were kept for the backward pass from
    then until the next call; module 0 is what runs after the outermost one."""
    passing: dict[int, int] = field(default_factory=dict)
    """By module, the bytes that only its operators of the last step's backward pass needed at once."""
    _backward: BackwardMemory = field(default_factory=BackwardMemory)
    compiled: Compiled = field(default_factory=Compiled)
    _begun: bool = False
    _running: list[int] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)
    _owners: list[int] = field(default_factory=list)
    _fused: list[bool] = field(default_factory=list)
    """Whether what made these numbers was compiled."""
    _calls: list[tuple[int, int]] = field(default_factory=list)
    _storages: set[int] = field(default_factory=set)
    _returned: list[weakref.ref[torch.UntypedStorage]] = field(default_factory=list)
    """The memory of what outermost modules have returned since the last backward pass."""
    _is_counted: bool = True
    """Whether the outermost module that runs, or has run last, does so for a backward pass."""
    _has_passed: bool = False
    """Whether a backward pass has run since the outermost module began: the memory that it kept may be reused."""

    def attach(self) -> None:
        """Watch every module's calls."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)
        self.compiled.changed = self._note
        torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor).__enter__()

    def end_step(self) -> None:
        """Forget the numbers of a step that is over, and all of the first, which made the model and the optimizer."""
        if self._begun:
            self.steps += 1
        else:
            self._begun = True
            self.places.clear()
        self.kept = tuple(self._calls)
        self._calls.clear()
        self._storages.clear()
        self._returned.clear()
        self._running.clear()
        self._numbers.clear()
        self._owners.clear()
        self._fused.clear()
        self.compiled.end_step()

    def count(self, place: int) -> None:
        """Count the operator at this place, which runs now."""
        phase = "backward" if inside_backward() else "forward"
        if phase == "forward" and not torch.is_grad_enabled() and not self._running:
            phase = "other"
        self.places[self._owner(), phase].append(place)

    def fuses(self) -> bool:
        """Return whether the operator that runs now is compiled, or the backward of one that was."""
        if self._running or not inside_backward():
            return self.compiled.now()
        index = self._made_by()
        return self._fused[index] if index >= 0 else self.compiled.now()

    def made(self, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor]) -> None:
        """Count what an operator of the backward pass makes of its inputs."""
        if not self._has_passed:
            self._has_passed = True
            self._keep_returned()
        self._backward.add(self._owner(), inputs, outputs, recomputed=bool(self._running))

    def end_backward(self) -> None:
        """An optimizer begins: what the backward pass has left is gradients."""
        self.passing = self._backward.end() or self.passing

    def _owner(self) -> int:
        """Return the module whose operator runs now."""
        if self._running:
            return self._running[-1]
        index = self._made_by() if inside_backward() else -1
        return self._owners[index] if index >= 0 else 0

    def _made_by(self) -> int:
        """Return which entry of `_numbers` made the node that runs now; -1 if none did."""
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else -1
        return bisect_right(self._numbers, number) - 1

    def ignore(self, tensor: torch.Tensor) -> None:
        """Do not count a tensor as kept for the backward pass of this step."""
        self._storages.add(memory_of(tensor)._cdata)

    def by_kind(self, works: Sequence[Work]) -> dict[tuple[str, str], Totals]:
        """Return the sums of each class of operators and phase; `works`: what each operator costs."""
        kinds: dict[tuple[str, str], Totals] = defaultdict(Totals)
        for (_, phase), places in self.places.items():
            for place in places:
                kinds[works[place].kind, phase].add(works[place])
        return kinds

    def by_module(self, model: nn.Module, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return the means of each module itself, without the modules in it, in the model's order.

        Args:
            model: The outermost module.
            works: What each operator costs.
        """
        names = {id(module): path for path, module in model.named_modules()}
        rows = []
        for key, path in [*names.items(), (0, "(outside)")]:
            mine: dict[str, Totals] = {}
            for phase in ("forward", "backward", "other"):
                if places := self.places.get((key, phase)):
                    mine[phase] = Totals()
                    for place in places:
                        mine[phase].add(works[place])
            if mine:
                steps = max(1, self.steps)
                rows.append({"module": path, **{phase: totals.per_step(steps) for phase, totals in mine.items()}})
        return rows

    def _enter(self, module: nn.Module, _args: object) -> None:
        if self._has_passed and not self._running and not inside_backward():
            self._storages.clear()
            self._has_passed = False
        if not self._running and not inside_backward():
            self._is_counted = torch.is_grad_enabled()
            if not self._is_counted:
                self.compiled.noted(_WITHOUT_GRADIENTS)
        self._running.append(id(module))
        self.compiled.enter(module)
        if not inside_backward() and self._is_counted:
            self._calls.append((id(module), 0))
        self._note()

    def _leave(self, module: nn.Module, _args: object, output: object) -> None:
        if self._running and self._running[-1] == id(module):
            self._running.pop()
            self.compiled.leave()
        if not self._running and not inside_backward() and self._is_counted:
            self._calls.append((0, 0))
            if torch.is_grad_enabled():
                self._returned += [weakref.ref(memory_of(tensor)) for tensor in tensors_in(output)]
        self._note()

    def _keep_returned(self) -> None:
        """Count what the model has returned and the script still holds; many hold only the loss."""
        for storage in filter(None, (one() for one in self._returned)):
            self._keep_storage(storage)
        self._returned.clear()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count what autograd saves, each storage once; parameters are there anyway."""
        owner = tensor if tensor._base is None else tensor._base  # A product keeps its weight transposed.
        if not isinstance(owner, nn.Parameter):
            self._keep_storage(memory_of(tensor))
        return tensor

    def _keep_storage(self, storage: torch.UntypedStorage) -> None:
        if self._calls and storage._cdata not in self._storages:
            self._storages.add(storage._cdata)
            module, before = self._calls[-1]
            self._calls[-1] = (module, before + storage.nbytes())

    def _note(self) -> None:
        if inside_backward():
            return
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(self._running[-1] if self._running else 0)
        self._fused.append(self.compiled.now())
