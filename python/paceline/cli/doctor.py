"""The command `paceline doctor`: what dominates a recorded run, and what to try."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paceline._internal.console import say, width


@click.command()
@click.argument("file", metavar="RUN.json", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in seconds.")
def doctor(*, file: Path, as_json: bool) -> None:
    """Say what a step of the recorded run RUN.json spends its time on, and what to try.

    RUN.json is a timeline of real ranks. If it is not there, its parts RUN.json.rank-* are read. Figures are means of
    all steps but the first ones.

    \b
    paceline run -np 4 --timeline RUN.json -- python train.py
    paceline doctor RUN.json
    """
    from paceline.doctor import diagnose

    report = diagnose(file)
    if as_json:
        say([json.dumps(report.to_dict(), indent=1, allow_nan=False)])
    else:
        say(report.text(width()))
