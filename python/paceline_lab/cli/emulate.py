"""The commands `paceline emulate up|run|exec|check|down`: emulate a cluster with network namespaces."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from paceline import _core
from paceline._internal import block
from paceline._internal.block import Fact
from paceline._internal.console import Column, put, remark, render, say
from paceline._internal.units import count, duration, percent, rate, size
from paceline.cli import job_options
from paceline.cli import param_types as types
from paceline.cli.command import Group
from paceline.cli.usage import UsageError
from paceline.errors import InvalidArgumentError
from paceline.launch.hosts import MOST_RANKS
from paceline.settings import kinds
from paceline.settings.table import EMULATE_RUN

from paceline_lab.emulate.cluster import SETTINGS, bring_up, cluster, leave
from paceline_lab.emulate.down import living, take_down
from paceline_lab.emulate.job import start
from paceline_lab.emulate.plan import MOST_OVERSUBSCRIPTION, REALTIME, Host, find, plan
from paceline_lab.emulate.plan import racks as divide
from paceline_lab.emulate.shaping import MTU, shape
from paceline_lab.emulate.state import DEFAULT


def _rate(text: str) -> float:
    """Return a rate that can be emulated, in bits per second. Raises InvalidArgumentError."""
    bandwidth_bps = _core.parse_rate(text)
    shape(bandwidth_bps)
    return bandwidth_bps


def _bandwidth(place: str) -> types.Decorator:
    return types.option(place, "bandwidth", parse=_rate)


_oversubscription = click.option(
    "--oversubscription",
    type=types.of_kind(kinds.number(1, MOST_OVERSUBSCRIPTION, f"a factor, 1-{MOST_OVERSUBSCRIPTION}", "X")),
    default=1.0,
    help="Rate of a rack's workers over that of its uplink, 1 to 1000.  [default: 1]",
)
_name = click.option("--name", default=DEFAULT, metavar="NAME", help=f"Name of the cluster.  [default: {DEFAULT}]")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Group, invoke_without_command=True, subcommand_metavar="COMMAND")
@click.pass_context
def emulate(ctx: click.Context) -> None:
    """Emulate a cluster of a given bandwidth here, with network namespaces.

    How: docs/how-to/emulate.md.

    \b
    paceline emulate run --workers 4 --bandwidth 500Mbps -- python train.py
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


@emulate.command()
@types.options("emulate up", "workers", "servers")
@click.option("--switch", is_flag=True, help="Add a host that acts as a switch, without a rate limit.")
@types.option("emulate up", "racks", filled=True)
@_oversubscription
@_bandwidth("emulate up")
@_name
@types.option("emulate up", "realtime", filled=True)
@_json
def up(
    *,
    workers: int,
    servers: int | None,
    switch: bool,
    racks: int,
    oversubscription: float,
    bandwidth: float,
    name: str,
    realtime: bool,
    as_json: bool,
) -> None:
    """Bring up a cluster that stays until paceline emulate down.

    \b
    paceline emulate up --workers 4 --bandwidth 500Mbps
    paceline emulate exec worker0 -- ping -c 1 10.77.1.2
    paceline emulate down
    """
    divided = divide(workers, racks, oversubscription)
    hosts = plan(workers, servers or 0, switch=switch, racks=divided)
    holder, own = bring_up(hosts, bandwidth, racks=divided, realtime=realtime, name=name)
    leave(holder)
    if as_json:
        fields = {"name": own.name, "bandwidth_bps": bandwidth, "realtime": own.realtime}
        put(json.dumps({**fields, "hosts": [asdict(host) for host in hosts]}, indent=1))
        return
    _note_realtime(realtime, own.realtime)
    say(_table(hosts, bandwidth))
    option = "" if name == DEFAULT else f" --name {name}"
    tries = f"paceline emulate exec{option} {hosts[0].name} -- COMMAND", f"paceline emulate down{option}"
    say(["", *(line for typed in tries for line in block.suggestion(typed))])


def _table(hosts: Sequence[Host], bandwidth_bps: float) -> list[str]:
    columns = [Column("host", left=True), Column("address", left=True), Column("NIC")]
    rows = [[host.name, host.address, "unshaped" if host.kind == "switch" else rate(bandwidth_bps)] for host in hosts]
    return render(columns, [rows])


def _note_realtime(requested: bool, granted: bool) -> None:
    if requested and not granted:
        remark("SCHED_FIFO is not permitted here; expect noisier timings")


_SECTIONS = {
    "Cluster": ("workers", "bandwidth", "ranks_per_host", "racks", "oversubscription", "realtime"),
    "Job": ("names", "as_gloo"),
    **job_options.SECTIONS,
}


@emulate.command(sections=_SECTIONS, context_settings={"allow_interspersed_args": False})
@types.option(EMULATE_RUN, "workers")
@types.option(EMULATE_RUN, "servers", checked=False)
@_bandwidth(EMULATE_RUN)
@click.option(
    "--ranks-per-host",
    type=types.whole(1, MOST_RANKS),
    default="1",
    help="Ranks per worker host.  [default: 1]",
)
@job_options.switch
@types.option(EMULATE_RUN, "racks", filled=True)
@_oversubscription
@types.option(EMULATE_RUN, "realtime", filled=True)
@job_options.env
@job_options.strategy(EMULATE_RUN)
@job_options.knobs(EMULATE_RUN)
@job_options.output(EMULATE_RUN)
@job_options.command
def run(
    *,
    workers: int,
    servers: str | None,
    bandwidth: float,
    ranks_per_host: int,
    racks: int,
    oversubscription: float,
    realtime: bool,
    command: tuple[str, ...],
    **options: Any,  # noqa: ANN401
) -> int:
    """Run ranks of COMMAND on a new cluster, and take it down.

    Each worker is a host with its own NIC. Ranks on one host use shared memory, ranks on different hosts TCP. The exit
    code is that of paceline run.

    \b
    paceline emulate run --workers 8 --bandwidth 500Mbps -- python train.py
    paceline emulate run --workers 4 --bandwidth 200Mbps \\
      --servers 2 --strategy ps -- python train.py
    paceline emulate run --workers 4 --bandwidth 200Mbps \\
      --switch --strategy ps-aggregation -- python train.py
    paceline emulate run --workers 8 --bandwidth 200Mbps \\
      --racks 2 --switch --strategy sharp -- python train.py
    """
    if not command:
        raise UsageError(
            "no command given", remedy="paceline emulate run --workers 4 --bandwidth 500Mbps -- python train.py"
        )
    request, output = job_options.request(command, **options, servers=servers)
    checked = request.checked()
    if servers is not None and not checked.servers:
        raise UsageError("--servers needs a strategy with servers", remedy="--strategy ps, or drop --servers")
    with cluster(
        workers=workers,
        servers=checked.servers,
        switch=request.switch,
        racks=racks,
        oversubscription=oversubscription,
        bandwidth_bps=bandwidth,
        realtime=realtime,
    ) as own:
        _note_realtime(realtime, own.realtime)
        return start(own, checked, ranks_per_host, output)


@emulate.command(name="exec", context_settings={"allow_interspersed_args": False})
@_name
@click.option("--realtime", is_flag=True, help="Run under SCHED_FIFO, as ranks do.")
@click.argument("host", metavar="HOST")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def exec_(*, name: str, realtime: bool, host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on HOST of a running cluster.

    The exit code is that of COMMAND.

    \b
    paceline emulate exec worker0 -- ping -c 1 10.77.1.2
    """
    command = command[command[:1] == ("--",) :]
    if not command:
        raise UsageError("no command given", remedy="paceline emulate exec worker0 -- ip address")
    own = living(name)
    if realtime and not own.realtime:
        raise InvalidArgumentError(
            "--realtime: SCHED_FIFO is not permitted here, or the cluster was brought up with --no-realtime",
            remedy="drop --realtime",
        )
    place = find(own.hosts, host)
    words = own.entering(place.name, *SETTINGS, realtime=REALTIME if realtime else None)
    sys.stdout.flush()
    os.execv(words[0], [*words, *command])


@emulate.command()
@_name
def down(*, name: str) -> None:
    """Take down a running cluster, and clean up after killed ones."""
    for line in take_down(name):
        click.echo(line)


@emulate.command()
@types.option("emulate check", "workers")
@_bandwidth("emulate check")
@types.options("emulate check", "repeats", "realtime", filled=True)
@_json
def check(*, workers: int, bandwidth: float, repeats: int, realtime: bool, as_json: bool) -> None:
    """Measure how closely an emulated network keeps its rate.

    Also reports what disturbs it.

    \b
    paceline emulate check --workers 8 --bandwidth 500Mbps
    """
    with cluster(workers=workers, bandwidth_bps=bandwidth, realtime=realtime) as own:
        fidelity = own.check(repeats=repeats)
    if as_json:
        put(json.dumps(fidelity.to_dict(), indent=1, allow_nan=False))
        return
    _note_realtime(realtime, fidelity.realtime)
    columns = [Column("pattern", left=True), *map(Column, ("flows", "bytes", "ideal", "measured", "error"))]
    rows = [
        [
            each.name,
            str(each.flows),
            size(each.flows * each.bytes_per_flow),
            duration(each.ideal_s, 4),
            duration(each.measured_s, 4),
            f"{'+' if each.error > 0 else ''}{percent(each.error)}",
        ]
        for each in fidelity.patterns
    ]
    perhaps = [Fact("Perhaps", *possible)] if (possible := fidelity.causes()) else []
    facts = [*perhaps, Fact("Setup", f"{count(workers, 'host')}, {rate(bandwidth)} per NIC, MTU {MTU:,}")]
    head = block.headline(f"Emulated {rate(bandwidth)} network: {fidelity.verdict()}")
    say([*head, "", *block.block(facts), "", *render(columns, [rows])])
