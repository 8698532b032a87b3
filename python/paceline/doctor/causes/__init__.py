"""What time can be lost to: a cause a module, each a function of the analysis that gives a diagnosis or nothing.

| module | finds |
| --- | --- |
| straggler | ranks wait for one, or for each other in turn |
| negotiation | all are ready, and agreeing on it takes long |
| sending | data moves: many small operations, what backward could have hidden, and the network |
| inputs | all ranks load and prepare |
| blocking | operations in the midst of input, forward or optimizer |
| slow_steps | a few steps that take several times as long |
| compute | nothing of that: computation |
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.doctor.analysis import Analysis
from paceline.doctor.causes import blocking, compute, inputs, negotiation, sending, slow_steps, straggler
from paceline.doctor.diagnosis import Diagnosis

SLOW_STEPS, COMPUTE_BOUND = "slow-steps", "compute-bound"
LISTED = 0.03
"""What costs less than this share of a step is not worth a line."""

_CAUSES: tuple[Callable[[Analysis], Diagnosis | None], ...] = (
    # Where two cost the same, the one whose remedy is cheaper comes first.
    straggler.diagnose,
    negotiation.diagnose,
    sending.small_buckets,
    sending.no_overlap,
    inputs.diagnose,
    blocking.diagnose,
    slow_steps.diagnose,
    sending.network,
)


def diagnoses(analysis: Analysis) -> list[Diagnosis]:
    """All that hold, the costliest first; that computation takes the time, where the others hardly cost."""
    found = [diagnosis for cause in _CAUSES if (diagnosis := cause(analysis)) and diagnosis.share >= LISTED]
    found.sort(key=lambda diagnosis: -diagnosis.share)
    healthy = compute.diagnose(analysis, sum(it.share for it in found if it.name != SLOW_STEPS))
    return [healthy, *found] if healthy else found
