"""Published studies, reproduced side by side with what they published: one package each, and a line in STUDIES."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from paceline._core import nearest
from paceline.errors import InvalidArgumentError

# Called with how many simulations are done and how many there are.
Progress = Callable[[int, int], None]
# Name → the module with `run(plots, progress)`, and what it is.
STUDIES: dict[str, tuple[str, str]] = {
    "network-operator": (
        "paceline.studies.network_operator",
        'M. A. Chang et al., "How to Train your DNN: The Network Operator Edition"',
    ),
    "ray-sgd": ("paceline.studies.ray_sgd", "Ray distributed SGD beside Horovod and Distributed TensorFlow"),
    "ddl-nccl": ("paceline.studies.ddl_nccl", "Horovod over NCCL and over IBM's DDL on Longhorn"),
    "cuda-aware-mpi": ("paceline.studies.cuda_aware_mpi", 'A. A. Awan et al., "… TensorFlow and CUDA-Aware MPI"'),
    "load-imbalance": (
        "paceline.studies.load_imbalance",
        'S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning"',
    ),
    "published": ("paceline.studies.published", "Measurements published of public systems, 2017 to 2020"),
}
# Studies that take a file of measurements.
WITH_DATA = frozenset({"published"})


def made_in_turn(parts: Sequence[Callable[[], list[Any]]], progress: Progress | None) -> list[list[Any]]:
    """What each part gives, told of before and after each."""
    made: list[list[Any]] = []
    for done, part in enumerate(parts):
        if progress is not None:
            progress(done, len(parts))
        made.append(part())
    if progress is not None:
        progress(len(parts), len(parts))
    return made


class StudyOutput(Protocol):
    """What a study comes to."""

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""

    def to_csv(self) -> str:
        """The rows."""

    def text(self, width: int) -> list[str]:
        """Lines for people."""


def run_study(
    name: str, plots: Path | None = None, progress: Progress | None = None, data: Path | None = None
) -> StudyOutput:
    """Simulate a study; figures are drawn into the folder `plots`. `data`: measurements instead of those built in.

    Raises InvalidArgumentError for an unknown name, and for data that cannot be read or that the study does not take.
    """
    if name not in STUDIES:
        near = nearest(name, list(STUDIES))
        hint = f"; did you mean '{near}'?" if near else ""
        raise InvalidArgumentError(f"unknown study '{name[:80]}'{hint}; there are: {', '.join(STUDIES)}")
    module = importlib.import_module(STUDIES[name][0])
    if data is None:
        return cast("StudyOutput", module.run(plots, progress))
    if name not in WITH_DATA:
        raise InvalidArgumentError(f"data: has no effect on {name}; it is for {', '.join(sorted(WITH_DATA))}")
    return cast("StudyOutput", module.run(plots, progress, data))
