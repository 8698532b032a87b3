"""Measures transfers on an emulated network, and compares them with their ideal time."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidArgumentError

from paceline_lab.emulate import stream
from paceline_lab.emulate.errors import ClusterError
from paceline_lab.emulate.fidelity import Fidelity, Load, Pattern

if TYPE_CHECKING:
    from paceline_lab.emulate.cluster import Cluster

MOST_REPEATS = 1000

_MEASURED_S = 0.4  # of a transfer: hundreds of times a bucket's credit
_AHEAD_S = 0.05  # for all processes to receive a start
_ANSWER_S = 30.0
_BROADCAST, _INCAST, _STREAM = "1:N", "incast", "one stream"


class _Hosts:
    """The measuring processes."""

    def __init__(self, processes: Mapping[str, subprocess.Popen[bytes]], addresses: Mapping[str, str]) -> None:
        self.processes = processes
        self.cpu_s = dict.fromkeys(processes, 0.0)
        ports = {name: answer["port"] for name, answer in self.answers(list(processes), _ANSWER_S).items()}
        self.places = {name: [addresses[name], port] for name, port in ports.items()}

    def tell(self, orders: Mapping[str, Mapping[str, Any]], limit_s: float = _ANSWER_S) -> float:
        """Send requests to hosts, and wait until all are carried out. Raises ClusterError."""
        for name, order in orders.items():
            with suppress(BrokenPipeError):
                _stdin(self.processes[name]).write(json.dumps(order).encode() + b"\n")
        ends = 0.0
        for name, answer in self.answers(list(orders), limit_s).items():
            if answer["problem"] is not None:
                raise ClusterError(f"{name}: {answer['problem']}")
            self.cpu_s[name] = answer["cpu_s"]
            ends = max(ends, answer["end"])
        return ends

    def answers(self, names: Sequence[str], limit_s: float) -> dict[str, dict[str, Any]]:
        """Return one line from each host. Raises ClusterError naming a silent host."""
        until = time.monotonic() + limit_s
        answers: dict[str, dict[str, Any]] = {}
        for name in names:
            line, output = b"", self.processes[name].stdout
            assert output is not None
            while not line.endswith(b"\n"):
                if not select.select([output], [], [], max(0.0, until - time.monotonic()))[0]:
                    raise ClusterError(f"{name} did not answer for {limit_s:.0f} s", remedy="a machine with less load")
                more = os.read(output.fileno(), 1 << 16)
                if not more:
                    raise ClusterError(f"{name}: the measuring process has ended, code {self.processes[name].wait()}")
                line += more
            answers[name] = json.loads(line)
        return answers


def measure(cluster: Cluster, repeats: int) -> Fidelity:
    """Measure one stream, incast and 1:N, each for a fraction of a second.

    Raises InvalidArgumentError, ClusterError.
    """
    workers = cluster.of_kind("worker")
    if len(workers) < 2:
        raise InvalidArgumentError("workers: must be at least 2", remedy="workers=2")
    if not 1 <= repeats <= MOST_REPEATS:
        raise InvalidArgumentError(f"repeats: must be 1-{MOST_REPEATS}, not {repeats}", remedy="repeats=3")
    first, *others = [host.name for host in workers]
    flows = {
        _STREAM: [(first, others[0])],
        _INCAST: [(other, first) for other in others],
        _BROADCAST: [(first, other) for other in others],
    }
    with _processes(cluster) as hosts, _Watched(hosts) as watched:
        patterns = [_pattern(hosts, name, pairs, cluster.bandwidth_bps, repeats) for name, pairs in flows.items()]
    return Fidelity(len(workers), cluster.bandwidth_bps, cluster.realtime, tuple(patterns), watched.load)


@contextmanager
def _processes(cluster: Cluster) -> Iterator[_Hosts]:
    started: dict[str, subprocess.Popen[bytes]] = {}
    workers = cluster.of_kind("worker")
    try:
        for host in workers:
            command = [sys.executable, "-I", "-S", str(stream.__file__), host.address]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
            started[host.name] = cluster.popen(host.name, command, **pipes)
        yield _Hosts(started, {host.name: host.address for host in workers})
    finally:
        for process in started.values():
            process.kill()
        for process in started.values():
            process.communicate()


def _pattern(hosts: _Hosts, name: str, pairs: Sequence[tuple[str, str]], bandwidth_bps: float, repeats: int) -> Pattern:
    """Measure a pattern.

    Connections are made once; the first transfer, in which TCP finds its window, does not count.
    """
    size = max(1, round(bandwidth_bps / 8 * _MEASURED_S / len(pairs)))
    senders = list(dict.fromkeys(sender for sender, _ in pairs))
    receivers = list(dict.fromkeys(receiver for _, receiver in pairs))
    hosts.tell({each: {"connect": [hosts.places[to] for by, to in pairs if by == each]} for each in hosts.processes})
    hosts.tell({each: {"accept": sum(to == each for _, to in pairs)} for each in hosts.processes})
    ideal_s = size * len(pairs) * 8 / bandwidth_bps
    times = []
    for _ in range(repeats + 1):
        at = time.monotonic() + _AHEAD_S
        order = {"at": at, "send": size, "receive": size}
        limit_s = _ANSWER_S + stream.PATIENCE_S + 10 * ideal_s
        times.append(hosts.tell(dict.fromkeys([*senders, *receivers], order), limit_s) - at)
    return Pattern(name, len(pairs), size, ideal_s, median(times[1:]), tuple(times[1:]))


class _Watched:
    """Measures the machine's load during a block."""

    def __init__(self, hosts: _Hosts) -> None:
        self._hosts = hosts
        self.load = Load(1, 0.0, 0.0, 0.0)

    def __enter__(self) -> _Watched:
        self._before, self._at = _ticks(), time.monotonic()
        self._own = time.process_time() + sum(self._hosts.cpu_s.values())
        return self

    def __exit__(self, *_: object) -> None:
        # proc(5): user nice system idle iowait irq softirq steal, in ticks of all cores
        user, nice, system, idle, iowait, irq, softirq, steal = (
            now - before for now, before in zip(_ticks(), self._before, strict=True)
        )
        all_of_it = max(1, user + nice + system + idle + iowait + irq + softirq + steal)
        elapsed = max(1e-3, time.monotonic() - self._at)
        own = time.process_time() + sum(self._hosts.cpu_s.values()) - self._own
        others = (user + nice + system) / os.sysconf("SC_CLK_TCK") - own
        self.load = Load(
            cores=os.cpu_count() or 1,
            busy=1 - (idle + iowait) / all_of_it,
            steal=steal / all_of_it,
            others=max(0.0, others / elapsed),
        )


def _ticks() -> list[int]:
    words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    return [int(word) for word in words[1:9]]


def _stdin(process: subprocess.Popen[bytes]) -> Any:  # noqa: ANN401
    assert process.stdin is not None
    return process.stdin
