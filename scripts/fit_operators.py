#!/usr/bin/env python3
"""Fits the operators' constants to the recorded steps of docs/results/compute.md; errors of steps that were left out.

    python scripts/fit_operators.py [--without-leaving-out] [--write]

Fitted are the constants of python/paceline/operators/constants.json that say `calibrated`: their logarithms, by least
squares of the steps' logarithms (Gauss-Newton with finite differences). Each is drawn to its prior as strongly as it is
certain, so a constant that the steps say nothing about keeps its prior. Then each step is forecast with constants that
were fitted to the others alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from paceline.catalog.constants import Constant, assuming
from paceline.catalog.gpus import find_hardware
from paceline.operators import constants as operators_constants
from paceline.operators.constants import all_constants
from paceline.operators.machine import Machine
from paceline.operators.steps import Step
from paceline_lab.studies.compute.data import read
from paceline_lab.studies.steps.data import UNITS, Metric, Row, recording

FILE = Path(operators_constants.__file__).with_name("constants.json")
CALIBRATED = "steps of eight models on an H200 (docs/results/compute.md)"
SPREAD = 0.02
"""Of a step that the model describes as well as it can: its mean error where constants were fitted by hand."""
ROUNDS = 3
DIFFERENCE = 0.01
DIGITS = 3
Values = Mapping[Constant, float]


def main() -> int:
    """Fit, print the tables, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-leaving-out", action="store_true", help="skip the fits to all steps but one")
    parser.add_argument("--write", action="store_true", help=f"write the values into {FILE.name}")
    given = parser.parse_args()
    rows = [row for row in read() if row.metric is Metric.STEP_TIME and row.group == "steps"]
    values = fitted(rows)
    print("constant                      prior   fitted      now")
    for constant, value in values.items():
        print(f"{constant.name:<24} {constant.prior or 0:>10.4g} {value:>8.4g} {constant.value:>8.4g}")
    left = {} if given.without_leaving_out else {row: fitted([one for one in rows if one is not row]) for row in rows}
    print("\nstep               measured   prior  fitted     now" + "  left out" * bool(left))
    priors = {constant: constant.prior or constant.value for constant in values}
    columns: list[list[float]] = []
    for row in rows:
        errors = [error(row, each) for each in (priors, values, {})] + [error(row, left[row]) for _ in (1,) if left]
        columns.append(errors)
        print(f"{row.model:<16} {seconds(row) * 1e3:>8.1f}ms " + " ".join(f"{one:>+7.1%}" for one in errors))
    means = [statistics.mean(map(abs, column)) for column in zip(*columns, strict=True)]
    print(f"{'mean':<27} " + " ".join(f"{one:>7.1%}" for one in means))
    if given.write:
        write(values)
    return 0


def fitted(rows: Sequence[Row]) -> Values:
    """Return the most probable values of the calibrated constants, given these steps and the priors."""
    chosen = [constant for constant in all_constants().values() if constant.calibrated == CALIBRATED]
    prior = np.log([constant.prior or constant.value for constant in chosen])
    certain = np.diag([1 / constant.uncertainty**2 for constant in chosen])
    place = prior.copy()

    def misses(logarithms: np.ndarray) -> np.ndarray:
        values = dict(zip(chosen, map(float, np.exp(logarithms)), strict=True))
        return np.array([math.log1p(error(row, values)) for row in rows])

    for _ in range(ROUNDS):
        missed = misses(place)
        slopes = np.array([(misses(place + DIFFERENCE * one) - missed) / DIFFERENCE for one in np.eye(len(chosen))]).T
        normal = slopes.T @ slopes / SPREAD**2 + certain
        place = place - np.linalg.solve(normal, slopes.T @ missed / SPREAD**2 + certain @ (place - prior))
    return dict(zip(chosen, map(float, np.exp(place)), strict=True))


def error(row: Row, values: Values) -> float:
    """Return forecast / measured - 1 of a recorded step; `values`: of constants, those left out as they are."""
    document = recording(row.words[0]).operators()
    assert document is not None
    with assuming(values):
        times = Step.of(document).times(Machine(find_hardware(row.words[row.words.index("--gpu") + 1])))
    return (math.fsum(times.forward_s) + times.backward_s + times.optimizer_s) / seconds(row) - 1


def seconds(row: Row) -> float:
    """Return the measured step."""
    return row.measured * UNITS[row.unit]


def write(values: Values) -> None:
    """Write the values into the file of constants, line by line as it is."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    for constant, value in values.items():
        place = next(place for place, line in enumerate(lines) if f'"name": "{constant.name}"' in line)
        line = lines[place]
        entry = json.loads(line.strip().rstrip(","))
        entry["value"] = float(f"{value:.{DIGITS}g}")
        lines[place] = f"    {json.dumps(entry, ensure_ascii=False)}{',' * line.endswith(',')}"
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
