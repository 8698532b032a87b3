#!/usr/bin/env python3
"""Writes python/paceline/forecast/residuals-models.json: how far off published training of transformers is.

python scripts/write_model_residuals.py ROWS.csv …          # a minute

The files have the columns of `paceline study published --data`. Each source is forecast with the priors of all
constants that were calibrated on it. Models whose shape is assumed, and tensor and pipeline parallelism, do not count.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from paceline_lab.studies.published import training, transformers

FILE = Path(__file__).parent.parent / "python/paceline/forecast/residuals-models.json"


def cases(data: list[Path]) -> list[dict[str, object]]:
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


def text(found: list[dict[str, object]]) -> str:
    lines = ",\n".join(f"    {json.dumps(case)}" for case in found)
    command = "python scripts/write_model_residuals.py ROWS.csv docs/results/torchtitan.csv"
    return f'{{\n  "command": "{command}",\n  "cases": [\n{lines}\n  ]\n}}\n'


def main() -> None:
    FILE.write_text(text(cases([Path(name) for name in sys.argv[1:]])), encoding="utf-8")


if __name__ == "__main__":
    main()
