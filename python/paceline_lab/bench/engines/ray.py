"""Ray: gradients through its object store, with a parameter server sharded over the nodes."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from paceline._internal.extras import install

from paceline_lab.bench.engines.base import Engine, environments, rank_words
from paceline_lab.bench.places import Places
from paceline_lab.bench.processes import Process
from paceline_lab.bench.ranks.rank_spec import RankSpec


class RayServers(Engine):
    """`paceline.ray.ps` on a new cluster on this machine, or on that of RAY_ADDRESS."""

    name = "ray-ps"
    family = "torch"
    own_launcher = True

    def missing(self) -> str | None:
        """Check whether Ray or paceline.ray is missing."""
        if importlib.util.find_spec("paceline.ray") is None:
            return "this version of paceline has no paceline.ray; install a newer one"
        if importlib.util.find_spec("ray") is None:
            return f"Ray is not installed: {install('ray')}"
        return None

    def spec_fields(self) -> dict[str, Any]:
        """Return one server shard per Ray node."""
        return {"mode": "ray", "inside": self.options.inside}

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """As published: reduction inside the node, then servers sharded over the nodes."""
        return "sharded-ps", {"inside": self.options.inside}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return the driver, which starts the workers through Ray."""
        (_, environment), *_ = environments(places, self.secret)
        words = rank_words(sys.executable, "ray_rank", spec)
        return [Process("Ray's driver", [*words, str(len(places.ranks))], environment)]
