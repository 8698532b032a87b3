"""The most similar known name, for messages about unknown ones."""

from __future__ import annotations

from collections.abc import Sequence

from paceline import _core

_MOST_CHARACTERS = 80


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known name most similar to a word, which need not be UTF-8; None if none is similar."""
    typed = word[:_MOST_CHARACTERS].encode(errors="replace").decode()
    return _core.nearest(typed, list(known))
