#!/usr/bin/env python3
"""Writes how far measurements are from forecasts made without their source, into python/paceline/forecast/.

python scripts/write_residuals.py                 # all files, in about three minutes
python scripts/write_residuals.py published       # residuals.json: public systems (paceline study published)
python scripts/write_residuals.py models          # residuals-models.json: training steps whose times are computed
python scripts/write_residuals.py scaled          # residuals-scaled.json: those of more GPUs than a measured one's
python scripts/write_residuals.py memory          # residuals-memory.json: the memory of such steps

The cases of models are published rates of training transformers (published/training.csv, docs/results/torchtitan.csv),
and the times of `paceline study compute` and `finetune` whose computation is computed. Models whose shape is assumed do
not count. Those of `paceline study held-out` are blind: their residuals are those of the first forecasts, made before
anything was corrected by them (held-out-first.csv). Where a source states that its job was another than was first
forecast (`Source.corrected`), they are today's. They count for intervals, never for constants.

Of the scaled ones, computation was set so that the forecast of the row of fewest GPUs of a series is as measured
(`paceline simulate --measured`); a residual is that of a row with more GPUs.

A file also has the weight of a source that has not been seen (paceline.forecast.likeness): the least with which
intervals that do not know a case's source hold at least 80% of the blind cases, and of a blind source's cases on
average; of all where none are blind. A trainer in question is one to which nothing was fitted. What is printed at the
end is how such intervals do.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.catalog import channels
from paceline.catalog.libraries import find_library
from paceline.forecast import evidence
from paceline.forecast.evidence import ComputedCase, Coverage
from paceline.forecast.likeness import LEVEL, SCALES, conditions_of
from paceline.forecast.run import computed_under
from paceline_lab.studies import compute, finetune, held_out
from paceline_lab.studies.finetune.held_out import HELD_OUT
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
    return [*cases, *map(case_of, once(steps)), *blind_cases(lambda row: row.metric.is_time and row.is_computed)]


def memory_cases() -> Cases:
    steps, _ = runs.forecast_each([row for row in step_rows() if row.metric.is_memory])
    cases = [*map(case_of, once(steps)), *blind_cases(lambda row: row.metric.is_memory)]
    return [case | {"architecture": ""} for case in cases]


def blind_cases(counts: Callable[[Row], bool]) -> Cases:
    first = {it.row.id: it for it in held_out.first_forecasts() if counts(it.row)}
    steps, _ = runs.forecast_each([it.row for it in first.values()])
    corrected = {source.group for source in HELD_OUT if source.corrected}
    residuals = {name: it.residual for name, it in first.items() if it.row.group not in corrected}
    return [
        case_of(it)
        | {"source": it.row.group, "residual": round(residuals.get(it.row.id, it.residual), 4), "blind": True}
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
    reserved = (Metric.RESERVED, Metric.NVIDIA_SMI)
    kind = {"kind": "reserved" if it.row.metric in reserved else "peak"} if it.row.metric.is_memory else {}
    return {
        **kind,
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


CASES = {
    "published": published_cases,
    "models": model_cases,
    "scaled": scaled_cases,
    "memory": memory_cases,
}


def model_of(name: str) -> str:
    """Return the kind of a recorded model."""
    return "encoder" if "bert" in name else "decoder" if re.match("llama|gpt", name) else "images"


WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
"""Of an unseen source, one of which is chosen: shares of cases are too coarse for more.

With more than the last, intervals reach to the largest of all errors wherever sources are few."""


def write(name: str, cases: Cases, unseen: float) -> None:
    lines = ",\n".join(f"    {json.dumps(case)}" for case in cases)
    head = f'{{\n  "command": "python scripts/write_residuals.py {name}",\n  "unseen": {unseen},\n'
    FILES[name].write_text(f'{head}  "cases": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
    evidence.forget()


def rewrite(name: str) -> None:
    cases, coverages = CASES[name](), COVERAGE[name]
    for unseen in WEIGHTS:
        write(name, cases, unseen)
        coverage = coverages.get("blind", coverages["all"])()
        if min(coverage.share, coverage.of_sources) >= LEVEL:
            break
    print(f"{name}: {len(cases)} cases, an unseen source counts {unseen}")
    for part, coverage in coverages.items():
        print(f"  {part}: {sentence(coverage())}")


def sentence(coverage: Coverage) -> str:
    if not coverage.known:
        return f"none of {coverage.outside} has an interval"
    return (
        f"{coverage.known} with an interval, which holds {coverage.share:.0%}, of a source {coverage.of_sources:.0%} "
        f"(of {LEVEL:.0%}); {coverage.outside} have none; half reach beyond {coverage.times:.2f} times the forecast"
    )


PARTS: dict[str, Callable[[ComputedCase], bool]] = {
    "all": lambda case: True,
    "blind": lambda case: case.blind,
    "not blind": lambda case: not case.blind,
    "all weights trained": lambda case: case.conditions.weights in ("", "trained"),
    "LoRA": lambda case: case.conditions.weights == "adapted",
    "QLoRA": lambda case: case.conditions.weights.startswith("quantized"),
    **{scale: partial(lambda case, scale: case.conditions.scale == scale, scale=scale) for scale in SCALES},
}
"""Cases by what they are of."""
COVERAGE = {
    "published": {"all": evidence.coverage},
    "models": {part: partial(evidence.coverage_of_models, which) for part, which in PARTS.items()},
    "scaled": {"all": evidence.coverage_of_scaled},
    "memory": {part: partial(evidence.coverage_of_memory, which) for part, which in PARTS.items()},
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(FILES)
    if not set(names) <= set(FILES):
        sys.exit(__doc__)
    for name in names:
        rewrite(name)
