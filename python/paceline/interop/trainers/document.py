"""Takes the values out of a trainer's file: JSON, TOML, YAML, or a shell script with its variables. Runs nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline._internal.documents import ComplexityError, read_text, toml_of
from paceline._internal.units import shown
from paceline.errors import InvalidArgumentError
from paceline.interop.trainers.shell import arguments

Value = Any
"""A scalar, or a list."""
Values = dict[str, Value]
"""Values by the path of their keys: `zero_optimization.stage`. Options of a shell script: `--micro-batch-size`."""

LARGEST = 1 << 20
"""Bytes of a file. The longest configurations of trainers have some thousand lines."""
_MOST = 20_000
"""Values of a file, those of lists and of merged mappings included: YAML's aliases can multiply a few lines to
billions."""
_MOST_FILLED = 1 << 18
"""Characters that references to other fields may have, all in all."""
_DEEPEST = 32
_LONGEST_NUMBER = 20_000
"""Characters; longer ones are text. PyYAML reads base 60 (`1:30`) in time that grows with the square of the length."""
_LONGEST = 4096
"""Bits of an integer: Python prints those of up to 4,300 digits."""
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".args")
SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".conf", *SCRIPTS)
_OPTION = re.compile(r"(?<!\S)--[a-z]+[-_][a-z-]+")
TWICE = "(there twice)"
"""The field that lists those that a YAML file has twice."""
_LONGEST_DEFAULT = 1000
_OPEN = "???"
"""OmegaConf's value that is to be given."""
_PRODUCT = re.compile(r"\$\{multiply:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")
_OF_ENVIRONMENT = re.compile(r"\$\{[A-Z][A-Z0-9_]*:([^${}]*)\}")
"""A variable of the environment with its default: `${PRIMUS_TP:1}`."""
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\.*([A-Za-z_][\w.]*)\}")


def document(path: Path) -> Values:
    """Return the values of a file. Raises InvalidArgumentError, which names it and the line that is wrong."""
    text = read_text(path, LARGEST)
    kind = path.suffix.lower()
    if not text.strip():
        raise InvalidArgumentError(f"{path!s:.200}: is empty", remedy="a file with the fields of a trainer")
    try:
        if kind in SCRIPTS or (kind not in SUFFIXES and _OPTION.search(text)):
            return dict(arguments(text))
        return _resolved(dict(_flat(_parsed(text, kind), _Count())))
    except RecursionError:
        raise InvalidArgumentError(f"{path!s:.200}: is nested too deep", remedy="a flat file") from None
    except ValueError as error:
        reason = " ".join(str(error).split())
        remedy = _SIMPLER if isinstance(error, ComplexityError) else _CHECKED.get(kind, _YAML)
        raise InvalidArgumentError(f"{path!s:.200}: {reason:.300}", remedy=remedy) from None


def beside(path: Path, word: str) -> Path | None:
    """Return the file that a path names beside another one, in a folder above it, or where Paceline runs."""
    try:
        for folder in (path.parent, Path(), *list(path.resolve().parent.parents)[:4]):
            for one in (folder / word, folder / Path(word).name):
                if one.is_file():
                    return one
    except (OSError, ValueError):  # too long, or contains a NUL
        pass
    return None


_SIMPLER = "the fields that matter, without what repeats others"
_YAML = "a file that PyYAML reads"
_CHECKED = {
    ".json": "a file that python -m json.tool reads",
    ".toml": "a file that Python's tomllib reads",
    **dict.fromkeys(SCRIPTS, "the arguments themselves in the place of variables"),
}


def _parsed(text: str, kind: str) -> object:
    if kind not in (".json", ".toml"):
        return yaml_of(text)
    try:
        return json.loads(text, object_pairs_hook=_once) if kind == ".json" else toml_of(text)
    except ComplexityError:
        raise
    except ValueError as error:
        raise ValueError(f"is not {kind[1:].upper()}: {error}") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the mapping of an object's pairs. Raises ValueError for a name that it has twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"{_twice([name for name, _ in pairs]):.80} is there twice; keep one of them")
    return made


def _twice(names: list[str]) -> str:
    """Return the first of names that is there twice."""
    return next(name for name, count in Counter(names).items() if count > 1)


def yaml_of(text: str) -> object:
    """Return a YAML document; of a key that a mapping has twice, the last value, as PyYAML has it.

    Keys with two values are listed under `TWICE`. Raises ValueError with the line that is wrong.
    """
    import yaml

    twice: list[str] = []
    try:
        made = yaml.load(text, Loader=_yaml_loader(twice))
        return {**made, TWICE: list(dict.fromkeys(twice))} if twice and isinstance(made, dict) else made
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise ValueError(f"{where}{getattr(error, 'problem', None) or 'is not YAML'}") from None


def _yaml_loader(twice: list[str]) -> Any:  # noqa: ANN401 - a class of PyYAML's, which has no types
    """Return PyYAML's safe loader, which takes down keys that a mapping has twice and limits merged ones (`<<`)."""
    import yaml

    count = _Count()

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def flatten_mapping(self, node: Any) -> None:  # noqa: ANN401
            if hasattr(node, "is_flat"):
                return
            node.is_flat = True
            own = [(key.value, value) for key, value in node.value if isinstance(key.value, str)]
            last = dict(own)
            twice.extend(name for name, value in own if last[name].value != value.value and name != "<<")
            for key, merged in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    for one in merged.value if isinstance(merged, yaml.SequenceNode) else (merged,):
                        if isinstance(one, yaml.MappingNode):
                            self.flatten_mapping(one)
                            count.more(len(one.value), line=key.start_mark.line + 1)
            super().flatten_mapping(node)

        def number(self, node: Any) -> object:  # noqa: ANN401
            if len(node.value) > _LONGEST_NUMBER:
                return node.value
            return yaml.SafeLoader.yaml_constructors[node.tag](self, node)

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.number)
    return Loader


class _Count:
    """Counts what is read, so that a small file cannot become a large one."""

    def __init__(self) -> None:
        self.count = 0

    def more(self, values: int, depth: int = 0, line: int | None = None) -> None:
        """Count values. Raises ValueError if they are too many, or too deep."""
        self.count += values
        if self.count > _MOST or depth > _DEEPEST:
            where = "" if line is None else f"line {line}: "
            raise ComplexityError(f"{where}has more than {_MOST:,} values, or is nested more than {_DEEPEST} deep")


def _flat(value: object, count: _Count, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Value]]:
    count.more(1 + (len(value) if isinstance(value, list) else 0), depth)
    if isinstance(value, Mapping):
        for key, part in value.items():
            name = shown(key, lambda one: str(one)[:100])
            yield from _flat(part, count, f"{prefix}.{name}" if prefix else name, depth + 1)
    elif prefix:
        yield prefix, _plain(value)


def _plain(value: object) -> Value:
    """Return a scalar or a list of scalars; what is deeper becomes a word."""
    if isinstance(value, list):
        return [_scalar(one, "…") for one in value]
    return _scalar(value, str(value)[:40] if not isinstance(value, int) else "")


def _scalar(value: object, other: str) -> Value:
    """Return a scalar, or what stands for another value; of an integer that Python does not print, words."""
    if isinstance(value, int) and value.bit_length() > _LONGEST:
        return shown(value)
    return value if value is None or isinstance(value, bool | int | float | str) else other


def _resolved(values: Values) -> Values:
    """Return values in which references to others, `${model.hidden_size}`, are replaced once."""

    def looked_up(name: str, own: str) -> Value:
        if name in values:
            return values[name]
        beside = f"{own.rpartition('.')[0]}.{name}"
        return values.get(beside)

    resolved: Values = {}
    left = _MOST_FILLED
    for key, value in values.items():
        if not isinstance(value, str) or "${" not in value:
            resolved[key] = "$" if value == _OPEN else value
            continue
        match = _REFERENCE.fullmatch(value.strip())
        other = None if match is None else looked_up(match[1], key)
        if other is not None:
            resolved[key] = other
            continue
        pieces, place = list[str](), 0
        for one in _REFERENCE.finditer(value):
            filled = str(looked_up(one[1], key) or one[0])
            left -= len(filled)
            if left < 0:
                raise ComplexityError(
                    f"{key}: its references to other fields have more than {_MOST_FILLED:,} characters"
                )
            pieces += value[place : one.start()], filled
            place = one.end()
        resolved[key] = _default(_product("".join([*pieces, value[place:]])))
    return resolved


def _default(value: Value) -> Value:
    """Return text in which variables of the environment have their defaults, as the number or switch that it is."""
    if not isinstance(value, str) or _OF_ENVIRONMENT.search(value) is None:
        return value
    text = _OF_ENVIRONMENT.sub(r"\1", value)
    if len(text) > _LONGEST_DEFAULT:
        return text
    known: dict[str, Value] = {"true": True, "false": False, "null": None, "none": None}
    return known[text.lower()] if text.lower() in known else int(text) if re.fullmatch(r"[0-9]{1,18}", text) else text


def _product(text: str) -> Value:
    """Return the product that OmegaConf's `${multiply:4, 2048}` in NeMo's files stands for; other text as it is."""
    match = _PRODUCT.fullmatch(text.strip())
    return text if match is None else int(match[1]) * int(match[2])
