"""The command `paceline compare`: a forecast beside what was measured, and what would explain the gap."""

from __future__ import annotations

import json
from typing import Any

import click

from paceline._internal.console import Bar, put, remark, say
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import complete
from paceline.errors import naming
from paceline.settings.table import SIMULATE, of_place

_LEFT_OUT = ("detail", "critical_path", "message_overhead", "measured")
"""Settings of a forecast that `paceline simulate` has not, or has for its output; a measurement scales none here."""
_NAMES = tuple(setting.name for setting in of_place(SIMULATE) if setting.name not in _LEFT_OUT)
_BASIC = (
    *("measured", "workers", "gpu", "batch", "seq", "sharding", "strategy", "cluster", "bandwidth"),
    *("everything", "as_json"),
)
_SECTIONS = types.sections(
    SIMULATE,
    _BASIC,
    {},
    {"Model details": "need --gpu", "Parallelism": "models only; --gpus counts all GPUs"},
)


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("workload", shell_complete=complete)
@click.option(
    "--measured",
    required=True,
    metavar="VALUE|FILE",
    help="What was measured: 2.8s, 1900tokens/s/GPU, 286samples/s, 45%MFU, 5GB/s (busbw), or a file: a recording, a "
    "profile of torch.profiler, a timeline of paceline run, a log of nccl-tests.",
)
@types.options(SIMULATE, *_NAMES, checked=False)
@click.option("--all", "everything", is_flag=True, help="List all causes, not only the five likeliest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in seconds.")
def compare(*, workload: str, measured: str, everything: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Explain why a run is slower, or faster, than its forecast.

    WORKLOAD and options are those of paceline simulate, one value each. A number tells the whole gap; a file tells in
    which part of a step it is. Causes are ordered by how common they are and how well a forecast with them meets what
    was measured. Within the forecast's interval, a run is as forecast. Options marked * take lists.

    \b
    paceline compare llama-3-8b --gpu h100 --gpus 16 --sharding zero3 \\
      --measured 3200tokens/s/GPU
    paceline compare resnet-50 --gpus 8 --bandwidth 25Gbps --measured run.json
    paceline compare allreduce:1GiB --cluster dgx-h100 --gpus 16 \\
      --measured nccl.log
    """
    from paceline.compare import report
    from paceline.compare.explain import to_dict

    given = {name: value for name, value in options.items() if value is not None}
    with naming(types.flags(SIMULATE, given)), Bar("comparing"):
        answer = report.answer(workload, given, measured)
        file = answer.question.forecaster.file
    if as_json:
        put(json.dumps(to_dict(answer) | ({"file": file.to_dict()} if file else {}), indent=1, allow_nan=False))
        return
    for slip in file.slips if file is not None else ():
        remark(slip)
    say(report.lines(answer, everything=everything))
    if file is not None:
        from paceline.forecast.wording import trainer_file

        say(["", *trainer_file.lines(file)])
