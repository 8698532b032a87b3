#!/usr/bin/env python3
"""Calibrates the few parameters of the traces netop-* that the paper does not publish (netop_parameters.json).

Least squares of the relative errors of the calibrated rows (paceline_lab.studies.network_operator.published), per
model, by coordinate search over rounded values: deterministic, and no value has more digits than the rows justify.
Needs paceline installed; `make_netop_traces.py` then writes the traces.

    python scripts/calibrate_netop.py [--only PARAMETER] [--write]

With --only, the other parameters keep the values of netop_parameters.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from make_netop_traces import PARAMETERS, Parameters, make_trace, read_parameters, to_text
from paceline import Trace
from paceline_lab.studies.network_operator.published import MODELS, calibrated_rows
from paceline_lab.studies.network_operator.rows import value
from paceline_lab.studies.network_operator.runs import Simulations

ROWS = calibrated_rows()
# Rows outside these errors weigh more: nine in ten should be within the first, all within the second.
TOLERANCES = (0.03, 0.06)
START = Parameters(0.002, 0.25, 0.25, 5_000_000)
# Smallest steps: of the spread, of the first convolution's place, and of the extra bytes.
STEPS: dict[str, float] = {"backward_spread": 0.01, "first_conv_at": 0.05, "extra_distributed_bytes": 500_000}
WIDTHS = {"backward_spread": 2, "first_conv_at": 2, "extra_distributed_bytes": 4}
LIMITS: dict[str, float] = {"backward_spread": 2.0, "first_conv_at": 1.0, "extra_distributed_bytes": 50_000_000}
# The last layer's backward pass is what the paper's own rows imply: 4 ms for VGG-16, 2 ms for the others. VGG-16's
# workers are all alike and its servers send in forward order, so it has no free parameters.
STARTS = {
    "vgg-16": Parameters(0.004, 0.0, 0.0, 0),
    "inception-v3": START,
    "resnet-101": START,
    "resnet-200": START,
}
FREE = {model: () if model == "vgg-16" else tuple(STEPS) for model in MODELS}


def errors(model: str, parameters: Parameters) -> list[float]:
    trace = Trace.from_json(to_text(make_trace(model, parameters)).encode(), model)
    simulations = Simulations({model: trace})
    rows = [row for row in ROWS if row.model == model]
    simulations.prepare(config for row in rows for config in row.configs())
    return [value(row, simulations) / row.published - 1 for row in rows]


def neighbours(model: str, now: Parameters, scale: int, free: tuple[str, ...]) -> Iterator[Parameters]:
    """Steps up and down in all free parameters at once, because they trade off against each other; wider at the end."""
    names = [name for name in FREE[model] if name in free]
    ranges = [range(-1, 2) if scale > 1 else range(-WIDTHS[name], WIDTHS[name] + 1) for name in names]
    for moves in product(*ranges):
        changes: dict[str, float] = {}
        for name, move in zip(names, moves, strict=True):
            moved = round(getattr(now, name) + move * scale * STEPS[name], 6)
            changes[name] = min(max(moved, 0), LIMITS[name])
        if "extra_distributed_bytes" in changes:
            changes["extra_distributed_bytes"] = int(changes["extra_distributed_bytes"])
        yield replace(now, **changes)  # type: ignore[arg-type]


def calibrate(model: str, start: Parameters, free: tuple[str, ...]) -> Parameters:
    known: dict[Parameters, float] = {}

    def loss(parameters: Parameters) -> float:
        if parameters not in known:
            found = errors(model, parameters)
            known[parameters] = sum(
                error**2 + sum(limit**2 for limit in TOLERANCES if abs(error) > limit) for error in found
            )
        return known[parameters]

    best = start
    for scale in (8, 4, 2, 1):
        while True:
            nearest = min(neighbours(model, best, scale, free), key=loss, default=best)
            if loss(nearest) >= loss(best):
                break
            best = nearest
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=STEPS)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    starts = read_parameters() if asked.only else STARTS
    found: dict[str, Parameters] = {}
    total: list[float] = []
    for model in MODELS:
        found[model] = calibrate(model, starts[model], (asked.only,) if asked.only else tuple(STEPS))
        print(model, asdict(found[model]))
        rows = [row for row in ROWS if row.model == model]
        for row, error in zip(rows, errors(model, found[model]), strict=True):
            print(f"    {row.row:50} {row.published:7.3f} {row.unit} {error:+7.2%}")
            total.append(abs(error))
    within = sum(error <= 0.03 for error in total) / len(total)
    print(f"mean |error| {sum(total) / len(total):.2%}, within 3 %: {within:.0%}, worst {max(total):.2%}")
    if asked.write:
        lines = ",\n".join(f"  {json.dumps(model)}: {json.dumps(asdict(found[model]))}" for model in MODELS)
        PARAMETERS.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
