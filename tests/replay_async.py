"""A sequential replay of asynchronous training: the oracle of its weights.

From the recorded order it computes, without servers, every gradient on the parameters that its worker had pulled, and
applies it by torch's own optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Entry = Mapping[str, Any]
"""One gradient that was applied: tensor, worker, iteration, version, pulled."""


def replay(
    order: Sequence[Sequence[Entry]],
    model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, int, int], Tensor],
    optimizer: Callable[[nn.Module], tuple[torch.optim.Optimizer, Any]],
) -> dict[str, Tensor]:
    """Return the final parameters.

    Args:
        order: By server, the entries in order; servers have different tensors.
        model: Creates the net with its first parameters.
        loss: Of a net, a worker and an iteration.
        optimizer: Of a net; and a function from an optimizer to its schedule, or None.
    """
    net = model()
    names = dict(net.named_parameters())
    inner, _ = optimizer(net)
    group_of = {id(tensor): group for group in inner.param_groups for tensor in group["params"]}
    rates = learning_rates(model, optimizer, 1 + max(entry["iteration"] for one in order for entry in one))
    tensors: dict[str, list[Entry]] = {}
    for server in order:
        for entry in server:
            tensors.setdefault(entry["tensor"], []).append(entry)
    history = {name: [value.detach().clone()] for name, value in names.items()}
    pulled = {(e["worker"], e["iteration"], e["tensor"]): e["pulled"] for one in order for e in one}
    single = {}
    for name, value in names.items():
        own = ("params", "initial_lr", "decoupled_weight_decay")
        options = {key: it for key, it in group_of[id(value)].items() if key not in own}
        single[name] = type(inner)([value.detach().clone()], **options)
    gradients: dict[tuple[int, int], dict[str, Tensor]] = {}

    def gradient(worker: int, iteration: int) -> dict[str, Tensor] | None:
        if (worker, iteration) not in gradients:
            versions = {name: pulled[worker, iteration, name] for name in names}
            if any(version >= len(history[name]) for name, version in versions.items()):
                return None
            with torch.no_grad():
                for name, version in versions.items():
                    names[name].copy_(history[name][version])
            net.zero_grad()
            loss(net, worker, iteration).backward()
            gradients[worker, iteration] = {name: value.grad.clone() for name, value in names.items()}
        return gradients[worker, iteration]

    progress = True
    while progress:
        progress = False
        for name, entries in tensors.items():
            while len(history[name]) <= len(entries):
                entry = entries[len(history[name]) - 1]
                assert entry["version"] == len(history[name]) - 1, "each application is the next version"
                result = gradient(entry["worker"], entry["iteration"])
                if result is None:
                    break
                [group] = single[name].param_groups
                group["lr"] = rates[entry["iteration"]][id_of(inner, names[name])]
                [parameter] = group["params"]
                parameter.grad = result[name]
                single[name].step()
                history[name].append(parameter.detach().clone())
                progress = True
    assert all(len(history[name]) == 1 + len(entries) for name, entries in tensors.items()), "the order has a circle"
    return {name: versions[-1] for name, versions in history.items()}


def id_of(optimizer: torch.optim.Optimizer, tensor: Tensor) -> int:
    """Return the number of a tensor's group."""
    return next(at for at, group in enumerate(optimizer.param_groups) if any(it is tensor for it in group["params"]))


def learning_rates(model: Any, optimizer: Any, iterations: int) -> list[list[float]]:
    """Return the learning rate by iteration and group, as a worker has it."""
    inner, scheduled = optimizer(model())
    schedule = scheduled(inner) if scheduled else None
    rates = []
    for _ in range(iterations):
        rates.append([group["lr"] for group in inner.param_groups])
        inner.step()
        if schedule is not None:
            schedule.step()
    return rates
