"""Groups of actors in their bundles, and the job that they form; used by both executors."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from paceline.errors import JobError
from paceline.ray.bundles import Reserved, Room
from paceline.ray.calls import Calls
from paceline.ray.cluster import Cluster, check_version
from paceline.ray.environment import World, by_node
from paceline.ray.settings import RaySettings
from paceline.ray.worker import Place

_LEAVE_S = 5.0
"""Time for actors to leave their jobs before they are killed."""


class Actors:
    """Actors of one kind and their places, in order of their numbers."""

    def __init__(self, name: str, cluster: Cluster, settings: RaySettings) -> None:
        """`name` is the name of one of them in messages: rank, server."""
        self.name, self.cluster, self.settings = name, cluster, settings
        self.handles: list[Any] = []
        self.places: list[Place] = []
        self._reserved: Reserved | None = None

    def start(
        self,
        kind: type,
        room: Room,
        arguments: Sequence[Any] = (),
        *,
        per_bundle: int = 1,
        cpus: float,
        gpus: float = 0,
        sort: bool = False,
    ) -> None:
        """Reserve the room and start `kind(*arguments)` in each part of it. Raises JobError, InvalidArgumentError.

        sort: number those of a node consecutively.
        """
        self._reserved = Reserved(self.cluster, room, self.settings.placement_group_timeout_s)
        # Ray has not seen the class: cloudpickle passes it by name, because Paceline is installed everywhere.
        remote = self.cluster.ray.remote(kind)
        for number in range(len(room.bundles) * per_bundle):
            options = self._reserved.options(number // per_bundle, cpus=cpus, gpus=gpus)
            self.handles.append(remote.options(**options).remote(*arguments))
        self._find()
        if sort:
            order = by_node(self.places)
            self.handles = [self.handles[number] for number in order]
            self.places = [self.places[number] for number in order]

    def start_on(self, nodes: Sequence[str], kind: type, arguments: Sequence[Any] = ()) -> None:
        """Start one on each of these Ray nodes, next to other actors. Raises JobError, InvalidArgumentError."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self.cluster.ray.remote(kind)
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            self.handles.append(remote.options(num_cpus=0, scheduling_strategy=there).remote(*arguments))
        self._find()

    def _find(self) -> None:
        self.places = self.all(lambda actor: actor.place.remote(), "start")
        for name, place in self.by_name.items():
            check_version(place.version, f"{name} ({place})")

    @property
    def by_name(self) -> dict[str, Place]:
        """Return their places by name."""
        return self.named(self.places)

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the values by the names `rank 0`, `rank 1` and so on."""
        return {f"{self.name} {number}": value for number, value in enumerate(values)}

    def all(self, ask: Callable[[Any], Any], doing: str) -> list[Any]:
        """Return the answer of each, within the time limit. Raises JobError, InvalidArgumentError."""
        calls = Calls(self.cluster.ray, self.named([ask(actor) for actor in self.handles]), places=self.by_name)
        return list(calls.results(grace_s=1.0, timeout_s=self.settings.timeout_s, doing=doing).values())

    def end(self, *, leave: bool) -> None:
        """Kill them and release their room; they may leave their jobs cleanly first."""
        ray = self.cluster.ray
        if not ray.is_initialized():
            self.handles = []
            return
        if leave and self.handles:
            with contextlib.suppress(Exception):  # Dead or busy ones are killed anyway.
                ray.wait(
                    [actor.leave.remote() for actor in self.handles], num_returns=len(self.handles), timeout=_LEAVE_S
                )
        for actor in self.handles:
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        self.handles = []
        if self._reserved is not None:
            with contextlib.suppress(Exception):
                self._reserved.release()
            self._reserved = None


def meet(workers: Actors, servers: Actors, variables: dict[str, str], secret: str | None) -> World:
    """Give workers and servers their places in a job. Raises JobError, InvalidArgumentError."""
    everybody = [*workers.handles, *servers.handles]
    places = [*workers.places, *servers.places]
    interfaces = _interfaces(workers, everybody, places)
    ray, limit_s = workers.cluster.ray, workers.settings.timeout_s
    first = Calls(ray, {"rank 0": workers.handles[0].ports.remote()}, places=workers.by_name)
    port, master_port = first.results(grace_s=1.0, timeout_s=limit_s, doing="find free ports")["rank 0"]
    world = World(
        workers=workers.places,
        servers=servers.places,
        interfaces=interfaces,
        address=interfaces[0],
        port=port,
        master_port=master_port,
        settings=variables,
        secret=secret or secrets.token_hex(32),
    )
    number = {actor: position for position, actor in enumerate(workers.handles)}
    workers.all(lambda actor: actor.enter.remote(world.of_rank(number[actor])), "take their places")
    number = {actor: position for position, actor in enumerate(servers.handles)}
    servers.all(lambda actor: actor.enter.remote(world.of_server(number[actor])), "take their places")
    return world


def _interfaces(workers: Actors, everybody: Sequence[Any], places: Sequence[Place]) -> dict[int, str]:
    """Return each process's address for connections: the named one, or loopback on one machine, or Ray's."""
    wanted = workers.settings.interface
    if wanted is None:
        alone = len({place.machine for place in places}) == 1
        return {number: "127.0.0.1" if alone else place.address for number, place in enumerate(places)}
    names = [*workers.by_name]
    names += [f"server {number}" for number in range(len(places) - len(names))]
    refs = dict(zip(names, (actor.interface.remote(wanted) for actor in everybody), strict=True))
    calls = Calls(workers.cluster.ray, refs)
    answers = calls.results(grace_s=1.0, timeout_s=workers.settings.timeout_s, doing="find their addresses")
    if len(answers) != len(everybody):  # pragma: no cover - results are complete or raise
        raise JobError("not all actors have reported their address", remedy="start() again")
    return dict(enumerate(answers.values()))
