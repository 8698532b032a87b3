"""The environment of actors: the variables that `paceline run` sets for its ranks, for the places assigned by Ray."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline._internal.netif import endpoint
from paceline.errors import InvalidArgumentError
from paceline.job.settings import VARIABLES, Settings
from paceline.launch.variables import SECRET, inherited_settings
from paceline.ray.worker import Place
from paceline.settings.table import as_text


@dataclass(frozen=True, kw_only=True)
class World:
    """A job: its ranks and their rendezvous."""

    workers: Sequence[Place]
    servers: Sequence[Place]
    interfaces: Mapping[int, str]
    """Places by process number: ranks, then servers."""
    address: str
    """Address of rank 0."""
    port: int
    master_port: int
    settings: Mapping[str, str]
    """PACELINE_ variables of the job."""
    secret: str = field(repr=False)
    number: str = field(default_factory=lambda: secrets.token_hex(8))

    def of_rank(self, rank: int) -> dict[str, str]:
        """Return the variables of a worker."""
        nodes = _nodes(self.workers)
        node = self.workers[rank].node
        here = [other for other, place in enumerate(self.workers) if place.node == node]
        return {
            **self._of(rank, node),
            "RANK": str(rank),
            "LOCAL_RANK": str(here.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(here)),
            "GROUP_RANK": str(nodes.index(node)),
            "GROUP_WORLD_SIZE": str(len(nodes)),
            **self._gpus(here),
        }

    def of_server(self, server: int) -> dict[str, str]:
        """Return the variables of a parameter server, which is not one of the user's ranks."""
        own = self._of(len(self.workers) + server, self.servers[server].node)
        return {**own, "PACELINE_RUN_SERVER": str(server), "OMP_NUM_THREADS": "1"}

    def _of(self, process: int, node: str) -> dict[str, str]:
        return {
            **self.settings,
            "WORLD_SIZE": str(len(self.workers)),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.master_port),
            "PACELINE_RENDEZVOUS": endpoint(self.address, self.port),
            "PACELINE_INTERFACE": self.interfaces[process],
            "PACELINE_SECRET": self.secret,
            "PACELINE_RUN_ID": self.number,
            **({"PACELINE_RUN_SERVERS": str(len(self.servers))} if self.servers else {}),
        }

    def _gpus(self, here: Sequence[int]) -> dict[str, str]:
        """Let all workers of a node see all of their GPUs, in the order of local ranks.

        Horovod scripts use the device of that number, and NCCL reaches another worker's GPU only if it is visible.
        """
        gpus = [gpu for rank in here for gpu in self.workers[rank].gpus]
        return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpus))} if gpus else {}


def by_node(places: Sequence[Place]) -> list[int]:
    """Return the order in which workers become ranks: those of a node together, nodes in order of first occurrence."""
    nodes = _nodes(places)
    return sorted(range(len(places)), key=lambda number: (nodes.index(places[number].node), number))


def checked_settings(given: Mapping[str, object]) -> tuple[dict[str, str], Settings]:
    """Return the variables of a job (the driver's own, overridden by `settings`) and the checked settings.

    Raises InvalidArgumentError.
    """
    settings = {name: value for name, value in given.items() if value is not None}
    for name in ("rendezvous", "secret_file"):
        if name in settings:
            raise InvalidArgumentError(
                f"{name}: has no effect under Ray, where the driver sets it", remedy=f"drop {name}"
            )
    Settings.resolved({}, settings)  # so that errors use the given names
    variables = {variable: as_text(settings[name]) for variable, name in VARIABLES.items() if name in settings}
    variables = inherited_settings(os.environ) | variables
    secret = {name: os.environ[name] for name in SECRET if os.environ.get(name) and "PACELINE_SECRET" not in variables}
    checked = Settings.from_environment(variables | secret)
    return {name: value for name, value in variables.items() if name not in SECRET}, checked


def _nodes(places: Sequence[Place]) -> list[str]:
    return list(dict.fromkeys(place.node for place in places))
