"""MPI libraries that take the memory of the stand-in for a CUDA driver: mpi_on_devices.c, linked against a real one."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


def build(library, folder):
    """Compile it for this library; skips the test if there is no compiler. Returns its path."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = folder / f"{SOURCE.stem}.so"
    linked = ["-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{library.parent}", "-ldl"]
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *options, "-o", str(made), str(SOURCE), *linked]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return made
