"""Public measurements of fine-tuning, time and memory, beside their forecasts: docs/results/finetune.md.

Every measurement has the command that forecasts it, by its source's rules, or the reason why none does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline_lab.studies.finetune.data import GROUPS, read
from paceline_lab.studies.steps.result import Computed
from paceline_lab.studies.steps.runs import computed

__all__ = ["GROUPS", "TITLE", "read", "run"]

TITLE = "Public measurements of fine-tuning and their forecasts"


def run(plots: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Computed:
    """Forecast every measurement; draw the figure if a folder is given."""
    return computed(TITLE, read(), GROUPS, None if plots is None else plots / "finetune.png", progress)
