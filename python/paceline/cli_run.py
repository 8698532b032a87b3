"""The command `paceline run`: N processes of a command, on this machine or on several hosts."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click

from paceline import cli_types as types
from paceline import timelines
from paceline._core import UserError
from paceline.files import check_writable
from paceline.injection import SETTINGS
from paceline.interfaces import check_interface
from paceline.launch.hosts import MOST_RANKS, Host, Place, parse_hosts, place, read_hostfile
from paceline.launch.remote import DEFAULT_RSH, parse_rsh
from paceline.library import find_strategy
from paceline.settings import (
    DISTRIBUTIONS,
    INSIDE,
    LONGEST_TIMEOUT_S,
    MOST_SERVERS,
    MOST_STREAMS,
    PULLS,
    TRANSPORTS,
    Settings,
    check_multicast,
    check_timeline,
)


def _grace(text: str) -> float:
    seconds = types.positive(text)
    if seconds > LONGEST_TIMEOUT_S:
        raise UserError(f"'{text[:80]}' is more than {LONGEST_TIMEOUT_S:.0f} s")
    return seconds


_RANKS = types.Value("N", types.whole(1, MOST_RANKS))
_PORT = types.Value("PORT", types.whole(1, 65_535))
_SERVERS = types.Value("N", types.whole(1, MOST_SERVERS))
_GRACE = types.Value("SECONDS", _grace)
_STREAMS = types.Value("N", types.whole(1, MOST_STREAMS))
_STRATEGY = types.Value("NAME", lambda text: find_strategy(text).name)
_CHUNK = types.Value("SIZE", types.checked(types.chunk))
_STEPS = types.Value("N", types.whole(1, 100_000))
_WARMUP = types.Value("N", types.whole(0, 100_000))
_SECONDS = types.Value("SECONDS", types.positive)
_PATH = click.Path(path_type=Path)


class CannotDoHereError(click.ClickException):
    """Something that this machine lacks."""

    exit_code = 77


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-np", "-n", "--np", "ranks", type=_RANKS, help="Processes to start.  [default: all slots of the hosts]")
@click.option("--hosts", metavar="HOST:N,…", help="Hosts, and how many ranks each takes.  [default: this machine]")
@click.option("--hostfile", type=_PATH, metavar="FILE", help="Lines such as: node1 slots=2")
@click.option("--rsh", default=DEFAULT_RSH, show_default=True, help="Starts agents; HOST COMMAND is appended.")
@click.option("-x", "--env", "names", multiple=True, metavar="NAME[=VALUE]", help="Set for all ranks, on all hosts.")
@click.option("--strategy", type=_STRATEGY, help="As `paceline strategies` lists them.  [default: chosen by size]")
@click.option("--transport", type=click.Choice(TRANSPORTS), help="[default: auto]")
@click.option("--chunk", type=_CHUNK, metavar="whole|per-worker|SIZE", help="Cut buckets into messages.")
@click.option("--servers", type=_SERVERS, help="Parameter servers: processes of their own.  [default: 1]")
@click.option("--placement", metavar="round-robin|even|FILE", help="Which server adds up what.")
@click.option("--distribution", type=click.Choice(DISTRIBUTIONS), help="How servers send.  [default: round-robin]")
@click.option("--pull", type=click.Choice(PULLS), help="When a DistributedOptimizer waits.  [default: step]")
@click.option("--inside", type=click.Choice(INSIDE), help="Reduction inside the node.  [default: ring]")
@click.option("--streams", type=_STREAMS, help="Connections between two ranks.  [default: 1]")
@click.option("--multicast", metavar="GROUP:PORT", help="The network copies what goes to many.  [default: unicasts]")
@click.option(
    "--timeout", type=types.POSITIVE, metavar="SECONDS", help="Without progress, until it fails.  [default: 30]"
)
@click.option("--interface", metavar="NAME|NETWORK", help="For connections between ranks: eth0 or 10.0.0.0/24.")
@click.option("--port", type=_PORT, help="Where rank 0 waits for the others.  [default: a free one]")
@click.option("--no-prefix", is_flag=True, help="Without `[rank 3] ` before each line.")
@click.option("--output-dir", type=_PATH, metavar="DIR", help="Write what rank N prints to DIR/rank-N.log instead.")
@click.option(
    "--grace", type=_GRACE, metavar="SECONDS", default="5", help="For others, once a rank failed.  [default: 5]"
)
@click.option("--timeline", type=_PATH, metavar="FILE", help="Record what every rank does, for `paceline doctor`.")
@click.option("--record", type=_PATH, metavar="FILE", help="Record a trace of every rank, for `paceline simulate`.")
@click.option("--record-steps", type=_STEPS, help="Steps to take the median of.  [default: 10]")
@click.option("--record-warmup", type=_WARMUP, help="Steps before the recorded ones.  [default: 3]")
@click.option("--verbose", is_flag=True, help="Say what runs where.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def run(
    *,
    ranks: int | None,
    hosts: str | None,
    hostfile: Path | None,
    rsh: str,
    names: tuple[str, ...],
    interface: str | None,
    port: int | None,
    no_prefix: bool,
    output_dir: Path | None,
    grace: float,
    timeline: Path | None,
    record: Path | None,
    record_steps: int | None,
    record_warmup: int | None,
    verbose: bool,
    command: tuple[str, ...],
    **options: object,
) -> int:
    """Start N ranks of COMMAND, and end all of them when one fails.

    Options that scripts also set (--strategy and the like) are defaults: what a script says explicitly wins. Every rank
    finds its place in RANK, WORLD_SIZE, LOCAL_RANK and so on, as under torchrun. OMP_NUM_THREADS, unless it is set, is
    the host's cores divided by its ranks (torchrun: 1). If a rank fails, the exit code is 1.

    \b
    paceline run -np 4 -- python train.py --lr 0.1
    paceline run --hosts node1:8,node2:8 --strategy hierarchical -- python train.py
    """
    if os.name != "posix":
        raise CannotDoHereError("paceline run needs process groups: Linux, macOS, or Linux under Windows (WSL)")
    from paceline.launch import merge, variables
    from paceline.launch.job import Job
    from paceline.launch.output import Files, Terminal
    from paceline.launch.supervisor import Supervisor

    if not command:
        raise click.UsageError("which command? paceline run -np 4 -- python train.py")
    if no_prefix and output_dir is not None:
        raise click.UsageError("--no-prefix has no effect with --output-dir; leave one of them out")
    recording = _recording(record, record_steps, record_warmup)
    places = _places(ranks, hosts, hostfile)
    if interface is not None:
        check_interface(interface, "--interface")
    if options["multicast"] is not None:
        check_multicast(options["multicast"], "--multicast")
    settings = {f"PACELINE_{name.upper()}": _text(value) for name, value in options.items() if value is not None}
    if timeline is not None:
        settings["PACELINE_TIMELINE"] = check_timeline(timeline, "--timeline")
    if verbose:
        settings["PACELINE_VERBOSE"] = "1"
    named = variables.named(names, os.environ)
    checked = Settings.from_environment({**os.environ, **settings, **named})  # once here, not once in every rank
    job = Job(
        command=command,
        places=places,
        rsh=parse_rsh(rsh),
        settings=settings,
        named=named,
        secret=checked.secret or secrets.token_hex(32),
        interface=interface or os.environ.get("PACELINE_INTERFACE") or None,
        port=port,
        grace_s=grace,
        verbose=checked.verbose,
        record=recording,
        servers=checked.servers if checked.has_servers() else 0,
    )
    output = (
        Files(output_dir, job.size, job.servers)
        if output_dir is not None
        else Terminal(job.size, job.servers, prefix=not no_prefix)
    )
    supervisor = Supervisor(job, output)
    code = supervisor.run()
    if checked.timeline is not None:
        timelines.say(timelines.gather(checked.timeline))
    if record is not None and recording is not None:
        said = f"no trace was written to {record}: the ranks did not end well"
        if code == 0:
            said = merge.write(record, supervisor.records, job.size, recording["steps"])
        click.echo(f"paceline: {said}", err=True)
    return code


def _recording(path: Path | None, steps: int | None, warmup: int | None) -> dict[str, int] | None:
    """What ranks are asked to record; checked before any is started."""
    if path is None:
        for option, value in (("--record-steps", steps), ("--record-warmup", warmup)):
            if value is not None:
                raise click.UsageError(f"{option} has no effect without --record FILE")
        return None
    if SETTINGS in os.environ:
        raise click.UsageError("--record does nothing inside `paceline record`; leave one of them out")
    check_writable("--record", path)
    return {"steps": 10 if steps is None else steps, "warmup": 3 if warmup is None else warmup}


def _places(ranks: int | None, hosts: str | None, hostfile: Path | None) -> list[Place]:
    if hosts is not None and hostfile is not None:
        raise click.UsageError("--hosts and --hostfile exclude each other")
    if hosts is not None:
        return place(parse_hosts(hosts), ranks)
    if hostfile is not None:
        return place(read_hostfile(hostfile), ranks)
    if ranks is None:
        raise click.UsageError("how many ranks? give -np N, or hosts: paceline run -np 4 -- python train.py")
    return [Place(Host("localhost", ranks), 0, ranks)]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
