"""The command `paceline import sends`: a trace from recorded sends (docs/reference/trace-format.md)."""

from __future__ import annotations

from pathlib import Path

import click

from paceline._core import Trace
from paceline._internal import units
from paceline._internal.block import Fact
from paceline.cli import imported
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.settings import kinds

_SECTIONS = {
    "Basic options": ("name", "batch", "output"),
    "Times": ("forward", "backward", "first_gradient"),
    "Sends that count": ("dependency", "exclude"),
    "Details": ("dtype", "device", "provenance"),
}


@click.command("sends", cls=Command, sections=_SECTIONS)
@click.argument("aggregation", type=click.Path(path_type=Path))
@click.argument("distribution", type=click.Path(path_type=Path))
@types.options("import sends", "name", "batch", "forward")
@click.option(
    "--first-gradient",
    type=types.of_kind(kinds.DURATION),
    default="0s",
    help="Backward time before the first send: 2ms.  [default: 0s]",
)
@click.option(
    "--backward",
    type=types.of_kind(kinds.DURATION),
    help="Backward time: 352ms.  [default: until the last send]",
)
@click.option("--dependency", metavar="OP", help="Count a worker's gradients after its first send of this tensor.")
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave out tensors, by a part of the name or a pattern: '*/moving_*'. Several: repeat it.",
)
@types.options("import sends", "dtype", "device", filled=True)
@click.option("--provenance", default="", help="Note on how it was recorded.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Trace to write: mine.json.")
def import_sends(
    *,
    aggregation: Path,
    distribution: Path,
    name: str,
    batch: int,
    forward: float,
    first_gradient: float,
    backward: float | None,
    dependency: str | None,
    exclude: tuple[str, ...],
    dtype: str,
    device: str | None,
    provenance: str,
    output: Path,
) -> None:
    """Make a trace from two CSV recordings of sends (docs/reference/trace-format.md).

    AGGREGATION has the gradients sent to servers, DISTRIBUTION the parameters sent back.

    \b
    paceline import sends to-servers.csv to-workers.csv \\
      --name mine --batch 32 --forward 176ms -o mine.json
    """
    imported.check_output(output, [aggregation, distribution])
    trace = Trace.import_sends(
        aggregation,
        distribution,
        name=name,
        batch=batch,
        forward_s=forward,
        first_gradient_s=first_gradient,
        backward_s=backward,
        dtype=dtype,
        device=device or "",
        provenance=provenance,
        dependency=dependency,
        exclude=exclude,
    )
    imported.write(output, trace)
    facts = [Fact("Workload", f"batch {batch}, {units.count(trace.worker_count, 'worker')}")]
    imported.show(output, imported.gradients(trace.gradient_bytes, trace.tensor_count), facts)
