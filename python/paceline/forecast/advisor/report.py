"""The output of `paceline advise`: headline, facts and a table for people, or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline._internal import block, units
from paceline._internal.console import Column, render, width, wrapped
from paceline.forecast import sharding as shardings
from paceline.forecast.advisor import fixes, search
from paceline.forecast.advisor.answer import Answer, Costs, Row
from paceline.forecast.advisor.candidates import Candidate
from paceline.forecast.advisor.job import Job
from paceline.forecast.advisor.search import Option
from paceline.forecast.typed import Typed
from paceline.forecast.typed import words as typed_words
from paceline.forecast.wording import advise, labels
from paceline.forecast.wording.sharding import TIGHT_LEGEND
from paceline.settings.table import SETTINGS


def to_dict(answer: Answer) -> dict[str, Any]:
    """Return it as `--json` prints it."""
    tokens, total, best = answer.tokens, answer.costs.tokens, answer.best
    fields = {
        "schema_version": 1,
        "model": answer.job.whole.model.name,
        "gpu": answer.job.whole.hardware.name,
        "objective": answer.objective,
        "verdict": advise.verdict(answer),
        "best": None if best is None else {"gpus": best.gpus, **_of_row(best, tokens, total)},
        **(
            {}
            if answer.safer is None
            else {"safer": {"gpus": answer.safer.gpus, **_of_row(answer.safer, tokens, total)}}
        ),
        "bandwidth_bps": answer.job.bandwidth_bps,
        "gpus_per_node": answer.job.gpus_per_node,
        "failures": None if answer.costs.failures is None else answer.costs.failures.to_dict(),
        "gpus": [
            {
                "gpus": one.gpus,
                "capacity_bytes": one.capacity_bytes,
                "configurations": one.candidates,
                "do_not_fit": one.does_not_fit,
                "simulated": one.simulated,
                "left_out": [labels.setup(setup) for setup in one.left_out],
                "refused": one.refused or None,
                "never_fit": [
                    {"sharding": labels.candidate(it.candidate), **_how(it.candidate), "least_bytes": it.least_bytes}
                    for it in one.never_fit
                ],
                "rows": [_of_row(row, tokens, total) for row in answer.rows.get(one.gpus, ())],
            }
            for one in answer.outcomes
        ],
        "notes": [*answer.costs.notes, *answer.job.notes],
    }
    return fields if answer.finished else fields | {"incomplete": True}


def _of_row(row: Row, tokens: int | None, total: float | None) -> dict[str, Any]:
    """Return it as `--json` prints it; `tokens`: of a sample, None for images; `total`: tokens to train on."""
    one, result, own, given = row.candidate, row.option.result, row.sharded, row.option.help
    fields: dict[str, Any] = {
        "sharding": own.sharding,
        "reshard_after_forward": not one.setup.kept if shardings.kind(own.sharding) in shardings.GATHERED else None,
        "accumulate_sync": not one.setup.local if one.accumulate > 1 else None,
        **_how(one),
        "global_batch": row.global_batch,
        "iteration_s": result.iteration_s,
        "samples_per_s": result.samples_per_s,
        "tokens_per_s_per_gpu": result.tokens_per_s_per_gpu,
        "mfu": result.mfu,
        **({} if (real := result.real_tokens_per_s_per_gpu) is None else {"real_tokens_per_s_per_gpu": real}),
        "exposed_communication_s": result.exposed_communication_s,
        "exposed": vars(own.exposed),
        "straggling_s": own.straggling_s,
        "slowed_s": own.slowed_s,
        "calls_s": own.calls_s,
        "memory": own.memory_dict(),
        "capacity_bytes": own.capacity_bytes,
        "verdict": own.verdict,
        "tight": own.is_tight,
        "faster_with": None
        if given is None
        else {"what": labels.measure(given.measure, given.links), "gain": given.gain},
        "interval": None if result.interval is None else vars(result.interval),
        "evidence": result.evidence,
        "command": row.command,
    }
    if total is not None:
        fields["time_s"] = row.seconds(advise.costed(tokens, total)[1])
    if row.price is not None:
        fields["price_per_gpu_hour"], fields["rented_gpus"] = row.price.amount, row.price.rented(row.gpus)
        name, size = advise.costed(tokens, total)
        fields["cost_of_tokens" if total else f"cost_per_{name.replace(' ', '_')}"] = row.cost(size)
    return fields


def _how(one: Candidate) -> dict[str, Any]:
    parallel = one.parallel
    return {
        "batch": one.batch,
        "accumulate": one.accumulate,
        "checkpointing": one.checkpointing,
        "tensor_parallel": parallel.tensor,
        "pipeline_parallel": parallel.stages,
        "virtual_stages": parallel.virtual,
        "expert_parallel": parallel.experts,
        "context_parallel": parallel.context,
        "microbatches": one.microbatches,
        "bucket_size": one.bucket_bytes,
    }


def lines(answer: Answer) -> list[str]:
    """Return the answer for people."""
    text, tone = advise.headline(answer)
    facts = block.block(advise.facts(answer))
    tries = [line for remedy in advise.remedies(answer) for line in block.suggestion(remedy)]
    cells = table(answer)
    return [
        *block.headline(text, tone),
        *([""] if facts or tries else []),
        *facts,
        *tries,
        *(["", *cells] if cells else []),
        *block.notes(advise.notes(answer)),
    ]


def table(answer: Answer) -> list[str]:
    """Return the table, with an empty line between numbers of GPUs; none where the block says all."""
    groups = [rows for rows in answer.rows.values() if rows]
    if sum(map(len, groups)) < 2:
        return []
    name, size = advise.costed(answer.tokens, answer.costs.tokens)
    shown = _shown(answer)
    alone = all(row.gpus == 1 for rows in groups for row in rows)
    columns = [
        *([Column("GPUs")] if len(groups) > 1 else []),
        *([] if alone else [Column("sharding", left=True)]),
        *(Column(heading) for heading in shown),
        Column("global", spare=5),
        Column("ckpt", left=True),
        Column("tok/s/GPU" if answer.tokens is not None else "img/s/GPU"),
        Column("MFU", spare=3),
        Column("iter s", spare=1),
        *([] if alone else [Column("exp. s", spare=6)]),
        Column("GB"),
        *([Column(f"cost per {name}")] if answer.costs.prices else []),
        *([] if alone else [Column("2x helps", left=True, spare=4)]),
    ]
    cells = [
        [[*_number(row, groups), *_cells(answer, row, size, shown, alone=alone)] for row in rows] for rows in groups
    ]
    tight = any(row.sharded.is_tight for rows in groups for row in rows)
    marks = [f"~ {TIGHT_LEGEND}"] if tight else []
    marks += advise.rented_whole([row for rows in groups for row in rows])
    legend = "" if alone else advise.legend([row.candidate for rows in groups for row in rows])
    return [*render(columns, cells), *marks, *(wrapped(legend, width(), "  ") if legend else [])]


def _number(row: Row, groups: Sequence[Sequence[Row]]) -> list[str]:
    return [f"{row.gpus:,}"] if len(groups) > 1 else []


def _shown(answer: Answer) -> dict[str, Callable[[Candidate], int]]:
    """Return the columns of settings that are not 1 in every row, and the batch."""
    columns: dict[str, Callable[[Candidate], int]] = {
        "TP": lambda one: one.parallel.tensor,
        "PP": lambda one: one.parallel.stages,
        "virtual stages": lambda one: one.parallel.virtual,
        "EP": lambda one: one.parallel.experts,
        "CP": lambda one: one.parallel.context,
        "batch": lambda one: one.batch,
        "accum steps": lambda one: one.passes,
    }
    every = [row.candidate for rows in answer.rows.values() for row in rows]
    if any(one.microbatches is not None for one in every):
        columns["accum or microbatches"] = columns.pop("accum steps")
    varied = [name for name, value in columns.items() if any(value(one) > 1 for one in every)]
    return {name: value for name, value in columns.items() if name in varied or name == "batch"}


def _cells(
    answer: Answer, row: Row, size: float, shown: Mapping[str, Callable[[Candidate], int]], *, alone: bool
) -> list[str]:
    one, result, own = row.candidate, row.option.result, row.sharded
    cost = row.cost(size)
    return [
        *([] if alone else [advise.cell(one)]),
        *(f"{value(one):,}" for value in shown.values()),
        f"{row.global_batch:,}",
        one.checkpointing,
        units.digits(row.per_gpu(answer.tokens)),
        "-" if result.mfu is None else units.percent(result.mfu),
        units.digits(result.iteration_s),
        *([] if alone else [units.digits(result.exposed_communication_s, 3)]),
        units.gigabytes(own.memory.total_bytes) + (" ~" if own.is_tight else ""),
        *(
            []
            if not answer.costs.prices
            else ["-" if cost is None else units.digits(cost) + advise.WHOLE * row.is_rented_whole]
        ),
        *([] if alone else [advise.helps(answer, row.option.help)]),
    ]


def completed(answer: Answer, given: Mapping[str, object], typed: Typed) -> Answer:
    """Return the answer with what helps where the best fits tightly, or nothing does.

    Args:
        answer: The result.
        given: As for `row_of`.
        typed: The request for these machines.
    """
    if not answer.finished:
        return answer
    best = answer.best
    if best is not None:
        if not best.sharded.is_tight:
            return answer
        job = answer.jobs[best.gpus]
        roomy = search.safer(job, next(one for one in answer.outcomes if one.gpus == best.gpus))
        if roomy is not None:
            return replace(answer, safer=row_of(job, best.gpus, roomy, answer.costs, given))
        if shardings.kind(best.candidate.setup.sharding) == shardings.NONE:
            return answer
        return replace(answer, roomy_gpus=search.enough(job, best.candidate, roomy=True))
    never = [one for one in answer.outcomes if one.never_fit]
    if never:
        most = max(never, key=lambda one: one.gpus)
        proposals = fixes.fixes(answer.jobs[most.gpus].undivided, most, typed)
        if not proposals.fitting:
            return replace(answer, fixes=proposals)
        settings = {"workers": most.gpus, **proposals.fitting[0].settings}
        return replace(answer, fixes=proposals, remedy=typed.changed(settings).line)
    for one in answer.outcomes:
        for setup in one.left_out:
            job = answer.jobs[one.gpus]
            candidate = search.candidates(job, setup, one.gpus)[0].candidate
            return replace(answer, untried=command(job, given, one.gpus, candidate))
    return answer


def row_of(job: Job, gpus: int, option: Option, costs: Costs, given: Mapping[str, object]) -> Row:
    """Return a row of the table; `given` are the options that were typed and do not vary."""
    goodput = 1.0 if costs.failures is None else costs.failures.goodput
    line, price = command(job, given, gpus, option.candidate), costs.prices.get(gpus)
    return Row(gpus, option.candidate, option, goodput, price, line)


def command(job: Job, given: Mapping[str, object], gpus: int, one: Candidate) -> str:
    """Return the command that forecasts a candidate; `given` are the options that were typed and do not vary."""
    trace, file = job.sweep.trace, job.sweep.file
    words = ["paceline", "simulate", *(["--config", str(trace)] if isinstance(trace, Path) else [str(trace)])]
    if file is not None:
        words = ["paceline", "simulate", str(file.path), *(["--model", file.model] if file.model else [])]
    gathers = shardings.kind(one.setup.sharding) in shardings.GATHERED
    # Units that are gathered are exchanged, not buckets; nothing is dispatched where a GPU has all experts.
    idle = {name for name, is_so in (("bucket_size", gathers), ("expert_dispatch", one.parallel.experts == 1)) if is_so}
    # One GPU shards nothing unless its parameters are gathered from the host; element types need a plan.
    needs_plan = one.setup.sharding != shardings.NONE or not given.keys().isdisjoint(("param_dtype", "reduce_dtype"))
    is_stated = gpus > 1 or file is not None or needs_plan
    words += typed_words({name: it for name, it in given.items() if name not in idle})
    words += ["--gpus", str(gpus), *(["--sharding", one.setup.sharding] if is_stated else [])]
    words += ["--batch", str(one.batch)]
    for name, value in one.parallel.options.items():
        words += [SETTINGS[name].flag, str(value)]
    words += [] if one.microbatches is None else ["--microbatches", str(one.microbatches)]
    # A file may say otherwise.
    is_all = file is not None
    words += ["--checkpointing", one.checkpointing] if is_all or one.checkpointing != "none" else []
    words += ["--accumulate", str(one.accumulate)] if one.accumulate > 1 or (is_all and not one.microbatches) else []
    words += [] if one.bucket_bytes is None else ["--bucket-size", f"{one.bucket_bytes >> 20}MiB"]
    words += (
        ["--reshard-after-forward", "no" if one.setup.kept else "yes"] if one.setup.kept or (is_all and gathers) else []
    )
    words += ["--no-accumulate-sync"] if one.setup.local else []
    return shlex.join(words)
