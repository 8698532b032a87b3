"""The measured steps: rows.csv, and the full fine-tuning among the measurements of fine-tuning."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from paceline_lab.studies import finetune
from paceline_lab.studies.steps.data import Metric, Row

GROUPS = {
    "steps": "models on an H200, recorded",
    "steps-catalog": "models on an H200, configured",
    "neusight": "NeuSight's labels",
    "practitioners": "practitioners, on one node",
    "practitioners-nodes": "practitioners, on several nodes",
    "finetune": "full fine-tuning",
}
"""The titles of the groups of rows, in the order of the output."""


def read() -> list[Row]:
    """Return all rows."""
    with (Path(__file__).parent / "rows.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            Row(metric=Metric(cells.pop("metric")), measured=float(cells.pop("measured")), **cells)
            for cells in csv.DictReader(file)
        ]
    return rows + [replace(row, group="finetune") for row in finetune.read() if row.method == "full"]
