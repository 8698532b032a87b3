"""The order in which servers send tensors, changed by a word: an author's question to a trace."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from paceline._core import Distributed, Trace
from paceline._internal.documents import MB, read_json
from paceline._internal.nearest import alike
from paceline._internal.units import listed, shown
from paceline.errors import InvalidArgumentError

_LARGEST = 64 * MB


def ordered(trace: Trace, order: str) -> Trace:
    """Return the trace whose tensors servers send in another order.

    Args:
        trace: The trace.
        order: `recorded` for the trace's own; `forward` for the order in which the forward pass needs them, `reverse`
            for its opposite; `first:NAME` or `last:NAME` to move the tensors of that name (a part of it, or a pattern
            such as `fc?/*`); or a JSON file with a list of names, after which the others follow in their own order.

    Returns:
        The trace; times and sizes are the same.

    Raises:
        InvalidArgumentError: No tensor has the name, or the file is no list of the trace's tensors.
    """
    if order == "recorded":
        return trace
    entries = trace.distribution
    word, colon, name = order.partition(":")
    if colon and word in ("first", "last"):
        moved = _named(trace, name)
        own = [entry for entry in entries if entry.tensor in moved]
        others = [entry for entry in entries if entry.tensor not in moved]
        return trace.replace(distribution=[*own, *others] if word == "first" else [*others, *own])
    if order in ("forward", "reverse"):
        needed = dict.fromkeys(name for layer in trace.workers[0].forward for name in layer.tensors)
        names = list(needed) if order == "forward" else list(reversed(needed))
    else:
        names = _of_file(trace, Path(order))
    return trace.replace(distribution=_in_order(entries, names))


def _in_order(entries: list[Distributed], names: list[str]) -> list[Distributed]:
    places = {name: place for place, name in enumerate(names)}
    return sorted(entries, key=lambda entry: places.get(entry.tensor, len(places)))


def _named(trace: Trace, name: str) -> set[str]:
    known = [entry.tensor for entry in trace.distribution]
    pattern = name if any(sign in name for sign in "*?[") else f"*{name}*"
    moved = {tensor for tensor in known if fnmatchcase(tensor, pattern)}
    if not moved:
        near = alike(name, known)
        example = near[0] if near else known[0] if known else "conv1"
        raise InvalidArgumentError(f"{trace.name} has no tensor '{name:.80}'", remedy=f"{{this=last:{example}}}")
    return moved


def _of_file(trace: Trace, path: Path) -> list[str]:
    names = read_json(path, _LARGEST)
    example = '["conv1/weights", "conv1/biases"]'
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"{path!s:.200}: must be a list of tensors' names", remedy=f"{example} in the file")
    known = {entry.tensor for entry in trace.distribution}
    if unknown := [name for name in names if name not in known]:
        near = alike(unknown[0], sorted(known))
        meant = listed(near, "or") if near else "a name"
        raise InvalidArgumentError(
            f"{path!s:.200}: {trace.name} has no tensor '{shown(unknown[0])}'",
            remedy=f"{meant} (list: paceline list traces {trace.name} --export mine.json)",
        )
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InvalidArgumentError(f"{path!s:.200}: lists '{shown(twice)}' twice", remedy=f"'{shown(twice)}' once")
    return names
