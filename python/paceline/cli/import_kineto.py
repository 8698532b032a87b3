"""The command `paceline import kineto`: a trace from what torch.profiler recorded."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paceline._internal import units
from paceline._internal.block import Fact
from paceline.cli import imported
from paceline.cli import param_types as types
from paceline.cli.command import Command


@click.command("kineto", cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE.json[.gz] …")
@types.options("import kineto", "name", "batch", "device")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Trace to write: mine.json.")
def import_kineto(
    *, files: tuple[Path, ...], name: str | None, batch: int | None, device: str | None, as_json: bool, output: Path
) -> None:
    """Make a trace from torch.profiler's Chrome traces, of GPUs or CPUs, one file per rank.

    Collectives are taken out of the compute. Record with record_shapes=True (sizes of gradients) and with_stack=True
    (names of modules), and mark the steps with the profiler's step().

    \b
    paceline import kineto trace.json.gz -o mine.json
    paceline simulate mine.json --gpus 8,64
    """
    from paceline.interop.kineto import import_kineto as convert

    imported.check_output(output, files)
    trace, summary = convert(files, name=name, batch=batch, device=device)
    imported.write(output, trace)
    if as_json:
        click.echo(json.dumps(summary.as_dict(), indent=1))
        return
    removed = [
        f"{total.count} {total.kind}"
        f"{'' if total.bytes is None else f' of {units.size(total.bytes)}'}: {units.duration(total.duration_s)}, "
        f"{units.duration(total.exposed_s)} exposed"
        for total in summary.collectives
    ]
    ranks = f"{units.count(summary.ranks, 'rank')}, {units.count(summary.layers, 'layer')}"
    facts = [
        Fact("Workload", f"batch {summary.batch} on {summary.device}, {ranks}"),
        imported.compute(
            summary.forward_s,
            summary.backward_s,
            summary.optimizer_s,
            f" (median of {units.count(summary.steps, 'step')})",
        ),
        *([Fact("Removed", *removed)] if removed else []),
    ]
    imported.show(output, imported.gradients(summary.gradient_bytes, summary.gradients), facts, summary.notes)
