"""Traces made from other traces, and the paper's toy example."""

from __future__ import annotations

import json
from typing import Any

from paceline import Trace

# Approximates "servers x workers equal pieces", to keep the study fast.
SLICES = 8


def in_forward_order(trace: Trace) -> Trace:
    """Let servers send the first convolution first.

    In the authors' traces it comes late (docs/results/network-operator.md). The times with cut tensors, which are those
    of computation alone, leave no room for that, so their cut tensors must have been sent in forward order.
    """
    plain: dict[str, Any] = json.loads(trace.to_json())
    if "distribution" in plain:
        first = next(name for layer in plain["workers"][0]["forward"] for name in layer.get("tensors", []))
        plain["distribution"].remove(first)
        plain["distribution"].insert(0, first)
    return Trace.from_json(json.dumps(plain).encode(), "in forward order")


def sliced(trace: Trace, slices: int) -> Trace:
    """Split every tensor into equal ones, so that round-robin placement spreads each over the servers.

    `--placement even` cuts a tensor into servers x workers pieces: ten million messages for ResNet-200 at 32 workers
    and 8 servers. With multicast and aggregation 8 pieces give the published rows the same times within 0.05 % (a
    test compares them).
    """
    plain: dict[str, Any] = json.loads(trace.to_json())
    sizes: dict[str, int] = {g["tensor"]: g["bytes"] for g in plain["workers"][0]["gradients"]}
    forward = plain["workers"][0]["forward"]
    order = plain.get("distribution") or [name for layer in forward for name in layer.get("tensors", [])]
    sizes |= {entry["tensor"]: entry["bytes"] for entry in order if isinstance(entry, dict)}
    element = 4

    def parts(name: str) -> list[tuple[str, int]]:
        elements = sizes[name] // element
        count = min(slices, elements)
        ends = [elements * i // count for i in range(count + 1)]
        return [(f"{name}[{i}]", element * (ends[i + 1] - ends[i])) for i in range(count)]

    for worker in plain["workers"]:
        for layer in worker["forward"]:
            layer["tensors"] = [part for name in layer.get("tensors", []) for part, _ in parts(name)]
        worker["gradients"] = [
            {"tensor": part, "ready_s": gradient["ready_s"], "bytes": size}
            for gradient in worker["gradients"]
            for part, size in parts(gradient["tensor"])
        ]
    plain["distribution"] = [
        {"tensor": part, "bytes": size} if isinstance(entry, dict) else part
        for entry in order
        for part, size in parts(entry["tensor"] if isinstance(entry, dict) else entry)
    ]
    return Trace.from_json(json.dumps(plain).encode(), f"{slices} slices")


# Of the toy example: three equal operations of 3 s of computation and 3 s of network each.
TOY_S = 3.0
TOY_OPERATIONS = 3
TOY_GBPS = 25


def toy(*, staggered: bool) -> Trace:
    """Return the toy example for two workers; if staggered, the second starts its backward pass 3 s later.

    The forward pass takes no time and needs everything, so that an iteration is the distribution followed by what the
    paper calls the aggregation phase.
    """
    size = round(TOY_S * TOY_GBPS * 1e9 / 8)
    names = [f"operation{i}" for i in range(TOY_OPERATIONS)]

    def worker(delay: float) -> dict[str, Any]:
        ready = [(name, delay + TOY_S * (i + 1)) for i, name in enumerate(reversed(names))]
        return {
            "forward": [{"layer": "all", "duration_s": 0.0, "tensors": names}],
            "gradients": [{"tensor": name, "ready_s": at, "bytes": size} for name, at in ready],
        }

    trace = {
        "format": "paceline-trace",
        "version": 1,
        "name": "toy",
        "provenance": "the toy example of the network-operator study",
        "batch": 1,
        "dtype": "float32",
        "workers": [worker(0.0), worker(TOY_S if staggered else 0.0)],
    }
    return Trace.from_json(json.dumps(trace).encode(), "toy")
