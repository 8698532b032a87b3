#!/usr/bin/env python3
"""Writes the tables of docs/results/published.md: the constants, and every row with its forecast.

python scripts/write_published.py
"""

from __future__ import annotations

from pathlib import Path

from paceline._internal import units
from paceline.studies.published import run
from paceline.studies.published.constants import Constant, all_constants

PAGE = Path(__file__).parent.parent / "docs/results/published.md"


def shown(entry: Constant) -> str:
    if entry.unit == "bit/s":
        return units.rate(entry.value)
    if entry.unit == "bytes":
        return f"{entry.value / 1e6:g} MB"
    if entry.unit.split()[0] == "s":
        return f"{entry.value * 1e6:g} µs{entry.unit[1:]}"
    return f"{entry.value:g}"


def constants() -> list[str]:
    lines = ["| constant | value | source | calibrated on |", "| --- | --- | --- | --- |"]
    for entry in all_constants().values():
        lines.append(f"| `{entry.name}` | {shown(entry)} | {entry.source} | {entry.calibrated} |")
    return lines


def rows() -> list[str]:
    lines = [
        "| id | system | model | GPUs | published | forecast | error | ring |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for it in run().rows:
        row = it.row
        gpus = f"{row.gpus} on {row.nodes}" if row.nodes > 1 else str(row.gpus)
        mark = "" if row.well_posed else " *"
        values = f"{row.measured:g} | {units.digits(it.value)} | {it.error:+.1%}{mark} | {it.position}"
        lines.append(f"| {row.id} | {row.system} | {row.model} | {gpus} | {values} |")
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
    for name, lines in (("constants", constants()), ("rows", rows())):
        text = placed(text, name, lines)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
