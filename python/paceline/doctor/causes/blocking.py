"""Operations that the script waits for in the midst of input, forward or optimizer."""

from __future__ import annotations

from paceline import human
from paceline.doctor.analysis import Analysis
from paceline.doctor.diagnosis import Diagnosis, nanoseconds


def diagnose(analysis: Analysis) -> Diagnosis | None:
    """What they move and agree on; the waiting for stragglers in them is counted as such."""
    waits = [
        wait
        for accounts in analysis.accounts.values()
        for account in accounts
        for wait in account.waits
        if not wait.gradients
    ]
    steps = sum(len(accounts) for accounts in analysis.accounts.values())
    lost = sum(wait.transfer for wait in waits) / steps
    operations = sum(wait.operations for wait in waits) / steps
    if not lost:
        return None
    return Diagnosis(
        name="blocking-operations",
        seconds=lost / 1e9,
        share=lost / analysis.mean.step,
        headline="operations that are no gradients",
        says=f"{human.short(operations)} operations a step begin and end within input, forward pass or optimizer, "
        f"where nothing hides them: {nanoseconds(lost)}",
        evidence={"operations_per_step": operations},
        tries=[
            "sum metrics on each rank, and reduce them every hundred steps instead of in each",
            "DistributedDataParallel(broadcast_buffers=False), if ranks may keep buffers (batch norm) of their own",
        ],
    )
