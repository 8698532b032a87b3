"""The commands `paceline import chakra` and `paceline export chakra`: Chakra execution traces, ASTRA-sim's input."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paceline._internal import units
from paceline._internal.block import Fact, block, headline
from paceline._internal.console import say
from paceline._internal.files import check_writable
from paceline.cli import imported
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import complete


@click.command("chakra", cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE.0.et …")
@types.options("import chakra", "name", "batch", "dtype", "forward")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Trace to write: mine.json.")
def import_chakra(
    *,
    files: tuple[Path, ...],
    name: str | None,
    batch: int | None,
    dtype: str | None,
    forward: float | None,
    as_json: bool,
    output: Path,
) -> None:
    """Make a trace from Chakra execution traces (.et) of one step, one file per rank.

    Files of paceline export chakra give the trace that was exported. Others need --batch, and --forward if the names
    of their nodes do not tell which belong to the backward pass.

    \b
    paceline import chakra step.0.et step.1.et --batch 32 -o mine.json
    """
    from paceline.interop.chakra import import_chakra as convert

    imported.check_output(output, files)
    trace, summary = convert(files, name=name, batch=batch, dtype=dtype, forward_s=forward)
    imported.write(output, trace)
    if as_json:
        click.echo(json.dumps(summary.as_dict(), indent=1))
        return
    times = imported.compute(summary.forward_s, summary.backward_s, summary.optimizer_s)
    imported.show(output, imported.gradients(summary.gradient_bytes, summary.gradients), [times], summary.notes)


@click.command("chakra", cls=Command)
@click.argument("trace", shell_complete=complete)
@types.option("export chakra", "workers")
@types.option("export chakra", "bucket_size", filled=True)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="Files to write: PREFIX.0.et, PREFIX.1.et, …",
)
def export_chakra(*, trace: str, workers: int, bucket_size: int | str, as_json: bool, output: Path) -> None:
    """Write TRACE as Chakra execution traces of one step, for ASTRA-sim, one file per rank.

    \b
    paceline export chakra resnet-50 --workers 8 -o resnet50
    paceline import chakra resnet50.0.et -o resnet50.json
    """
    from paceline.catalog.builtin import load_trace
    from paceline.interop.chakra import export_chakra as convert

    check_writable("--output", output.parent / f"{output.name}.0.et")
    summary = convert(
        load_trace(trace), output, workers=workers, bucket_size=None if isinstance(bucket_size, str) else bucket_size
    )
    if as_json:
        click.echo(json.dumps(summary.as_dict(), indent=1))
        return
    last = f" to {summary.files[-1]}" if workers > 1 else ""
    collectives = ", ".join(f"{count} {kind}" for kind, count in summary.collectives.items())
    facts = [
        Fact("Compute", units.count(summary.computations, "node")),
        Fact("Collectives", f"{collectives}, {units.size(summary.gradient_bytes)} in all"),
    ]
    say([*headline(f"Wrote {summary.files[0]}{last}"), "", *block(facts)])
