#!/usr/bin/env python3
"""Writes how far published measurements are from forecasts made without their source, into python/paceline/forecast/.

python scripts/write_residuals.py                 # residuals.json, of `paceline study published`: some minutes
python scripts/write_residuals.py ROWS.csv …      # residuals-models.json, of training of transformers: a minute

The files have the columns of `paceline study published --data`. Models whose shape is assumed, and tensor and pipeline
parallelism, do not count.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from paceline.catalog import channels
from paceline.catalog.libraries import find_library
from paceline_lab.studies.published import training, transformers
from paceline_lab.studies.published.crossvalidation import leave_one_source_out
from paceline_lab.studies.published.data import BUILT_IN, read
from paceline_lab.studies.published.engines import engine_of

Cases = list[dict[str, object]]
FOLDER = Path(__file__).parent.parent / "python/paceline/forecast"
FILE = FOLDER / "residuals.json"


def cases() -> Cases:
    found: Cases = []
    for left in leave_one_source_out(read(BUILT_IN)):
        row, engine = left.forecast.row, engine_of(left.forecast.row)
        if row.metric is not None and row.metric.collectives_only:  # Not comparable with training.
            continue
        found.append(
            {
                "source": row.id,
                "family": find_library(engine.library).family,
                "channel": engine.channel,
                "gpus": row.gpus,
                "nodes": row.nodes,
                "link_bps": row.link_bps or channels.constant("auto.tcp-to"),
                "residual": round(left.residual, 4),
            }
        )
    return found


def model_cases(data: list[Path]) -> Cases:
    rows = [row for path in data for row in transformers.read_rows(path)]
    return [
        {
            # `owner/repository@commit page "table"`: tables of one repository are of one kind of software and clusters.
            "source": it.case.group.partition("@")[0].rpartition("/")[2],
            "architecture": it.case.workload.hardware.architecture,
            "sharded": it.sharding != "none",
            "gpus": it.case.gpus,
            "nodes": it.nodes,
            "link_bps": it.link_bps,
            "residual": round(math.log1p(it.error), 4),
        }
        for it in training.leave_one_source_out(rows)
        if it.case.has_shape and it.case.workload.gpus == 1
    ]


def text(found: Cases, arguments: str = "") -> str:
    lines = ",\n".join(f"    {json.dumps(case)}" for case in found)
    return f'{{\n  "command": "python scripts/write_residuals.py{arguments}",\n  "cases": [\n{lines}\n  ]\n}}\n'


def main() -> None:
    if data := [Path(name) for name in sys.argv[1:]]:
        models = text(model_cases(data), " ROWS.csv docs/results/torchtitan.csv")
        (FOLDER / "residuals-models.json").write_text(models, encoding="utf-8")
    else:
        FILE.write_text(text(cases()), encoding="utf-8")


if __name__ == "__main__":
    main()
