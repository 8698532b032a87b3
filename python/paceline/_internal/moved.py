"""Modules under the names that they had in the last release."""

from __future__ import annotations

import importlib
import sys
import warnings


def moved(old: str, new: str) -> None:
    """Let an import of `old`, which calls this, give the module `new`, with a FutureWarning.

    Raises ImportError if `new` is not installed.
    """
    warnings.warn(f"{old} is now {new}; the old name goes with the next release", FutureWarning, stacklevel=2)
    sys.modules[old] = importlib.import_module(new)
