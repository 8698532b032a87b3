"""Baidu's all-reduce: an unfused ring over MPI's point-to-point messages, without negotiation, started by mpirun.

Paceline's preset of that name; https://github.com/baidu-research/tensorflow-allreduce is the original.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from paceline._core import UserError
from paceline.bench.engines.base import Engine, environments, rank_words
from paceline.bench.environments import OPEN_MPI, folder_of, install_line, python_of
from paceline.bench.places import Places
from paceline.bench.processes import Process
from paceline.bench.ranks.asked import Asked
from paceline.library import find_strategy
from paceline.settings import TRANSPORTS

# What a launcher has said is for the processes that mpirun starts no longer true.
_NOT_MPIS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("PACELINE_RUN_ID", "PACELINE_RUN_SERVERS", "PACELINE_RENDEZVOUS", "HOROVOD_FUSION_THRESHOLD"),
)


class BaiduRing(Engine):
    """Every gradient in an all-reduce of its own."""

    name = "baidu-ring"
    family = "torch"
    own_launcher = True

    def _mpirun(self) -> str | None:
        """That of PATH, or of an environment that `--install` has made."""
        own = folder_of(OPEN_MPI) / "bin" / "mpirun"
        return shutil.which("mpirun") or (str(own) if python_of(OPEN_MPI) and own.exists() else None)

    def missing(self) -> str | None:
        """The preset, or an mpirun."""
        try:
            find_strategy(self.name)
        except UserError:
            return "this paceline has no strategy baidu-ring; install a later one"
        if "mpi" not in TRANSPORTS:
            return "this paceline has no transport mpi; install a later one"
        return None if self._mpirun() else f"there is no mpirun on PATH: {install_line(OPEN_MPI)}"

    def asks(self) -> dict[str, Any]:
        """Horovod's interface, which asks for every gradient by itself."""
        return {"way": "optimizer", "fusion_bytes": None}

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """Without fusion."""
        return "ring", {}

    def processes(self, asked: Asked, places: Places) -> list[Process]:
        """mpirun with all ranks."""
        mpirun = self._mpirun()
        assert mpirun is not None
        (_, environment), *_ = environments(places, self.secret)
        environment = {name: value for name, value in environment.items() if name not in _NOT_MPIS}
        environment |= {
            "PACELINE_STRATEGY": self.name,
            "PACELINE_TRANSPORT": "mpi",
            # Open MPI refuses root, unless told.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        # Open MPI binds each rank's threads to one core, and refuses more ranks than cores.
        how = ["--oversubscribe", "--bind-to", "none"] if _is_open_mpi(mpirun) else []
        words = [mpirun, *how, "-n", str(len(places.ranks)), *rank_words(self.options.python, "torch_rank", asked)]
        return [Process("mpirun", words, environment)]


def _is_open_mpi(mpirun: str) -> bool:
    words = [mpirun, "--version"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in said.stdout
