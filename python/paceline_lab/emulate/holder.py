"""The process that holds a cluster: `python -P -m paceline_lab.emulate.holder`, started by `Cluster`.

Standard input carries lines of JSON, each answered by one on standard output: first the cluster to build, then perhaps
other rates. When the input ends, or the process that started it does, everything on the hosts is stopped, and the
cluster disappears with this process. After a request to stay, only SIGTERM ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click
from paceline._internal.system import boot
from paceline.errors import InvalidArgumentError

from paceline_lab.emulate import network, processes, state
from paceline_lab.emulate.network import Network
from paceline_lab.emulate.plan import REALTIME, Host
from paceline_lab.emulate.shaping import Shape, shape


class _EndedError(Exception):
    """SIGTERM has arrived."""


class Orders:
    """Reads lines from standard input while their writer is alive."""

    def __init__(self, starter: int) -> None:
        """`starter` is a descriptor of the process that started this one."""
        self._starter = starter
        self._data = b""
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._poll.register(starter, select.POLLIN)

    def next(self) -> dict[str, Any] | None:
        """Return the next request; None if there will be none."""
        while b"\n" not in self._data:
            ready = dict(self._poll.poll())
            more = os.read(0, 1 << 16) if 0 in ready else b""
            if not more:
                return None
            self._data += more
        line, _, self._data = self._data.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order


def main() -> None:
    """Bring the cluster up, carry out requests, take it down."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    place: state.State | None = None
    up: Network | None = None
    with contextlib.suppress(_EndedError):
        try:
            orders = Orders(os.pidfd_open(os.getppid()))
            wanted = orders.next()
            if wanted is None:
                return
            up, place = _bring_up(wanted)
            _say({"ready": True})
            while (order := orders.next()) is not None:
                if "bandwidth_bps" in order:
                    up.reshape(*_shapes(order["bandwidth_bps"], wanted["uplink"]))
                _say({"done": True})
                if "stay" in order:
                    _stay()
        except (InvalidArgumentError, click.ClickException) as error:
            _say({"error": str(error), "kind": type(error).__name__, "remedy": getattr(error, "remedy", None)})
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            if up is not None:
                processes.end(up.shut())
            if place is not None:
                state.forget(place)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _EndedError


def _bring_up(wanted: dict[str, Any]) -> tuple[Network, state.State]:
    hosts = tuple(Host(**host) for host in wanted["hosts"])
    user = network.isolate()
    up = network.build(hosts, *_shapes(wanted["bandwidth_bps"], wanted["uplink"]))
    known = state.State(
        name=wanted["name"],
        token=wanted["token"],
        pid=os.getpid(),
        start=processes.start_of(os.getpid()) or 0,
        boot=boot(),
        user=user,
        realtime=wanted["realtime"] and _realtime(),
        bandwidth_bps=wanted["bandwidth_bps"],
        hosts=hosts,
        namespaces={name: (namespace.net, namespace.uts) for name, namespace in up.namespaces.items()},
        networks={name: inode for inode, name in _networks(up).items()},
    )
    try:
        state.write(Path(wanted["folder"]), known)
    except FileExistsError:
        raise InvalidArgumentError(f"cluster '{known.name}' is already up", remedy="another --name") from None
    return up, known


def _shapes(bandwidth_bps: float, uplink: float | None) -> tuple[Shape, Shape | None]:
    """Of NICs and of racks' uplinks, whose rate is `uplink` times that of a NIC."""
    return shape(bandwidth_bps), None if uplink is None else shape(bandwidth_bps * uplink)


def _networks(up: Network) -> dict[int, str]:
    return {os.fstat(namespace.net).st_ino: name for name, namespace in up.namespaces.items()}


def _realtime() -> bool:
    """Return whether SCHED_FIFO is permitted: by trying, since limits, capabilities and cgroups all matter."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REALTIME + 1))
    except OSError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


def _say(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _stay() -> None:
    """Stay until SIGTERM, and close descriptors shared with the starter."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
