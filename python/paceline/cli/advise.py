"""The command `paceline advise`: which configuration of a model is the fastest that fits on given GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline._internal.console import Bar, put, say
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import complete
from paceline.cli.usage import UsageError
from paceline.errors import naming
from paceline.settings.table import of_place

if TYPE_CHECKING:
    from paceline.forecast.advisor.answer import Objective
    from paceline.forecast.advisor.goodput import Failures
    from paceline.forecast.advisor.job import Job
    from paceline.forecast.advisor.search import Found

_OBJECTIVES: dict[str, Objective] = {"throughput": "throughput", "cost": "cost"}
_FAILURES = ("mtbf", "checkpoint_seconds", "restart_seconds")
_OWN = ("global_batch", "objective", "price", *_FAILURES, "top")
"""Settings that no forecast has."""


_SECTIONS = {
    **types.sections(
        "advise",
        (
            *("workers", "gpu", "seq", "global_batch", "batch", "sharding", "checkpointing"),
            *("cluster", "bandwidth", "price", "top", "as_json"),
        ),
        {"Model details": ("config", "dtype")},
        {"Parallelism": "--gpus counts all GPUs"},
    ),
    "Cost and failures": ("objective", "mtbf", "checkpoint_seconds", "restart_seconds"),
}


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("model", required=False, shell_complete=complete)
@types.options("advise", *(setting.name for setting in of_place("advise") if setting.name not in _OWN), checked=False)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Model from a Hugging Face config.json, without MODEL.",
)
@types.options("advise", *_OWN, filled=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def advise(
    *,
    model: str | None,
    config: Path | None,
    global_batch: int | None,
    objective: str,
    price: float | None,
    mtbf: float | None,
    checkpoint_seconds: float | None,
    restart_seconds: float | None,
    top: int,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Find the fastest configurations of a model that fit on given GPUs.

    MODEL is a built-in model (list: paceline list models).

    Searches sharding, resharding, batch size, accumulation and checkpointing. Options you set are fixed. Options
    marked * take lists: --tensor-parallel 1,2,4 is searched, too. The table has the best of each sharding, those with
    memory to spare first.

    \b
    paceline advise gpt2-xl --gpu a100 --gpus 16 --bandwidth 100Gbps
    paceline advise llama-3-8b --gpu h100 --gpus 16,64 --global-batch 512
    paceline advise llama-3-70b --gpu h100 --gpus 256 --tensor-parallel 1,2,4,8
    paceline advise llama-3-8b --gpu h100 --gpus 64 \\
      --mtbf 8h --checkpoint-seconds 60
    """
    from paceline.forecast.advisor import report, search
    from paceline.forecast.advisor.answer import Answer, Costs, Row
    from paceline.forecast.advisor.job import Job
    from paceline.forecast.request import Sweep

    costs = Costs(price, _failures(mtbf, checkpoint_seconds, restart_seconds))
    if objective == "cost" and price is None:
        raise UsageError("--objective cost needs a price", remedy="--price 2.50")
    rows: dict[int, list[Row]] = {}
    with naming(types.flags("advise", options)):
        job = Job.of(Sweep.of(_model(model, config), options, "advise", "flag"), global_batch)
        typed = {name: value for name, value in options.items() if value is not None and name in job.sweep.values}
        every = search.start(job)
        finished = _search(job, every, top)
        for one in every:
            rows[one.gpus] = [report.row_of(job, one.gpus, it, costs, typed) for it in one.options[:top]]
        answer = report.completed(Answer(job, tuple(every), rows, _OBJECTIVES[objective], costs, finished), typed)
        if as_json:
            put(json.dumps(report.to_dict(answer), indent=1, allow_nan=False))
        else:
            say(report.lines(answer))
    if not finished:
        click.echo("paceline: interrupted; what was found is printed, marked incomplete", err=True)
        raise click.Abort


def _search(job: Job, every: Sequence[Found], top: int) -> bool:
    """Search for each number of GPUs; return whether Ctrl-C did not end it."""
    from paceline.forecast.advisor import search

    try:
        for one in every:
            if one.refused:
                continue
            with Bar(f"searching for {one.gpus} GPUs") as bar:
                search.search(job, one, bar)
                search.explain(job, one, top)
    except KeyboardInterrupt:
        return False
    return True


def _failures(mtbf: float | None, checkpoint: float | None, restart: float | None) -> Failures | None:
    """Return the failures; the options go together. Raises UsageError."""
    from paceline.forecast.advisor.goodput import Failures

    if mtbf is None:
        for flag, value in (("--checkpoint-seconds", checkpoint), ("--restart-seconds", restart)):
            if value is not None:
                raise UsageError(f"{flag} needs failures", remedy=f"--mtbf 4h, or drop {flag}")
        return None
    if checkpoint is None:
        raise UsageError("--mtbf needs the time of a checkpoint", remedy="--checkpoint-seconds 60")
    return Failures(mtbf, checkpoint, checkpoint if restart is None else restart)


def _model(model: str | None, config: Path | None) -> str | Path:
    """Return the model. Raises InvalidArgumentError for a recording."""
    from paceline.catalog.models.config import read_config
    from paceline.catalog.models.spec import config_named
    from paceline.forecast.advisor.job import refuse_recording

    if (model is None) == (config is None):
        raise UsageError("advise needs one model", remedy="paceline advise llama-3-8b --gpu h100 --gpus 64")
    if config is not None:
        with types.naming_option("--config"):
            read_config(config)
        return config
    assert model is not None
    refuse_recording(model)
    config_named(model)
    return model
