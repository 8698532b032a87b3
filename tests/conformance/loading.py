"""Executes a file of a peer's tests, some words of which have been replaced."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path


def execute(path: Path, name: str, source: str, **given: object) -> types.ModuleType:
    """Execute `source`, made of the file at `path`, as the module `name`, which begins with the names in `given`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    vars(module).update(given)
    exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    return module
