"""The study `load-imbalance`: Horovod's coordinator and four remedies, on up to 24,576 GPUs of Summit.

S. Pumma, D. Buono, F. Checconi, X. Que, W. Feng, "Alleviating Load Imbalance in Data Processing for Large-Scale Deep
Learning". docs/explanation/coordinator-model.md describes the model and its calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.studies.load_imbalance.claims import claims
from paceline.studies.load_imbalance.compared import compared, predictions
from paceline.studies.load_imbalance.result import LoadImbalance
from paceline.studies.load_imbalance.runs import ITERATIONS, simulate
from paceline.studies.report import Study

TITLE = (
    "Alleviating load imbalance in data processing: Horovod's coordinator and four remedies on Summit, 6 to 24,576 "
    f"V100, means of {ITERATIONS} iterations. A gain is the baseline's iteration time over the remedy's, minus 1"
)
_NOTES = (
    "Constants of late wake-ups, preemptions and the collective are calibrated only on ResNet-50's published figures; "
    "one set holds for all networks, coordinators and GPU counts.",
    "Computation of a network: ResNet-50's is published, six are inferred from the traversal's share of a training on "
    "12,288 GPUs (293 iterations, if it had 90 epochs), AlexNet's and VGG-16's are the traces' rates, scaled as "
    "ResNet-50's.",
    "AlexNet's share of contention is not published: the median of the others is used.",
)


def run(plots: Path | None = None, progress: Callable[[int, int], None] | None = None) -> LoadImbalance:
    """Simulate everything; draw the figures if a folder is given."""
    results = simulate(progress)
    drawn: list[str] = []
    if plots is not None:
        from paceline.studies.load_imbalance.figures import draw

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
