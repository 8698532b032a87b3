"""The values that a shell completes: names of what is built in, for options and arguments.

Each is found when the tab key is pressed, so nothing here imports more than that needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from paceline.settings.table import Setting


def _strategies() -> Iterable[str]:
    from paceline.catalog.strategies import registered_strategies

    return [strategy.name for strategy in registered_strategies()]


def _libraries() -> Iterable[str]:
    from paceline.catalog.libraries import library_names

    return library_names()


def _instances() -> Iterable[str]:
    from paceline.catalog.instances import instance_names

    return instance_names()


def _clusters() -> Iterable[str]:
    from paceline.catalog.builtin_names import cluster_names

    return cluster_names()


def _gpus() -> Iterable[str]:
    from paceline.catalog.gpus import all_hardware

    return [hardware.name for hardware in all_hardware()]


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
    return ["none", "fp16", "bf16", "int8", "powersgd:4", "topk:0.01"]


def _forecast() -> Iterable[str]:
    from paceline.catalog.builtin_names import COLLECTIVES

    return [*_traces(), *_models(), *(f"{collective}:1GB" for collective in COLLECTIVES)]


def _recorded_or_model() -> Iterable[str]:
    return [*_traces(), *_models()]


def _orders() -> Iterable[str]:
    from paceline.settings.kinds import ORDERS_BY_NAME

    return ORDERS_BY_NAME


def _interfaces() -> Iterable[str]:
    import socket

    return [name for _, name in socket.if_nameindex()]


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "strategy": lambda: [*_strategies(), "all"],
    "library": _libraries,
    "cluster": _clusters,
    "gpu": _gpus,
    "on": _gpus,
    "model": _models,
    "trace": _recorded_or_model,
    "traces": _forecast,
    "workload": _forecast,
    "coordinator": lambda: [*_coordinators(), "all", "none"],
    "coordinator_constants": _networks,
    "sharding": _shardings,
    "compression": _compressions,
    "send_order": _orders,
    "baseline": _strategies,
    "interface": _interfaces,
}
"""By the name of an option or an argument. What a command does not accept is left out."""
_OF_COMMAND: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
    ("traces", "name"): _traces,
    ("models", "name"): _models,
    ("gpus", "name"): _gpus,
    ("clusters", "name"): _clusters,
    ("instances", "name"): _instances,
    ("libraries", "name"): lambda: [*_libraries(), "channels"],
    ("advise", "workload"): _models,
    ("report", "spec"): _recorded_or_model,
    ("validate", "trace"): _traces,
    ("bench", "model"): lambda: ["resnet18", "resnet50", "vgg16", "mlp", "cnn"],
    ("record", "model"): lambda: ["resnet18", "resnet50", "vgg16"],
}
"""By the command and the name, where it is another thing than elsewhere."""
_ENDINGS = (".json", ".json.gz", ".toml", ".yaml", ".yml", ".sh")
"""Of the files that are listed beside names."""


Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
"""The callback of click for the values of an option or an argument."""


def completed(names: Callable[[], Iterable[str]]) -> Complete:
    """Return what completes an option or an argument with these names, which are asked for when the key is pressed."""

    def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return _items([*_alternatives(param), *names()], f"{before}{comma}", last, param)

    return complete_names


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names that begin like the last item of an incomplete list, and files where there may be one."""
    before, comma, last = incomplete.rpartition(",")
    model, at, gpu = last.rpartition("@")
    if at and param.name in ("trace", "traces", "model", "workload"):
        names, before, last = list(_gpus()), f"{before}{comma}{model}@", gpu
    else:
        several = not comma or _takes_several(ctx, param)
        names, before = [*_alternatives(param), *_known(ctx, param)] if several else [], f"{before}{comma}"
    return _items(names, before, last, param)


def _items(names: Iterable[str], before: str, last: str, param: click.Parameter) -> list[CompletionItem]:
    """Return what may follow `before`: the names and files that begin with `last`, or else any path."""
    from click.shell_completion import CompletionItem

    given, may_be_a_file = before.split(","), _may_be_a_file(param)
    fitting = [name for name in dict.fromkeys(names) if name.startswith(last) and name not in given]
    if fitting and may_be_a_file:
        fitting += _files(last)
    items = [CompletionItem(before + name) for name in fitting]
    return items or ([CompletionItem(before + last, type="file")] if may_be_a_file else [])


def _files(begin: str) -> list[str]:
    """Return the files that begin so, of the kinds that Paceline reads."""
    import os

    folder, _, _ = begin.rpartition("/")
    try:
        names = sorted(os.listdir(folder or "."))  # noqa: PTH208 - `begin` may lead out of a folder
    except OSError:
        return []
    paths = [f"{folder}/{name}" if folder else name for name in names]
    return [path for path in paths if path.startswith(begin) and path.endswith(_ENDINGS)]


def _known(ctx: click.Context, param: click.Parameter) -> Iterable[str]:
    name = param.name or ""
    names = _OF_COMMAND.get((ctx.command.name or "", name)) or _NAMES.get(name)
    return [word for word in names() if _accepts(ctx, name, word)] if names is not None else ()


def _accepts(ctx: click.Context, name: str, word: str) -> bool:
    """Return whether the setting of this command takes a word."""
    from paceline.errors import InvalidArgumentError

    setting, place = _setting(ctx, name)
    try:
        if setting is not None:
            setting.check(word, place=place)
    except InvalidArgumentError:
        return False
    return True


def _takes_several(ctx: click.Context, param: click.Parameter) -> bool:
    """Return whether another name may follow a comma: `strategy=ps,servers=1` is one baseline."""
    setting, place = _setting(ctx, param.name or "")
    return setting is None or setting.kind_of(place).is_list


def _setting(ctx: click.Context, name: str) -> tuple[Setting | None, str]:
    """Return the setting of an option, None if it has none, and the command as the table of settings calls it."""
    from paceline.settings.table import SETTINGS

    place = " ".join(ctx.command_path.split()[1:])
    setting = SETTINGS.get(name)
    return (setting if setting is not None and place in setting.uses else None), place


def _alternatives(param: click.Parameter) -> list[str]:
    """Return the words of `none|SIZE,…` that stand for themselves."""
    words = param.type.name.removesuffix(",…").split("|")
    return [word for word in words if word.islower() and word.replace("-", "").isidentifier()] if len(words) > 1 else []


def _may_be_a_file(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument) or "FILE" in param.type.name
