"""Data moves, and nothing hides it: many small operations, what backward could have hidden, and then the network."""

from __future__ import annotations

from paceline import human
from paceline.doctor.analysis import Analysis, Interface
from paceline.doctor.busiest import Busiest, busiest
from paceline.doctor.diagnosis import Diagnosis, Figure, nanoseconds, operations, percent, size
from paceline.doctor.remedies import fewer_bytes, larger_buckets, less_often, smaller_buckets
from paceline.doctor.sending import Sending, sending


def small_buckets(analysis: Analysis) -> Diagnosis | None:
    """Operations so small that each takes the same time."""
    found = sending(analysis)
    if found is None or not found.small:
        return None
    return Diagnosis(
        name="small-buckets",
        seconds=found.small / 1e9,
        share=found.small / analysis.mean.step,
        headline="the fixed cost of many small operations",
        says=f"{operations(found.operations)}{_per_step(analysis)}, half of them of at most "
        f"{size(found.median_bytes)}; each takes {nanoseconds(found.fixed)} whatever its size",
        evidence=_figures(found),
        tries=[larger_buckets(analysis.interface), less_often(analysis.interface)],
    )


def no_overlap(analysis: Analysis) -> Diagnosis | None:
    """Gradients that move after backward although they could have moved during it."""
    found = sending(analysis)
    if found is None or not found.overlap:
        return None
    held = found.held > found.overlap / 2
    if held:
        why = f"for {nanoseconds(found.held)} of backward gradients are ready on all ranks, and nothing moves"
    elif found.operations == 1:
        why = f"they go in one operation, which begins after {percent(found.late)} of backward"
    else:
        why = f"the first of {operations(found.operations)} begins after {percent(found.late)} of backward"
    remedy = smaller_buckets(analysis.interface, human.size(float(f"{found.bytes:.2g}")))
    if held and analysis.interface is Interface.HOROVOD:
        remedy = "HOROVOD_CYCLE_TIME lower (milliseconds; default 1): gradients then go as soon as all ranks have them"
    return Diagnosis(
        name="no-overlap",
        seconds=found.overlap / 1e9,
        share=found.overlap / analysis.mean.step,
        headline="moving gradients that backward could have hidden",
        says=f"{percent(found.hidden_share)} of the time in which gradients move is hidden behind backward; {why}",
        evidence={**_figures(found), "first_ready_share": found.late, "held_s": found.held / 1e9},
        tries=[remedy],
    )


def network(analysis: Analysis) -> Diagnosis | None:
    """The rest: bytes over bandwidth."""
    found = sending(analysis)
    if found is None or not found.network:
        return None
    hot = busiest(analysis.recording)
    rate = f" at a bus bandwidth of {_rate(found.bus_bandwidth_bps)}" if found.bus_bandwidth_bps else ""
    behind = f"; {percent(found.hidden_share)} of that is hidden behind backward" if analysis.has_steps else ""
    return Diagnosis(
        name="network-bound",
        seconds=found.network / 1e9,
        share=found.network / analysis.mean.step,
        headline="moving gradients" if analysis.has_steps else "moving data",
        says=f"{size(found.bytes)}{_per_step(analysis)} in {operations(found.operations)}"
        f"{rate}{behind}{hot.words if hot else ''}",
        evidence={
            **_figures(found),
            "busiest": hot.role if hot else None,
            "busiest_times": hot.times if hot else None,
        },
        tries=_remedies(analysis, hot),
    )


def _remedies(analysis: Analysis, hot: Busiest | None) -> list[str]:
    faster = "what a faster network would bring: "
    if analysis.has_steps:
        faster += "paceline record -o mine.json -- python train.py; paceline simulate mine.json"
    else:
        faster += "paceline simulate allreduce:SIZE"
    return [
        *(
            [f"--strategy ring: nobody moves more than others; or more --servers share {hot.role}'s load"]
            if hot
            else []
        ),
        fewer_bytes(analysis.interface),
        less_often(analysis.interface),
        "ranks of one host: --transport auto (shared memory); between hosts: --streams 4, the fastest --interface",
        "no --strategy, so that each size takes what measures fastest at the start",
        f"{faster} --workers {analysis.recording.world_size} --bandwidth 10Gbps,25Gbps,100Gbps",
    ]


def _figures(found: Sending) -> dict[str, Figure]:
    return {
        "exposed_s": found.exposed / 1e9,
        "hidden_share": found.hidden_share,
        "operations_per_step": found.operations,
        "bytes_per_step": found.bytes,
        "median_bytes": found.median_bytes,
        "fixed_s": found.fixed / 1e9,
        "bus_bandwidth_bps": found.bus_bandwidth_bps,
    }


def _per_step(analysis: Analysis) -> str:
    return " a step" if analysis.has_steps else " in all"


def _rate(bits_per_s: float) -> str:
    return human.rate(float(f"{bits_per_s:.3g}"))
