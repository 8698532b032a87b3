#!/usr/bin/env python3
"""Writes how far measurements are from forecasts made without their source, into python/paceline/forecast/.

python scripts/write_residuals.py                 # all files, in about three minutes
python scripts/write_residuals.py published       # residuals.json: public systems (paceline study published)
python scripts/write_residuals.py models          # residuals-models.json: training steps whose times are computed
python scripts/write_residuals.py scaled          # residuals-scaled.json: those of more GPUs than a measured one's
python scripts/write_residuals.py memory          # residuals-memory.json: the memory of such steps

The cases of models are published rates of training transformers (published/training.csv, docs/results/torchtitan.csv),
and the times of `paceline study compute` and `finetune` whose computation is computed. Models whose shape is assumed do
not count.

Of the scaled ones, computation was set so that the forecast of the row of fewest GPUs of a series is as measured
(`paceline simulate --measured`); a residual is that of a row with more GPUs.

A file also has the factor by which intervals are widened so that they hold 80 % of the cases of sources that they do
not know (paceline.forecast.likeness). What is printed at the end is how such intervals do.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.catalog import channels
from paceline.catalog.libraries import find_library
from paceline.forecast import evidence
from paceline.forecast.evidence import Coverage
from paceline.forecast.likeness import LEVEL, conditions_of
from paceline.forecast.run import computed_under
from paceline_lab.studies import compute, finetune
from paceline_lab.studies.priors import publication
from paceline_lab.studies.published import training, transformers
from paceline_lab.studies.published.crossvalidation import leave_one_source_out
from paceline_lab.studies.published.data import BUILT_IN, read
from paceline_lab.studies.published.engines import engine_of
from paceline_lab.studies.steps import runs
from paceline_lab.studies.steps.data import Metric, Row
from paceline_lab.studies.steps.forecast import Forecast

Cases = list[dict[str, Any]]
ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "python/paceline/forecast"
FILES = {
    "published": FOLDER / "residuals.json",
    "models": FOLDER / "residuals-models.json",
    "scaled": FOLDER / "residuals-scaled.json",
    "memory": FOLDER / "residuals-memory.json",
}
TRAINING = (BUILT_IN.with_name("training.csv"), ROOT / "docs/results/torchtitan.csv")


def published_cases() -> Cases:
    cases: Cases = []
    for left in leave_one_source_out(read(BUILT_IN)):
        row, engine = left.forecast.row, engine_of(left.forecast.row)
        if row.metric is not None and row.metric.collectives_only:  # Not comparable with training.
            continue
        cases.append(
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
    return cases


def model_cases() -> Cases:
    rows = [row for path in TRAINING for row in transformers.read_rows(path)]
    cases = [
        {
            "source": publication(it.case.group),
            **asdict(conditions_of(it.case.workload, it.case.gpus, it.nodes)),
            "gpus": it.case.gpus,
            "nodes": it.nodes,
            "link_bps": it.link_bps,
            "residual": round(math.log1p(it.error), 4),
        }
        for it in training.leave_one_source_out(rows)
        if it.case.has_shape
    ]
    steps = runs.leave_one_source_out([row for row in step_rows() if row.metric.is_time and row.is_computed])
    return cases + [case_of(it) for it in once(steps)]


def memory_cases() -> Cases:
    steps, _ = runs.forecast_each([row for row in step_rows() if row.metric.is_memory])
    reserved = (Metric.RESERVED, Metric.NVIDIA_SMI)
    return [
        {"kind": "reserved" if it.row.metric in reserved else "peak", **case_of(it), "architecture": ""}
        for it in once(steps)
    ]


def step_rows() -> list[Row]:
    return compute.read() + [row for row in finetune.read() if row.method != "full"]


def once(steps: list[Forecast]) -> list[Forecast]:
    """Return one of those that are forecast in two ways."""
    kept: dict[tuple[str, str, str, float], Forecast] = {}
    for it in sorted(steps, key=lambda it: it.row.group != "steps"):
        kept.setdefault((it.row.source, it.row.model, it.row.metric.value, it.row.measured), it)
    return list(kept.values())


def case_of(it: Forecast) -> dict[str, Any]:
    result, scenario = it.answer.result, it.answer.scenario
    conditions = computed_under(scenario)
    assert conditions is not None
    return {
        "source": publication(it.row.source),
        **asdict(conditions if conditions.model else replace(conditions, model=model_of(it.row.model))),
        "gpus": result.workers * (result.gpus_per_worker or 1),
        "nodes": scenario.nodes(result.gpus_per_node),
        "link_bps": result.bandwidth_bps,
        "residual": round(it.residual, 4),
    }


def scaled_cases() -> Cases:
    rows = [row for path in TRAINING for row in transformers.read_rows(path)]
    gpus = {row["id"]: int(row["gpus"]) for row in rows}
    return [
        {
            "source": publication(it.case.group),
            "measured_gpus": gpus[it.anchor],
            "gpus": it.case.gpus,
            "residual": round(math.log1p(it.error), 4),
        }
        for it in training.leave_one_source_out(rows, anchor=True)
        if it.case.has_shape and it.anchor is not None and it.case.gpus > gpus[it.anchor]
    ]


PARTS = {
    name: {"factor": partial(coverage, adapters=False), "factor_of_adapters": partial(coverage, adapters=True)}
    for name, coverage in (("models", evidence.coverage_of_models), ("memory", evidence.coverage_of_memory))
}
"""Coverages whose factors are fitted apart, by the name of the factor."""
CASES = {
    "published": published_cases,
    "models": model_cases,
    "scaled": scaled_cases,
    "memory": memory_cases,
}


def model_of(name: str) -> str:
    """Return the kind of a recorded model."""
    return "encoder" if "bert" in name else "decoder" if re.match("llama|gpt", name) else "images"


def write(name: str, cases: Cases, factors: dict[str, float]) -> None:
    lines = ",\n".join(f"    {json.dumps(case)}" for case in cases)
    command = f"python scripts/write_residuals.py {name}"
    # Rounded up, so that it still holds as many.
    rounded = "".join(f'  "{key}": {math.ceil(1e4 * factor) / 1e4:.4f},\n' for key, factor in factors.items())
    head = f'{{\n  "command": "{command}",\n{rounded}'
    FILES[name].write_text(f'{head}  "cases": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
    evidence.forget()


def rewrite(name: str) -> None:
    cases = CASES[name]()
    parts = PARTS.get(name, {"factor": COVERAGE[name]})
    write(name, cases, dict.fromkeys(parts, 1.0))
    write(name, cases, {key: coverage().factor for key, coverage in parts.items()})
    print(f"{name}: {len(cases)} cases, {sentence(COVERAGE[name]())}")
    for key, coverage in parts.items() if len(parts) > 1 else ():
        print(f"  {key}: {sentence(coverage())}")


def blind_share() -> float:
    """Return the share of cases in intervals whose factor does not know their source either."""
    inside = known = 0
    for cases in (evidence.published_cases(), evidence.computed_cases()):
        for source in sorted({case.source for case in cases}):
            others = [case for case in cases if case.source != source]
            factor = evidence.covered(evidence.left_out(others, frozenset((source,)))).factor
            own = evidence.covered(evidence.left_out([case for case in cases if case.source == source]), factor)
            inside, known = inside + own.inside, known + own.known
    return inside / known


def sentence(found: Coverage) -> str:
    share = found.inside / found.known
    return (
        f"{found.known} with an interval, which holds {share:.0%} (of {LEVEL:.0%}); {found.outside} have none; mean "
        f"width {found.width:.2f} times the smallest one width for all"
    )


COVERAGE = {
    "published": evidence.coverage,
    "models": evidence.coverage_of_models,
    "scaled": evidence.coverage_of_scaled,
    "memory": evidence.coverage_of_memory,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(FILES)
    if not set(names) <= set(FILES):
        sys.exit(__doc__)
    for name in names:
        rewrite(name)
    print(f"all: {sentence(evidence.coverage_of_all())}")
    print(f"all, the factor fitted without a row's source, too: {blind_share():.0%}")
