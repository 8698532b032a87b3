#!/usr/bin/env python3
"""Writes the tables of docs/results/studies.md: published beside simulated values, and the claims.

python scripts/write_studies.py
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from paceline._internal import units
from paceline_lab.studies import run_study
from paceline_lab.studies.report import Study, bounds_text
from write_published import placed

PAGE = Path(__file__).parent.parent / "docs/results/studies.md"
NAMES = ("ray-sgd", "ddl-nccl", "cuda-aware-mpi")


def rows(study: Study) -> list[str]:
    bounded = any(row.bounds is not None for row in study.rows)
    more = " bounds | |" if bounded else ""
    lines = [f"| table | row | model | published | simulated | error | |{more}", "| --- " * (9 if bounded else 7) + "|"]
    for row in study.rows:
        simulated = f"{units.digits(row.simulated)} {row.unit}"
        note = "used for calibration" if row.calibrated else ""
        values = f"{row.published:g} {row.unit} | {simulated} | {row.error:+.1%} | {note}"
        judged = ""
        if bounded:
            inside = "within" if row.within else "**out**"
            judged = f" {bounds_text(row.bounds)} | {inside} |" if row.bounds is not None else " | |"
        lines.append(f"| {row.table} | {row.row} | {row.model} | {values} |{judged}")
    lines += ["", "| claim | | figures |", "| --- | --- | --- |"]
    for claim in study.claims:
        figures = "; ".join(f"{name} {units.short(value)}" for name, value in claim.figures.items())
        lines.append(f"| {claim.claim} | {claim.verdict} | {figures} |")
    return lines


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in NAMES:
        text = placed(text, name, rows(cast("Study", run_study(name))))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
