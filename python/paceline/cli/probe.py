"""The command `paceline probe`: its options, and the output of rank 0."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline import _core
from paceline._internal import block
from paceline._internal.console import put, say, width
from paceline._internal.files import check_writable, replaced
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.errors import InvalidArgumentError
from paceline.job.rank_environment import rank_environment
from paceline.settings import kinds

if TYPE_CHECKING:
    from paceline.job.job import Job
    from paceline.probe.measure import Budget
    from paceline.probe.result import ProbeResult

_LEAST_BYTES = 64 << 10
_MOST_BYTES = 4 << 30
_LONGEST_S = 3600.0


def _most(text: str) -> int:
    size = _core.parse_size(text)
    if not _LEAST_BYTES <= size <= _MOST_BYTES:
        raise InvalidArgumentError(f"must be 64KiB-4GiB, not '{text[:80]}'", remedy="{this=64MiB}")
    return size


def _seconds(text: str) -> float:
    seconds: float = kinds.POSITIVE.check(text)
    if seconds > _LONGEST_S:
        raise InvalidArgumentError(
            f"must be at most {_LONGEST_S:.0f} s, not '{text[:80]}'", remedy=f"{{this={_LONGEST_S:.0f}s}}"
        )
    return seconds


@click.command(cls=Command)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Cluster file to write: cluster.json."
)
@click.option("--quick", is_flag=True, help="Shorter transfers and fewer repeats, in a few seconds.")
@types.option("probe", "repeats")
@click.option(
    "--limit",
    type=types.Value("SECONDS", _seconds),
    help="Skip optional measurements after this time.  [default: 60; --quick: 15]",
)
@click.option(
    "--most",
    type=types.Value("SIZE", _most),
    help="Most bytes that a rank sends in one transfer.  [default: 256MiB; --quick: 32MiB]",
)
@types.option("probe", "compression")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: rates, costs, machines, cluster.")
def probe(
    *,
    output: Path | None,
    quick: bool,
    repeats: int | None,
    limit: float | None,
    most: int | None,
    compression: list[str] | None,
    as_json: bool,
) -> None:
    """Measure a job's network and machines, and write a cluster file.

    Run it on every rank. Between hosts, it measures one stream, all hosts at once, incast, 1:N, latency and the cost
    per message. On a host, it measures transfers, late wake-ups and time taken by other processes. Rank 0 prints the
    results and writes the file. An option marked * takes a list.

    \b
    paceline run --hosts node1:1,node2:1 -- paceline probe -o cluster.json
    paceline run -np 4 -- paceline probe --quick
    paceline simulate resnet-50 --cluster cluster.json --gpus 2,4,8
    """
    from paceline.probe.measure import FULL, QUICK

    refuse_alone("paceline probe -o cluster.json")
    if compression:
        from paceline.probe.compression import needs_torch

        needs_torch()
    chosen = QUICK if quick else FULL
    budget = replace(
        chosen,
        repeats=repeats or chosen.repeats,
        limit_s=limit or chosen.limit_s,
        most_bytes=most or chosen.most_bytes,
        compression=tuple(compression or ()),
    )
    results = _probed(budget, output)
    if results is not None:
        _tell(results, output, as_json)


def refuse_alone(command: str) -> None:
    """Raise InvalidArgumentError if this process was not started as a rank, or is the only one."""
    place = rank_environment()
    if place.size == 1:
        problem = "this process was not started as a rank" if place.launcher == "none" else "this job has one rank"
        name = command.split()[1]
        raise InvalidArgumentError(
            f"{name}: {problem}",
            remedy=f"paceline run --hosts node1:1,node2:1 -- {command} (or -np 4, torchrun, mpirun, srun)",
        )


def _probed(budget: Budget, output: Path | None) -> ProbeResult | None:
    """The result, at rank 0."""
    from paceline.job import objects
    from paceline.probe.layout import Layout
    from paceline.probe.measure import measure
    from paceline.probe.rpc import obey

    with objects.join(("ring",)) as ranks:
        with objects.reported_once(ranks):
            layout = Layout.of(ranks)
        objects.from_first(ranks, lambda: _check(output))
        if ranks.rank:
            again, results = bool(obey(ranks)), None
        else:
            controller, results = measure(ranks, layout, budget, show)
            again = _more_streams(ranks, results)
            controller.end(then=again)
    if again:
        _several_connections(results, budget)
    return results


def _check(output: Path | None) -> None:
    if output is not None:
        check_writable("--output", output)


def _more_streams(ranks: Job, results: ProbeResult) -> bool:
    """Whether a job with several connections can be measured: not if parameter servers are separate processes."""
    settings = ranks.settings
    wanted = len(results.layout.hosts) > 1 and settings.streams == 1 and settings.transport not in ("shm", "grpc")
    return wanted and not settings.helpers and not results.left_out


def _several_connections(results: ProbeResult | None, budget: Budget) -> None:
    """All ranks leave the job and join another."""
    from paceline.job import job
    from paceline.probe.measure import MANY_STREAMS, STREAMS, measure_streams
    from paceline.probe.rpc import obey

    with job.join(strategy="ring", streams=MANY_STREAMS) as ranks:
        if results is None:
            obey(ranks)
            return
        show(1, 1, STREAMS)
        measure_streams(ranks, results, budget)


def show(done: int, total: int, what: str) -> None:
    """Show progress at rank 0."""
    click.echo(f"[{done}/{total}] {what}", err=True)


def _tell(results: ProbeResult, output: Path | None, as_json: bool) -> None:
    from paceline.probe import cluster_file, report

    fields = cluster_file.fields(results)
    if output is not None:
        write(output, fields)
    if as_json:
        put(json.dumps(results.to_dict(fields), indent=1, allow_nan=False))
        return
    lines = report.text(results, width())
    if output is not None:
        lines += ["", f"Wrote {output}", *block.suggestion(f"paceline simulate resnet-50 --cluster {output}")]
    say(lines)


def write(path: Path, fields: dict[str, Any]) -> None:
    """Write the file whole or not at all. Raises OSError."""
    with replaced(path) as new:
        new.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
