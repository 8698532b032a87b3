"""The command `paceline study`, which reproduces a published study."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import click
from paceline._internal.console import put, say, width
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import completed
from paceline.cli.usage import UsageError
from paceline.errors import naming


def _names() -> Iterable[str]:
    from paceline_lab.studies import STUDIES

    return STUDIES


@click.command(cls=Command)
@click.argument("name", metavar="NAME", required=False, shell_complete=completed(_names))
@click.option("--json", "as_json", is_flag=True, help="Print JSON: rows, claims, figures, skipped.")
@click.option("--csv", is_flag=True, help="Print the rows as CSV.")
@click.option(
    "--plots",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also draw the study's figures as PNG into this folder.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="published, collectives: your own measurements, in the columns of docs/results/published.md.",
)
@click.option(
    "--anchor",
    is_flag=True,
    help="published --data: fit compute to each series' row of fewest GPUs, which is not counted.",
)
@click.option("--workers", "--gpus", metavar="N,…", type=types.WORDS, help="Numbers of GPUs instead of the study's.")
@click.option("--bandwidth", metavar="RATE,…", type=types.WORDS, help="Network rates instead of the study's: 10Gbps.")
@click.option(
    "--trace", "traces", metavar="NAME,…", type=types.WORDS, help="Traces instead of the study's: a file or a name."
)
def study(
    *,
    name: str | None,
    as_json: bool,
    csv: bool,
    plots: Path | None,
    data: Path | None,
    anchor: bool,
    workers: list[str] | None,
    bandwidth: list[str] | None,
    traces: list[str] | None,
) -> None:
    """Reproduce a published study, and compare published and simulated values.

    The error is simulated / published - 1. The study's claims are tested, too. With --workers, --bandwidth or --trace
    its systems are forecast for your values: same tables, nothing published. Options marked * take lists.

    \b
    NAME is one of:
      network-operator   M. A. Chang et al., "How to Train your DNN: The
                         Network Operator Edition"
      published          Published measurements of public systems, 2017 to 2020
      collectives        Published bandwidths of NCCL's collectives on one node
      compute            Measured training steps: the time and the memory of a GPU
      finetune           Public measurements of fine-tuning: time and memory
      held-out           Public measurements of training, fitted by nothing
      complaints         Public complaints that training is slow: their causes
      ray-sgd            Ray distributed SGD, Horovod and Distributed TensorFlow
      ddl-nccl           Horovod over NCCL and over IBM's DDL on Longhorn
      cuda-aware-mpi     A. A. Awan et al., gRPC, NCCL and CUDA-aware MPI
      load-imbalance     S. Pumma et al., Horovod's coordinator and four remedies

    \b
    paceline study ray-sgd
    paceline study network-operator --workers 8,16 --bandwidth 10Gbps
    paceline study published --data mine.csv --anchor
    """
    from paceline._internal.console import Bar, on_terminal, remark
    from paceline._internal.files import check_readable, make_folder
    from paceline.forecast.output.plotting import need_matplotlib

    from paceline_lab.studies import MINUTES, STUDIES, run_study
    from paceline_lab.studies.own import Own

    if name is None:
        raise UsageError(
            "study needs a name", remedy=f"paceline study {next(iter(STUDIES))} (or {', '.join(list(STUDIES)[1:])})"
        )
    if as_json and csv:
        raise UsageError("--json and --csv cannot be combined", remedy="drop --csv, or drop --json")
    if plots is not None:
        need_matplotlib("--plots")
        make_folder("--plots", plots)
    if data is not None:
        with types.naming_option("--data"):
            check_readable(data)
    with naming(types.flags("simulate", {})):
        own = Own.of(workers, bandwidth, traces or ())
    if own is None and name in MINUTES and not on_terminal():
        remark(f"{name} takes about {MINUTES[name]} minutes")
    with Bar("simulating") as bar:
        result = run_study(name, plots, bar, data, anchor=anchor, own=own)
    if as_json:
        put(json.dumps(result.to_dict(), indent=1, allow_nan=False))
    elif csv:
        click.echo(result.to_csv(), nl=False)
    else:
        say(result.text(width()))
