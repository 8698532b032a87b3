"""The values that a shell completes: names of what is built in, for options and arguments.

Each is found when the tab key is pressed, so nothing here imports more than that needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _strategies() -> Iterable[str]:
    from paceline.catalog.strategies import all_strategies

    return [strategy.name for strategy in all_strategies()]


def _libraries() -> Iterable[str]:
    from paceline.catalog.libraries import library_names

    return library_names()


def _clusters() -> Iterable[str]:
    from paceline.catalog.builtin_names import cluster_names

    return cluster_names()


def _gpus() -> Iterable[str]:
    from paceline.catalog.gpus import all_hardware

    return [hardware.name for hardware in all_hardware()]


def _devices() -> Iterable[str]:
    from paceline.catalog.rates import all_rates

    return dict.fromkeys(rate.device for rate in all_rates())


def _models() -> Iterable[str]:
    from paceline.catalog.models.config import built_in_configs

    return built_in_configs()


def _traces() -> Iterable[str]:
    from paceline.catalog.builtin_names import trace_names

    return trace_names()


def _coordinators() -> Iterable[str]:
    from paceline.catalog.strategies import all_coordinators

    return [coordinator.name for coordinator in all_coordinators()]


def _networks() -> Iterable[str]:
    from paceline.forecast.coordinator_model.networks import networks

    return networks()


def _shardings() -> Iterable[str]:
    from paceline.settings.kinds import SHARDINGS

    return [*SHARDINGS, "fsdp"]


def _compressions() -> Iterable[str]:
    return ["none", "fp16", "bf16", "int8", "powersgd:", "topk:"]


def _forecast() -> Iterable[str]:
    return [*_traces(), *_models()]


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "strategy": _strategies,
    "library": _libraries,
    "cluster": _clusters,
    "gpu": _gpus,
    "on": _gpus,
    "device": _devices,
    "model": _models,
    "trace": _forecast,
    "traces": _forecast,
    "coordinator": _coordinators,
    "coordinator_constants": _networks,
    "sharding": _shardings,
    "compression": _compressions,
}
"""By the name of an option or an argument."""
_OF_COMMAND: dict[str, Callable[[], Iterable[str]]] = {
    "traces": _traces,
    "models": _models,
    "gpus": _gpus,
    "clusters": _clusters,
    "libraries": _libraries,
    "explore": _forecast,
    "report": _forecast,
}
"""What the argument of a command is."""


Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
"""What click calls for the values of an option or an argument."""


def completed(names: Callable[[], Iterable[str]]) -> Complete:
    """Return what completes an option or an argument with these names, which are asked for when the key is pressed."""

    def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return _items([*_alternatives(param), *names()], f"{before}{comma}", last, param)

    return complete_names


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names that begin like the last item of an incomplete list; a file, if there is none."""
    before, comma, last = incomplete.rpartition(",")
    model, at, gpu = last.rpartition("@")
    if at and param.name in ("trace", "traces"):
        names, before, last = list(_gpus()), f"{before}{comma}{model}@", gpu
    else:
        names, before = [*_alternatives(param), *_known(ctx, param)], f"{before}{comma}"
    return _items(names, before, last, param)


def _items(names: Iterable[str], before: str, last: str, param: click.Parameter) -> list[CompletionItem]:
    """Return what may follow `before`: the names that begin with `last`, or else a file."""
    from click.shell_completion import CompletionItem

    given = before.split(",")
    items = [
        CompletionItem(before + name) for name in dict.fromkeys(names) if name.startswith(last) and name not in given
    ]
    return items or ([CompletionItem(before + last, type="file")] if _may_be_a_file(param) else [])


def _known(ctx: click.Context, param: click.Parameter) -> Iterable[str]:
    name = param.name or ""
    if isinstance(param, click.Argument) and ctx.command.name in _OF_COMMAND:
        return _OF_COMMAND[ctx.command.name]()
    return _NAMES[name]() if name in _NAMES else ()


def _alternatives(param: click.Parameter) -> list[str]:
    """Return the words of a placeholder such as `none|SIZE,…` that stand for themselves."""
    words = param.type.name.removesuffix(",…").split("|")
    return [word for word in words if word.islower() and word.isidentifier()] if len(words) > 1 else []


def _may_be_a_file(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument) or "FILE" in param.type.name
