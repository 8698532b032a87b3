"""What handing gradients over takes of a step."""

from __future__ import annotations

import json

from paceline._core import Trace


def with_calls(trace: Trace, seconds: float) -> Trace:
    """Every gradient is handed over by a call that takes so many seconds of the backward pass's own time."""
    document = json.loads(trace.to_json())
    for worker in document["workers"]:
        # The forward pass lists durations, the backward pass moments: later ones move by all earlier calls.
        order = sorted(worker["gradients"], key=lambda gradient: gradient["ready_s"])
        for calls, gradient in enumerate(order, start=1):
            gradient["ready_s"] += calls * seconds
        worker["backward_s"] += len(order) * seconds
    return Trace.from_json(json.dumps(document).encode(), document["name"])
