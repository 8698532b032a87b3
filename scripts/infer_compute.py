#!/usr/bin/env python3
"""Writes `compute_ms` of paceline/forecast/coordination/networks.json: a network's computation on one V100 at batch 32.

python scripts/infer_compute.py

ResNet-50's is published. Where the traversal's percentage of training time has two significant digits, the iteration on
12,288 GPUs follows from it, and computation is what remains of it in the model of graph order. Where it has one
(AlexNet, VGG-16), the trace's own rate is scaled by the factor by which ResNet-50 is faster in mixed precision.
"""

from __future__ import annotations

import json
from pathlib import Path

from paceline.catalog.library import load_trace
from paceline.forecast.coordination.networks import ITERATIONS, Network, networks
from paceline.forecast.run import result_of
from paceline_lab.studies.load_imbalance import runs

FILE = Path(__file__).parent.parent / "python/paceline/forecast/coordination/networks.json"
BASE = "resnet-50"
# Iterations differ by almost exactly as much as computations.
ROUNDS = 6
MANY = 2000


def by_rate(name: str) -> float:
    """The trace's computation at batch 32, in ms, scaled like ResNet-50's."""

    def of_trace(name: str) -> float:
        step = load_trace(name).with_batch(runs.BATCH)
        return 1e3 * (step.forward_s + step.backward_s + step.optimizer_s)

    return of_trace(name) * networks()[BASE].compute_ms / of_trace(BASE)


def inferred(network: Network, iterations: int = ITERATIONS) -> float:
    """The computation, in ms, with which the model's iteration is that of a training of so many iterations."""
    wanted, compute = network.inferred_iteration_s(iterations), network.compute_ms
    assert wanted is not None
    for _ in range(ROUNDS):
        network = Network(**{**vars(network), "compute_ms": compute})
        networks()[network.network] = network
        runs.step.cache_clear()
        point = runs.Point(network.network, runs.GRAPH, 12_288)
        compute += (wanted - result_of(runs.run_of(point, MANY)).iteration_s) * 1e3
    return compute


def main() -> None:
    """Rewrite the file, one line per network."""
    lines = []
    for name, network in list(networks().items()):
        known = {"published": lambda it: it.compute_ms, "inferred": inferred, "rate": lambda it: by_rate(it.network)}
        compute = round(known[network.compute_source](network), 1)
        is_inferred = network.compute_source == "inferred"
        other = round(inferred(network, runs.OTHER_ITERATIONS), 1) if is_inferred else None
        print(f"{name:14} {network.compute_ms:6.1f} → {compute:6.1f} ms, {network.compute_source}")
        lines.append("  " + json.dumps({**vars(network), "compute_ms": compute, "compute_ms_other": other}))
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
