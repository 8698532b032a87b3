"""The build backend of pyproject.toml: maturin, after a look at whether it can compile here.

Without Rust, maturin would fetch one silently; with one that is too old, cargo fails after sixty lines of other things.
`make` checks by `python scripts/build/checked_maturin.py`, in any Python: one too old is named, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def missing() -> str | None:
    """Return what is missing here, and where to get it."""
    oldest_python = _in("pyproject.toml", r'requires-python = ">=(\d+)\.(\d+)"')
    if sys.version_info < oldest_python or sys.implementation.name != "cpython":
        return f"Paceline needs CPython {_dotted(oldest_python)} or newer; this is {_this_python()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"Paceline needs CPython with its lock, the usual build; this is {_this_python()}, free-threaded"
    oldest = _in("Cargo.toml", r'rust-version = "(\d+)\.(\d+)"')
    words = f"Paceline needs Rust {_dotted(oldest)} or newer to be compiled"
    remedy = "install it from https://rustup.rs, or install a wheel (docs/how-to/install.md)"
    rustc = os.environ.get("RUSTC", "rustc")
    for program in ("cargo", rustc):
        if shutil.which(program) is None:
            return f"{words}, and {program} is missing: {remedy}"
    done = subprocess.run([rustc, "--version"], cwd=ROOT, capture_output=True, text=True, check=False)
    version = re.match(r"rustc (\d+)\.(\d+)", done.stdout)
    if done.returncode or version is None:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        return f"{words}, and rustc --version fails ({said}): {remedy}"
    if (int(version[1]), int(version[2])) < oldest:
        return f"{words}, and this is {done.stdout.strip()}: rustup update, or {remedy}"
    return None


def _in(file: str, pattern: str) -> tuple[int, int]:
    with open(os.path.join(ROOT, file), encoding="utf-8") as text:  # noqa: PTH118, PTH123
        match = re.search(pattern, text.read())
    assert match is not None, (file, pattern)
    return int(match[1]), int(match[2])


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _this_python() -> str:
    return f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"


def get_requires_for_build_wheel(settings: dict[str, Any] | None = None) -> list[str]:
    """Check first: this is what pip calls before it compiles."""
    return _checked("get_requires_for_build_wheel", settings)


def get_requires_for_build_editable(settings: dict[str, Any] | None = None) -> list[str]:
    """As for a wheel."""
    return _checked("get_requires_for_build_editable", settings)


def get_requires_for_build_sdist(settings: dict[str, Any] | None = None) -> list[str]:
    """As for a wheel: maturin asks cargo which files belong to a crate."""
    return _checked("get_requires_for_build_sdist", settings)


def _checked(hook: str, settings: dict[str, Any] | None) -> list[str]:
    problem = missing()
    if problem is not None:
        sys.exit(problem)
    return list(__getattr__(hook)(settings))


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a hook
    """Return maturin's own hook; here, because the check must run where maturin is not installed."""
    import maturin

    os.environ.setdefault("MATURIN_NO_MISSING_BUILD_BACKEND_WARNING", "1")
    return getattr(maturin, name)


if __name__ == "__main__":
    problem = missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        sys.exit(77)
