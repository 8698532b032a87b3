#!/usr/bin/env python3
"""Fits the constants of the coordinator model to three networks' published figures, and prints how all nine come out.

python scripts/fit_coordinator.py [--iterations 400] [--rounds 6] [--seed 0]

It changes no file: enter the printed values into crates/simulator/src/coordination/constants.rs and
paceline/studies/load_imbalance/runs.py, then run infer_compute.py and write_coordinator_model.py. The figures of the
networks that are not fitted take no part in the search.

A pattern search: every constant is tried a step higher and lower, a step that helps is kept and lengthened, one that
does not is halved. All candidates see the same random draws, so that differences are the constants'.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from paceline.forecast.coordination.constants import all_constants
from paceline.forecast.coordination.networks import networks
from paceline.forecast.scenario import Scenario
from paceline.forecast.sweep import execute
from paceline_lab.studies.load_imbalance import runs

CORE = (
    "preemption_per_node",
    "preemption_mean_ms",
    "oversleep_probability",
    "oversleep_mean_ms",
    "spin_preemption_per_node",
)
# Of the study itself: strong scaling.
STUDY = ("FIXED_SHARE", "FIXED_CONTENTION")
COUNTS = (6, 384, 6144, 12_288, 24_576)
STRONG_COUNTS = (384, 1536, 6144, 24_576)


def simulated(constants: Mapping[str, float], iterations: int, seed: int, fitted: bool) -> dict[runs.Point, float]:
    """Runs every point that the figures of these networks need, after computation is inferred anew."""
    runs.FIXED_SHARE, runs.FIXED_CONTENTION = (constants[name] for name in STUDY)
    core = {name: constants[name] for name in CORE}
    names = [name for name in networks() if (name in runs.FITTED) == fitted]
    runs.step.cache_clear()
    runs.contention_s.cache_clear()
    _infer(names, core, iterations, seed)
    points = [runs.Point(name, kind, gpus) for name in names for gpus in COUNTS for kind in (runs.BASELINE, runs.GRAPH)]
    if fitted:
        others = ("global-sleep", "nonblocking", "partitioned")
        points += [runs.Point(runs.STRONG_NETWORK, kind, gpus) for gpus in COUNTS[1:] for kind in others]
        kinds = (runs.BASELINE, *others, runs.GRAPH)
        points += [runs.Point(runs.STRONG_NETWORK, it, gpus, runs.STRONG) for gpus in STRONG_COUNTS for it in kinds]
    return dict(zip(points, execute([_run(point, core, iterations, seed) for point in points]), strict=True))


def _run(point: runs.Point, core: Mapping[str, float], iterations: int, seed: int) -> Scenario:
    run = runs.run_of(point, iterations).changed(seed=seed)
    assert run.coordination is not None
    return replace(run, coordination=replace(run.coordination, constants={**core, **run.coordination.constants}))


def _infer(names: list[str], core: Mapping[str, float], iterations: int, seed: int) -> None:
    """Sets computation so that iterations in graph order on 12,288 GPUs are the inferred ones."""
    names = [name for name in names if networks()[name].compute_source == "inferred"]
    for _ in range(3):
        found = execute([_run(runs.Point(name, runs.GRAPH, 12_288), core, iterations, seed) for name in names])
        for name, result in zip(names, found, strict=True):
            wanted = networks()[name].inferred_iteration_s()
            compute = networks()[name].compute_ms + (wanted - result.iteration_s) * 1e3
            networks()[name] = replace(networks()[name], compute_ms=max(0.5, compute))
        runs.step.cache_clear()
        runs.contention_s.cache_clear()


def gain(results: runs.Results, network: str, kind: str, gpus: int, scaling: str = runs.WEAK) -> float:
    base, own = (results[runs.Point(network, it, gpus, scaling)].iteration_s for it in (runs.BASELINE, kind))
    return 100 * (base / own - 1)


def figures(results: runs.Results, fitted: bool) -> list[tuple[str, float, float, float, float]]:
    """Name, simulated, what to aim at (a range), and how much a deviation weighs (1 / its tolerance)."""
    found = []
    if fitted:
        base, graph = (results[runs.Point("resnet-50", kind, 24_576)] for kind in (runs.BASELINE, runs.GRAPH))
        reduction = base.iteration_s - base.compute_s
        found += [
            ("x below linear", base.iteration_s / base.compute_s, 3.3, 3.3, 10),
            ("all-reduce %", 100 * reduction / base.iteration_s, 70.3, 70.3, 1 / 2),
            ("coordinator %", 100 * base.coordinator_s / base.iteration_s, 46, 46, 1 / 2),
            ("idle %", 100 * (base.coordinator_s + base.copy_s) / reduction, 67, 100, 1 / 2),
            ("graph coordinator %", 100 * graph.coordinator_s / graph.iteration_s, 3.4, 3.4, 1),
            ("graph collective %", 100 * graph.collective_s / graph.iteration_s, 59, 59, 1 / 2),
        ]
        for kind, published in (("global-sleep", 10), ("nonblocking", 16), ("partitioned", 18), ("graph", 21)):
            most = max(gain(results, "resnet-50", kind, gpus) for gpus in COUNTS[1:])
            found.append((f"resnet-50 {kind}", most, published, published, 1 / 1.5))
        kinds = ("global-sleep", "nonblocking", "partitioned", "graph")
        strong = max(gain(results, "resnet-50", it, n, runs.STRONG) for n in STRONG_COUNTS for it in kinds)
        found.append(("strong", strong, 19, 19, 1 / 1.5))
        rate = {n: results[runs.Point("resnet-50", runs.BASELINE, n, runs.STRONG)].samples_per_s for n in STRONG_COUNTS}
        found.append(
            ("strong, growth after 1,536 %", 100 * (max(rate[6144], rate[24_576]) / rate[1536] - 1), -15, 0, 1 / 2)
        )
    bounds = {"resnet-18": (5, 21), "resnet-34": (5, 21), "resnet-101": (5, 21), "resnet-152": (5, 21)}
    bounds |= {"inception-v3": (10, 18), "googlenet": (25, 35), "vgg-16": (2, 6)}
    for network, (low, high) in bounds.items():
        if (network in runs.FITTED) == fitted:
            all_ = [gain(results, network, "graph", gpus) for gpus in COUNTS]
            found.append(
                (
                    f"{network} graph (from {min(all_):.1f}, mean {sum(all_) / len(all_):.1f})",
                    max(all_),
                    low,
                    high,
                    1 / 1.5,
                )
            )
    if not fitted:
        all_ = [gain(results, "alexnet", "graph", gpus) for gpus in COUNTS]
        found.append(
            (f"alexnet graph, mean (from {min(all_):.1f} to {max(all_):.1f})", sum(all_) / len(all_), -6, -6, 1 / 1.5)
        )
    return found


def loss(found: list[tuple[str, float, float, float, float]]) -> float:
    return sum((max(low - value, value - high, 0) * weight) ** 2 for _, value, low, high, weight in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    constants = {name: all_constants()[name].default for name in CORE}
    constants |= {"FIXED_SHARE": runs.FIXED_SHARE, "FIXED_CONTENTION": runs.FIXED_CONTENTION}
    step = dict.fromkeys(constants, 0.15)

    def judged(candidate: Mapping[str, float]) -> float:
        return loss(figures(simulated(candidate, args.iterations, args.seed, fitted=True), fitted=True))

    best = judged(constants)
    print(f"{best:8.3f} {constants}", flush=True)
    for _ in range(args.rounds):
        for name in constants:
            for sign in (1, -1):
                candidate = {**constants, name: constants[name] * (1 + sign * step[name])}
                found = judged(candidate)
                if found < best:
                    best, constants = found, candidate
                    step[name] *= 1.5
                    print(f"{best:8.3f} {name} = {constants[name]:.6g}", flush=True)
                    break
            else:
                step[name] /= 2
    print(constants)
    for fitted in (True, False):
        print("fitted" if fitted else "not fitted")
        for name, value, low, high, _ in figures(simulated(constants, 2000, args.seed, fitted=fitted), fitted=fitted):
            print(f"  {name:50} {value:8.2f}   published {low:g} to {high:g}")


if __name__ == "__main__":
    main()
