"""A cluster that this process has brought up, or that `paceline emulate up` has left there."""

from __future__ import annotations

import importlib.util
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

from paceline._internal.system import boot
from paceline.emulate import processes, state
from paceline.emulate.errors import CannotEmulateError, ClusterError
from paceline.emulate.plan import CARD, REALTIME, Host, find, plan
from paceline.emulate.shaping import shape
from paceline.emulate.state import State
from paceline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from paceline.emulate.fidelity import Fidelity
    from paceline.launch.output import Output

_START_S = 30.0
_START_OF_HOST_S = 0.5
_END_S = 10.0
_ERRORS = {"InvalidArgumentError": InvalidArgumentError, "CannotEmulateError": CannotEmulateError}
# gloo looks up the host's name, which nobody has given an address.
SETTINGS = (f"GLOO_SOCKET_IFNAME={CARD}",)


class Cluster:
    """Hosts with a network between them; use `cluster`."""

    def __init__(self, holder: subprocess.Popen[bytes], found: State) -> None:
        """`holder` has brought it up."""
        self._holder = holder
        self._state = found
        self.name = found.name
        self.hosts = found.hosts
        self.realtime = found.realtime
        """Whether ranks run under SCHED_FIFO: asked for, and permitted."""
        self.bandwidth_bps = found.bandwidth_bps
        """Of every card but the switch's, each way, as TCP goodput."""

    def of_kind(self, kind: str) -> tuple[Host, ...]:
        """The workers, servers or the switch."""
        return tuple(host for host in self.hosts if host.kind == kind)

    def entering(self, host: str, *settings: str, priority: int | None = None) -> list[str]:
        """Words that make a command run on the host; `settings`: NAME=VALUE.

        Raises InvalidArgumentError for an unknown host.
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
        """Start a command on a host; options as of `subprocess.Popen`. What still runs at the end is ended.

        It runs under SCHED_FIFO if `realtime` says so; by default, as ranks do. Exits with 127 if there is no such
        command. Raises InvalidArgumentError for an unknown host.
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
        """Run ranks of a command on all workers, as `paceline emulate run` does: the exit code.

        `env`: variables for all ranks, besides this process's. `output`: what takes what they print (`Collected`,
        `Discarded`); by default it is printed. After `limit_s` seconds the job is ended, and ClickException raised.
        `settings` are PACELINE_ variables in lower case (strategy="ps", servers=2, timeout=10), and `timeline`,
        `record`, `grace_s`, `verbose`, `switch` as of `paceline.launch.request.Request`. Only in the main thread, which
        hears signals. Raises InvalidArgumentError, ClickException.
        """
        from paceline.emulate.job import run

        names = [f"{name}={value}" for name, value in (env or {}).items()]
        return run(self, command, ranks_per_host, output, names=names, limit_s=limit_s, **settings)

    def check(self, *, repeats: int = 5) -> Fidelity:
        """Measure how well the network keeps to its rate; some seconds. Raises InvalidArgumentError, ClusterError."""
        from paceline.emulate.fidelity import measure

        return measure(self, repeats)

    def set_bandwidth(self, bandwidth_bps: float) -> None:
        """Another rate for all cards that have one, for connections made from now on.

        InvalidArgumentError, ClusterError.
        """
        shape(bandwidth_bps)
        ask(self._holder, {"bandwidth_bps": bandwidth_bps}, _START_S)
        self.bandwidth_bps = bandwidth_bps

    def close(self) -> None:
        """End what runs on the hosts, and take them down."""
        let_go(self._holder)
        if self._holder.returncode:  # it was killed: then nobody else does this
            processes.end(self._state.by_network, self._state.token)
            state.forget(self._state)


@contextmanager
def cluster(
    *,
    workers: int,
    servers: int = 0,
    switch: bool = False,
    bandwidth_bps: float,
    realtime: bool = True,
    name: str | None = None,
) -> Iterator[Cluster]:
    """Bring up a cluster for the time of a block. Raises InvalidArgumentError, CannotEmulateError, ClusterError.

    `bandwidth_bps`: TCP goodput of every card, each way. `realtime`: ranks run under SCHED_FIFO where that is
    permitted. `name`: for `paceline emulate exec`.
    """
    holder, found = bring_up(plan(workers, servers, switch=switch), bandwidth_bps, realtime=realtime, name=name)
    up = Cluster(holder, found)
    try:
        yield up
    finally:
        up.close()


def bring_up(
    hosts: tuple[Host, ...], bandwidth_bps: float, *, realtime: bool, name: str | None
) -> tuple[subprocess.Popen[bytes], State]:
    """A holder and what it holds. Raises InvalidArgumentError, CannotEmulateError, ClusterError."""
    shape(bandwidth_bps)
    check_machine()
    token = secrets.token_hex(8)
    wanted = {
        "hosts": [asdict(host) for host in hosts],
        "bandwidth_bps": bandwidth_bps,
        "realtime": realtime,
        "name": _free(name) if name is not None else f"run-{os.getpid()}-{token[:4]}",
        "token": token,
        "folder": str(state.folder()),
    }
    holder = subprocess.Popen(
        [sys.executable, "-P", "-m", "paceline.emulate.holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # Ctrl-C is for the job; the cluster goes after it
    )
    try:
        ask(holder, wanted, _START_S + _START_OF_HOST_S * len(hosts))
        found = state.read(str(wanted["name"]))
        if found is None:
            raise ClusterError("the cluster was ended as soon as it was up")
        return holder, found
    except BaseException:
        let_go(holder)
        raise


def leave(holder: subprocess.Popen[bytes]) -> None:
    """Let it stay when this process ends. Raises ClusterError."""
    ask(holder, {"stay": True}, _START_S)


def check_machine() -> None:
    """Raises CannotEmulateError, InvalidArgumentError for what is not installed."""
    if not sys.platform.startswith("linux"):
        raise CannotEmulateError("paceline emulate needs network namespaces, which only Linux has")
    if importlib.util.find_spec("pyroute2") is None:
        raise InvalidArgumentError("paceline emulate needs pyroute2: pip install 'paceline[emulate]'")


def _free(name: str) -> str:
    """The name, if no cluster has it; what was left of one that has ended is forgotten. Raises InvalidArgumentError."""
    other = state.read(name)
    if other is None:
        return name
    if other.alive:
        raise InvalidArgumentError(
            f"a cluster '{name}' is up already; paceline emulate down --name {name}, or another --name"
        )
    with processes.inside(other.by_network, other.token) as found:
        if found and other.boot == boot():
            raise InvalidArgumentError(
                f"cluster '{name}' was killed, and {found[0]} is still there; paceline emulate down --name {name}"
            )
    state.forget(other)
    return name


def ask(holder: subprocess.Popen[bytes], order: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Send an order, and wait for its answer. Raises what the holder found wrong."""
    assert holder.stdin and holder.stdout and holder.stderr
    answer, until = b"", time.monotonic() + limit_s
    with suppress(BrokenPipeError):
        holder.stdin.write(json.dumps(order).encode() + b"\n")
    while not answer.endswith(b"\n"):
        if not select.select([holder.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            raise ClusterError(f"the cluster has not answered for {limit_s:.0f} s; is this machine overloaded?")
        more = os.read(holder.stdout.fileno(), 1 << 16)
        if not more:
            raise ClusterError(f"the process that holds the cluster has ended{_last_words(holder)}")
        answer += more
    said: dict[str, Any] = json.loads(answer)
    if "error" in said:
        raise _ERRORS.get(said["kind"], ClusterError)(said["error"])
    return said


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
    """Tell it that nobody wants the cluster any more, and wait until it has taken it down."""
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
