"""Whether an MPI library takes the memory of CUDA devices, and what to set if it does not.

A library says so only once it is initialized. That can be done once in a process, and may end it: so another one asks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

LIMIT_S = 10.0
"""How long the library may take; ranks that a launcher has started wait for each other."""
_ASK = "import sys; from paceline import _core; print(_core.mpi_on_devices(sys.argv[1] or None, float(sys.argv[2])))"
_OPEN_MPI = "Open MPI"
_HCOLL = ("HCOLL_GPU_ENABLE", "HCOLL_ENABLE_NBC")
"""With these, Open MPI leaves its non-blocking collectives to HCOLL, which combines device memory."""
_HINT = "mpi_memory_alloc_kinds"
"""The hint that libraries of the standard ABI have in place of a function of their own (crates/mpi/src/devices.rs)."""


def ask(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Ask the library that a job over MPI would use.

    Args:
        environ: Variables in addition to those of this process; PACELINE_MPI_LIBRARY names the library.

    Returns:
        `takes`: what it does with device memory, which is "combines", "moves" or "nothing", or None if it could not be
        asked; `said`: how that is known; `try`: what to set, if there is more to be had.
    """
    named = environ.get("PACELINE_MPI_LIBRARY", "")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK, named, str(LIMIT_S)],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=2 * LIMIT_S,
            check=False,
            close_fds=False,  # MPICH's launcher leaves its ranks a connection (PMI_FD)
        )
        answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"takes": None, "said": f"it was not initialized within {2 * LIMIT_S:.0f} s", "try": None}
    except (IndexError, ValueError):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1].partition("Error: ")[2] or lines[-1] if lines else f"exit code {done.returncode}"
        return {"takes": None, "said": f"it could not be initialized: {why}", "try": None}
    return {
        "takes": answer["takes"],
        "said": answer["said"],
        "try": remedy(**answer, environ={**os.environ, **environ}),
    }


def remedy(abi: str, takes: str, said: str, environ: Mapping[str, str]) -> str | None:
    """Return what to set so that more collectives get the addresses of devices; None if all do that can.

    Args:
        abi: "Open MPI" or "standard".
        takes: As `ask` returns it.
        said: Likewise.
        environ: The variables with which it was asked.
    """
    if takes == "combines":
        return None
    if takes == "moves":
        missing = [f"{name}=1" for name in _HCOLL if environ.get(name) != "1"]
        if not missing:
            return "--cuda mpi for broadcast and all-gather; HCOLL is enabled, but this library does not use it"
        return f"{' and '.join(missing)}; without HCOLL, --cuda mpi for broadcast and all-gather"
    if _HINT in said:
        return (
            "mpiexec -n 1 -memory-alloc-kinds cuda paceline doctor --env; if this adds nothing to the kinds, an MPICH "
            "that was configured --with-cuda, named by PACELINE_MPI_LIBRARY"
        )
    name = "an Open MPI" if abi == _OPEN_MPI else "a library"
    return f"{name} that was configured --with-cuda, named by PACELINE_MPI_LIBRARY; on a machine with a CUDA device"
