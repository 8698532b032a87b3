#!/usr/bin/env python3
"""Writes the tables of docs pages that hold results, each below its marker in the page.

python scripts/write_tables.py published              # docs/results/published.md
python scripts/write_tables.py studies                # docs/results/{studies,network-operator}.md
python scripts/write_tables.py compute                # docs/results/compute.md and its figure: half a minute
python scripts/write_tables.py accuracy               # docs/explanation/accuracy.md: after write_residuals.py
python scripts/write_tables.py finetune               # docs/results/finetune.md and its figures: a minute
python scripts/write_tables.py coordinator-model      # docs/explanation/coordinator-model.md; --figures: and those
python scripts/write_tables.py validation FILE.json   # docs/results/validation.md, and the errors into the package
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from paceline._internal import units
from paceline.catalog.strategies import all_coordinators
from paceline.forecast.coordinator_model.constants import all_constants
from paceline.forecast.coordinator_model.networks import networks
from paceline.forecast.evidence import published_cases
from paceline_lab.studies import compute, finetune, held_out, published, run_study
from paceline_lab.studies.compute.ablation import ablated
from paceline_lab.studies.published import training, transformers
from paceline_lab.studies.report import Study, bounds_text
from paceline_lab.studies.steps import result as steps_result
from paceline_lab.studies.steps.forecast import Forecast
from paceline_lab.studies.steps.result import Computed

ROOT = Path(__file__).parent.parent
TRAINING = (ROOT / "python/paceline_lab/studies/published/training.csv", ROOT / "docs/results/torchtitan.csv")
DOCS = ROOT / "docs"
Row = dict[str, Any]


KINDS = ("time", "memory")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return ["| " + " | ".join(map(str, cells)) + " |" for cells in (headers, ["---"] * len(headers), *rows)]


def write(page: Path, tables: Mapping[str, list[str]]) -> None:
    """Replace the tables below their markers."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        head, mark, tail = text.partition(f"<!-- {name} -->\n")
        assert mark, f"{page} has no marker {name}"
        rest = tail.lstrip("\n")
        while rest.startswith("|"):
            rest = rest.partition("\n")[2].lstrip("\n")
        text = "\n".join([head + mark, *lines, "", rest])
    page.write_text(text, encoding="utf-8")


def of_published() -> None:
    rows = []
    for it in cast("published.Published", published.run()).rows:
        row = it.row
        gpus = f"{row.gpus} on {row.nodes}" if row.nodes > 1 else str(row.gpus)
        error = "" if it.error is None else f"{it.error:+.1%}{'' if row.well_posed else ' *'}"
        measured = "" if row.measured is None else f"{row.measured:g}"
        rows.append([row.id, row.system, row.model, gpus, measured, units.digits(it.value), error, it.position])
    # With constants that were fitted without the source.
    cases = published_cases()
    sources = []
    for source in dict.fromkeys(case.source for case in cases):
        errors = [math.expm1(case.residual) for case in cases if case.source == source]
        mean = sum(map(abs, errors)) / len(errors)
        sources.append([source, len(errors), f"{mean:.1%}", f"{max(errors, key=abs):+.1%}"])
    headers = ("id", "system", "model", "GPUs", "published", "forecast", "error", "ring")
    written = {"rows": table(headers, rows), "sources": table(("source", "rows", "mean error", "greatest"), sources)}
    write(DOCS / "results/published.md", written)


def of_study(study: Study) -> list[str]:
    """Published beside simulated values, and the claims."""
    bounded = any(row.bounds is not None for row in study.rows)
    headers = ["table", "row", "model", "published", "simulated", "error", "", *(["bounds", ""] if bounded else [])]
    rows = []
    for row in study.rows:
        cells = [row.table, row.row, row.model, f"{row.published:g} {row.unit}"]
        cells += [f"{units.digits(row.simulated)} {row.unit}", f"{row.error:+.1%}"]
        cells.append("used for calibration" if row.calibrated else "")
        if bounded:
            inside = "within" if row.within else "**out**"
            cells += ["", ""] if row.bounds is None else [bounds_text(row.bounds), inside]
        rows.append(cells)
    return [*table(headers, rows), "", *claims_of(study)]


def claims_of(study: Study) -> list[str]:
    claims = [
        [it.claim, it.verdict, "; ".join(f"{name} {units.short(value)}" for name, value in it.figures.items())]
        for it in study.claims
    ]
    return table(("claim", "", "figures"), claims)


def of_studies() -> None:
    names = ("ray-sgd", "ddl-nccl", "cuda-aware-mpi")
    write(DOCS / "results/studies.md", {name: of_study(cast("Study", run_study(name))) for name in names})
    operator = cast("Study", run_study("network-operator"))
    write(DOCS / "results/network-operator.md", {"claims": claims_of(operator)})


def of_steps(actual: Computed, by: Sequence[str]) -> dict[str, list[str]]:
    """The tables of a study of steps: summaries, also by some columns, every row, its command, and what is left out."""
    of = ("rows", "mean", "median", "nine in ten within", "worst", "bias")
    sums = [
        [f"{title}: {kind}", *steps_result.sums(rows)]
        for group, title in (("", "all"), *actual.groups.items())
        for kind in KINDS
        if (rows := actual.of(kind, group or None))
    ]
    fits, intervals = [], []
    for group, title in actual.groups.items():
        rows = [it for it in actual.rows if it.row.group == group]
        verdict, covered = steps_result.verdicts(rows), [steps_result.covered(actual.of(kind, group)) for kind in KINDS]
        fits += [[title, *verdict.values()]] if verdict["rows"] else []
        if any(one["rows"] for one in covered):
            intervals.append([title, *map(inside, covered)])
    tables = {
        "summary": table(("", *of), sums),
        "fits": table(("", "verdicts", "right", "fits, but did not", "does not fit, but did"), fits),
        "intervals": table(("", "times in their interval", "values of memory in theirs"), intervals),
    }
    for name in by:
        lines = [
            [value.replace("_", " ") if name == "metric" else f"{value}: {kind}", *steps_result.sums(rows)]
            for kind in KINDS
            for value, rows in steps_result.parted(actual.of(kind), name).items()
        ]
        tables[name] = table(("", *of), lines)
    for group in actual.groups:
        cells = [steps_result.cells(it) for it in actual.rows if it.row.group == group]
        if cells:
            tables[group] = table(("row", "model", "GPU", "", "measured", "forecast", "error"), cells)
    commands: dict[tuple[str, str], list[str]] = {}
    for it in actual.rows:
        commands.setdefault((it.row.command, it.row.assumed), []).append(it.row.id)
    tables["commands"] = table(
        ("rows", "`paceline simulate …`", "assumed"),
        [[", ".join(names), f"`{command}`", assumed] for (command, assumed), names in commands.items()],
    )
    reasons: dict[str, list[str]] = {}
    for row, why in actual.skipped:
        reasons.setdefault(why, []).append(row.id)
    tables["skipped"] = table(("rows", "why"), [[", ".join(names), why] for why, names in reasons.items()])
    return tables


def of_compute() -> None:
    actual = compute.run(DOCS / "images")
    own = replace(actual, skipped=[(row, why) for row, why in actual.skipped if row.group != "finetune"])
    tables = of_steps(own, ("gpu", "model", "kernels", "metric"))
    lines = [[it.name, f"{it.mean:.1%}", f"{it.worst:.1%}, {it.model}"] for it in ablated(compute.read())]
    tables["mechanisms"] = table(("without", "mean error", "greatest"), lines)
    lines = []
    for file in TRAINING:
        known, _ = training.forecasts(transformers.read_rows(file))
        for part, rows in training.parts(known):
            numbers = training.numbers(rows)
            lines.append([f"`{file.name}`", part, numbers["rows"], f"{numbers['mean']:.1%}", f"{numbers['worst']:.1%}"])
    tables["published"] = table(("file", "", "rows", "mean error", "greatest"), lines)
    write(DOCS / "results/compute.md", tables)


def of_accuracy() -> None:
    """The coverage of intervals that do not know the source, by what they are of."""
    from write_residuals import COVERAGE

    titles = {"published": "recorded times", "scaled": "scaled", "models": "computed times", "memory": "memory"}
    lines = []
    for name, title in titles.items():
        for part, coverage in COVERAGE[name].items():
            if (own := coverage()).known:
                shares = [f"{share:.0%}" for share in (own.share, own.of_sources)]
                lines.append([f"{title}: {part}", own.known, *shares, f"{own.times:.2f}x", own.outside])
    heads = ("intervals that do not know the source", "cases", "hold", "by source", "half reach", "cases without one")
    write(DOCS / "explanation/accuracy.md", {"coverage": table(heads, lines)})


def of_finetune() -> None:
    tables = of_steps(finetune.run(DOCS / "images"), ("method", "gpu", "metric"))
    write(DOCS / "results/finetune.md", tables | of_held_out(held_out.run(DOCS / "images")))


def inside(covered: Mapping[str, int]) -> str:
    """How many of the intervals hold what was measured, in words."""
    return f"{covered['inside']} of {covered['rows']}" if covered["rows"] else ""


SIZES = (
    (2e9, "up to 2 billion parameters"),
    (10e9, "2 to 10 billion"),
    (40e9, "10 to 40 billion"),
    (math.inf, "over 40 billion"),
)


def of_held_out(result: held_out.HeldOut) -> dict[str, list[str]]:
    """The tables of measurements that nothing was fitted to: first forecasts beside those of today."""
    first = {it.row.id: it for it in result.first}
    size = {it.row.id: size_of(it) for it in result.rows}
    columns = {
        "source": lambda row: result.groups[row.group],
        "method": lambda row: row.method,
        "GPU": lambda row: row.forecast_gpu,
        "size": lambda row: size[row.id],
    }
    tables = {}
    for name, column in columns.items():
        parts: dict[str, list[str]] = {"all": [it.row.id for it in result.rows]} if name == "source" else {}
        for value in [words for _, words in SIZES] if name == "size" else []:
            parts[value] = []
        for it in result.rows:
            parts.setdefault(column(it.row), []).append(it.row.id)
        lines = []
        for part, ids in parts.items():
            for kind in KINDS:
                today = [it for it in result.of(kind) if it.row.id in set(ids)]
                if today:
                    then = steps_result.sums([first[it.row.id] for it in today])
                    now = steps_result.sums(today)
                    lines.append([f"{part}: {kind}", *then[:3], then[5], now[1], now[2], now[5]])
        if name == "source":
            lines.insert(2, alike(result))
        heads = ("", "rows", "first: mean", "median", "bias", "today: mean", "median", "bias")
        tables[f"held-out-{name.lower()}"] = table(heads, lines)
    lines = []
    for group, title in (("", "all"), *result.groups.items()):
        then = [it for it in result.first if group in ("", it.row.group)]
        now = [it for it in result.rows if group in ("", it.row.group)]
        if then:
            verdicts = [steps_result.verdicts(rows) for rows in (then, now)]
            known = [[it for it in then if it.row.metric.is_time], *(result.of(kind, group or None) for kind in KINDS)]
            ratios = [f"{one['right']} of {one['rows']}" for one in verdicts]
            counts = [inside(steps_result.covered(rows)) for rows in known]
            lines.append([title, ratios[0], counts[0], ratios[1], *counts[1:]])
    heads = ("", "first: verdicts right", "times in the interval", "today: verdicts right", "times", "memory")
    tables["held-out-fits"] = table(heads, lines)
    reasons: dict[str, int] = {}
    for _, why in result.skipped:
        reasons[why.partition(":")[0]] = reasons.get(why.partition(":")[0], 0) + 1
    tables["held-out-skipped"] = table(("rows", "why"), [[number, why] for why, number in reasons.items()])
    return tables


def alike(result: held_out.HeldOut) -> list[str]:
    """The mean errors of sources' times, each source alike, as a line of the table by source."""
    means = []
    for of in (result.first_of, result.of):
        of_sources = [steps_result.numbers(rows)["mean"] for group in result.groups if (rows := of("time", group))]
        means.append(sum(of_sources) / len(of_sources))
    return ["sources alike: time", str(len(of_sources)), f"{means[0]:.1%}", "", "", f"{means[1]:.1%}", "", ""]


def size_of(it: Forecast) -> str:
    """The size of a forecast's model, in words."""
    assert it.answer.workload is not None
    parameters = it.answer.workload.model.parameters
    return next(words for most, words in SIZES if parameters < most)


def of_coordinator_model() -> None:
    from paceline_lab.studies.load_imbalance import run
    from paceline_lab.studies.load_imbalance.runs import LARGEST, Point, contention_s, gain, parts

    result = run(DOCS / "images" if "--figures" in sys.argv else None)
    names = [it.name for it in all_coordinators()]
    constants = [[f"`{it.name}`", f"{it.default:g}", it.unit, it.meaning, it.source] for it in all_constants().values()]
    inputs, gains, breakdown = [], [], []
    for name, it in networks().items():
        share = "the median" if it.contention_share is None else f"{it.contention_share:g}"
        other = "" if it.compute_ms_other is None else f"{it.compute_ms_other:g}"
        cells = [name, f"{it.compute_ms:g}", other, it.compute_source, it.graph_nodes, share]
        inputs.append([*cells, f"{1e3 * contention_s(name):.1f}"])
        base = result.results[Point(name, names[0], LARGEST)].iteration_s * 1e3
        each = [f"{100 * gain(result.results, Point(name, own, LARGEST)):+.1f}%" for own in names[1:]]
        gains.append([name, f"{base:.1f}", *each])
    for name in names:
        actual = result.results[Point("resnet-50", name, LARGEST)]
        own = parts(actual)
        times = (actual.iteration_s, actual.compute_s, own.coordinator, own.copy, own.collective)
        breakdown.append([f"`{name}`", *(units.digits(time * 1e3, 3) for time in times)])
    of_network = ("network", "computation, ms", "if 293", "from", "graph's nodes", "contention, share")
    written = {
        "constants": table(("constant", "value", "unit", "meaning", "source"), constants),
        "networks": table((*of_network, "contention, ms"), inputs),
        "breakdown": table(("coordinator", "iteration", "compute", "coordinator", "copy", "collective"), breakdown),
        "gains": table(("network", f"{names[0]}, ms", *names[1:]), gains),
        "study": of_study(result.study),
    }
    write(DOCS / "explanation/coordinator-model.md", written)


def title(row: Row) -> str:
    slower = row["shrink"] * row["scale"]
    stands = f", bytes ÷ {row['shrink']:g}" if slower != 1 else ""
    stands += f", times × {row['scale']:g}" if row["scale"] != 1 else ""
    stands += f": equivalent to {units.rate(row['rate_bps'] * slower)}" if slower != 1 else ""
    return f"**{row['trace']}, {units.rate(row['rate_bps'])}{stands}**"


def cell(row: Row) -> list[str]:
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


def of_validation(source: str) -> None:
    """Write the figures of `paceline validate --network fluid --json`, between their markers."""
    page = DOCS / "results/validation.md"
    said = json.loads(Path(source).read_text())
    lines = []
    titles = list(dict.fromkeys(title(row) for row in said["rows"]))
    headers = ("strategy", "workers", "servers", "measured", "spread", "simulated", "error", "FIFO")
    for head, rows in groupby(sorted(said["rows"], key=lambda row: titles.index(title(row))), title):
        lines += [head, "", *table(headers, map(cell, rows)), ""]
    errors = {**said["summary"], "all": said["overall"]}
    summed = [[name, one["rows"], f"{one['mean']:.1%}", f"{one['worst']:.1%}"] for name, one in errors.items()]
    lines += [*table(("strategy", "cells", "mean error", "worst error"), summed), ""]
    reasons: dict[str, list[str]] = {}
    for one in said["skipped"]:
        reasons.setdefault(one["reason"], []).append(one["strategy"])
    for reason, names in reasons.items():
        each = units.listed(list(dict.fromkeys(names)))
        lines.append(f"- not compared: {units.count(len(names), 'cell')} of {each}: {reason}")
    if any(not row["undisturbed"] for row in said["rows"]):
        lines.append("- \\* the machine disturbed every iteration of this cell")
    before, _, rest = page.read_text().partition(begin := "<!-- figures -->")
    _, marker, after = rest.partition("<!-- end of figures -->")
    assert marker, f"{page} has no markers"
    page.write_text("\n".join([before + begin, "", *lines, marker]) + after)
    fields = ("trace", "strategy", "workers", "servers")
    kept = [{**{name: row[name] for name in fields}, "error": round(row["error"], 4)} for row in said["rows"]]
    listed = ",\n".join(f"    {json.dumps(row)}" for row in kept)
    script = "python scripts/write_tables.py validation validation.json"
    command = f"paceline validate --network fluid --json > validation.json && {script}"
    where = "2 to 8 workers over TCP on an emulated network"
    text = f'{{\n  "command": "{command}",\n  "where": "{where}",\n  "rows": [\n{listed}\n  ]\n}}\n'
    (ROOT / "python/paceline/forecast/validated.json").write_text(text)


PAGES = {
    "published": of_published,
    "studies": of_studies,
    "compute": of_compute,
    "accuracy": of_accuracy,
    "finetune": of_finetune,
    "coordinator-model": of_coordinator_model,
    "validation": of_validation,
}

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--figures"]
    if not words or words[0] not in PAGES:
        sys.exit(__doc__)
    PAGES[words[0]](*words[1:])
