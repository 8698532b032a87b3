"""JSON whose objects have each key once: RFC 8259 leaves open which of two values counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from paceline._internal.units import printable
from paceline.errors import InvalidArgumentError


def loads(text: str | bytes) -> Any:  # noqa: ANN401
    """Return the value. Raises ValueError, RecursionError, and InvalidArgumentError for a key that is given twice."""
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"'{printable(twice[:80])}' is given twice", remedy="one of the two")
    return fields
