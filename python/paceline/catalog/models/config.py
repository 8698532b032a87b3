"""Configurations of models in the format of Hugging Face's config.json: built in, or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline._internal.documents import read_json, read_small
from paceline.catalog.constants import is_number, read_document
from paceline.errors import InvalidArgumentError

_TABLE = Path(__file__).parent.parent / "models.json"
_MOST = 2**31
"""Of any whole number in a configuration."""
MOST_LAYERS = 2_000
"""Of an encoder or a decoder: ten times what published models have. A forecast takes time and memory for each."""
_LARGEST_FILE = 10_000_000
_NO_SIZES = ("position", "token", "length", "vocab", "theta", "window", "factor")
"""Words in names of fields that may have large numbers and are no sizes of layers."""


@dataclass(frozen=True, eq=False)
class Config:
    """Fields of a configuration, read with checks: a missing or wrong one is an error that names file and field."""

    name: str
    where: str
    """The file, for messages."""
    fields: Mapping[str, Any]
    source: str = ""
    parameters: int | None = None
    """As published; None for a user's own."""
    prefix: str = ""
    hub: tuple[str, ...] = ()
    """The names of models of this shape on Hugging Face's hub."""
    notes: tuple[str, ...] = ()
    """Assumptions by which a name stands for it."""
    called: str = ""
    """The name by which it was asked for, if its sizes are those of another one."""
    reads: set[str] = field(default_factory=set, repr=False)
    """Names of the fields that were read; those of parts of it, too."""

    @property
    def kind(self) -> str:
        """The `model_type`, or the class of a model of diffusers."""
        name = self.fields.get("model_type", self.fields.get("_class_name"))
        if not (isinstance(name, str) and name):
            raise self.wrong("model_type", "is missing", remedy='the family, such as "llama"')
        return name

    def wrong(self, field: str, problem: str, *, remedy: str = "") -> InvalidArgumentError:
        """Return an error about a field; the default remedy is its value in the file that the authors publish."""
        return InvalidArgumentError(
            f"{self.where}: {self.prefix}{field}: {problem}",
            remedy=remedy or f'"{field}" as in the published config.json',
        )

    def largest_size(self) -> str:
        """Return the file, the field with the largest size of a layer, and that size; the file if there is none."""
        sizes = {
            field: value
            for field, value in self.fields.items()
            if type(value) is int and not any(word in field for word in _NO_SIZES)
        }
        field = max(sizes, key=lambda name: sizes[name], default=None)
        return self.where if field is None else f"{self.where}: {self.prefix}{field}: {sizes[field]}"

    def get(self, field: str) -> Any:  # noqa: ANN401 - of JSON
        """Return the value of a field as it is; None if it is missing."""
        self.reads.add(field)
        return self.fields.get(field)

    def has(self, field: str) -> bool:
        """Whether it has a field."""
        self.reads.add(field)
        return field in self.fields

    def whole(self, field: str, default: int | None = None, most: int = _MOST) -> int:
        """Return a whole number; `null` counts as missing. A number without default is at least 1."""
        value = self.get(field)
        if value is None:
            if default is None:
                raise self.wrong(field, f"is missing, and a {self.fields.get('model_type', 'model')} needs it")
            return default
        least = 0 if default == 0 else 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(field, f"must be a whole number, {least}-{most}, not {as_json(value)}")
        return value

    def wholes(self, field: str, end: int) -> list[int]:
        """Return whole numbers that grow, above 0 and below `end`; none if the field is missing."""
        items = self.get(field) or []
        if not (
            isinstance(items, list)
            and all(isinstance(one, int) and not isinstance(one, bool) for one in items)
            and len(items) < 16
            and all(one < other for one, other in zip([0, *items], [*items, end], strict=True))
        ):
            raise self.wrong(field, f"must be growing whole numbers, 0-{end}, not {as_json(items)}")
        return items

    def members(self, field: str, end: int) -> frozenset[int]:
        """Return whole numbers below `end`, in any order; none if the field is missing."""
        items = [] if self.get(field) is None else self.fields[field]
        if not (isinstance(items, list) and all(type(one) is int and 0 <= one < end for one in items)):
            raise self.wrong(field, f"must be whole numbers, 0-{end - 1}, not {as_json(items)}")
        return frozenset(items)

    def texts(self, field: str, known: tuple[str, ...], count: int) -> list[str]:
        """Return so many words that are known; none if the field is missing."""
        items = [] if self.get(field) is None else self.fields[field]
        if not (isinstance(items, list) and len(items) in (0, count)):
            raise self.wrong(field, f"{as_json(items)} is not a list of {count}, one for each layer")
        for one in items:
            if one not in known:
                raise self.wrong(field, f"{as_json(one)} is not known", remedy=f"{', '.join(known)}")
        return items

    def number(self, field: str, default: float) -> float:
        """Return a number of at least 0."""
        value = self.get(field) if self.has(field) else default
        if not (is_number(value) and value >= 0):
            raise self.wrong(field, f"must be at least 0, not {as_json(value)}")
        return float(value)

    def flag(self, field: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(field, f"must be true or false, not {as_json(value)}")
        return value

    def text(self, field: str, default: str) -> str:
        """Return text."""
        value = self.get(field) if self.has(field) else default
        if not isinstance(value, str):
            raise self.wrong(field, f"{as_json(value)} is not text")
        return value

    def part(self, field: str) -> Config:
        """Return an object in the configuration; an empty one if it is missing."""
        value = self.get(field) or {}
        if not isinstance(value, dict):
            raise self.wrong(field, f"{as_json(value)} is not an object")
        return replace(self, fields=value, prefix=f"{self.prefix}{field}.")

    def labels(self, default: int = 2) -> int:
        """Return the number of labels of a classifier: of `id2label`, else `num_labels`, else transformers' default."""
        if self.get("id2label") is None:
            return self.whole("num_labels", default)
        table = self.part("id2label").fields
        if not table:
            raise self.wrong("id2label", "has no labels", remedy='drop "id2label"')
        return len(table)

    def layers(self, field: str, default: int | None = None) -> int:
        """Return the number of layers."""
        return self.whole(field, default, MOST_LAYERS)

    def kv_heads(self, field: str, heads: int) -> int:
        """Return the number of heads of keys and values, by default that of queries."""
        own = self.whole(field, heads)
        if heads % own:
            raise self.wrong(field, f"{own} does not divide the {heads} attention heads")
        return own

    def per_head(self, hidden: int, heads: int, hidden_field: str, heads_field: str) -> int:
        """Return the width of a head."""
        if hidden % heads:
            raise self.wrong(heads_field, f"{heads} does not divide {hidden_field}, {hidden}")
        return hidden // heads

    def positions(self, tokens: int, field: str) -> int:
        """Return the number of learned positions; refuse longer sequences."""
        own = self.whole(field)
        if tokens > own:
            raise InvalidArgumentError(
                f"{self.name} has learned positions for {own} tokens ({self.prefix}{field}), fewer than {tokens}",
                setting="seq",
                remedy=f"{{seq={own}}}",
            )
        return own


def as_json(value: object) -> str:
    """Return the start of a value as the file spells it, for messages."""
    return json.dumps(value, default=repr)[:80]


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


@lru_cache(maxsize=1)
def built_in_configs() -> dict[str, Config]:
    """Return the built-in configurations by name, in the order of the file."""
    document = read_document(_TABLE, "models")
    return {
        entry["name"]: Config(
            entry["name"],
            f"{_TABLE.name}: {entry['name']}",
            entry["config"],
            entry["source"],
            entry["parameters"],
            hub=tuple(entry.get("hub", ())),
        )
        for entry in document["models"]
    }


@lru_cache(maxsize=1)
def _by_key() -> dict[str, Config]:
    """Return the built-in configurations by what counts of their names."""
    return {_key(name): config for name, config in reversed(built_in_configs().items())}


@lru_cache(maxsize=1)
def _on_hub() -> dict[str, str]:
    """Return built-in names by those of the hub, with and without the owner (`bert-base-uncased`), in lower case."""
    by_name: dict[str, str] = {}
    for name, config in built_in_configs().items():
        for one in config.hub:
            by_name[one.lower()] = name
            bare = one.lower().rpartition("/")[2]
            # `gpt2` alone may mean each of several.
            if sum(_key(other).startswith(_key(bare)) for other in built_in_configs()) < 2:
                by_name.setdefault(bare, name)
                # `llama-3.3-70b`, of which the hub has the instructed one alone.
                by_name.setdefault(bare.removesuffix("-instruct"), name)
    return by_name


def find_config(word: str) -> Config | None:
    """Return the built-in configuration of a name; None if it is unknown.

    `llama3-8b` and `llama-3-8b` are the same, and so are `Qwen/Qwen3-32B` and `qwen3-32b`.
    """
    own = _by_key().get(_key(word))
    name = _on_hub().get(word.lower())
    return own if own is not None or name is None or _is_path(word) else built_in_configs()[name]


def _is_path(word: str) -> bool:
    try:
        return Path(word).exists()
    except (OSError, ValueError):  # too long, or contains a NUL
        return False


def read_config(path: Path) -> Config:
    """Read a config.json. Raises InvalidArgumentError, which names the file."""
    fields = read_json(path, _LARGEST_FILE)
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"{path}: is not an object", remedy="a config.json as Hugging Face's models have")
    if str(fields.get("format", "")).startswith("paceline-"):
        raise InvalidArgumentError(
            f"{path}: format: is a {str(fields['format'])[:40]}, not a model's configuration",
            remedy="a config.json as Hugging Face's models have",
        )
    named = fields.get("_name_or_path")
    if isinstance(named, str) and not named.isprintable():
        raise InvalidArgumentError(f"{path}: _name_or_path: has control characters", remedy="a name in one line")
    name = named.rsplit("/", 1)[-1] if isinstance(named, str) and named.strip("/ ") else path.stem
    if name == "config" and path.resolve().parent.name:
        name = path.resolve().parent.name
    config = Config(name, str(path), fields)
    config.kind  # noqa: B018 - raises if it is missing
    return config


def is_config(path: Path) -> bool:
    """Return whether a file is a configuration rather than a file of Paceline's: a JSON object with a model's kind."""
    try:
        if not path.is_file():
            return False
        text = read_small(path, _LARGEST_FILE)
        if '"model_type"' not in text and '"_class_name"' not in text:
            return False
        fields = json.loads(text)
        if not isinstance(fields, dict) or str(fields.get("format", "")).startswith("paceline-"):
            return False
        return any(name in fields for name in ("model_type", "_class_name", "text_config", "architectures"))
    except (OSError, ValueError, RecursionError):
        return False
