"""How to install what an extra brings: the one place where messages get it from.

Paceline is on no index yet. Its name there could be anybody's, so no message tells anyone to install it by name.
"""

from __future__ import annotations

import importlib.util
from typing import NoReturn

from paceline.errors import InvalidArgumentError


def install(extra: str) -> str:
    """Return the command that installs an extra, and where to run it."""
    return f"pip install '.[{extra}]' (in a checkout of Paceline)"


def need(what: str, extra: str, *packages: str) -> None:
    """Raise InvalidArgumentError if one of these packages, which come with an extra, is not installed.

    Args:
        what: What needs them, as the subject of a sentence.
        extra: The extra that brings them.
        packages: Names to import; nothing is imported here.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidArgumentError(f"{what} needs {' and '.join(missing)}", remedy=install(extra))


def cannot_import(what: str, library: str, extra: str, error: ImportError) -> NoReturn:
    """Raise the ImportError of something whose library cannot be imported.

    Args:
        what: What needs it.
        library: What it needs, as people write it.
        extra: The extra that brings it.
        error: What importing it raised.

    Raises:
        ImportError: Always.
    """
    words = f"{what} needs {library}, which cannot be imported ({error}): {install(extra)}"
    raise ImportError(words, name=error.name, path=error.path) from error
