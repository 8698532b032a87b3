"""The command `paceline run`: starts the ranks of a job, on this machine or on several hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from paceline.cli import job_options
from paceline.cli import param_types as types
from paceline.cli.horovodrun import Horovodrun
from paceline.cli.usage import CommandError, UsageError
from paceline.launch.host import DEFAULT_RSH, parse_rsh
from paceline.launch.hosts import Host, Place, parse_hosts, place, read_hostfile, spread

_PORT = types.whole(1, 65_535, "PORT")
_PATH = click.Path(path_type=Path)


class CannotDoHereError(CommandError):
    """This machine lacks something that the command needs."""

    exit_code = 77


_SECTIONS = {
    "Basic options": ("ranks", "hosts", "hostfile", "names", "as_gloo", "rsh"),
    **job_options.SECTIONS,
}


@click.command(cls=Horovodrun, sections=_SECTIONS, context_settings={"allow_interspersed_args": False})
@click.option(
    "-np", "-n", "--np", "ranks", type=job_options.RANKS, help="Ranks to start.  [default: all slots of --hosts]"
)
@click.option(
    "--hosts", "-H", metavar="HOST:N,…", help="Hosts and their slots: node1:8,node2:8.  [default: this machine]"
)
@click.option("--hostfile", type=_PATH, metavar="FILE", help="File of lines like: node1 slots=8.")
@click.option(
    "--rsh",
    default=DEFAULT_RSH,
    help=f"Remote shell, to which HOST COMMAND is appended.  [default: {DEFAULT_RSH}]",
)
@job_options.env
@job_options.strategy("run")
@types.option("run", "servers", checked=False)
@job_options.switch
@job_options.knobs("run")
@types.option("run", "interface")
@click.option("--port", type=_PORT, help="Port of rank 0, or of the elastic driver.  [default: a free one]")
@job_options.elastic_options
@job_options.output("run")
@job_options.command
def run(
    *,
    ranks: int | None,
    hosts: str | None,
    hostfile: Path | None,
    rsh: str,
    interface: str | None,
    port: int | None,
    command: tuple[str, ...],
    **options: Any,  # noqa: ANN401
) -> int:
    """Start N ranks of COMMAND, here or on several hosts.

    When a rank fails, the others are stopped, and the exit code is 1. Each rank has RANK, WORLD_SIZE, LOCAL_RANK and
    so on, as under torchrun. OMP_NUM_THREADS is the host's cores divided by its ranks, unless it is set. The script's
    own settings win over options such as --strategy.

    \b
    paceline run -np 4 -- python train.py --lr 0.1
    paceline run --hosts node1:8,node2:8 --strategy tree -- python train.py
    paceline run -np 4 --timeline run.json -- python train.py
    paceline run --elastic -np 4 --min-np 2 -- python train.py
    """
    if os.name != "posix":
        raise CannotDoHereError(
            "paceline run needs process groups: Linux, macOS, or Linux under Windows (WSL)",
            remedy="wsl --install (in Windows)",
        )
    if not command:
        raise UsageError("no command given", remedy="paceline run -np 4 -- python train.py")
    elastic_options = job_options.take_elastic(options)
    elastic = None
    if elastic_options.elastic:
        places, most = elastic_options.places(ranks, _hosts(hosts, hostfile))
        elastic, port = elastic_options.for_launcher(ranks or most, most, port), None
    else:
        elastic_options.refuse_without()
        places = _places(ranks, hosts, hostfile)
    request, output = job_options.request(command, elastic=elastic, **options)
    checked = request.checked().on(len(places))
    return checked.run(
        spread(places, checked.helpers),
        output,
        rsh=parse_rsh(rsh),
        interface=interface or os.environ.get("PACELINE_INTERFACE") or None,
        interface_source="--interface" if interface else "PACELINE_INTERFACE",
        port=port,
    )


def _places(ranks: int | None, hosts: str | None, hostfile: Path | None) -> list[Place]:
    places = _hosts(hosts, hostfile)
    if places is not None:
        return place(places, ranks)
    if ranks is None:
        raise UsageError("the number of ranks is missing", remedy="paceline run -np 4 -- python train.py")
    return [Place(Host("localhost", ranks), 0, ranks)]


def _hosts(hosts: str | None, hostfile: Path | None) -> list[Host] | None:
    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile cannot be combined", remedy="drop --hostfile, or drop --hosts")
    if hosts is not None:
        return parse_hosts(hosts)
    return None if hostfile is None else read_hostfile(hostfile)
