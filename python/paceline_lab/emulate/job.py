"""A job on an emulated cluster, started as by `paceline run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paceline._internal.system import cores
from paceline._internal.units import count
from paceline.errors import InvalidArgumentError
from paceline.launch.hosts import MOST_RANKS, Host, Place
from paceline.launch.job import Job
from paceline.launch.output import Output, Terminal
from paceline.launch.request import Checked, Request

from paceline_lab.emulate.plan import NETWORK, REALTIME

if TYPE_CHECKING:
    from paceline_lab.emulate.cluster import Cluster

_REQUEST = ("record", "record_steps", "record_warmup", "grace_s", "limit_s", "names", "switch")


def run(
    cluster: Cluster,
    command: Sequence[str],
    ranks_per_host: int,
    output: Output | None,
    **options: Any,  # noqa: ANN401
) -> int:
    """Run a job; see `Cluster.run`."""
    if isinstance(command, str) or not command:
        raise InvalidArgumentError("no command given", remedy="['python', 'train.py']")
    request_options = {name: options.pop(name) for name in _REQUEST if name in options}
    checked = Request(command=command, settings=options, **request_options).checked()
    return start(cluster, checked, ranks_per_host, lambda job: output or Terminal(job.names, prefix=True))


def start(cluster: Cluster, checked: Checked, ranks_per_host: int, output: Callable[[Job], Output]) -> int:
    """Start a job and return its exit code. Raises InvalidArgumentError, ClickException."""
    checked = checked.on(len(cluster.of_kind("worker")), cluster.hosts_per_rack)
    places = arrange(cluster, ranks_per_host, checked.servers, switches=checked.switches)
    processes = sum(place.count for place in places)
    threads = max(1, cores() // processes)
    settings = [] if "OMP_NUM_THREADS" in os.environ else [f"OMP_NUM_THREADS={threads}"]
    agent = REALTIME + 1 if cluster.realtime else None
    names = [place.host.name for place in places]
    return checked.run(
        places,
        output,
        rsh=(),
        interface=NETWORK,
        port=None,
        agents={name: [*cluster.entering(name, *settings, priority=agent), *_agent()] for name in names},
        realtime=REALTIME if cluster.realtime else None,
    )


def arrange(cluster: Cluster, ranks_per_host: int, servers: int, *, switches: Sequence[int | None] = ()) -> list[Place]:
    """Place ranks on the workers, one parameter server on each of as many server hosts, switches on their own hosts.

    `switches`: the rack of each role of a switch; None for those that connect racks.

    Raises InvalidArgumentError.
    """
    workers, hosts = cluster.of_kind("worker"), cluster.of_kind("server")
    size = ranks_per_host * len(workers)
    if not 1 <= size <= MOST_RANKS:
        each = f"{ranks_per_host} ranks on each of {count(len(workers), 'worker')}"
        raise InvalidArgumentError(f"{each}: must be 1-{MOST_RANKS} ranks", remedy=f"{each}=1")
    if servers > len(hosts):
        has = count(len(hosts), "server host") if hosts else "no server host"
        raise InvalidArgumentError(
            f"{count(servers, 'server')}: the cluster has {has}", remedy=f"paceline emulate up --servers {servers}"
        )
    of_rack = {host.rack: host for host in cluster.of_kind("switch")}
    if any(rack not in of_rack for rack in switches):
        raise InvalidArgumentError("switch: the cluster has no host for it", remedy="paceline emulate up --switch")
    return [
        *(Place(Host(host.name, ranks_per_host), host.number * ranks_per_host, ranks_per_host) for host in workers),
        *(Place(Host(host.name, 0), size, 0, (host.number,)) for host in hosts[:servers]),
        *(
            Place(Host(host.name, 0), size, 0, tuple(servers + n for n, rack in enumerate(switches) if rack == here))
            for here, host in of_rack.items()
            if here in switches
        ),
    ]


def _agent() -> list[str]:
    from paceline.launch.host import local_agent

    return local_agent()
