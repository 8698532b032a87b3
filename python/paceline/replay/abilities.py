"""What the runtime does otherwise than the simulator: replay and `paceline validate` ask here, and nowhere else."""

from __future__ import annotations

PULL_ONLY = False
"""Whether servers of a job distribute tensors that have no gradient."""
STEP_BARRIER = False
"""Whether servers of a job hold all tensors of an iteration together, not those of one all-reduce."""
NOT_AS_SIMULATED = {
    "multicast": "the runtime sends to one after the other where the strategy multicasts",
    "aggregation": "the runtime's switch is a role of worker 0, behind that worker's link",
}
"""What strategies need of the network, where the runtime does something else; and what it does."""


def barrier(*, servers: bool, buckets: int) -> bool:
    """Whether iterations are held together, for servers of a job too."""
    return not servers or STEP_BARRIER or buckets == 1
