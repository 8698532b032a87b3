#!/usr/bin/env python3
"""Writes the tables of docs/explanation/coordinator-model.md, and with --figures its figures.

python scripts/write_coordinator_model.py [--figures]
"""

from __future__ import annotations

import sys
from pathlib import Path

from paceline._internal import units
from paceline.catalog.strategies import all_coordinators
from paceline.forecast.coordination.constants import all_constants
from paceline.forecast.coordination.networks import networks
from paceline_lab.studies.load_imbalance import run
from paceline_lab.studies.load_imbalance.result import LoadImbalance
from paceline_lab.studies.load_imbalance.runs import LARGEST, Point, contention_s, gain, parts
from write_published import placed
from write_studies import rows

PAGE = Path(__file__).parent.parent / "docs/explanation/coordinator-model.md"


def constants() -> list[str]:
    lines = ["| constant | value | unit | meaning | source |", "| --- " * 5 + "|"]
    for it in all_constants().values():
        lines.append(f"| `{it.name}` | {it.default:g} | {it.unit} | {it.meaning} | {it.source} |")
    return lines


def inputs() -> list[str]:
    head = "| network | computation, ms | if 293 | from | graph's nodes | contention, share | contention, ms |"
    lines = [head, "| --- " * 7 + "|"]
    for name, it in networks().items():
        share = "the median" if it.contention_share is None else f"{it.contention_share:g}"
        contention = 1e3 * contention_s(name)
        other = "" if it.compute_ms_other is None else f"{it.compute_ms_other:g}"
        inputs = f"{it.compute_ms:g} | {other} | {it.compute_source} | {it.graph_nodes}"
        lines.append(f"| {name} | {inputs} | {share} | {contention:.1f} |")
    return lines


def gains(result: LoadImbalance) -> list[str]:
    names = [it.name for it in all_coordinators()]
    lines = [f"| network | {names[0]}, ms | {' | '.join(names[1:])} |", "| --- " * (len(names) + 1) + "|"]
    for network in networks():
        base = result.results[Point(network, names[0], LARGEST)].iteration_s * 1e3
        cells = [f"{100 * gain(result.results, Point(network, name, LARGEST)):+.1f} %" for name in names[1:]]
        lines.append(f"| {network} | {base:.1f} | {' | '.join(cells)} |")
    return lines


def breakdown(result: LoadImbalance) -> list[str]:
    lines = ["| coordinator | iteration | compute | coordinator | copy | collective |", "| --- " * 6 + "|"]
    for it in all_coordinators():
        found = result.results[Point("resnet-50", it.name, LARGEST)]
        own = parts(found)
        times = (found.iteration_s, found.compute_s, own.coordinator, own.copy, own.collective)
        lines.append(f"| `{it.name}` | {' | '.join(units.digits(time * 1e3, 3) for time in times)} |")
    return lines


def main() -> None:
    result = run(PAGE.parent.parent / "images" if "--figures" in sys.argv else None)
    text = PAGE.read_text(encoding="utf-8")
    tables = {
        "constants": constants(),
        "networks": inputs(),
        "breakdown": breakdown(result),
        "gains": gains(result),
        "study": rows(result.study),
    }
    for name, lines in tables.items():
        text = placed(text, name, lines)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
