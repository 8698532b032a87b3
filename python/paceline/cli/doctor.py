"""The command `paceline doctor`: what dominates a recorded run and what to try, or a description of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paceline._internal.console import put, say, width
from paceline.cli.command import Command
from paceline.cli.usage import UsageError


@click.command(cls=Command)
@click.argument("file", metavar="[RUN.json]", required=False, type=click.Path(path_type=Path))
@click.option("--env", "environment", is_flag=True, help="Describe this machine and installation, for bug reports.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in seconds, sizes in bytes.")
def doctor(*, file: Path | None, environment: bool, as_json: bool) -> None:
    """Show where the steps of a run spend their time, and what to try.

    RUN.json is a timeline of its ranks. If it is missing, its parts RUN.json.*rank-* are read. Figures are means over
    all steps except the first ones.

    \b
    paceline run -np 4 --timeline run.json -- python train.py
    paceline doctor run.json
    paceline doctor --env

    --env shows versions, cores, memory, transports, CUDA-aware MPI, network interfaces, limits and environment
    variables. Secrets are not printed.
    """
    if environment and file is not None:
        raise UsageError("--env describes this machine and takes no RUN.json", remedy="drop --env, or drop RUN.json")
    if environment:
        _describe(as_json)
        return
    if file is None:
        raise UsageError("the timeline of a run is missing", remedy="paceline doctor run.json, or --env (this machine)")
    from paceline.doctor import diagnose

    report = diagnose(file)
    if as_json:
        put(json.dumps(report.to_dict(), indent=1, allow_nan=False))
    else:
        say(report.text(width()))


def _describe(as_json: bool) -> None:
    from paceline.doctor.environment import collect
    from paceline.doctor.environment_table import table

    environment = collect()
    if as_json:
        put(json.dumps(environment, indent=1, allow_nan=False))
    else:
        say(table(environment, width()))
