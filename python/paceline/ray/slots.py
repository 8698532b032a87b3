"""The nodes of a Ray cluster as slots of an elastic job: which live, and how many workers each has room for."""

from __future__ import annotations

from typing import Any

from paceline.elastic.roster import Slot
from paceline.ray.layout import Layout


class Nodes:
    """What Ray says of its nodes, in the order in which they were first seen."""

    def __init__(self, ray: Any, layout: Layout) -> None:  # noqa: ANN401
        """`layout`: what a worker takes."""
        self._ray, self._layout = ray, layout
        self._numbers: dict[str, str] = {}
        """Ray's numbers of nodes, by what they are called here."""

    def slots(self) -> list[Slot]:
        """Room for workers on the nodes that live now, by what nodes have in all, whoever uses it at present."""
        slots: list[Slot] = []
        living = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        for number, node in living.items():
            # Several nodes of a machine share its address.
            self._numbers.setdefault(f"{node['NodeManagerAddress']}/{number[:8]}", number)
        for host, number in self._numbers.items():
            if number in living:
                slots += [Slot(host, place) for place in range(self._room(living[number]["Resources"]))]
        return slots

    def lives(self, slot: Slot) -> bool:
        """Whether its node does."""
        number = self._numbers[slot.host]
        return any(node["Alive"] for node in self._ray.nodes() if node["NodeID"] == number)

    def affinity(self, slot: Slot) -> Any:  # noqa: ANN401
        """Ray's strategy that starts an actor there and nowhere else."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(self._numbers[slot.host], soft=False)

    def _room(self, resources: dict[str, float]) -> int:
        room = resources.get("CPU", 0.0) / self._layout.cpus_per_worker
        if self._layout.gpus:
            room = min(room, resources.get("GPU", 0.0) / self._layout.gpus)
        return int(room + 1e-9)
