"""What each module's operators cost, in the forward and in the backward pass."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from paceline.torch.recorder.backward import inside_backward
from paceline.torch.simulated.cost import Cost


@dataclass
class Totals:
    """Sums over operators."""

    operators: int = 0
    flops: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, cost: Cost) -> None:
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
class Account:
    """Attributes operators to the innermost module that runs, and backward operators to the module of their node.

    Autograd numbers nodes in the order in which forward operators make them, so the module that was running when a
    number was given out is known in the backward pass.
    """

    totals: dict[tuple[int, str], Totals] = field(default_factory=lambda: defaultdict(Totals))
    kinds: dict[tuple[str, str], Totals] = field(default_factory=lambda: defaultdict(Totals))
    steps: int = 0
    kept: tuple[tuple[int, int], ...] = ()
    """Modules in the order in which the last step called them, and the bytes that were kept for the backward pass from
    then until the next call; module 0 is what runs after the outermost one."""
    _begun: bool = False
    _running: list[int] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)
    _owners: list[int] = field(default_factory=list)
    _calls: list[tuple[int, int]] = field(default_factory=list)
    _storages: set[int] = field(default_factory=set)

    def attach(self) -> None:
        """Watch every module's calls."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)
        torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor).__enter__()

    def end_step(self) -> None:
        """Forget the numbers of a step that is over, and all of the first, which made the model and the optimizer."""
        if self._begun:
            self.steps += 1
        else:
            self._begun = True
            self.totals.clear()
            self.kinds.clear()
        self.kept = tuple(self._calls)
        self._calls.clear()
        self._storages.clear()
        self._running.clear()
        self._numbers.clear()
        self._owners.clear()

    def count(self, cost: Cost) -> None:
        """Count an operator that runs now."""
        phase, owner = "forward", self._running[-1] if self._running else 0
        if inside_backward():
            phase = "backward"
            node = torch._C._current_autograd_node()
            number = node._sequence_nr() if node is not None else -1
            index = bisect_right(self._numbers, number) - 1
            if not self._running and index >= 0:
                owner = self._owners[index]
        elif not torch.is_grad_enabled() and not self._running:
            phase = "other"
        self.totals[owner, phase].add(cost)
        self.kinds[cost.kind, phase].add(cost)

    def ignore(self, tensor: torch.Tensor) -> None:
        """Do not count a tensor as kept for the backward pass of this step."""
        self._storages.add(tensor.untyped_storage()._cdata)

    def by_module(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the means of each module itself, without the modules in it, in the model's order."""
        names = {id(module): path for path, module in model.named_modules()}
        rows = []
        for key, path in [*names.items(), (0, "(outside)")]:
            mine: Mapping[str, Totals] = {
                phase: self.totals[key, phase]
                for phase in ("forward", "backward", "other")
                if (key, phase) in self.totals
            }
            if mine:
                steps = max(1, self.steps)
                rows.append({"module": path, **{phase: totals.per_step(steps) for phase, totals in mine.items()}})
        return rows

    def _enter(self, module: nn.Module, _args: object) -> None:
        self._running.append(id(module))
        if not inside_backward():
            self._calls.append((id(module), 0))
        self._note()

    def _leave(self, module: nn.Module, _args: object, _output: object) -> None:
        if self._running and self._running[-1] == id(module):
            self._running.pop()
        if not self._running and not inside_backward():
            self._calls.append((0, 0))
        self._note()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count what autograd saves, each storage once; parameters are there anyway."""
        storage = tensor.untyped_storage()
        owner = tensor if tensor._base is None else tensor._base  # A product keeps its weight transposed.
        if self._calls and not isinstance(owner, nn.Parameter) and storage._cdata not in self._storages:
            self._storages.add(storage._cdata)
            module, before = self._calls[-1]
            self._calls[-1] = (module, before + storage.nbytes())
        return tensor

    def _note(self) -> None:
        if inside_backward():
            return
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(self._running[-1] if self._running else 0)
