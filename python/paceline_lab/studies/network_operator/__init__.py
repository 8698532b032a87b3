"""The network-operator study: which in-network support speeds up data-parallel training, and by how much.

M. A. Chang, D. Bottini, L. Jian, P. Kumar, A. Panda, S. Shenker, "How to Train your DNN: The Network Operator Edition".
docs/results/network-operator.md describes the model, the calibration and the results.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline._core import Trace
from paceline.catalog.builtin import load_cluster, load_trace
from paceline.forecast.scenario import Scenario
from paceline.settings.keywords import CoreOptions

from paceline_lab.studies.claims import judged
from paceline_lab.studies.network_operator.claims import Claim, claims
from paceline_lab.studies.network_operator.mechanisms import MECHANISMS, RING_WHOLE, strategy_of
from paceline_lab.studies.network_operator.orders import OrderClaim, order_claims
from paceline_lab.studies.network_operator.published import rows, skipped
from paceline_lab.studies.network_operator.runs import Simulations
from paceline_lab.studies.network_operator.shares import SECOND_MOST, compared
from paceline_lab.studies.network_operator.titan_x import titan_figures
from paceline_lab.studies.own import Comparison
from paceline_lab.studies.report import Study, rounded

TITLE = (
    'M. A. Chang et al., "How to Train your DNN: The Network Operator Edition": 32 workers, 25 Gbit/s, one server '
    "unless the row says otherwise"
)


def _own(system: str, trace: Trace, workers: int, bandwidth: str | None) -> Scenario:
    options: CoreOptions = {"chunk": "whole"} if system == RING_WHOLE else {}
    return Scenario.of(trace, load_cluster(None, bandwidth=bandwidth), strategy_of(system), workers, **options)


COMPARISON = Comparison(
    MECHANISMS,
    _own,
    tuple(f"netop-{model}" for model in ("vgg-16", "inception-v3", "resnet-101", "resnet-200")),
    load_trace,
    (32,),
    ("25Gbps",),
)


def run(plots: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Study:
    """Simulate each configuration once; draw the figures if a folder is given."""
    simulations = Simulations()
    claimed: list[Claim | OrderClaim] = [*claims(), *order_claims()]
    wanted = [config for row in rows() for config in row.configs()]
    wanted += [config for claim in claimed for config in claim.configs.values()]
    if plots is not None:
        from paceline_lab.studies.network_operator.figures import figure_configs

        wanted += figure_configs()
    simulations.prepare(wanted, progress)
    drawn: list[str] = []
    if plots is not None:
        from paceline_lab.studies.network_operator.figures import draw_all

        drawn = [str(path) for path in draw_all(simulations, plots)]
    figures = [*(claim.figures(simulations) for claim in claimed), *titan_figures()]
    return Study(
        title=TITLE,
        rows=[*(row.compared(simulations) for row in rows()), *compared(simulations)],
        claims=[rounded(it) for it in judged("network-operator", figures)],
        figures=drawn,
        skipped=list(skipped(rows())),
        simulations=len(simulations),
        notes=(SECOND_MOST,),
    )
