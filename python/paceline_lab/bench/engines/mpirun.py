"""Ranks that communicate over MPI, started by the library's mpirun."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from paceline_lab.bench.engines.base import environments, launcher_words, rank_words
from paceline_lab.bench.environments import OPEN_MPI, folder_of, install_line, python_of
from paceline_lab.bench.places import Places
from paceline_lab.bench.processes import Process
from paceline_lab.bench.ranks.rank_spec import RankSpec

# Variables of Paceline's launcher, which would be wrong in processes started by mpirun.
_LAUNCHER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("PACELINE_RUN_ID", "PACELINE_RUN_SERVERS", "PACELINE_RENDEZVOUS", "HOROVOD_FUSION_THRESHOLD"),
)


def missing() -> str | None:
    """Return the remedy if mpirun is missing."""
    return None if _mpirun() else f"there is no mpirun on PATH: {install_line(OPEN_MPI)}"


def process(  # noqa: PLR0917
    python: str,
    spec: RankSpec,
    places: Places,
    secret: str,
    settings: Mapping[str, str],
    module: str = "torch_rank",
    mpirun: str | None = None,
) -> Process:
    """Return an mpirun that starts all ranks with `settings` as environment variables."""
    mpirun = mpirun or _mpirun()
    assert mpirun is not None
    (_, environment), *_ = environments(places, secret)
    environment = {name: value for name, value in environment.items() if name not in _LAUNCHER_VARIABLES}
    # Open MPI refuses to run as root by default.
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **settings}
    # Open MPI binds each rank's threads to one core, and refuses more ranks than cores.
    open_mpi_options = ["--oversubscribe", "--bind-to", "none"] if _is_open_mpi(mpirun) else []
    words = [mpirun, *open_mpi_options, "-n", str(len(places.ranks)), *rank_words(python, module, spec)]
    return Process("mpirun", launcher_words(*words), environment)


def _mpirun() -> str | None:
    """Return the mpirun on PATH, or in the environment that `--install` created."""
    own = folder_of(OPEN_MPI) / "bin" / "mpirun"
    return shutil.which("mpirun") or (str(own) if python_of(OPEN_MPI) and own.exists() else None)


def _is_open_mpi(mpirun: str) -> bool:
    try:
        version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in version.stdout
