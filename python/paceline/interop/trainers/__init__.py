"""Files that trainers read, recognized so that an error can say which options say the same.

| module | what it does |
| --- | --- |
| text | takes the values out of JSON, TOML, YAML and shell scripts |
| options | the options of `paceline simulate` that each trainer's values stand for |
"""

from __future__ import annotations

from pathlib import Path

from paceline._internal.documents import read_small
from paceline.errors import InvalidArgumentError
from paceline.interop.trainers.options import Meaning, meaning
from paceline.interop.trainers.text import values

__all__ = ["Meaning", "explained", "recognized"]

_MOST = 1 << 20


def recognized(path: Path) -> Meaning | None:
    """Return what a trainer's file says; None if it is no such file, or cannot be read."""
    try:
        if not path.is_file():
            return None
        return meaning(values(read_small(path, _MOST)), path)
    except (OSError, ValueError, RecursionError):
        return None


def explained(path: Path) -> InvalidArgumentError | None:
    """Return the error about a trainer's file where a file of Paceline's is expected; None if it is none."""
    found = recognized(path)
    if found is None:
        return None
    left = f". Not forecast: {', '.join(found.left_out)}" if found.left_out else ""
    return InvalidArgumentError(
        f"{path!s:.200} is a configuration of {found.trainer}, which Paceline does not read{left}",
        remedy=found.command + (f" (fill in {', '.join(found.filled_in)})" if found.filled_in else ""),
    )
