"""The words for NCCL's collectives."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline._internal.block import Fact
from paceline.catalog.nccl import Kind, checked
from paceline.forecast.nccl.request import Answer
from paceline.forecast.wording.terms import NCCL, RCCL

COLLECTIVES: dict[Kind, str] = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


def library(answer: Answer) -> str:
    """Return the name of the library: that of AMD's GPUs is RCCL."""
    return RCCL if answer.machine.intra_link == "xgmi" else NCCL


def headline(answer: Answer) -> str:
    """Return the time and the bus bandwidth of a size, or the highest of several."""
    name = f"{library(answer)} {COLLECTIVES[answer.kind]}"
    where = f"{units.count(answer.group.ranks, 'GPU')} of {answer.cluster}"
    best = max(answer.times, key=lambda it: it.bus_bandwidth)
    rate, time = f"{_gigabytes(best.bus_bandwidth)} GB/s busbw", units.duration(best.seconds)
    if len(answer.times) == 1:
        return f"{name} of {units.size(best.size)}, {where}: {time}, {rate}"
    return f"{name}, {where}: up to {rate} ({units.size(best.size)} in {time})"


def facts(answer: Answer) -> list[Fact]:
    """Return the choice of NCCL for a single size, and the machines."""
    group, machine = answer.group, answer.machine
    where = [units.count(group.nodes, "node")]
    if group.nodes > 1:
        nics = f" over {units.count(machine.nics, 'NIC')} per node" if machine.nics > 1 else " per node"
        where.append(f"{units.rate(8 * machine.nominal)}{nics}")
    setup = Fact("Setup", ", ".join([*where, "timed as in nccl-tests"]))
    if len(answer.times) > 1:
        return [setup]
    [it] = answer.times
    return [Fact("Algorithm", f"{it.algorithm}, {it.protocol}; {_gigabytes(it.algorithm_bandwidth)} GB/s algbw"), setup]


def _gigabytes(bytes_per_s: float) -> str:
    return units.digits(bytes_per_s / 1e9, 3)


def notes(answers: Sequence[Answer]) -> list[str]:
    """Return what was assumed, where NCCL's own model would choose otherwise, and what forecasts are checked with."""
    made = [f"Assumed {one}" for answer in answers for one in answer.machine.assumed]
    pairs = [(it, it.tuning) for answer in answers if answer.group.nodes > 1 for it in answer.times]
    other = [(it, own) for it, own in pairs if own and (own.algorithm, own.protocol) != (it.algorithm, it.protocol)]
    if other:
        it, own = other[-1]
        pick = f"{units.size(it.size)}: {own.algorithm} with {own.protocol}, {units.duration(own.seconds)}"
        rows = "1 row" if len(other) == 1 else f"{len(other):,} rows"
        made += [
            f"By its own model NCCL would pick otherwise in {rows} ({pick})",
            "That model is 2-3x too fast between nodes, except ring with Simple, so it is not followed there",
        ]
    made += dict.fromkeys(carried(answer) for answer in answers if is_limited(answer))
    return [*made, *(evidence(answer) for answer in answers)]


def is_limited(answer: Answer) -> bool:
    """Return whether messages between nodes pass through the host's memory."""
    return answer.group.nodes > 1 and answer.machine.transport != "rdma"


def carried(answer: Answer) -> str:
    """Return what sockets, or NICs without GPUDirect, carry of a node's network."""
    machine, group = answer.machine.carrying(answer.group), answer.group
    assert machine.nic_share is not None
    rate, wire = machine.network_of(group) * machine.nic_share / 1e9, answer.machine.network_of(group) / 1e9
    how = "Over TCP sockets" if machine.transport == "sockets" else "Without GPUDirect"
    return f"{how} NCCL sends {units.digits(rate, 3)} GB/s of the {units.digits(wire, 3)} GB/s of its network cards"


def evidence(answer: Answer) -> str:
    """Return how far forecasts have been from measurements, or that there are none."""
    several, machine = answer.group.nodes > 1, answer.machine
    if machine.intra_link == "xgmi":
        return f"Checked {'on one node only, ' if several else ''}against RCCL's all-reduces on 8 MI300X"
    if machine.intra_link == "pcie" and not several:
        return "Over PCI Express, shares of a slot are from few measurements (docs/explanation/nccl.md)"
    if several and machine.transport != "rdma":
        return (
            "Between nodes without GPUDirect RDMA, checked with 12 published bandwidths, some of networks with faults "
            "(paceline study collectives)"
        )
    if several:
        return (
            "Between nodes, checked only against all-reduces of 32 MiB to 8 GiB on 16 to 256 H100 over EFA, to which "
            "trees were fitted (paceline study collectives)"
        )
    known = checked()
    mean, without = units.percent(known.mean), units.percent(known.without_source)
    return (
        f"Validated on one node with {known.rows} published bandwidths (8 H200, 8 B200): {mean} off on average, "
        f"{without} without their own source (paceline study collectives)"
    )
