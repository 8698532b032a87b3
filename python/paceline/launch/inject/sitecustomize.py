"""Put first on PYTHONPATH by `paceline record -- python …`: records the script's process once it imports a framework.

This folder contains nothing else, and is removed from `sys.path` again. Python imports only one `sitecustomize`, so the
one that would have been imported is run from here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).resolve().parent
_WATCHERS = {
    "torch": ("paceline.torch.recorder.watch", "start"),
    "tensorflow": ("paceline.tensorflow.recorder.watch", "start"),
    "keras": ("paceline.tensorflow.recorder.watch", "start_keras"),
}
"""The function to call once a framework has been executed: its module and its name."""


def _run_the_other_sitecustomize() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _AfterImport:
    """Finds a framework through the other finders, and starts its watcher when it has been executed."""

    def __init__(self, framework: str) -> None:
        self._framework, self._asking = framework, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._framework or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return spec
        # A look-up without an import gets a separate loader, so that only an import starts the watcher.
        execute = spec.loader.exec_module

        def execute_and_watch(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _watch(self._framework)

        spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def _watch(framework: str) -> None:
    try:
        _paceline()
        module, name = _WATCHERS[framework]
        getattr(importlib.import_module(module), name)()
    except Exception as error:
        print(f"paceline: cannot record this process: {error!r}", file=sys.stderr)


def _paceline() -> None:
    """Make paceline importable from the command's installation, in case the script runs in another environment."""
    if importlib.util.find_spec("paceline") is not None:
        return
    folder = _HERE.parent.parent
    spec = importlib.util.spec_from_file_location(
        "paceline", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no paceline in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["paceline"] = module
    spec.loader.exec_module(module)


if "PACELINE_RECORD_SETTINGS" in os.environ:
    sys.meta_path[:0] = [_AfterImport(framework) for framework in _WATCHERS]
_run_the_other_sitecustomize()
