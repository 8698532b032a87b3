#!/usr/bin/env python3
"""Writes the tables of docs/results/published.md: every row with its forecast, and errors without its source.

python scripts/write_published.py
"""

from __future__ import annotations

import math
from pathlib import Path

from paceline._internal import units
from paceline.forecast.evidence import published_cases
from paceline_lab.studies.published import run

PAGE = Path(__file__).parent.parent / "docs/results/published.md"


def rows() -> list[str]:
    lines = [
        "| id | system | model | GPUs | published | forecast | error | ring |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for it in run().rows:
        row = it.row
        gpus = f"{row.gpus} on {row.nodes}" if row.nodes > 1 else str(row.gpus)
        mark = "" if row.well_posed else " *"
        error = "" if it.error is None else f"{it.error:+.1%}{mark}"
        measured = "" if row.measured is None else f"{row.measured:g}"
        values = f"{measured} | {units.digits(it.value)} | {error} | {it.position}"
        lines.append(f"| {row.id} | {row.system} | {row.model} | {gpus} | {values} |")
    return lines


def sources() -> list[str]:
    """Errors with constants that were fitted without the source."""
    lines = ["| source | rows | mean error | greatest |", "| --- | --- | --- | --- |"]
    cases = published_cases()
    for source in dict.fromkeys(case.source for case in cases):
        errors = [math.expm1(case.residual) for case in cases if case.source == source]
        mean = sum(map(abs, errors)) / len(errors)
        lines.append(f"| {source} | {len(errors)} | {mean:.1%} | {max(errors, key=abs):+.1%} |")
    return lines


def placed(text: str, name: str, lines: list[str]) -> str:
    """The page with the tables below their markers replaced."""
    head, mark, tail = text.partition(f"<!-- {name} -->\n")
    rest = tail.lstrip("\n")
    while rest.startswith("|"):
        rest = rest.partition("\n")[2].lstrip("\n")
    return "\n".join([head + mark, *lines, "", rest])


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    text = placed(text, "rows", rows())
    text = placed(text, "sources", sources())
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
