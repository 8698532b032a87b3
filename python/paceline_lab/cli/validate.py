"""The command `paceline validate`: its options and its output."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from paceline._core import Cluster, parse_rate, written_rate, written_time
from paceline._internal.console import put, say, width
from paceline._internal.extras import need
from paceline._internal.files import check_writable
from paceline.catalog.builtin import load_cluster
from paceline.catalog.names import StrategyName
from paceline.catalog.strategies import Strategy, check_knobs
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.probe import refuse_alone, show
from paceline.cli.usage import CommandError, UsageError
from paceline.errors import InvalidArgumentError, naming
from paceline.job import objects
from paceline.job.settings import Settings
from paceline.settings.table import by_current_names

from paceline_lab.validate import plot as plots
from paceline_lab.validate.cells import ALL, QUICK, strategies_of
from paceline_lab.validate.outcome import Validation

if TYPE_CHECKING:
    from paceline.job.job import Job
    from paceline.probe.layout import Layout

    from paceline_lab.validate.cells import Cell, Selection
    from paceline_lab.validate.compare import ComparisonOptions
    from paceline_lab.validate.real import Emulator


HERE = ("quick", "trace", "strategy", "shrink", "scale", "bucket_size", "network", "repeats", "cluster")
"""Options that can be combined with --here."""
_ELSEWHERE = {
    "full": "choose cells with --trace and --strategy",
    "workers": "the workers are the job's ranks",
    "gpus": "the workers are the job's ranks",
    "servers": "set it for the job: paceline run --strategy ps --servers N",
    "sharding": "sharded iterations are compared on emulated clusters",
    "compression": "compressed exchanges are compared on emulated clusters",
    "staleness": "asynchronous workers are compared on emulated clusters",
    "bandwidth": "the cluster file sets it",
    "latency": "the cluster file sets it",
    "message_overhead": "the cluster file sets it",
    "realtime": "the job sets it",
    "check": "probe the job instead: paceline probe",
    "timeline": "set it for the job: paceline run --timeline FILE",
}


class CannotDoHereError(CommandError):
    """This machine lacks something that the command needs."""

    exit_code = 77


_SECTIONS = {
    "Basic options": (
        "quick",
        "full",
        "trace",
        "strategy",
        "workers",
        "servers",
        "bandwidth",
        "as_json",
        "csv",
        "plot",
    ),
    "Exchange": ("bucket_size", "sharding", "compression", "staleness"),
    "Emulated network": ("racks", "realtime", "check"),
    "Simulated network": ("network", "latency", "message_overhead"),
    "Replay": ("shrink", "scale", "repeats", "timeline"),
    "On the hosts of a job": ("here", "cluster"),
}


@click.command(cls=Command, sections=_SECTIONS)
@click.option("--quick", is_flag=True, help="One cell per strategy, in under two minutes.")
@click.option("--full", is_flag=True, help="All models, rank and server counts, in one to two hours.")
@click.option("--trace", type=types.WORDS, help="Traces: resnet-50, mine.json, allreduce:1MB.")
@types.options("validate", "strategy", "sharding", "compression", "workers", "servers", "staleness")
@types.option("validate", "bandwidth", filled=True)
@types.options("validate", "shrink", "scale")
@types.option("validate", "bucket_size")
@types.option("validate", "network", filled=True)
@types.options("validate", "latency", "message_overhead")
@types.option("validate", "racks", filled=True)
@types.option("validate", "repeats")
@types.option("validate", "realtime", filled=True)
@click.option("--check/--no-check", default=True, help="Measure the network's own error first.  [default: check]")
@click.option("--here", is_flag=True, help="Measure on the hosts of the running job.")
@types.option("validate", "cluster")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: rows, skipped, summary.")
@click.option("--csv", is_flag=True, help="Print the rows as CSV.")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Write a plot of measured against simulated times."
)
@click.option("--timeline", type=click.Path(path_type=Path), metavar="FILE", help="Write a Chrome trace of one cell.")
@click.pass_context
def validate(
    context: click.Context,
    /,
    *,
    here: bool,
    as_json: bool,
    csv: bool,
    plot: Path | None,
    timeline: Path | None,
    **options: Any,  # noqa: ANN401
) -> int:
    """Compare measured and simulated iterations, on an emulated cluster.

    The error is simulated / measured - 1. The ranks replay traces: they sleep instead of computing, and exchange real
    gradients. --shrink auto divides a trace's bytes to suit the bandwidth. --scale auto multiplies times where many
    ranks share a core.

    Options marked * take lists, and choose the cells to compare. Without them there are about 70. With --here, run it
    on every rank of a job. It measures on the job's own network.

    \b
    paceline validate --quick
    paceline validate --trace resnet-50 --strategy ring --timeline ring.json
    paceline validate --trace resnet-50 --strategy ring,ps --servers 1,2
    paceline run --hosts node1:1,node2:1 -- paceline validate --here --quick
    """
    if as_json and csv:
        raise UsageError("--json and --csv cannot be combined", remedy="drop --csv, or drop --json")
    options = {**options, **by_current_names("validate", options)[0]}
    if here:
        refuse_elsewhere(context)
        result = compare_here(plot=plot, **{name: options[name] for name in HERE})
        return 0 if result is None else _finish(result, plot, as_json, csv)
    if options["cluster"] is not None:
        raise UsageError("--cluster needs --here", remedy="--here, or drop --cluster")
    _check_outputs(plot, timeline)
    return _finish(_emulated(timeline, options), plot, as_json, csv)


def refuse_elsewhere(context: click.Context) -> None:
    """Raise UsageError for options that have no effect with --here."""
    for name in context.params:
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in (*HERE, "here", "plot", "as_json", "csv"):
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect with --here: {_ELSEWHERE[name]}",
                remedy=f"drop --{name.replace('_', '-')}",
            )


def _emulated(timeline: Path | None, options: dict[str, Any]) -> Validation:
    """Validate on clusters emulated on this machine."""
    from paceline_lab.validate.cells import Network, cells
    from paceline_lab.validate.compare import ComparisonOptions
    from paceline_lab.validate.forecasts import Costs

    selection = _selection(options)
    rates = [parse_rate(rate) for rate in options["bandwidth"]]
    bucket_size = None if options["bucket_size"] == "none" else options["bucket_size"]
    with naming(types.flags("validate", options)):
        selected = cells(selection, Network(rates, options["shrink"], options["scale"], bucket_size, options["racks"]))
    if timeline is not None and len(selected) != 1:
        raise InvalidArgumentError(
            f"--timeline shows one cell, and {len(selected)} are selected",
            remedy="one value of each option, or drop --timeline",
        )
    repeats = options["repeats"] or (3 if options["quick"] else 5)
    costs = Costs(options["latency"], options["message_overhead"])
    comparison = ComparisonOptions(repeats, options["network"], costs, options["realtime"], options["check"], timeline)
    return _compare(selected, comparison)


def _finish(result: Validation, plot: Path | None, as_json: bool, csv: bool) -> int:
    """Plot and print the result; return the exit code."""
    if plot is not None and result.rows:
        from paceline_lab.validate.plot import plot as draw

        draw(result.rows, plot)
    _print(result, as_json, csv)
    if result.interrupted is not None:
        return result.interrupted
    if result.failed:
        return 1
    return 0 if result.rows else CannotDoHereError.exit_code


def _check_outputs(plot: Path | None, timeline: Path | None) -> None:
    if plot is not None:
        from paceline_lab.validate.plot import check

        check(plot)
    if timeline is not None:
        check_writable("--timeline", timeline)
    if plot is not None and plot == timeline:
        raise InvalidArgumentError("--plot and --timeline name the same file", remedy="another file for --timeline")


def _selection(options: dict[str, Any]) -> Sequence[Selection]:
    """Return the cells to compare: a tier, or the product of the named values."""
    from paceline_lab.validate import cells

    if options["sharding"] is not None or options["compression"] is not None:
        return _planned(options)
    chosen = ("trace", "strategy", "workers", "servers", "staleness")
    named = [name for name in chosen if options[name] is not None]
    if options["quick"] and options["full"]:
        raise UsageError("--quick and --full cannot be combined", remedy="drop --full, or drop --quick")
    if not named:
        return cells.QUICK if options["quick"] else cells.FULL if options["full"] else cells.DEFAULT
    if options["quick"] or options["full"]:
        tier = "--quick" if options["quick"] else "--full"
        raise UsageError(f"--{named[0]} and {tier} cannot be combined", remedy=f"drop {tier}, or drop --{named[0]}")
    (default,) = cells.QUICK
    strategies = options["strategy"] or default.strategies
    given = [name for name in ("servers", "staleness") if options[name] is not None]
    with naming(types.flags("validate", options)):
        check_knobs(cells.strategies_of(strategies), given)
    return (
        cells.Selection(
            options["trace"] or default.traces,
            strategies,
            options["workers"] or default.workers,
            options["servers"] or default.servers,
            staleness=options["staleness"] or default.staleness,
        ),
    )


def _planned(options: dict[str, Any]) -> Sequence[Selection]:
    """Return cells of sharded or compressed iterations of one model: on 4 ranks with --quick, or on 2, 4 and 8."""
    from paceline_lab.validate import cells

    option = "--sharding" if options["sharding"] is not None else "--compression"
    for name in ("full", "servers", "staleness", *(["compression"] if option == "--sharding" else [])):
        if options[name]:
            raise UsageError(f"{option} and --{name} cannot be combined", remedy=f"drop --{name}")
    workers = options["workers"] or ((4,) if options["quick"] else (2, 4, 8))
    return (
        cells.Selection(
            options["trace"] or cells.QUICK[0].traces,
            options["strategy"] or (("ring",) if options["quick"] else cells.QUICK[0].strategies),
            workers,
            shardings=tuple(options["sharding"] or (None,)),
            compressions=tuple(options["compression"] or (None,)),
        ),
    )


def _compare(cells: Sequence[Cell], options: ComparisonOptions) -> Validation:
    from paceline_lab.validate.compare import compare

    need("paceline validate", "emulate", "pyroute2", "numpy")
    return compare(cells, emulator(), options, _report_progress)


def emulator() -> Emulator:
    """Return the module that emulates clusters. Raises CannotDoHereError if this installation lacks it."""
    if importlib.util.find_spec("paceline_lab.emulate") is None:
        raise CannotDoHereError(
            "paceline validate needs paceline emulate, which this installation lacks", remedy="a Paceline with its lab"
        )
    return cast("Emulator", importlib.import_module("paceline_lab.emulate"))


def _report_progress(done: int, total: int, what: str) -> None:
    click.echo(f"[{done}/{total}] {what}", err=True)


def _print(result: Validation, as_json: bool, csv: bool) -> None:
    from paceline_lab.validate import report

    if as_json:
        put(json.dumps(result.to_dict(), indent=1, allow_nan=False))
    elif csv:
        click.echo(result.to_csv(), nl=False)
    else:
        say(report.text(result, width()))


# `paceline validate --here`: on every rank of a job.


def compare_here(
    *,
    quick: bool,
    trace: list[str] | None,
    strategy: list[str] | None,
    bucket_size: str | None,
    network: str,
    repeats: int | None,
    cluster: str | None,
    plot: Path | None,
    **factors: Any,  # noqa: ANN401 - shrink and scale
) -> Validation | None:
    """Return the comparison at rank 0, None elsewhere. Raises InvalidArgumentError, JobError."""
    refuse_alone("paceline validate --here")
    need("paceline validate", "emulate", "numpy")
    from paceline.probe.layout import Layout

    from paceline_lab.validate.here import Comparison, Here, cells, take_part

    strategies = _strategies(strategy)
    bucket_size = None if bucket_size == "none" else bucket_size
    with objects.join(_most_knobs_first(strategies)) as ranks:
        with objects.reported_once(ranks):
            layout = Layout.of(ranks)
        objects.from_first(ranks, lambda: plots.check(plot) if plot is not None else None)
        machines, notes = _cluster(ranks, layout, cluster)
        here = Here(ranks, layout, machines)
        with objects.reported_once(ranks):
            here.check()
        comparison = Comparison(here, network, repeats or (3 if quick else 5), show)
        traces = trace or QUICK[0].traces
        changes = {**factors, "bucket_size": bucket_size}
        objects.from_first(ranks, lambda: comparison.simulate(cells(here, traces, strategies, changes)))
        if ranks.rank:
            take_part(here)
            return None
        comparison.result.notes += notes
        return comparison.run()


def _probed(cluster: Cluster) -> str:
    measured = [
        f"bandwidth {written_rate(cluster.bandwidth_bps)}",
        f"latency {written_time(cluster.latency_s)}",
        f"message_overhead {written_time(cluster.message_overhead_s)}",
    ]
    if cluster.gpus_per_node > 1:
        measured.append(f"intra_bandwidth {written_rate(cluster.intra_bandwidth_bps)}")
        measured.append(f"intra_latency {written_time(cluster.intra_latency_s)}")
    return f"simulated as probed: {', '.join(measured)}"


def _strategies(names: list[str] | None) -> list[Strategy]:
    """Return the named strategies, or the job's, or all. Raises InvalidArgumentError."""
    own = Settings.from_environment().strategy
    chosen = strategies_of(names or ([own] if own is not None else [ALL]))
    if not all(strategy.is_synchronous for strategy in chosen):
        raise UsageError(
            f"--here compares all-reduces, and async-ps has none: {_ELSEWHERE['staleness']}",
            remedy="drop --here, or --strategy ps",
        )
    return chosen


def _most_knobs_first(strategies: list[Strategy]) -> list[StrategyName]:
    """Put strategies with more knobs first: they accept more of a job's settings."""
    return [one.name for one in sorted(strategies, key=lambda one: len(one.knobs), reverse=True)]


def _cluster(ranks: Job, layout: Layout, given: str | None) -> tuple[Cluster, list[str]]:
    """Return the cluster to simulate, and notes, on every rank: rank 0 reads the file or probes.

    Raises InvalidArgumentError, JobError.
    """
    from paceline.probe import cluster_file
    from paceline.probe.measure import NEEDED, measure
    from paceline.probe.rpc import obey

    if given is not None:
        text = objects.from_first(ranks, lambda: load_cluster(given).to_json())
        return Cluster.from_json(text.encode(), given), []
    if ranks.rank:
        return Cluster.from_json(json.dumps(obey(ranks)).encode(), "probe"), []
    controller, measured = measure(ranks, layout, NEEDED, show)
    fields = cluster_file.fields(measured)
    controller.end(then=fields)
    cluster = Cluster.from_json(json.dumps(fields).encode(), "probe")
    return cluster, [_probed(cluster), *measured.notes]
