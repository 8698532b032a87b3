"""An emulated cluster that this process brought up, or that `paceline emulate up` left running."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from paceline._internal.extras import need
from paceline._internal.system import boot
from paceline.errors import InvalidArgumentError

from paceline_lab.emulate import processes, state
from paceline_lab.emulate.errors import CannotEmulateError, ClusterError
from paceline_lab.emulate.plan import CARD, REALTIME, Host, Racks, find, plan
from paceline_lab.emulate.plan import racks as divide
from paceline_lab.emulate.shaping import shape
from paceline_lab.emulate.state import State

if TYPE_CHECKING:
    from paceline.launch.output import Output

    from paceline_lab.emulate.fidelity import Fidelity

_START_S = 30.0
_START_OF_HOST_S = 0.5
_END_S = 10.0
_ERRORS = {"InvalidArgumentError": InvalidArgumentError, "CannotEmulateError": CannotEmulateError}
# gloo looks up the host's name, which has no address.
SETTINGS = (f"GLOO_SOCKET_IFNAME={CARD}",)


class Cluster:
    """Hosts connected by a shaped network; made by `cluster`."""

    def __init__(self, holder: subprocess.Popen[bytes], own: State) -> None:
        """Made by `cluster`; `holder` is the process that holds the namespaces."""
        self._holder = holder
        self._state = own
        self.name = own.name
        self.hosts = own.hosts
        self.realtime = own.realtime
        """Whether ranks run under SCHED_FIFO: requested and permitted."""
        self.bandwidth_bps = own.bandwidth_bps
        """Rate of every NIC except the switch's, in each direction, as TCP goodput."""

    def of_kind(self, kind: str) -> tuple[Host, ...]:
        """Return the hosts of one kind.

        Args:
            kind: `"worker"`, `"server"` or `"switch"`.
        """
        return tuple(host for host in self.hosts if host.kind == kind)

    @property
    def hosts_per_rack(self) -> int | None:
        """Worker hosts in a rack; None without racks."""
        workers = [host.rack for host in self.of_kind("worker")]
        return None if workers[0] is None else workers.count(0)

    def entering(self, host: str, *settings: str, priority: int | None = None) -> list[str]:
        """Return the words to prepend to a command so that it runs on a host.

        Args:
            host: Name of the host, such as `"worker0"`.
            *settings: Environment variables as NAME=VALUE.
            priority: Priority under SCHED_FIFO; None for normal scheduling.

        Returns:
            The words.

        Raises:
            InvalidArgumentError: There is no such host.
        """
        return self._state.entering(find(self.hosts, host).name, *SETTINGS, *settings, realtime=priority)

    def popen(
        self,
        host: str,
        command: Sequence[str],
        *,
        realtime: bool | None = None,
        **options: Any,  # noqa: ANN401
    ) -> subprocess.Popen[Any]:
        """Start a command on a host; if it still runs when the cluster ends, it is stopped.

        Args:
            host: Name of the host, such as `"worker0"`.
            command: The command and its arguments. If there is no such command, the process exits with 127.
            realtime: Whether it runs under SCHED_FIFO; by default as ranks do.
            **options: Options of `subprocess.Popen`.

        Returns:
            The process.

        Raises:
            InvalidArgumentError: There is no such host.

        Example:
            >>> cluster.popen("worker0", ["ip", "address"]).wait()  # doctest: +SKIP
            0
        """
        wanted = self.realtime if realtime is None else realtime
        words = self.entering(host, priority=REALTIME if wanted else None)
        return subprocess.Popen([*words, *command], **options)

    def run(
        self,
        command: Sequence[str],
        *,
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        output: Output | None = None,
        limit_s: float = float("inf"),
        **settings: Any,  # noqa: ANN401
    ) -> int:
        """Run ranks of a command on all workers, as `paceline emulate run` does.

        In the main thread, Ctrl-C and SIGTERM end the job. In another thread they are the caller's; `limit_s` ends it.

        Args:
            command: The command and its arguments.
            ranks_per_host: Ranks on each worker.
            env: Environment variables for all ranks, in addition to this process's.
            output: Receives what ranks print, such as `Collected()` or `Discarded()`; by default it is printed.
            limit_s: Seconds after which the job is stopped.
            **settings: Settings of a job (docs/reference/settings.md), such as `strategy="ps"`, `servers=2` or
                `timeout_s=10`; and `record`, `grace_s` and `switch` as for `paceline emulate run`.

        Returns:
            The exit code.

        Raises:
            InvalidArgumentError: An argument or setting is invalid.
            click.ClickException: The job could not be run, or `limit_s` has passed.

        Example:
            >>> with emulate.cluster(workers=2, bandwidth_bps=1e9) as cluster:  # doctest: +SKIP
            ...     cluster.run([sys.executable, "train.py"], strategy="ring")
        """
        from paceline_lab.emulate.job import run

        names = [f"{name}={value}" for name, value in (env or {}).items()]
        return run(self, command, ranks_per_host, output, names=names, limit_s=limit_s, **settings)

    def check(self, *, repeats: int = 5) -> Fidelity:
        """Measure how well the network keeps its rate; takes a few seconds.

        Args:
            repeats: Measurements of each kind.

        Returns:
            The measurements, and whether they are within the limits.

        Raises:
            ClusterError: The cluster does not answer.
            InvalidArgumentError: `repeats` is invalid.
        """
        from paceline_lab.emulate.measurement import measure

        return measure(self, repeats)

    def set_bandwidth(self, bandwidth_bps: float) -> None:
        """Change the rate of all rate-limited NICs, for connections made from now on.

        Args:
            bandwidth_bps: TCP goodput in bits per second, each way.

        Raises:
            ClusterError: The cluster does not answer.
            InvalidArgumentError: The rate is out of range.
        """
        shape(bandwidth_bps)
        ask(self._holder, {"bandwidth_bps": bandwidth_bps}, _START_S)
        self.bandwidth_bps = bandwidth_bps

    def close(self) -> None:
        """Stop all processes on the hosts, and take the hosts down."""
        let_go(self._holder)
        if self._holder.returncode:  # The holder was killed, so nobody else does this.
            processes.end(self._state.by_network, self._state.token)
            state.forget(self._state)


@contextmanager
def cluster(
    *,
    workers: int,
    servers: int = 0,
    switch: bool = False,
    racks: int = 1,
    oversubscription: float = 1.0,
    bandwidth_bps: float,
    realtime: bool = True,
    name: str | None = None,
) -> Iterator[Cluster]:
    """Bring up a cluster for the duration of a `with` block.

    Args:
        workers: Number of hosts for ranks.
        servers: Number of hosts for parameter servers.
        switch: Whether there is a host that acts as the switch, for in-network multicast and aggregation. With racks,
            each rack has one more.
        racks: Number of racks, among which workers and then servers are divided in order.
        oversubscription: Rate of a rack's workers together over the rate of its uplink.
        bandwidth_bps: TCP goodput of every NIC in bits per second, each way.
        realtime: Whether ranks run under SCHED_FIFO where that is permitted.
        name: Name for `paceline emulate exec`; by default a unique one.

    Yields:
        The cluster.

    Raises:
        CannotEmulateError: This machine does not permit network namespaces.
        ClusterError: The cluster did not come up.
        InvalidArgumentError: An argument is out of range, the name is taken, or pyroute2 is not installed.

    Example:
        >>> with emulate.cluster(workers=4, servers=2, bandwidth_bps=500e6) as cluster:  # doctest: +SKIP
        ...     cluster.run([sys.executable, "train.py"], strategy="ps")
    """
    found_racks = divide(workers, racks, oversubscription)
    hosts = plan(workers, servers, switch=switch, racks=found_racks)
    holder, own = bring_up(hosts, bandwidth_bps, racks=found_racks, realtime=realtime, name=name)
    up = Cluster(holder, own)
    try:
        yield up
    finally:
        up.close()


def bring_up(
    hosts: tuple[Host, ...], bandwidth_bps: float, *, racks: Racks | None = None, realtime: bool, name: str | None
) -> tuple[subprocess.Popen[bytes], State]:
    """Return the holder of a new cluster, and its state. Raises what `cluster` raises."""
    shape(bandwidth_bps)
    if racks is not None:
        shape(bandwidth_bps * racks.uplink)
    check_machine()
    token = secrets.token_hex(8)
    wanted = {
        "hosts": [asdict(host) for host in hosts],
        "bandwidth_bps": bandwidth_bps,
        "uplink": None if racks is None else racks.uplink,
        "realtime": realtime,
        "name": _free(name) if name is not None else f"run-{os.getpid()}-{token[:4]}",
        "token": token,
        "folder": str(state.folder()),
    }
    holder = subprocess.Popen(
        [sys.executable, "-P", "-m", "paceline_lab.emulate.holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # Ctrl-C is for the job; the cluster ends after it.
    )
    try:
        ask(holder, wanted, _START_S + _START_OF_HOST_S * len(hosts))
        known = state.read(str(wanted["name"]))
        if known is None:
            raise ClusterError("the cluster ended immediately after it came up")
        return holder, known
    except BaseException:
        let_go(holder)
        raise


def leave(holder: subprocess.Popen[bytes]) -> None:
    """Keep the cluster running when this process ends. Raises ClusterError."""
    ask(holder, {"stay": True}, _START_S)


def check_machine() -> None:
    """Raise CannotEmulateError or InvalidArgumentError if this machine cannot emulate a cluster, or lacks pyroute2."""
    if not sys.platform.startswith("linux"):
        raise CannotEmulateError(
            "paceline emulate needs network namespaces, which only Linux has",
            remedy="paceline simulate (forecasts on any system)",
        )
    need("paceline emulate", "emulate", "pyroute2")


def _free(name: str) -> str:
    """Return the name if no cluster has it, and remove the state of an ended one. Raises InvalidArgumentError."""
    other = state.read(name)
    if other is None:
        return name
    if other.alive:
        raise InvalidArgumentError(
            f"cluster '{name}' is already up", remedy=f"paceline emulate down --name {name}, or another --name"
        )
    with processes.inside(other.by_network, other.token) as inside:
        if inside and other.boot == boot():
            raise InvalidArgumentError(
                f"cluster '{name}' was killed, and {inside[0]} is still running",
                remedy=f"paceline emulate down --name {name}",
            )
    state.forget(other)
    return name


def ask(holder: subprocess.Popen[bytes], order: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Send a request to the holder and return its answer. Raises the holder's error."""
    assert holder.stdin and holder.stdout and holder.stderr
    answer, until = b"", time.monotonic() + limit_s
    with suppress(BrokenPipeError):
        holder.stdin.write(json.dumps(order).encode() + b"\n")
    while not answer.endswith(b"\n"):
        if not select.select([holder.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            raise ClusterError(f"the cluster did not answer for {limit_s:.0f} s", remedy="a machine with less load")
        more = os.read(holder.stdout.fileno(), 1 << 16)
        if not more:
            raise ClusterError(f"the process that holds the cluster has ended{_last_words(holder)}")
        answer += more
    reply: dict[str, Any] = json.loads(answer)
    if "error" in reply:
        raise _ERRORS.get(reply["kind"], ClusterError)(reply["error"], remedy=reply.get("remedy"))
    return reply


def _last_words(holder: subprocess.Popen[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        holder.wait(1)
    if holder.returncode is None:
        return ""
    if holder.returncode < 0:
        return f": it was killed by {signal.Signals(-holder.returncode).name}"
    assert holder.stderr
    lines = (os.read(holder.stderr.fileno(), 1 << 16) or b"").decode(errors="replace").split("\n")
    return f": {next((line for line in reversed(lines) if line.strip()), holder.returncode)}"


def let_go(holder: subprocess.Popen[bytes]) -> None:
    """Tell the holder to take the cluster down, and wait until it has done so."""
    assert holder.stdin and holder.stdout and holder.stderr
    with suppress(OSError):
        holder.stdin.close()
    try:
        holder.wait(_END_S)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()
    finally:
        holder.stdout.close()
        holder.stderr.close()
