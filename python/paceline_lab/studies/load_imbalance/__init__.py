"""The study `load-imbalance`: Horovod's coordinator and four remedies, on up to 24,576 GPUs of Summit.

S. Pumma, D. Buono, F. Checconi, X. Que, W. Feng, "Alleviating Load Imbalance in Data Processing for Large-Scale Deep
Learning". docs/explanation/coordinator-model.md describes the model and its calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline._core import Trace
from paceline.catalog.strategies import all_coordinators
from paceline.forecast.coordinator_model.networks import ITERATIONS as ITERATIONS_OF_TRAINING
from paceline.forecast.coordinator_model.networks import networks
from paceline.forecast.scenario import Scenario

from paceline_lab.studies.load_imbalance.claims import claims
from paceline_lab.studies.load_imbalance.compared import compared, predictions
from paceline_lab.studies.load_imbalance.result import LoadImbalance
from paceline_lab.studies.load_imbalance.runs import (
    BATCH,
    FITTED,
    GPUS,
    ITERATIONS,
    OTHER_ITERATIONS,
    Point,
    scenario,
    simulate,
    step,
)
from paceline_lab.studies.own import Comparison
from paceline_lab.studies.report import Study

TITLE = (
    "Alleviating load imbalance in data processing: Horovod's coordinator and four remedies on Summit, 6 to 24,576 "
    f"V100, means of {ITERATIONS} iterations. A gain is the baseline's iteration time over the remedy's, minus 1"
)
_NOTES = (
    f"Constants are fitted to the published figures of {', '.join(FITTED)}; one set holds for all networks, "
    "coordinators and GPU counts. Gains of the other networks are not used for calibration: they check it.",
    "Computation of a network: ResNet-50's is published, six are inferred from the traversal's share of a training on "
    "12,288 GPUs, AlexNet's and VGG-16's are the traces' rates, scaled as ResNet-50's.",
    f"Assumed: that training had {ITERATIONS_OF_TRAINING} iterations, 90 epochs of whole batches. By the other "
    f"reading, {OTHER_ITERATIONS}, iterations are 8 % shorter; the gains in graph order that follow are listed.",
    "AlexNet's share of contention is not published: the median of the others is used.",
)


def _own(coordinator: str, trace: Trace, gpus: int, bandwidth: str | None) -> Scenario:
    return scenario(Point(trace.name, coordinator, gpus), trace, bandwidth)


COMPARISON = Comparison(
    tuple(it.name for it in all_coordinators()), _own, tuple(networks()), lambda network: step(network, BATCH), GPUS
)


def run(
    plots: Path | None = None, progress: Callable[[int, int], None] | None = None, *, iterations: int = ITERATIONS
) -> LoadImbalance:
    """Simulate everything; draw the figures if a folder is given."""
    results = simulate(progress, iterations)
    drawn: list[str] = []
    if plots is not None:
        from paceline_lab.studies.load_imbalance.figures import draw

        drawn = draw(results, plots)
    study = Study(
        TITLE,
        compared(results),
        claims(results),
        drawn,
        simulations=len(results),
        notes=_NOTES,
        forecasts=predictions(results),
    )
    return LoadImbalance(study, results)
