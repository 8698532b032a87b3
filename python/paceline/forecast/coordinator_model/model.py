"""How a forecast is coordinated: the policy, and what is known of the machine and of the network that is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline import _core
from paceline.catalog.strategies import all_coordinators, find_coordinator


@dataclass(frozen=True)
class Coordination:
    """A coordinator with its constants; docs/explanation/coordinator-model.md describes the model."""

    coordinator: str
    contention_s: float | None = None
    """How long input pipeline and graph scheduling are both active; None: a share of an iteration on one node."""
    graph_nodes: float | None = None
    """Nodes of the graph of a training step; None: by the number of tensors."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """Constants that differ from Summit's."""

    def native(self) -> _core.Coordination:
        """Return it in the form of the native module."""
        return _core.Coordination(
            self.coordinator,
            contention_s=self.contention_s,
            graph_nodes=self.graph_nodes,
            constants=dict(self.constants),
        )


def find_coordinators(words: Sequence[str]) -> list[str]:
    """Return the names of the coordinators that these words mean, each once; `all` stands for all.

    Raises InvalidArgumentError, which suggests a similar name.
    """
    names: dict[str, None] = {}
    for word in words:
        names |= {it.name: None for it in all_coordinators()} if word == "all" else {find_coordinator(word): None}
    return list(names)
