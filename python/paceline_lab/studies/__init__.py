"""Published studies, reproduced and compared with the published results: one module or package each, see STUDIES."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from paceline._internal.nearest import nearest
from paceline._internal.units import listed
from paceline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from paceline_lab.studies.own import Comparison, Own

# Called with the number of simulations done and the total.
Progress = Callable[[int, int], None]
# Name → the module with `run(plots, progress)`, and a description.
STUDIES: dict[str, tuple[str, str]] = {
    "network-operator": (
        "paceline_lab.studies.network_operator",
        'M. A. Chang et al., "How to Train your DNN: The Network Operator Edition"',
    ),
    "ray-sgd": ("paceline_lab.studies.ray_sgd", "Ray distributed SGD, Horovod and Distributed TensorFlow"),
    "ddl-nccl": ("paceline_lab.studies.ddl_nccl", "Horovod over NCCL and over IBM's DDL on Longhorn"),
    "cuda-aware-mpi": ("paceline_lab.studies.cuda_aware_mpi", 'A. A. Awan et al., "… TensorFlow and CUDA-Aware MPI"'),
    "load-imbalance": (
        "paceline_lab.studies.load_imbalance",
        'S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning"',
    ),
    "published": ("paceline_lab.studies.published", "Published measurements of public systems, 2017 to 2020"),
    "collectives": ("paceline_lab.studies.published.collectives", "Published bandwidths of NCCL's collectives"),
    "compute": ("paceline_lab.studies.compute", "Measured training steps: the time and the memory of a GPU"),
    "finetune": ("paceline_lab.studies.finetune", "Public measurements of fine-tuning: the time and the memory"),
    "held-out": ("paceline_lab.studies.held_out", "Public measurements of training that nothing was fitted to"),
    "complaints": ("paceline_lab.studies.complaints", "Public complaints that training is slow, and their causes"),
}
MINUTES = {"load-imbalance": 2}
"""Of studies that take longer than half a minute."""
# Studies that accept a file of measurements.
WITH_DATA = frozenset({"published", "collectives"})
# Studies that compare systems, which can be forecast with other values: their modules have a `COMPARISON`.
WITH_OWN = tuple(name for name in STUDIES if name not in WITH_DATA | {"compute", "finetune", "held-out", "complaints"})


def run_in_turn(steps: Sequence[Callable[[], list[Any]]], progress: Progress | None) -> list[list[Any]]:
    """Return the result of each step, and report progress before and after each."""
    results: list[list[Any]] = []
    for done, step in enumerate(steps):
        if progress is not None:
            progress(done, len(steps))
        results.append(step())
    if progress is not None:
        progress(len(steps), len(steps))
    return results


class StudyOutput(Protocol):
    """The output of a study."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""

    def to_csv(self) -> str:
        """Return the rows as CSV."""

    def text(self, width: int) -> list[str]:
        """Return lines for people."""


def comparison_of(study: str) -> Comparison:
    """Return the systems of a study. Raises InvalidArgumentError for one with values of its own only."""
    if study not in WITH_OWN:
        known = listed([f"paceline study {name}" for name in WITH_OWN], "or")
        raise InvalidArgumentError(f"--workers, --bandwidth and --trace have no effect on {study}", remedy=known)
    return cast("Comparison", importlib.import_module(STUDIES[study][0]).COMPARISON)


def run_study(
    name: str,
    plots: Path | None = None,
    progress: Progress | None = None,
    data: Path | None = None,
    *,
    anchor: bool = False,
    own: Own | None = None,
) -> StudyOutput:
    """Simulate a study, and draw its figures into the folder `plots`. `data`: a file instead of the built-in one.

    `anchor`: for `published` with rows of training, the row of fewest GPUs sets the computation of its series. `own`:
    workers, rates and traces instead of the study's.

    Raises InvalidArgumentError for an unknown name, and for data that cannot be read or does not apply to the study.
    """
    if name not in STUDIES:
        near = nearest(name, list(STUDIES))
        hint = near or next(iter(STUDIES))
        raise InvalidArgumentError(
            f"unknown study '{name[:80]}'", remedy=f"paceline study {hint} (one of {', '.join(STUDIES)})"
        )
    if anchor and name != "published":
        raise InvalidArgumentError(f"--anchor has no effect on {name}", remedy="paceline study published --anchor")
    if own is not None:
        if data is not None or anchor:
            raise InvalidArgumentError(
                "--workers, --bandwidth and --trace cannot be combined with --data", remedy="drop --data, or drop them"
            )
        from paceline_lab.studies import own as comparing

        return comparing.run(
            name, f"{name}: {STUDIES[name][1]}", comparison_of(name), own, plots=plots, progress=progress
        )
    module = importlib.import_module(STUDIES[name][0])
    if anchor:
        return cast("StudyOutput", module.run(plots, progress, data, anchor=True))
    if data is None:
        return cast("StudyOutput", module.run(plots, progress))
    if name not in WITH_DATA:
        raise InvalidArgumentError(
            f"--data has no effect on {name}", remedy=f"paceline study {' or '.join(sorted(WITH_DATA))}, or drop --data"
        )
    return cast("StudyOutput", module.run(plots, progress, data))
