"""Compare computed times of transformers with published rates on one node, with every source left out in turn.

    python scripts/calibrate_transformers.py ROWS.csv            the rows, mean and worst error, leave-one-source-out
    python scripts/calibrate_transformers.py ROWS.csv --fit      also the constants that fit the rows best

The columns of ROWS.csv are those of docs/results/published.md. Fitted are the constants of
python/paceline/operators/constants.json that name published rows they were calibrated on, by least squares of the
logarithm of forecast over measured, 3 % a row, each constant held near its prior by its uncertainty. A source that is
left out has no part in the fit that forecasts it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from paceline.catalog.constants import Constant, assuming
from paceline.operators.constants import all_constants
from paceline_lab.studies.published.transformers import Case, cases, read_rows, spread

_ROW = 0.03
"""Standard deviation of a row's logarithm: what repeated measurements and unknown versions leave."""
_ON_A_DEVICE = "steps of eight models"
"""Constants that were fitted to steps on a device stay as they are."""
_STEP = 1e-3
_ROUNDS = 12


def fitted(known: Sequence[Case]) -> dict[Constant, float]:
    """Return the calibrated constants, fitted to these rows, each held near its prior."""
    constants = [it for it in all_constants().values() if it.calibrated and _ON_A_DEVICE not in it.calibrated]
    priors = np.log([it.prior for it in constants])
    widths = np.array([max(it.uncertainty, 0.02) for it in constants])

    def residuals(point: np.ndarray) -> np.ndarray:
        values = dict(zip(constants, np.exp(point).tolist(), strict=True))
        return np.concatenate([[error / _ROW for error in errors(known, values)], (point - priors) / widths])

    point = priors.copy()
    for _ in range(_ROUNDS):
        here = residuals(point)
        slopes = np.array([residuals(point + _STEP * unit) - here for unit in np.eye(len(point))]).T / _STEP
        point = point + 0.9 * np.linalg.lstsq(slopes, -here, rcond=None)[0]
    return dict(zip(constants, np.exp(point).tolist(), strict=True))


def errors(rows: Sequence[Case], values: dict[Constant, float]) -> list[float]:
    """Return the logarithms of forecast over measured with these constants."""
    with assuming(values):
        # A workload remembers the times it has computed.
        fresh = [replace(row, workload=replace(row.workload)) for row in rows]
        return [math.log(row.forecast / row.measured) for row in fresh]


def group_of(case: Case) -> str:
    """Return the publication a row comes from: its source up to the first path or space."""
    return case.group.split("@")[0].split(" ")[0]


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="ROWS.csv")
    parser.add_argument("--fit", action="store_true", help="also print the constants that fit best")
    arguments = parser.parse_args()
    result, left_out = cases(read_rows(arguments.rows))
    if not result:
        parser.error(f"{arguments.rows}: no row is training on one node")
    sources = list(dict.fromkeys(map(group_of, result)))
    blind: dict[str, float] = {}
    for source in sources:
        own = [case for case in result if group_of(case) == source]
        values = fitted([case for case in result if group_of(case) != source])
        blind |= dict(zip((case.name for case in own), errors(own, values), strict=True))
    print(f"{'row':32} {'samples/s':>10} {'forecast':>10} {'error':>8} {'left out':>9}   MFU")
    for case in result:
        mfu = case.workload.mfu(case.measured)
        print(
            f"{case.name:32} {case.measured:10.4g} {case.forecast:10.4g} {case.error:8.1%} "
            f"{math.expm1(blind[case.name]):9.1%} {mfu:5.1%}"
        )
    print()
    modern = [case for case in result if case.workload.hardware.architecture not in ("volta", "turing")]
    for words, rows in (("all", result), ("A100 and newer", modern)):
        mean, worst = spread([case.error for case in rows])
        mean_blind, worst_blind = spread([math.expm1(blind[case.name]) for case in rows])
        print(
            f"{words}: {len(rows)} rows, mean {mean:.1%}, worst {worst:.1%}; "
            f"with each source left out: mean {mean_blind:.1%}, worst {worst_blind:.1%}"
        )
    print(f"{len(left_out)} rows are not compared: collectives, and training on several nodes")
    if arguments.fit:
        print()
        for constant, value in fitted(result).items():
            print(f"{constant.name:22} {constant.value:8.4g}  best {value:8.4g}  prior {constant.prior:8.4g}")


if __name__ == "__main__":
    main()
