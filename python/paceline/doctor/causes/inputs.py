"""All ranks spend time between the end of one step and the forward pass of the next."""

from __future__ import annotations

from paceline.doctor.analysis import Analysis
from paceline.doctor.diagnosis import Diagnosis, nanoseconds
from paceline.doctor.parts import quantile


def diagnose(analysis: Analysis) -> Diagnosis | None:
    """What the input costs that all ranks have; what one has more, the others wait for, and is counted there."""
    inputs = {rank: parts.input for rank, parts in analysis.means.items()}
    lost = min(quantile(inputs.values(), 0.5), sorted(inputs.values())[(len(inputs) - 1) // 2])
    step = analysis.mean.step
    if not lost:
        return None
    longest = max(inputs, key=lambda rank: inputs[rank])
    return Diagnosis(
        name="input-pipeline",
        seconds=lost / 1e9,
        share=lost / step,
        headline="input, before the forward pass can begin",
        says=f"from the end of a step to the next forward pass {nanoseconds(lost)} go by on every rank "
        f"({nanoseconds(inputs[longest])} on rank {longest}): loading and preparing data, and whatever else the script "
        "does there",
        evidence={
            "least_s": min(inputs.values()) / 1e9,
            "most_s": inputs[longest] / 1e9,
            "rank": longest,
        },
        tries=[
            "load ahead of time: DataLoader(num_workers=2 or more, prefetch_factor=4, persistent_workers=True)",
            "move what can be done once out of the loop: decoding, resizing, tokenizing",
            "look for what makes the script wait there: printing, loss.item(), checkpoints in every step",
        ],
    )
