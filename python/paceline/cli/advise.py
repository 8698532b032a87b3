"""The command `paceline advise`: which configuration of a model is the fastest that fits on given GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline._internal.console import Bar, put, remark, say
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import complete
from paceline.cli.usage import UsageError
from paceline.errors import naming
from paceline.settings.table import of_place

if TYPE_CHECKING:
    from paceline.forecast.advisor.answer import Objective
    from paceline.forecast.advisor.goodput import Failures

_OBJECTIVES: dict[str, Objective] = {"throughput": "throughput", "cost": "cost"}
_FAILURES = ("mtbf", "checkpoint_seconds", "restart_seconds")
_OWN = ("global_batch", "objective", "price", "tokens", *_FAILURES, "top")
"""Settings that no forecast has."""


_SECTIONS = {
    **types.sections(
        "advise",
        (
            *("workers", "gpu", "seq", "global_batch", "batch", "sharding", "checkpointing"),
            *("cluster", "bandwidth", "price", "tokens", "top", "as_json"),
        ),
        {"Model details": ("config", "dtype")},
        {"Parallelism": "--gpus counts all GPUs"},
    ),
    "Cost and failures": ("objective", "mtbf", "checkpoint_seconds", "restart_seconds"),
}


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("workload", metavar="[MODEL]", required=False, shell_complete=complete)
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
    workload: str | None,
    config: Path | None,
    global_batch: int | None,
    objective: str,
    price: dict[str, float] | None,
    tokens: float | None,
    mtbf: float | None,
    checkpoint_seconds: float | None,
    restart_seconds: float | None,
    top: int,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Find the fastest configurations of a model that fit on given GPUs.

    MODEL is a built-in model (list: paceline list models), or a trainer's file (docs/how-to/trainers-files.md), of
    which sharding, batch and checkpointing are searched again.

    Searches sharding, resharding, batch size, accumulation and checkpointing; tensor and context parallelism where
    nothing fits without, or sequences are long. Options you set are fixed. Options marked * take lists:
    --tensor-parallel 1,2,4 is searched, too. The table has the best of each sharding, those with memory to spare first;
    of several machines, the best of each.

    \b
    paceline advise gpt2-xl --gpu a100 --gpus 16 --bandwidth 100Gbps
    paceline advise qwen3-32b --gpu h100,b200 --gpus 8,16 --tokens 1e9
    paceline advise llama-3-8b --gpu h100 --gpus 16,64 --global-batch 512
    paceline advise llama-3-70b --gpu h100 --gpus 256 --tensor-parallel 1,2,4,8
    paceline advise llama-3-8b --gpu h100 --gpus 64 \\
      --mtbf 8h --checkpoint-seconds 60
    """
    from paceline.forecast.advisor import comparison, report
    from paceline.forecast.advisor.costs import Prices
    from paceline.forecast.request import Sweep
    from paceline.forecast.typed import Typed

    failures = _failures(mtbf, checkpoint_seconds, restart_seconds)
    with naming(types.flags("advise", {**options, "price": price, "tokens": tokens})):
        model = _model(workload, config)
        typed = Typed.of("advise", model, {**options, "global_batch": global_batch, "tokens": tokens}, "flag")
        machines = Sweep.of(model, options, "advise", "flag").parts
        file = machines[0].file
        for slip in file.slips if file is not None else ():
            remark(slip)
        compares = len(machines) > 1 or tokens is not None or objective == "cost"
        prices = Prices.of(price or {}, machines, compares=compares)
        if objective == "cost" and not any(
            prices.price(one, gpus) for one in machines for gpus in one.get("workers") or ()
        ):
            raise UsageError("--objective cost needs a price", remedy="--price 2.50")
        question = comparison.Question(
            machines, global_batch, _OBJECTIVES[objective], prices, failures, tokens, top, options, typed
        )
        with naming(machines[0].sources):
            compared = comparison.answers(question, Bar)
        if len(machines) == 1:
            [only] = compared.answered
            made, lines = report.to_dict(only), report.lines(only)
        else:
            made, lines = comparison.to_dict(compared), comparison.lines(compared)
        if file is not None:
            from paceline.forecast.advisor import as_in_file
            from paceline.forecast.wording import trainer_file

            best = compared.leading
            own = as_in_file.forecast(file, best.machine.sweep, best.gpus, best.label, options)
            file = best.machine.sweep.described_file(best.answer.job.space.shardings) or file
            made |= {"file": file.to_dict(), "as_in_file": own.to_dict()}
            lines += ["", *own.lines(best.answer), "", *trainer_file.lines(file)]
        if as_json:
            put(json.dumps(made, indent=1, allow_nan=False))
        else:
            say(lines)
    if not compared.finished:
        click.echo("paceline: interrupted; what was found is printed, marked incomplete", err=True)
        raise click.Abort


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
    from paceline.forecast.trainer_file import check_there, is_candidate

    if (model is None) == (config is None):
        raise UsageError("advise needs one model", remedy="paceline advise llama-3-8b --gpu h100 --gpus 64")
    if config is not None:
        with types.naming_option("--config"):
            read_config(config)
        return config
    assert model is not None
    if is_candidate(model):
        return model
    check_there([model])
    refuse_recording(model)
    config_named(model)
    return model
