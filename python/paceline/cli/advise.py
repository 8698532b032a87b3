"""The command `paceline advise`: which configuration of a model is the fastest that fits on given GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline import _core
from paceline._internal.console import Bar, put, say, width, wrapped
from paceline.cli import param_types as types
from paceline.cli.completion import complete
from paceline.errors import InvalidArgumentError, naming
from paceline.settings import kinds
from paceline.settings.table import SETTINGS, of_place

if TYPE_CHECKING:
    from paceline.forecast.advisor.goodput import Failures
    from paceline.forecast.advisor.job import Job
    from paceline.forecast.advisor.report import Answer, Objective
    from paceline.forecast.advisor.search import Found

_OBJECTIVES: dict[str, Objective] = {"throughput": "throughput", "cost": "cost"}
_LONG = {"h": 3600.0, "d": 86_400.0}
_SECONDS = kinds.number(0, 30 * 86_400.0, "a number of seconds from 0 to 30 days", "SECONDS")


def _long_time(text: str) -> float:
    """Hours and days beside the units of other times."""
    unit = text[-1:]
    if unit in _LONG:
        try:
            found = float(text[:-1]) * _LONG[unit]
        except ValueError:
            found = 0.0
        if 0 < found < 1e10:
            return found
        raise InvalidArgumentError(f"'{text[:40]}' is not a time; write it as 8h, 2.5d or 30min")
    if text.replace(".", "", 1).isdigit():
        raise InvalidArgumentError(f"{text[:40]} has no unit; write {text[:40]}h or {text[:40]}d, whichever you mean")
    found = _core.parse_time(text)
    if found <= 0:
        raise InvalidArgumentError(f"'{text[:40]}' is no time between failures; write it as 8h, 2.5d or 30min")
    return found


def _network(text: str) -> str:
    """The rate of --network, whose errors name it rather than --bandwidth."""
    try:
        SETTINGS["bandwidth"].check(text, None, "advise")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(error.reason) from None
    return text


_MONEY = kinds.number(0, 1e6, "a price above 0 and at most 1000000, such as 2.50 or $2.50", "MONEY", above=True)
_CURRENCY = re.compile(r"(?:[A-Z]{0,3}[$€£¥]|[A-Z]{3}\b)?\s*([\d.,eE+-]*?)\s*(?:[$€£¥]|\b[A-Z]{3})?", re.ASCII)


def _price(value: object) -> float:
    """Return the number of an amount such as `2.50`, `$2.50` or `2.50 EUR`. Raises InvalidArgumentError."""
    match = _CURRENCY.fullmatch(value.strip()) if isinstance(value, str) else None
    found: float = _MONEY.check(value if match is None or not match[1] else match[1])
    return found


@click.command()
@click.argument("model", required=False, shell_complete=complete)
@types.options("advise", *(setting.name for setting in of_place("advise")), checked=False)
@click.option(
    "--network",
    "link",
    type=types.Value("RATE", _network),
    metavar="RATE",
    help="The same as --bandwidth: of a node, whose GPUs share it.",
)
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="A config.json of Hugging Face, instead of MODEL."
)
@click.option(
    "--global-batch",
    type=types.of_kind(kinds.GLOBAL_BATCH),
    metavar="N",
    help="Samples of an iteration of all GPUs: 1024, or 1k.  [default: free]",
)
@click.option(
    "--objective",
    type=click.Choice(tuple(_OBJECTIVES)),
    default="throughput",
    show_default=True,
    help="What is best among several numbers of GPUs.",
)
@click.option(
    "--price",
    type=types.Value("MONEY", _price),
    metavar="MONEY",
    help="Price of a GPU for an hour: adds the cost of a billion tokens.",
)
@click.option(
    "--mtbf",
    type=types.Value("TIME", _long_time),
    help="Mean time to failure of the whole job, such as 8h: adds goodput.",
)
@click.option(
    "--checkpoint-seconds", type=types.POSITIVE, metavar="SECONDS", help="For which training waits for a checkpoint."
)
@click.option(
    "--restart-seconds",
    type=types.Value("SECONDS", _SECONDS.check),
    help="From a failure until training goes on.  [default: as long as a checkpoint]",
)
@click.option(
    "--top",
    type=types.whole(1, 1000),
    metavar="N",
    default="5",
    show_default=True,
    help="Rows for each number of GPUs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def advise(
    *,
    model: str | None,
    link: str | None,
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
    """Find the configurations of MODEL (`paceline list models`) that train fastest and fit on given GPUs.

    Searched are sharding, whether gathered units are kept, batch and accumulation, and checkpointing; what is given is
    not searched. Lists of --tensor-parallel, --pipeline-parallel and --virtual-stages are searched, too. The table has
    the best of each sharding; what leaves memory to spare comes first.

    \b
    paceline advise gpt2-xl --gpu a100 --gpus 16 --network 100Gbps
    paceline advise llama-3-8b --gpu h100 --gpus 16,64 --network 400Gbps --global-batch 512 --price 2.5
    paceline advise llama-3-70b --gpu h100 --gpus 256 --global-batch 512 --tensor-parallel 1,2,4,8
    paceline advise llama-3-8b --gpu h100 --gpus 1024 --mtbf 8h --checkpoint-seconds 60
    """
    from paceline.forecast.advisor import report, search
    from paceline.forecast.advisor.job import Job
    from paceline.forecast.request import Sweep

    costs = report.Costs(price, _failures(mtbf, checkpoint_seconds, restart_seconds))
    if objective == "cost" and price is None:
        raise click.UsageError("--objective cost: needs a price; give --price")
    values = _given(options, link)
    rows: dict[int, list[report.Row]] = {}
    with naming(types.flags("advise", values)):
        job = Job.of(Sweep.of(_model(model, config), values, "advise", "flag"), global_batch)
        typed = {name: value for name, value in values.items() if value is not None and name in job.sweep.values}
        every = search.start(job)
        finished = _search(job, every, top)
        for one in every:
            rows[one.gpus] = [report.row_of(job, one.gpus, it, costs, typed) for it in one.options[:top]]
        answer = report.Answer(job, tuple(every), rows, _OBJECTIVES[objective], costs, finished)
        if finished and (best := answer.best) is not None and best.sharded.is_tight:
            safer = search.safer(job, next(one for one in every if one.gpus == best.gpus))
            if safer is not None:
                answer = replace(answer, safer=report.row_of(job, best.gpus, safer, costs, typed))
        if as_json:
            put(json.dumps(answer.to_dict(), indent=1, allow_nan=False))
        else:
            _print(answer)
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


def _print(answer: Answer) -> None:
    verdict, table, remarks = answer.verdict(), answer.table(), answer.remarks()
    if not answer.finished:
        verdict = ["incomplete: the search was interrupted.", *verdict]
    lines = [line for sentence in verdict for line in wrapped(sentence, width())]
    after = [line for sentence in remarks for line in wrapped(sentence, width(), "  ")]
    say([*lines, *([""] if table else []), *table, "", *after])


def _failures(mtbf: float | None, checkpoint: float | None, restart: float | None) -> Failures | None:
    """Return the failures; the options go together. Raises UsageError."""
    from paceline.forecast.advisor.goodput import Failures

    if mtbf is None:
        for flag, value in (("--checkpoint-seconds", checkpoint), ("--restart-seconds", restart)):
            if value is not None:
                raise click.UsageError(f"{flag}: has no effect without failures; give --mtbf")
        return None
    if checkpoint is None:
        raise click.UsageError("--mtbf: how long does a checkpoint take? Give --checkpoint-seconds")
    return Failures(mtbf, checkpoint, checkpoint if restart is None else restart)


def _model(model: str | None, config: Path | None) -> str | Path:
    """Return the model. Raises InvalidArgumentError for a recording."""
    from paceline.catalog.models.config import read_config
    from paceline.catalog.models.spec import config_named
    from paceline.forecast.advisor.job import refuse_recording

    if (model is None) == (config is None):
        raise click.UsageError("name one model, or give its --config: paceline advise llama-3-8b --gpu h100 --gpus 64")
    if config is not None:
        with types.naming_option("--config"):
            read_config(config)
        return config
    assert model is not None
    refuse_recording(model)
    config_named(model)
    return model


def _given(options: dict[str, Any], link: str | None) -> dict[str, Any]:
    if link is None:
        return options
    if options.get("bandwidth") is not None:
        raise click.UsageError("--network: means the same as --bandwidth; give one of them")
    return options | {"bandwidth": link}
