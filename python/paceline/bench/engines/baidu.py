"""Baidu's all-reduce: an unfused ring over MPI's point-to-point messages, without negotiation, started by mpirun.

Paceline's preset of that name; https://github.com/baidu-research/tensorflow-allreduce is the original.
"""

from __future__ import annotations

from typing import Any

from paceline.bench.engines import mpirun
from paceline.bench.engines.base import Engine
from paceline.bench.places import Places
from paceline.bench.processes import Process
from paceline.bench.ranks.rank_spec import RankSpec


class BaiduRing(Engine):
    """Every gradient in an all-reduce of its own."""

    name = "baidu-ring"
    family = "torch"
    own_launcher = True

    def missing(self) -> str | None:
        """An mpirun."""
        return mpirun.missing()

    def asks(self) -> dict[str, Any]:
        """Horovod's interface, which asks for every gradient by itself."""
        return {"way": "optimizer", "fusion_bytes": None}

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """Without fusion."""
        return "ring", {}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return one mpirun that starts all ranks."""
        settings = {"PACELINE_STRATEGY": self.name, "PACELINE_TRANSPORT": "mpi"}
        return [mpirun.process(self.options.python, spec, places, self.secret, settings)]
