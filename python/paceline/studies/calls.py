"""The cost of submitting gradients to the communication library."""

from __future__ import annotations

import json

from paceline._core import Trace


def with_calls(trace: Trace, call_s: float, agreement_s: float = 0.0) -> Trace:
    """Return the trace with a call of `call_s` seconds per gradient added to the backward pass.

    Each gradient then waits for the coordinator, which takes `agreement_s` per gradient, one at a time, in parallel
    with the backward pass.
    """
    document = json.loads(trace.to_json())
    for worker in document["workers"]:
        # The forward pass lists durations, the backward pass points in time, which all earlier calls delay.
        order = sorted(worker["gradients"], key=lambda gradient: gradient["ready_s"])
        agreed = 0.0
        for calls, gradient in enumerate(order, start=1):
            agreed = max(gradient["ready_s"] + calls * call_s, agreed) + agreement_s
            gradient["ready_s"] = agreed
        worker["backward_s"] = max(worker["backward_s"] + len(order) * call_s, agreed)
    return Trace.from_json(json.dumps(document).encode(), document["name"])
