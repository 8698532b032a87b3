"""Takes the values out of a trainer's file.

YAML is read as far as trainers write it (mappings in blocks and in braces, scalars; no lists), since no YAML library is
among the dependencies and only an error's advice depends on it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping

Value = str | int | float | bool | None
Values = dict[str, Value]
"""Values by the path of their keys: `zero_optimization.stage`. Options of a shell script: `--micro-batch-size`."""

_ENTRY = re.compile(r"^(\s*)(?:- )?([A-Za-z_][\w.-]*)\s*:(?:\s+(.*?))?\s*$")
_COMMENT = re.compile(r"\s+#.*$")
_FLAG = re.compile(r"(?<!\S)(--?[A-Za-z][\w-]*)(?:[= ]\s*(?!-)([^\s\\();]+))?")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s()]+)\s*$", re.MULTILINE)


def values(text: str) -> Values:
    """Return the values of a file. Raises ValueError for a document that is none, RecursionError if nested too deep."""
    if re.search(r"(?<!\S)--[a-z]+-[a-z-]+", text) and not text.lstrip().startswith("{"):
        return dict(_shell(text))
    try:
        return dict(_flat(json.loads(text)))
    except ValueError:
        pass
    try:
        return dict(_flat(tomllib.loads(text)))
    except tomllib.TOMLDecodeError:
        return dict(_yaml(text))


def _flat(document: object, prefix: str = "") -> Iterator[tuple[str, Value]]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix and (document is None or isinstance(document, str | int | float)):
        yield prefix, document


def _shell(text: str) -> Iterator[tuple[str, Value]]:
    assigned = {name: value.strip("\"'") for name, value in _ASSIGNED.findall(text)}
    text = re.sub(r"\$\{?(\w+)\}?", lambda name: assigned.get(name[1], name[0]), text.replace("\\\n", " "))
    for name, value in _FLAG.findall(re.sub(r"(?m)^\s*#.*$", "", text)):
        yield f"--{name.lstrip('-').replace('_', '-')}", _scalar(value) if value else True


def _yaml(text: str) -> Iterator[tuple[str, Value]]:
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        entry = _ENTRY.match(_COMMENT.sub("", line))
        if entry is None or line.lstrip().startswith("#"):
            continue
        indent = len(entry[1])
        while path and path[-1][0] >= indent:
            path.pop()
        path.append((indent, entry[2]))
        name, value = ".".join(key for _, key in path), entry[3] or ""
        if value.startswith("{"):
            yield from _braces(name, value)
        elif value:
            yield name, _scalar(value)


def _braces(name: str, text: str) -> Iterator[tuple[str, Value]]:
    for part in re.split(r",(?![^{]*\})", text.strip().removeprefix("{").removesuffix("}")):
        key, colon, value = part.partition(":")
        if colon and value.strip().startswith("{"):
            yield from _braces(f"{name}.{key.strip()}", value)
        elif colon:
            yield f"{name}.{key.strip()}", _scalar(value.strip())


def _scalar(text: str) -> Value:
    plain = text.strip("\"'")
    if plain.lower() in ("true", "yes", "on"):
        return True
    if plain.lower() in ("false", "no", "off"):
        return False
    for kind in (int, float):
        try:
            return kind(plain.replace("_", "") if plain.replace("_", "").isdigit() else plain)
        except ValueError:
            continue
    return None if plain in ("null", "~", "None") else plain
