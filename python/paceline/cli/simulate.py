"""The command `paceline simulate`: its options, and what it prints and writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline._internal.console import say, width
from paceline.cli import param_types as types
from paceline.forecast.options import Request, prepare
from paceline.forecast.simulate import Result, Run
from paceline.forecast.sweep import EXECUTORS, LOCAL

if TYPE_CHECKING:
    from paceline.forecast.explain import Explanation

# Sections of --help, in order, and the options in them.
_SECTIONS = {
    "What is forecast": (
        "workers",
        "strategy",
        "servers",
        "compute_speedup",
        "device",
        "samples_per_s",
        "batch",
        "dtype",
        "add_module",
    ),
    "The cluster": ("cluster", "bandwidth", "latency", "gpus_per_node", "intra_bandwidth", "network"),
    "How strategies work": ("bucket_size", "chunk", "placement", "distribution", "pull", "inside"),
    "The coordinator": ("coordinator", "coordinator_constants"),
    "The iteration": ("barrier", "overlap", "iterations", "seed", "executor"),
    "Output": ("explain", "as_json", "detail", "csv", "timeline", "plot"),
}


class _Sectioned(click.Command):
    """A command whose options are listed in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))


def _options(function: Callable[..., None]) -> Callable[..., None]:
    option = click.option
    path = click.Path(path_type=Path)
    rows = [
        option("--workers", type=types.WORKERS, help="Ranks that train, one per GPU.  [default: 2,4,8,16,32,64]"),
        option("--strategy", type=types.WORDS, help="As `paceline strategies` lists them.  [default: all]"),
        option("--servers", type=types.WORKERS, help="Parameter servers.  [default: 1]"),
        option("--compute-speedup", type=types.FACTORS, help="All computation takes this much less time."),
        option("--device", metavar="NAME", help="A published rate: V100, A100, …, as `paceline traces TRACE` lists."),
        option("--samples-per-s", type=types.POSITIVE, help="Rescale the trace to this rate, measured on one device."),
        option("--batch", type=types.BATCH, help="Samples per worker and iteration.  [default: the trace's]"),
        option(
            "--dtype",
            type=click.Choice(["float64", "float32", "float16", "bfloat16"]),
            help="Of gradients on the wire.  [default: the trace's]",
        ),
        option("--add-module", metavar="KIND:N", help="Add N modules: compute:25 or network:25."),
        option("--cluster", metavar="FILE|NAME", help="Options override it.  [default: flat]"),
        option("--bandwidth", type=types.RATES, help="Of a node, each way.  [default: 25Gbps]"),
        option("--latency", type=types.TIME, help="One way between two nodes.  [default: none]"),
        option("--gpus-per-node", type=types.GPUS, help="Ranks that share a network card.  [default: 1]"),
        option("--intra-bandwidth", type=types.RATE, help="Of a rank inside its node, each way.  [default: 100Gbps]"),
        option("--network", type=click.Choice(["fifo", "fluid"]), help="How links are shared.  [default: fifo]"),
        option("--bucket-size", type=types.BUCKET_SIZE, help="Fuse gradients up to SIZE, or none.  [default: none]"),
        option(
            "--chunk",
            type=types.CHUNK,
            metavar="whole|per-worker|SIZE",
            help="Cut buckets into messages.  [default: whole; per-worker for rings; 512 KiB for tree]",
        ),
        option(
            "--placement",
            metavar="round-robin|even|FILE",
            help='Tensor to server; FILE is JSON: {"tensor": server}.  [default: round-robin]',
        ),
        option(
            "--distribution",
            type=click.Choice(["round-robin", "block"]),
            help="Servers send tensor by tensor or worker by worker.  [default: round-robin]",
        ),
        option(
            "--pull",
            type=click.Choice(["layer", "step"]),
            help="Layers wait for their own parameters, or the iteration for all.  [default: layer]",
        ),
        option("--inside", type=click.Choice(["root", "ring"]), help="Reduction inside the node.  [default: ring]"),
        option(
            "--coordinator",
            metavar="NAME|all",
            default="none",
            help="Who agrees on what is ready: negotiate, global-sleep, …; any number of workers.  [default: none]",
        ),
        option(
            "--coordinator-constants",
            metavar="FILE",
            help="JSON: constants of docs/explanation/coordinator-model.md that differ on your machine.",
        ),
        option("--barrier/--no-barrier", default=None, help="Iterations start everywhere at once.  [default: barrier]"),
        option("--overlap/--no-overlap", default=None, help="Send while the backward pass runs.  [default: overlap]"),
        option("--iterations", type=types.ITERATIONS, help="Iterations to measure."),
        option("--seed", type=types.SEED, help="Of the cluster's jitter.  [default: 0]"),
        option("--executor", type=click.Choice(EXECUTORS), default=LOCAL, help="Where sweeps run.  [default: local]"),
        option("--explain", is_flag=True, help="Say where more workers bring little, and what would bring more."),
        option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per run."),
        option("--detail", is_flag=True, default=None, help="With --json: busy time of every worker and link."),
        option("--csv", is_flag=True, help="Print CSV; headers carry units."),
        option("--timeline", type=path, metavar="FILE", help="Write a Chrome trace of one run, for Perfetto."),
        option("--plot", type=path, metavar="FILE", help="Write a plot: .png, .svg, .pdf or .html."),
    ]
    for decorate in reversed(rows):
        function = decorate(function)
    return function


@click.command(cls=_Sectioned)
@click.argument("trace", default="resnet-50")
@_options
def simulate(
    *,
    explain: bool,
    as_json: bool,
    csv: bool,
    timeline: Path | None,
    plot: Path | None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Forecast training of TRACE: a file, a name that `paceline traces` lists, or allreduce:SIZE[/COUNT].

    --workers, --bandwidth, --strategy, --servers, --compute-speedup and --coordinator take comma-separated lists, and
    the product is forecast. Rates are bits per second (25Gbps), sizes bytes (25MB, 64KiB).

    \b
    paceline simulate resnet-50 --workers 8,16,32 --bandwidth 10Gbps,25Gbps --strategy ring,ps
    paceline simulate mine.json --cluster p3.16xlarge --bucket-size 25MB
    """
    if options["detail"] and not as_json:
        raise click.UsageError("--detail adds to --json; give both or neither")
    if as_json and csv:
        raise click.UsageError("--json and --csv exclude each other")
    if explain and csv:
        raise click.UsageError("--explain and --csv exclude each other")
    asked = Request(timeline=timeline, plot=plot, **options)
    if asked.coordinator != "none":
        if explain:
            raise click.UsageError("--explain has no effect with --coordinator; leave one of them out")
        _coordinated(asked, as_json=as_json, csv=csv)
        return
    request = prepare(asked)
    for note in request.notes:
        click.echo(f"paceline: note: {note}", err=True)
    results = _execute(request.runs, timeline, asked.executor)
    if plot is not None:
        from paceline.forecast.plotting import plot as draw

        draw(results, plot)
    explanation = _explained(request.runs, results) if explain else None
    if as_json:
        say([json.dumps(_as_data(results, explanation), indent=1, allow_nan=False)])
    elif csv:
        from paceline.forecast.frame import to_csv

        click.echo(to_csv(results), nl=False)
    else:
        _print(request.runs, results, explanation)
        say([f"wrote {path}" for path in (timeline, plot) if path is not None])


def _coordinated(asked: Request, *, as_json: bool, csv: bool) -> None:
    from paceline._internal.console import Bar, wrapped
    from paceline.forecast.coordination import options as request
    from paceline.forecast.coordination import table
    from paceline.forecast.coordination.model import execute

    prepared = request.prepare(asked)
    for note in prepared.notes:
        click.echo(f"paceline: note: {note}", err=True)
    with Bar("simulating") as bar:
        results = execute(prepared.runs, bar, asked.executor)
    if as_json:
        say([json.dumps([result.to_dict() for result in results], indent=1, allow_nan=False)])
    elif csv:
        click.echo(table.to_csv(results), nl=False)
    else:
        lines = [line for sentence in table.advice(results) for line in wrapped(sentence, width())]
        say([*table.table(prepared.runs, results), "", *lines])


def _explained(runs: list[Run], results: list[Result]) -> Explanation:
    from paceline.forecast import table
    from paceline.forecast.explain import explain

    return explain(table.grouped(runs, results))


def _as_data(results: list[Result], explanation: Explanation | None) -> list[dict[str, Any]]:
    """An object for each run; the one that is explained holds the explanation."""
    told = [result.to_dict() for result in results]
    if explanation is not None:
        told[results.index(explanation.result)]["explanation"] = explanation.to_dict()
    return told


def _execute(runs: list[Run], timeline: Path | None, executor: str) -> list[Result]:
    from paceline._internal.console import Bar
    from paceline._internal.files import replaced
    from paceline.forecast.sweep import execute

    if timeline is not None:
        with replaced(timeline) as path:
            return execute([replace(runs[0], timeline=path)])
    with Bar("simulating") as bar:
        return execute(runs, bar, executor)


def _print(runs: list[Run], results: list[Result], explanation: Explanation | None) -> None:
    from paceline._internal.console import wrapped
    from paceline.forecast import table
    from paceline.forecast.advice import advise

    groups = table.grouped(runs, results)
    say(table.table(groups))
    if explanation is None:
        lines = [line for sentence in advise(groups) for line in wrapped(sentence, width())]
    else:
        lines = explanation.text(width())
    notes = [line for note in table.notes(results) for line in wrapped(f"note: {note}", width())]
    say(["", *lines, *notes])
