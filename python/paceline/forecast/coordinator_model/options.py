"""From the options of a forecast to its coordinators; options without effect under a coordinator are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._core import Cluster, Trace
from paceline.catalog.builtin_names import built_in_trace
from paceline.errors import InvalidArgumentError
from paceline.forecast.coordinator_model.constants import all_constants, read_constants
from paceline.forecast.coordinator_model.model import Coordination, find_coordinators
from paceline.forecast.coordinator_model.networks import contention_share, networks
from paceline.forecast.wording import notes

if TYPE_CHECKING:
    from paceline.forecast.request import Sweep

SUMMIT, HOROVOD = "summit", "horovod"
# Processes that are late by nothing, on a network that gives what its cluster file says.
BALANCED = {
    "oversleep_probability": 0.0,
    "preemption_per_node": 0.0,
    "spin_preemption_per_node": 0.0,
    "congestion": 0.0,
    "collective_step_ms": 0.0,
}
# Constants that go by a name, as they differ from Summit's, and the fusion threshold that belongs to them.
_NAMED: Mapping[str, tuple[Mapping[str, float], int]] = {
    SUMMIT: ({}, 64 << 20),
    HOROVOD: ({**BALANCED, "cycle_ms": 1.0}, 128 << 20),
}


@dataclass(frozen=True)
class Coordinated:
    """The coordinators of a sweep, what else follows from them, and notes on what is assumed."""

    coordinations: list[Coordination | None]
    bucket_size: int | None = None
    notes: list[str] = field(default_factory=list)


def coordinated(sweep: Sweep, trace: Trace, machine: Cluster) -> Coordinated:
    """Return the coordinators that are asked for. Raises InvalidArgumentError."""
    wanted = sweep.get("coordinator") or ["none"]
    words = [wanted] if isinstance(wanted, str) else list(wanted)
    names = find_coordinators([word for word in words if word != "none"])
    if not names:
        if sweep.get("coordinator_constants") is not None:
            raise InvalidArgumentError(
                "needs a coordinator", setting="coordinator_constants", remedy="{coordinator=negotiate}, or drop {this}"
            )
        return Coordinated([None])
    _refuse_without_effect(sweep)
    constants, fused, said = _constants(sweep, trace, machine)
    graph_nodes = networks()[name].graph_nodes if (name := built_in_trace(str(sweep.trace))) in networks() else None
    made: list[Coordination | None] = [
        Coordination(coordinator, graph_nodes=graph_nodes, constants=constants) for coordinator in names
    ]
    return Coordinated([None, *made] if "none" in words else made, fused, said)


def _refuse_without_effect(sweep: Sweep) -> None:
    reasons = {
        "barrier": (sweep.get("barrier") is False, "the last exchange ends on all ranks at once"),
        "pull": (sweep.get("pull") == "layer", "a bucket's exchange ends when its parameters are back"),
        "placement": (
            any(one not in ("round-robin", "even") for one in sweep.get("placement") or ()),
            "which buckets there are is found out in every cycle",
        ),
    }
    for name, (given, reason) in reasons.items():
        if given:
            raise InvalidArgumentError(
                f"has no effect under a coordinator: {reason}",
                setting=name,
                remedy="drop --no-barrier" if name == "barrier" else "drop {this}",
            )


def _constants(sweep: Sweep, trace: Trace, machine: Cluster) -> tuple[dict[str, float], int, list[str]]:
    """Return the constants that differ from Summit's, the fusion threshold in bytes, and notes."""
    said = []
    given, cluster = sweep.get("coordinator_constants"), machine.name
    name = given if given in _NAMED else SUMMIT if cluster == SUMMIT else HOROVOD
    named, fused = _NAMED[name]
    constants = dict(named)
    if given is not None and given not in _NAMED:
        constants |= read_constants(Path(given))
    elif given is None and name == HOROVOD:
        option = sweep.spelling("coordinator_constants")
        said.append(notes.balanced_coordinator(cluster, option))
    if sweep.get("bucket_size") is None:
        said.append(notes.fused(fused, sweep.spelling("bucket_size")))
    late = {name: constants.get(name, all_constants()[name].default) for name in BALANCED}
    if "contention_share" not in constants and (late["preemption_per_node"] or late["oversleep_probability"]):
        share = contention_share(built_in_trace(str(sweep.trace)))
        if share is not None:
            constants["contention_share"] = share
        shown = share if share is not None else all_constants()["contention_share"].default
        said.append(notes.contention(shown, is_published=share is not None))
    return constants, fused, said
