"""Actions at a later import.

Public names of a package are imported on first use (PEP 562), and listed by `dir()` without helpers; modules of others
are changed once a script imports them.
"""

from __future__ import annotations

import importlib
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def lazy(
    package: str, modules: Mapping[str, Iterable[str]], renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose names are imported on first use.

    `dir(package)` lists `__all__` and the usual module attributes, and nothing that merely happens to be imported.

    Args:
        package: Name of the package.
        modules: For each module, the names that it defines; an empty list stands for the module itself.
        renamed: Old names and their replacements. An old name still works, with a DeprecationWarning.
    """
    origin = {name: module for module, names in modules.items() for name in names}
    whole = {module.rpartition(".")[2]: module for module, names in modules.items() if not names}

    def __getattr__(name: str) -> object:
        if name in whole:
            return importlib.import_module(whole[name])
        if renamed and name in renamed:
            new = renamed[name]
            warnings.warn(f"{package}.{name} is now {package}.{new}", DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[package], new)
        if name not in origin:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(origin[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__, public_names(package)


def also_as(names: Mapping[str, str]) -> None:
    """Make modules importable by further names, such as those that Horovod's have: each is the same module.

    Args:
        names: For each further name, the module's own.
    """
    for other, name in names.items():
        sys.modules[other] = module = importlib.import_module(name)
        package, _, attribute = other.rpartition(".")
        # As an import does; a module in a package that is only another name is the package's already.
        if (above := sys.modules.get(package)) is not None and not hasattr(above, attribute):
            setattr(above, attribute, module)


def public_names(module: str) -> Callable[[], list[str]]:
    """Return `__dir__` for a module: its `__all__` and the usual attributes, and nothing that it merely imports."""

    def __dir__() -> list[str]:
        names = vars(sys.modules[module])
        usual = ("__all__", "__doc__", "__file__", "__name__", "__path__", "__version__")
        return sorted({*names["__all__"], *(name for name in usual if name in names)})

    return __dir__


class _AfterImport:
    """Finds modules through the other finders, and calls a function when one of them has been executed.

    It goes once all have been.
    """

    def __init__(self, changes: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._changes = dict(changes)
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.get(name)
        if change is None or self._asking:
            return None
        import importlib.util

        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self._changes.pop(name, None)
            if not self._changes and self in sys.meta_path:
                sys.meta_path.remove(self)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def when_imported(changes: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """Call each function with the module of its name, now or after its import: importing it here takes seconds."""
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    later = {name: change for name, change in changes.items() if name not in sys.modules}
    if later:
        sys.meta_path.insert(0, _AfterImport(later))
