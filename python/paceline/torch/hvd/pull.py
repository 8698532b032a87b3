"""Pull by layer: `step` does not wait; each layer waits for its sums when its next forward pass needs them.

This follows the publications on parameter servers, and is what `paceline simulate --pull layer` forecasts. The
optimizer is then applied to that layer's parameters only, with the options (learning rate, ...) that it had at `step`.

A layer is a module that owns parameters. Code that uses a parameter outside its module's forward pass would see the
values of the previous step: backward detects this and raises an error. Reading `parameter.data` has the same problem:
call `optimizer.synchronize()` first. Functions that read or replace whole models do so themselves: `state_dict` and
`load_state_dict` of module and optimizer, `copy.deepcopy` and `pickle`. A parameter that was changed in place before it
was pulled raises an error, unless it was changed through `.data`, which torch does not count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from paceline.torch.hvd.gradients import Gradients, PendingGradient

Options = dict[str, Any]


@dataclass(slots=True)
class _Late:
    """A parameter whose step is still pending."""

    flights: list[PendingGradient]
    options: Options
    """Options of its group, without parameters."""
    version: int
    """torch's version counter of the parameter at `step`."""


_COPIES = ("__deepcopy__", "__reduce_ex__")
"""The methods by which Python copies and pickles."""


def _settles_when_copied(parameter: Tensor, pull: LayerPull) -> None:
    """Make copies of the parameter wait until it has caught up."""
    mine, itself = weakref.ref(pull), weakref.ref(parameter)

    def after(method: str) -> Callable[[Any], Any]:
        def call(argument: Any) -> Any:  # noqa: ANN401 - whatever Python passes
            pull, parameter = mine(), itself()
            if pull is not None:
                pull.finish()
            return getattr(type(parameter), method)(parameter, argument)

        return call

    for name in _COPIES:
        parameter.__dict__[name] = after(name)


class _Settle:
    """A hook on a module's `state_dict` and `load_state_dict`: all parameters catch up first.

    Copies of it do nothing.
    """

    def __init__(self, pull: LayerPull | None) -> None:
        self._pull = weakref.ref(pull) if pull is not None else None

    def __call__(self, *_: Any) -> None:  # noqa: ANN401 - torch passes what it reads or loads
        pull = self._pull() if self._pull is not None else None
        if pull is not None:
            pull.finish()

    def __reduce__(self) -> tuple[type[_Settle], tuple[None]]:
        return _Settle, (None,)


class LayerPull:
    """The parameters of an optimizer that are behind, and how they catch up."""

    def __init__(self, gradients: Gradients, apply: Callable[[Tensor, Options], None]) -> None:
        """`apply` runs the optimizer's step for one parameter, with its gradient."""
        self._gradients, self._apply = gradients, apply
        self._late: dict[Tensor, _Late] = {}
        self._met: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        mine = weakref.ref(self)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def forward(module: nn.Module, _inputs: Any) -> None:  # noqa: ANN401 - whatever the module takes
            pull = mine()
            if pull is None:
                hook.remove()  # The optimizer is gone.
            elif module in pull._met:
                pull._catch_up(module)
            else:
                pull._meet(module)

        hook = register_module_forward_pre_hook(forward)
        gradients.refuse(self._refuse)

    def begin(self, groups: Iterable[Options]) -> None:
        """Send the gradients instead of running the optimizer's step; the sums are applied later."""
        watched = [
            (parameter, {name: value for name, value in group.items() if name != "params"})
            for group in groups
            for parameter in group["params"]
            if self._gradients.takes_part(parameter)
        ]
        flights = self._gradients.release([parameter for parameter, _ in watched])
        for parameter, options in watched:
            self._late[parameter] = _Late(flights[parameter], options, parameter._version)
            _settles_when_copied(parameter, self)

    def finish(self) -> None:
        """Let all parameters catch up."""
        for parameter in list(self._late):
            self._finish(parameter)

    def forget(self) -> None:
        """Drop operations in flight, which will not finish: parameters stay behind."""
        for parameter in self._late:
            for name in _COPIES:
                parameter.__dict__.pop(name, None)
        self._late.clear()

    def _meet(self, module: nn.Module) -> None:
        """Install hooks in a module at its first call, so that its checkpoints are not a step behind."""
        self._met.add(module)
        if module._parameters:
            settle = _Settle(self)
            module.register_state_dict_pre_hook(settle)  # type: ignore[no-untyped-call]
            module._register_load_state_dict_pre_hook(settle)  # type: ignore[no-untyped-call]
        self._catch_up(module)

    def _catch_up(self, module: nn.Module) -> None:
        if not self._late:
            return
        for parameter in module._parameters.values():
            if parameter is not None and parameter in self._late:
                self._finish(parameter)

    def _finish(self, parameter: Tensor) -> None:
        late = self._late.pop(parameter)
        for name in _COPIES:
            parameter.__dict__.pop(name, None)
        if parameter._version != late.version:
            raise RuntimeError(
                f"'{self._gradients.name(parameter)}' was changed after step() and before it was pulled, by its next "
                "forward pass; call optimizer.synchronize() before changing it, or use --pull step"
            )
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
                f"'{name}' was used before it was pulled: outside the forward pass of the module that owns it. Call "
                "that module, or optimizer.synchronize() before; or use --pull step"
            )
