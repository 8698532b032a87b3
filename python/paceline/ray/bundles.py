"""Reserves room for actors with placement groups, and reports what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import JobError
from paceline.ray.cluster import Cluster


@dataclass(frozen=True)
class Room:
    """The needs of a group of actors: bundles of resources, placed by `strategy`.

    strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD, in Ray's terms.
    """

    what: str
    """For messages: `4 workers`."""
    bundles: Sequence[Mapping[str, float]]
    strategy: str

    @property
    def total(self) -> dict[str, float]:
        """Resources of all bundles."""
        total: Counter[str] = Counter()
        for bundle in self.bundles:
            total.update(bundle)
        return dict(total)


class Reserved:
    """A placement group that has been granted."""

    def __init__(self, cluster: Cluster, room: Room, timeout_s: float) -> None:
        """Wait for the placement group. Raises JobError that says what is missing after `timeout_s`.

        It does not wait if the cluster is this job's own and too small, because nobody adds nodes to it.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        self._remove = remove_placement_group
        self.group = placement_group([dict(bundle) for bundle in room.bundles], strategy=room.strategy)
        hopeless = cluster.own and bool(_short(room.total, cluster.ray.cluster_resources()))
        if hopeless or not self.group.wait(timeout_s):
            remove_placement_group(self.group)
            remedy = "fewer workers, fewer CPUs each, or more nodes"
            if not hopeless:
                remedy += ", or a longer placement_group_timeout_s"
            raise JobError(_explanation(cluster, room, None if hopeless else timeout_s), remedy=remedy)

    def options(self, bundle: int, *, cpus: float, gpus: float) -> dict[str, Any]:
        """Return Ray's options for an actor in this bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle)
        return {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": place, "max_restarts": 0}

    def release(self) -> None:
        """Release it; actors that are still in it are killed."""
        self._remove(self.group)


def _short(wanted: Mapping[str, float], there: Mapping[str, float]) -> list[str]:
    return [name for name, amount in wanted.items() if amount > there.get(name, 0.0) + 1e-9]


def _explanation(cluster: Cluster, room: Room, waited_s: float | None) -> str:
    there, free = cluster.ray.cluster_resources(), cluster.ray.available_resources()
    total = room.total
    needs = " and ".join(f"{amount:g} {name}" for name, amount in total.items())
    has = " and ".join(f"{there.get(name, 0.0):g} {name} ({free.get(name, 0.0):g} free)" for name in total)
    nodes = sum(bool(node["Alive"]) for node in cluster.ray.nodes())
    each = ""
    if len(room.bundles) > 1:
        each = " in bundles of " + " and ".join(f"{amount:g} {name}" for name, amount in room.bundles[0].items())
    spread = f", each on a different node, of {nodes}" if room.strategy == "STRICT_SPREAD" else ""
    waited = "" if waited_s is None else f" within {waited_s:g} s"
    return f"Ray has no room for {room.what}{waited}: they need {needs}{each}{spread}, and there are {has}"
