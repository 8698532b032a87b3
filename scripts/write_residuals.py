#!/usr/bin/env python3
"""Writes python/paceline/forecast/residuals.json: how far published rows are from forecasts made without their source.

python scripts/write_residuals.py          # some minutes
"""

from __future__ import annotations

import json
from pathlib import Path

from paceline.catalog import channels
from paceline.catalog.libraries import find_library
from paceline_lab.studies.published.crossvalidation import leave_one_source_out
from paceline_lab.studies.published.data import BUILT_IN, Row, read
from paceline_lab.studies.published.engines import engine_of

FILE = Path(__file__).parent.parent / "python/paceline/forecast/residuals.json"


def link_bps(row: Row) -> float:
    return row.link_bps or channels.constant("auto.tcp-to")


def cases() -> list[dict[str, object]]:
    found = []
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
                "link_bps": link_bps(row),
                "residual": round(left.residual, 4),
            }
        )
    return found


def text(found: list[dict[str, object]]) -> str:
    lines = ",\n".join(f"    {json.dumps(case)}" for case in found)
    return f'{{\n  "command": "python scripts/write_residuals.py",\n  "cases": [\n{lines}\n  ]\n}}\n'


def main() -> None:
    FILE.write_text(text(cases()), encoding="utf-8")


if __name__ == "__main__":
    main()
