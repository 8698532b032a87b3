"""What is said of NCCL's collectives."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline.catalog.nccl import Kind, checked
from paceline.forecast.nccl.request import Answer

COLLECTIVES: dict[Kind, str] = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


def title(answer: Answer) -> str:
    """Return what an answer is about, in a line."""
    group, machine = answer.group, answer.machine
    between = ""
    if group.nodes > 1:
        nics = f", {units.count(machine.nics, 'NIC')} a node" if machine.nics > 1 else ""
        between = f", {units.rate(8 * machine.nominal)}{nics}"
    return (
        f"NCCL's {COLLECTIVES[answer.kind]} on {answer.cluster}: {units.count(group.ranks, 'GPU')} on "
        f"{units.count(group.nodes, 'node')}{between}, as nccl-tests times it"
    )


def notes(answers: Sequence[Answer]) -> list[str]:
    """Return what was assumed, and where NCCL's own model would choose otherwise."""
    found = dict.fromkeys(f"assumed: {one}" for answer in answers for one in answer.machine.assumed)
    pairs = [(it, it.tuning) for answer in answers if answer.group.nodes > 1 for it in answer.times]
    other = [(it, own) for it, own in pairs if own and (own.algorithm, own.protocol) != (it.algorithm, it.protocol)]
    if other:
        it, own = other[-1]
        note = (
            f"in {units.count(len(other), 'row')}, NCCL's own model would choose otherwise, for {units.size(it.size)} "
            f"and {it.group.ranks} GPUs {own.algorithm} with {own.protocol} ({units.duration(own.seconds)}); between "
            "nodes that model is 2 to 3 times too fast for all but rings with Simple, so these rows are as calibrated"
        )
        found[note] = None
    found |= dict.fromkeys(evidence(answer.group.nodes) for answer in answers)
    return list(found)


def evidence(nodes: int) -> str:
    """Return how far forecasts have been from measurements, or that there are none."""
    if nodes > 1:
        return "there is no evidence for several nodes: no published bandwidths of them are built in"
    known = checked()
    return (
        f"on one node, forecasts of {known.rows} published bandwidths (8 H200, 8 B200) are {units.percent(known.mean)} "
        f"off on average, and {units.percent(known.without_source)} without their own source (paceline study "
        "collectives)"
    )
