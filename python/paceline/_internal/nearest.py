"""The most similar known names, for messages about unknown ones."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from paceline import _core

_MOST_CHARACTERS = 80


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known name most similar to a word, which need not be UTF-8; None if none is similar."""
    typed = word[:_MOST_CHARACTERS].encode(errors="replace").decode()
    return _core.nearest(typed, list(known))


def alike(word: str, known: Sequence[str], most: int = 3) -> list[str]:
    """Return known names that a word may mean: those that begin so, or else similar ones, most similar first.

    For names that have a family and a size in common, such as those of models: `llama-8b` is one letter from
    `llama-7b`, but means `llama-3-8b`.
    """
    typed = word[:_MOST_CHARACTERS].encode(errors="replace").decode().lower()
    begins = [name for name in known if len(typed) > 1 and _key(name).startswith(_key(typed))]
    return (begins or difflib.get_close_matches(typed, list(dict.fromkeys(known)), most))[:most]


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def did_you_mean(names: Sequence[str]) -> str:
    """Return ` (did you mean 'ring' or 'tree'?)`, or nothing without names."""
    quoted = [f"'{name}'" for name in names]
    words = " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
    return f" (did you mean {words}?)" if words else ""
