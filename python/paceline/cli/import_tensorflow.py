"""The command `paceline import tensorflow`: a trace from TensorFlow's timelines and profiles."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paceline._internal import units
from paceline._internal.block import Fact
from paceline.cli import imported
from paceline.cli import param_types as types
from paceline.cli.command import Command


@click.command("tensorflow", cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE …")
@types.options("import tensorflow", "name", "batch", "device", "dtype")
@click.option(
    "--sizes",
    type=click.Path(path_type=Path),
    help="JSON file with the bytes of each variable, in the model's order.  [default: the file's]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Trace to write: mine.json.")
def import_tensorflow(
    *,
    files: tuple[Path, ...],
    name: str | None,
    batch: int,
    device: str | None,
    dtype: str | None,
    sizes: Path | None,
    as_json: bool,
    output: Path,
) -> None:
    """Make a trace from TensorFlow's timelines (JSON) or profiles (.xplane.pb), one file per rank.

    A timeline is the Chrome trace of a RunMetadata; show_memory=True adds sizes. A profile is what tf.profiler writes,
    with host_tracer_level=3; it needs --sizes. Servers distribute in the order in which the forward pass reads.

    \b
    paceline import tensorflow timeline.json --batch 32 -o mine.json
    paceline simulate mine.json --workers 8 --strategy ps
    """
    from paceline.interop.tensorflow import import_tensorflow as convert

    imported.check_output(output, [*files, sizes])
    trace, summary = convert(files, name=name, batch=batch, device=device, dtype=dtype, sizes=sizes)
    imported.write(output, trace)
    if as_json:
        click.echo(json.dumps(summary.as_dict(), indent=1))
        return
    ranks = f"{units.count(summary.ranks, 'worker')}, {units.count(summary.layers, 'layer')}"
    order = summary.distribution
    facts = [
        Fact("Workload", f"batch {summary.batch} on {summary.device}, {ranks}"),
        imported.compute(
            summary.forward_s,
            summary.backward_s,
            summary.optimizer_s,
            f" (median of {units.count(summary.steps, 'step')})",
        ),
        Fact("Distribution", f"{', '.join(order[:3])}{', …' if len(order) > 3 else ''}"),
    ]
    imported.show(output, imported.gradients(summary.gradient_bytes, summary.gradients), facts, summary.notes)
