"""Baidu's all-reduce: an unfused ring over MPI's point-to-point messages, without negotiation, started by mpirun.

Paceline's preset of this name; the original is https://github.com/baidu-research/tensorflow-allreduce.
"""

from __future__ import annotations

from typing import Any

from paceline_lab.bench.engines import mpirun
from paceline_lab.bench.engines.base import Engine
from paceline_lab.bench.places import Places
from paceline_lab.bench.processes import Process
from paceline_lab.bench.ranks.rank_spec import RankSpec


class BaiduRing(Engine):
    """One all-reduce per gradient."""

    name = "baidu-ring"
    family = "torch"
    own_launcher = True

    def missing(self) -> str | None:
        """Check whether mpirun is missing."""
        return mpirun.missing()

    def spec_fields(self) -> dict[str, Any]:
        """Return Horovod's interface, which submits every gradient separately."""
        return {"mode": "optimizer", "fusion_bytes": None}

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """A ring without fusion."""
        return "ring", {}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return one mpirun that starts all ranks."""
        settings = {"PACELINE_STRATEGY": self.name, "PACELINE_TRANSPORT": "mpi"}
        return [mpirun.process(self.options.python, spec, places, self.secret, settings)]
