"""What handing gradients over takes of a step."""

from __future__ import annotations

import json

from paceline._core import Trace


def with_calls(trace: Trace, call_s: float, agreement_s: float = 0.0) -> Trace:
    """Every gradient is handed over by a call that takes `call_s` seconds of the backward pass's own time.

    Then it waits until a coordinator has agreed on it, which takes `agreement_s` and is done for one after the other,
    beside the backward pass.
    """
    document = json.loads(trace.to_json())
    for worker in document["workers"]:
        # The forward pass lists durations, the backward pass moments: later ones move by all earlier calls.
        order = sorted(worker["gradients"], key=lambda gradient: gradient["ready_s"])
        agreed = 0.0
        for calls, gradient in enumerate(order, start=1):
            agreed = max(gradient["ready_s"] + calls * call_s, agreed) + agreement_s
            gradient["ready_s"] = agreed
        worker["backward_s"] = max(worker["backward_s"] + len(order) * call_s, agreed)
    return Trace.from_json(json.dumps(document).encode(), document["name"])
