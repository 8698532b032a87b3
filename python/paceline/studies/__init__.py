"""Published studies, reproduced side by side with what they published: one package each, and a line in STUDIES."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from paceline._core import UserError, nearest

if TYPE_CHECKING:
    from paceline.studies.report import Study

# Called with how many simulations are done and how many there are.
Progress = Callable[[int, int], None]
# Name → the module with `run(plots, progress)`, and what it is.
STUDIES: dict[str, tuple[str, str]] = {
    "network-operator": (
        "paceline.studies.network_operator",
        'M. A. Chang et al., "How to Train your DNN: The Network Operator Edition"',
    ),
}


def run_study(name: str, plots: Path | None = None, progress: Progress | None = None) -> Study:
    """Simulate a study; figures are drawn into the folder `plots`. Raises UserError for an unknown name."""
    if name not in STUDIES:
        near = nearest(name, list(STUDIES))
        hint = f"; did you mean '{near}'?" if near else ""
        raise UserError(f"unknown study '{name[:80]}'{hint}; there are: {', '.join(STUDIES)}")
    module = importlib.import_module(STUDIES[name][0])
    return cast("Study", module.run(plots, progress))
