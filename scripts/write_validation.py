"""Writes a validation's results into docs/results/validation.md, between its markers, and its errors into the package.

paceline validate --network fluid --json --plot docs/images/validation.png > validation.json
python scripts/write_validation.py validation.json
"""

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from paceline._internal import units

PAGE = Path(__file__).parent.parent / "docs" / "results" / "validation.md"
ERRORS = Path(__file__).parent.parent / "python" / "paceline" / "forecast" / "validated.json"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
Row = dict[str, Any]
HEADERS = ("strategy", "workers", "servers", "measured", "spread", "simulated", "error", "FIFO")


def title(row: Row) -> str:
    slower = row["shrink"] * row["scale"]
    stands = f", bytes ÷ {row['shrink']:g}" if slower != 1 else ""
    stands += f", times × {row['scale']:g}" if row["scale"] != 1 else ""
    stands += f": equivalent to {units.rate(row['rate_bps'] * slower)}" if slower != 1 else ""
    return f"**{row['trace']}, {units.rate(row['rate_bps'])}{stands}**"


def cells(row: Row) -> list[str]:
    spread = (row["measured_max_s"] - row["measured_min_s"]) / 2 / row["measured_s"]
    return [
        row["strategy"],
        str(row["workers"]) + (f" ({row['ranks_per_host']} a host)" if row["ranks_per_host"] > 1 else ""),
        str(row["servers"] or ""),
        units.duration(row["measured_s"]),
        f"±{spread:.1%}",
        units.duration(row["simulated_s"]),
        f"{row['error']:+.1%}" + ("" if row["undisturbed"] else " *"),
        f"{row['simulated_fifo_s'] / row['measured_s'] - 1:+.1%}",
    ]


def pipes(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(words) + " |" for words in (headers, ["---"] * len(headers), *rows)]


def tables(said: Row) -> list[str]:
    lines = []
    titles = list(dict.fromkeys(title(row) for row in said["rows"]))
    for head, rows in groupby(sorted(said["rows"], key=lambda row: titles.index(title(row))), title):
        lines += [head, "", *pipes(HEADERS, [cells(row) for row in rows]), ""]
    errors = {**said["summary"], "all": said["overall"]}
    rows = [[name, str(one["rows"]), f"{one['mean']:.1%}", f"{one['worst']:.1%}"] for name, one in errors.items()]
    lines += [*pipes(("strategy", "cells", "mean error", "worst error"), rows), ""]
    reasons = {}
    for one in said["skipped"]:
        reasons.setdefault(one["reason"], []).append(one["strategy"])
    for reason, names in reasons.items():
        each = units.listed(list(dict.fromkeys(names)))
        lines.append(f"- not compared: {units.count(len(names), 'cell')} of {each}: {reason}")
    if any(not row["undisturbed"] for row in said["rows"]):
        lines.append("- \\* the machine disturbed every iteration of this cell")
    return lines


def main(source: str) -> None:
    said = json.loads(Path(source).read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, marker, after = rest.partition(END)
    assert marker, f"{PAGE} has no markers"
    PAGE.write_text("\n".join([before + BEGIN, "", *tables(said), END]) + after)
    names = ("trace", "strategy", "workers", "servers")
    rows = [{**{name: row[name] for name in names}, "error": round(row["error"], 4)} for row in said["rows"]]
    told = {
        "command": "paceline validate --network fluid --json > validation.json && "
        "python scripts/write_validation.py validation.json",
        "where": "2 to 8 workers over TCP on an emulated network",
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in told.items()]
    listed = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    ERRORS.write_text("\n".join(["{", *lines, '  "rows": [', listed, "  ]", "}"]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
