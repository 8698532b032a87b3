"""A few steps take several times as long as the others, which the means leave out."""

from __future__ import annotations

from paceline import human
from paceline.doctor.analysis import Analysis
from paceline.doctor.diagnosis import Diagnosis, nanoseconds, percent
from paceline.doctor.parts import NAMES, mean


def diagnose(analysis: Analysis) -> Diagnosis | None:
    """What they cost, and in which part they differ."""
    slow = [account for accounts in analysis.slow.values() for account in accounts]
    if not slow:
        return None
    ranks, usual, parts = len(analysis.ranks), analysis.mean, mean([account.parts for account in slow])
    count, all_steps = len(slow) // ranks, analysis.count + len(slow) // ranks
    lost = (parts.step - usual.step) * count / all_steps
    share = lost / (usual.step + lost)
    grown = max(NAMES, key=lambda name: getattr(parts, name) - getattr(usual, name))
    return Diagnosis(
        name="slow-steps",
        seconds=lost / 1e9,
        share=share,
        headline="a few slow steps",
        says=f"{count} of {all_steps} steps took {human.short(parts.step / usual.step)} times as long as the others, "
        f"{nanoseconds(parts.step)}; the difference lies mostly in: {grown}. They cost {percent(share)} of the time, "
        "and are left out of all other figures",
        evidence={"steps": count, "of": all_steps, "step_s": parts.step / 1e9, "part": grown},
        tries=[
            "see what the script does every so many steps: checkpoints, validation, a new epoch's data loader "
            "(persistent_workers=True)",
            "gc.collect() and gc.freeze() after the first steps: Python's full garbage collections take long",
        ],
    )
