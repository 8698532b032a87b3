"""The optimizers that servers run: torch's own, with options that travel as plain numbers.

Options that may change from step to step, such as the learning rate, travel with each gradient. The others are sent
once. Everything else of an optimizer, its code included, stays with the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """One of torch's optimizers."""

    name: str
    """Its class in `torch.optim`."""
    numbers: tuple[str, ...]
    """Options that may change; `betas.0` is the first of a pair."""
    flags: tuple[str, ...]
    """Options that do not."""

    def numbers_of(self, options: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the numbers of a parameter group. Raises InvalidArgumentError for one that is none."""
        return tuple(_number(options, name) for name in self.numbers)

    def flags_of(self, options: Mapping[str, Any]) -> dict[str, bool]:
        """Return the flags of a parameter group."""
        return {name: bool(options.get(name, False)) for name in self.flags if name in options}

    def make(self, parameter: Tensor, flags: Mapping[str, bool]) -> torch.optim.Optimizer:
        """Return an optimizer of one tensor, on a server. Raises ValueError for unknown flags."""
        import torch

        unknown = sorted(set(flags) - set(self.flags))
        if unknown:
            raise ValueError(f"{self.name} has no flag {unknown[0]}")
        options: dict[str, Any] = {"lr": 1.0, "foreach": False}
        if flags.get("nesterov"):
            options["momentum"] = 0.5  # Nesterov's is checked to have some.
        made: torch.optim.Optimizer = getattr(torch.optim, self.name)([parameter], **options)
        made.param_groups[0].update(flags)
        return made

    def set(self, options: dict[str, Any], numbers: Sequence[float]) -> None:
        """Set the numbers of a parameter group."""
        for name, number in zip(self.numbers, numbers, strict=False):
            key, _, place = name.partition(".")
            if not place:
                options[key] = number
            elif place == "0":
                options[key] = (number, options[key][1])
            else:
                options[key] = (options[key][0], number)


_ADAM = (("lr", "betas.0", "betas.1", "eps", "weight_decay"), ("amsgrad", "maximize", "decoupled_weight_decay"))
RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("SGD", ("lr", "momentum", "dampening", "weight_decay"), ("nesterov", "maximize")),
        Rule("Adam", *_ADAM),
        Rule("AdamW", *_ADAM),
        Rule("Adagrad", ("lr", "lr_decay", "weight_decay", "eps"), ("maximize",)),
        Rule("RMSprop", ("lr", "alpha", "eps", "weight_decay", "momentum"), ("centered", "maximize")),
    )
}
"""By the name of the class in `torch.optim`."""
_UNSUPPORTED = ("differentiable", "capturable", "fused")
"""Options with other arithmetic, or for a device."""


def prepare() -> None:
    """Import what the first step of an optimizer needs, which takes seconds."""
    import torch

    parameter = torch.zeros(1)
    parameter.grad = torch.zeros(1)
    for rule in RULES.values():
        rule.make(parameter, {}).step()


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """Return the rule of an optimizer. Raises InvalidArgumentError if servers cannot run it."""
    import torch

    kind = type(optimizer)
    rule = RULES.get(kind.__name__)
    if rule is None or kind is not getattr(torch.optim, rule.name):
        raise InvalidArgumentError(
            f"async-ps: servers cannot run the optimizer {kind.__module__}.{kind.__qualname__}",
            remedy=f"torch.optim.{', '.join(RULES)}, or {{strategy=ps}}",
        )
    for options in optimizer.param_groups:
        for name in _UNSUPPORTED:
            if options.get(name):
                raise InvalidArgumentError(
                    f"async-ps: {rule.name} with {name}=True runs only where the gradients are",
                    remedy=f"drop {name}, or {{strategy=ps}}",
                )
        if rule.name == "Adagrad" and options.get("initial_accumulator_value"):
            raise InvalidArgumentError(
                "async-ps: Adagrad starts from zero on the servers", remedy="drop initial_accumulator_value"
            )
        rule.numbers_of(options)
    return rule


def _number(options: Mapping[str, Any], name: str) -> float:
    key, _, place = name.partition(".")
    if key not in options:
        raise InvalidArgumentError(
            f"async-ps: the optimizer's options have no {key}",
            remedy="load_state_dict of an optimizer of the same class",
        )
    value = options[key][int(place)] if place else options[key]
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"async-ps: {key} is {value!r:.80}, not a number", remedy=f"{key}=0.1") from None
