"""The study's output: its own rows, in addition to those that all studies have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline_lab.studies.load_imbalance.runs import Results
from paceline_lab.studies.report import Study, csv_of


@dataclass(frozen=True)
class LoadImbalance:
    """The output of the whole study."""

    study: Study
    results: Results

    def rows(self) -> list[dict[str, Any]]:
        """One row per run, times in seconds; the parts of the breakdown add up to the iteration."""
        return [
            {
                "network": point.network,
                "coordinator": point.coordinator,
                "gpus": point.gpus,
                "scaling": point.scaling,
                "iteration_s": it.iteration_s,
                "images_per_s": it.samples_per_s,
                "breakdown": {
                    "compute_s": it.compute_s,
                    "coordinator_s": it.coordinator_s,
                    "copy_s": it.copy_s,
                    "collective_s": it.collective_s,
                },
            }
            for point, it in self.results.items()
            if not (point.overlap or point.balanced or point.other_reading)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it; `compared` holds the published values."""
        study = self.study.to_dict()
        return {"rows": self.rows(), "compared": study.pop("rows"), **study}

    def to_csv(self) -> str:
        """Return the rows as CSV, with the parts of the breakdown as columns."""
        rows = [(row.pop("breakdown"), row) for row in self.rows()]
        return csv_of([{**row, **parts} for parts, row in rows])

    def text(self, width: int) -> list[str]:
        """Return tables and claims as lines for people."""
        return self.study.text(width)
