"""Ray: gradients through its object store, by a parameter server that is sharded over the nodes."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from paceline.bench.engines.base import Engine, environments, rank_words
from paceline.bench.places import Places
from paceline.bench.processes import Process
from paceline.bench.ranks.rank_spec import RankSpec


class RayServers(Engine):
    """`paceline.ray.ps`, in a cluster of its own on this machine, or that of RAY_ADDRESS."""

    name = "ray-ps"
    family = "torch"
    own_launcher = True

    def missing(self) -> str | None:
        """Ray, or the part of paceline that trains by it."""
        if importlib.util.find_spec("paceline.ray") is None:
            return "this paceline cannot train through Ray (there is no paceline.ray); install a later one"
        if importlib.util.find_spec("ray") is None:
            return "Ray is not installed: pip install 'paceline[ray]'"
        return None

    def asks(self) -> dict[str, Any]:
        """One server shard for each node of Ray."""
        return {"way": "ray"}

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """As published: reduced inside the node, then sharded over the nodes."""
        return "sharded-ps", {}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """The driver, which has Ray start the workers."""
        (_, environment), *_ = environments(places, self.secret)
        words = rank_words(sys.executable, "ray_rank", spec)
        return [Process("Ray's driver", [*words, str(len(places.ranks))], environment)]
