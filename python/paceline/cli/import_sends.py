"""The command `paceline import sends`: a trace from recorded sends (docs/reference/trace-format.md)."""

from __future__ import annotations

from pathlib import Path

import click

from paceline._core import Trace
from paceline._internal import units
from paceline._internal.console import say
from paceline._internal.files import check_writable, replaced
from paceline.cli.param_types import SECONDS


@click.command("sends")
@click.argument("aggregation", type=click.Path(path_type=Path))
@click.argument("distribution", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="The trace's name.")
@click.option("--batch", required=True, type=click.IntRange(1, 2**32 - 1), help="Samples per worker and iteration.")
@click.option("--forward", required=True, type=SECONDS, help="Duration of the forward pass, such as 176ms.")
@click.option(
    "--first-gradient", type=SECONDS, default="0s", help="Backward time before the first send.  [default: 0s]"
)
@click.option("--backward", type=SECONDS, help="Duration of the backward pass.  [default: until the last send]")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "float16", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Dtype of the gradients.",
)
@click.option("--device", default="", help="What it was recorded on.")
@click.option("--provenance", default="", help="How it was recorded.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The trace to write.")
def import_sends(
    *,
    aggregation: Path,
    distribution: Path,
    name: str,
    batch: int,
    forward: float,
    first_gradient: float,
    backward: float | None,
    dtype: str,
    device: str,
    provenance: str,
    output: Path,
) -> None:
    """Make a trace from two CSV recordings of sends: AGGREGATION (gradients to servers) and DISTRIBUTION."""
    check_writable("--output", output)
    trace = Trace.import_sends(
        aggregation,
        distribution,
        name=name,
        batch=batch,
        forward_s=forward,
        first_gradient_s=first_gradient,
        backward_s=backward,
        dtype=dtype,
        device=device,
        provenance=provenance,
    )
    with replaced(output) as path:
        path.write_text(trace.to_json() + "\n", encoding="utf-8")
    workers = units.count(trace.worker_count, "worker")
    say([f"wrote {output}: {trace.tensor_count} tensors, {units.size(trace.gradient_bytes)}, {workers}"])
