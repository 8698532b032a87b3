"""Nothing else costs much: the step is computation."""

from __future__ import annotations

from paceline.doctor.analysis import Analysis
from paceline.doctor.diagnosis import Diagnosis, percent

HEALTHY = 0.10
"""While all other causes together cost less than this share, there is little to gain from them."""


def diagnose(analysis: Analysis, others: float) -> Diagnosis | None:
    """That computation takes the time, if `others`, the share of all other causes, and communication are small."""
    parts = analysis.mean
    if not parts.step or others >= HEALTHY or parts.exposed >= HEALTHY * parts.step:
        return None
    computing = parts.compute if analysis.has_steps else parts.step - parts.exposed
    exposed = parts.exposed / parts.step
    what = "computation" if analysis.has_steps else "spent outside of operations"
    says = f"communication costs {percent(exposed)} of the time: there is little to gain from it"
    if analysis.recording.world_size == 1:
        says = "there is one rank, which waits for nobody"
    return Diagnosis(
        name="compute-bound",
        seconds=computing / 1e9,
        share=computing / parts.step,
        headline=what,
        says=says,
        evidence={"exposed_communication_share": exposed},
        tries=[
            "compute faster: OMP_NUM_THREADS up to cores / ranks, mixed precision, a larger batch",
            "add ranks, and forecast first what they bring: paceline record -o mine.json -- python train.py; "
            "paceline simulate mine.json --workers 4,8,16",
        ],
    )
