"""What the runtime does otherwise than the simulator, so that it cannot be compared."""

from __future__ import annotations

NOT_AS_SIMULATED = {
    "multicast": "the runtime sends to one after the other where the strategy multicasts",
}
"""What strategies need of the network, where the runtime does something else; and what it does."""
