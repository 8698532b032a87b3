"""Pull by layer: `step` waits for nothing; each layer's sums are awaited when its next forward pass needs them.

As the publications on parameter servers describe it, and as `paceline simulate --pull layer` forecasts it. The
optimizer is then applied to that layer's parameters alone, with the options (learning rate, ...) that it had at `step`.

A layer is a module that owns parameters. What uses a parameter outside of its module's forward pass would see it as it
was one step before: backward finds that out and raises. So would a reader of `parameter.data`: call
`optimizer.synchronize()` first. `state_dict` of module and optimizer do so by themselves.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from paceline.torch.hvd.gradients import Flight, Gradients

Options = dict[str, Any]


@dataclass(slots=True)
class _Late:
    """A parameter whose step is still to be made."""

    flights: list[Flight]
    options: Options
    """Of its group, without parameters."""


class LayerPull:
    """The parameters of an optimizer that are behind, and how they catch up."""

    def __init__(self, gradients: Gradients, apply: Callable[[Tensor, Options], None]) -> None:
        """`apply` makes the optimizer's step for one parameter, by its gradient."""
        self._gradients, self._apply = gradients, apply
        self._late: dict[Tensor, _Late] = {}
        self._met: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        mine = weakref.ref(self)

        def forward(module: nn.Module, _inputs: Any) -> None:  # noqa: ANN401 - whatever the module takes
            pull = mine()
            if pull is None:
                hook.remove()  # the optimizer is gone
            elif module in pull._met:
                pull._catch_up(module)
            else:
                pull._meet(module)

        hook = register_module_forward_pre_hook(forward)
        gradients.refuse(self._refuse)

    def begin(self, groups: Iterable[Options]) -> None:
        """In place of the optimizer's step: gradients go out, and what comes back is applied later."""
        watched = [
            (parameter, {name: value for name, value in group.items() if name != "params"})
            for group in groups
            for parameter in group["params"]
            if self._gradients.takes_part(parameter)
        ]
        flights = self._gradients.release([parameter for parameter, _ in watched])
        for parameter, options in watched:
            self._late[parameter] = _Late(flights[parameter], options)

    def finish(self) -> None:
        """All parameters catch up."""
        for parameter in list(self._late):
            self._finish(parameter)

    def _meet(self, module: nn.Module) -> None:
        """A module is called for the first time: what is written of it to a checkpoint is not to be a step behind."""
        self._met.add(module)
        mine = weakref.ref(self)

        def before(*_: Any) -> None:  # noqa: ANN401 - torch passes module, prefix and whether variables are kept
            pull = mine()
            if pull is not None:
                pull.finish()

        if module._parameters:
            module.register_state_dict_pre_hook(before)  # type: ignore[no-untyped-call]
        self._catch_up(module)

    def _catch_up(self, module: nn.Module) -> None:
        if not self._late:
            return
        for parameter in module._parameters.values():
            if parameter is not None and parameter in self._late:
                self._finish(parameter)

    def _finish(self, parameter: Tensor) -> None:
        late = self._late.pop(parameter)
        now = parameter.grad
        try:
            for flight in late.flights:
                self._gradients.settle(flight)
            parameter.grad = self._gradients.reduced(parameter, late.flights)
            self._apply(parameter, late.options)
        finally:
            parameter.grad = now

    def _refuse(self, parameter: Tensor, name: str) -> None:
        if parameter in self._late:
            raise RuntimeError(
                f"'{name}' was used before it was pulled: outside of the forward pass of the module that owns it. Call "
                "that module, or optimizer.synchronize() before; or take --pull step"
            )
