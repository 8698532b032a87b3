"""Fields of a user's config.json that its family has not read: those that may change its layers are named in a note.

unread-fields.json has the fields that change none: of all families, and of one that says the same by other fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path

from paceline.catalog.constants import read_document
from paceline.catalog.models.config import Config

_FILE = Path(__file__).parent.parent / "unread-fields.json"
_NOTHING: tuple[object, ...] = (None, False, 0, "", [], {})
_MOST = 8
"""Fields that a note names."""


@cache
def _without_effect(family: str) -> tuple[str, ...]:
    """Return patterns of fields that change no layer of a family."""
    document = read_document(_FILE, "unread-fields")
    return (*chain(*document["without_effect"].values()), *document["of_families"].get(family, ()))


def not_modeled(config: Config, whole: Config) -> str:
    """Return a note on fields that a file gives, and its family has not read, if they may change its layers.

    Args:
        config: The configuration whose layers were made.
        whole: The file, of which it may be a part. Built-in ones have no other fields.
    """
    without = _without_effect(config.kind)
    fields = [
        name
        for name in sorted({*config.fields} & _names(whole.fields) - config.reads)
        if config.fields[name] not in _NOTHING and not any(fnmatchcase(name, pattern) for pattern in without)
    ]
    if whole.source or not fields:
        return ""
    more = f" and {len(fields) - _MOST} others" if len(fields) > _MOST else ""
    return f"Not modeled: {', '.join(fields[:_MOST])}{more} of {whole.where}"


def _names(fields: Mapping[str, object]) -> set[str]:
    """Return the names of all fields of an object, and of those within it."""
    return {*fields, *(name for value in fields.values() if isinstance(value, dict) for name in _names(value))}
