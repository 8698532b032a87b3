"""DDP training on two ranks of one thread each, gloo and paceline in turn: the ratio of each pair, and their median."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jobs
import summary
import systems
from environments import SkippedError
from systems import System

BACKENDS = ("gloo", "paceline")
MODELS = {
    "mlp": "MLP, 100 MB, 4 samples a rank",
    "mlp-views": "the same, gradient_as_bucket_view",
    "resnet18": "ResNet-18, 16 images of 64 px a rank",
}
RANKS = 2
_PATIENCE_S = 240


def measure(pairs: int, steps: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds per step by model and backend, one number per pair."""
    result: dict[str, Any] = {}
    usable = list(BACKENDS)
    try:
        systems.prepare(systems.SYSTEMS["torch-paceline"])
    except SkippedError as reason:
        say(f"skipped: training: {reason}")
        usable.remove("paceline")
    for model in MODELS:
        times: dict[str, list[float | None]] = {backend: [] for backend in usable}
        moved: list[float] = []
        for number in range(pairs):
            for backend in usable:
                system = System(f"{model} on {backend}", backend, "job_training.py", "", arguments=(backend, model))
                try:
                    reports = jobs.run(system, RANKS, ["--steps", str(steps)], _PATIENCE_S)
                    times[backend].append(summary.slowest([report["seconds"] for report in reports]))
                    moved += [report["moved"] for report in reports]
                except jobs.JobError as error:
                    print(f"failed: {error}", file=sys.stderr)
                    times[backend].append(None)
                say(f"training, pair {number + 1}/{pairs}: {system.name} {times[backend][-1]}")
        result[model] = {"times": times, "alike": alike(moved)}
    return result


def alike(moved: Sequence[float]) -> bool:
    """Whether all ranks and backends changed the weights equally, up to the order of additions."""
    return all(math.isclose(moved[0], each, rel_tol=1e-3) for each in moved[1:])


def table(measured: dict[str, Any]) -> summary.Table:
    """Milliseconds, and the speedup."""
    rows = []
    for model, result in measured.items():
        times = result["times"]
        cells = [summary.middle(times.get(backend, ())) for backend in BACKENDS]
        ratio = summary.faster(times["gloo"], times["paceline"]) if "paceline" in times else None
        row = [MODELS[model], *(f"{cell * 1e3:.0f}" if cell else "–" for cell in cells), str(ratio) if ratio else "–"]
        rows.append([*row, "yes" if result["alike"] else "NO"] if ratio else row)
    header = ["model", "gloo, ms a step", "paceline, ms a step", "times as fast"]
    header += ["same weights"] if any(len(row) > len(header) for row in rows) else []
    return summary.Table("DDP training, 2 ranks, one thread each", header, rows)
