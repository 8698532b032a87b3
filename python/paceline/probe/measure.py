"""All measurements, one after the other, within limits of time and bytes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paceline._internal import units
from paceline.probe import patterns
from paceline.probe.layout import Host, Layout
from paceline.probe.patterns import Flows
from paceline.probe.result import Cost, ProbeResult, Rate, Sample, slope
from paceline.probe.rpc import Controller
from paceline.probe.slow import slow

if TYPE_CHECKING:
    from paceline.job.job import Job

RING, ONE, BOTH, INCAST, FAN_OUT = "ring", "one stream", "both ways", "incast", "1:N"
SEVERAL, INSIDE, STREAMS = "all ranks at once", "inside a host", "several connections"
LATENCY, INSIDE_LATENCY, MESSAGE = "latency between hosts", "latency inside a host", "cost of a message"
MANY_STREAMS = 4
MESSAGE_SIZES = (64 << 10, 16 << 10, 4 << 10)
_MESSAGES_TOTAL = (256 << 10, 4 << 20)
_MESSAGES_S = 0.05
_MESSAGE_RUNS = 3
"""Repeats for each repeat of other measurements: a difference of times needs more."""
_FIRST_SIZE, _GROWTH, _LONG_ENOUGH_S = 64 << 10, 4, 0.02
_SLOWEST_S = 1.0
"""A slow NIC makes a transfer longer, up to this."""
_INSIDE_SHARE = 0.4
"""Share of the duration of a transfer between hosts: memory needs no time to reach its rate."""
_ECHO_S = 0.3
_BATCHES = 10
_PAIRS = 8
_GAIN = 1.05
"""A smaller improvement is not worth a note."""
_UNSTEADY, _MOST_RUNS = 0.1, 3

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Budget:
    """How much to measure."""

    repeats: int
    transfer_s: float
    """Intended duration of a transfer."""
    most_bytes: int
    """Most bytes that a rank sends or receives in one transfer."""
    limit_s: float
    """After this time, only measurements that the cluster file needs are started."""
    echoes: int
    compression: tuple[str, ...] = ()
    """Ways of compressing gradients whose costs are measured."""

    def size(self, fastest_bps: float, slowest_bps: float, flows: int = 1, share: float = 1.0) -> int:
        """Return the bytes of each flow of a transfer in which the busiest link carries this many flows."""
        seconds = min(self.transfer_s * share, _SLOWEST_S * slowest_bps / fastest_bps)
        return max(1, min(self.most_bytes, int(fastest_bps / 8 * seconds)) // flows)


FULL = Budget(repeats=5, transfer_s=0.25, most_bytes=256 << 20, limit_s=60.0, echoes=500)
QUICK = Budget(repeats=3, transfer_s=0.1, most_bytes=32 << 20, limit_s=15.0, echoes=200)
NEEDED = Budget(repeats=5, transfer_s=0.1, most_bytes=32 << 20, limit_s=0.0, echoes=200)
"""Only what the cluster file needs."""


def measure(ranks: Job, layout: Layout, budget: Budget, progress: Progress) -> tuple[Controller, ProbeResult]:
    """Measure everything, at rank 0, while the others are in `obey`. Raises JobError."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    probe = _Probe(Controller(ranks), budget, ProbeResult(layout, date, ranks.settings.streams))
    begin = time.monotonic()
    steps = probe.steps()
    for number, (name, needed, step) in enumerate(steps):
        progress(number + 1, len(steps), name)
        if needed or time.monotonic() - begin < budget.limit_s:
            step()
        else:
            probe.results.left_out.append(name)
    results = probe.results
    results.seconds, results.bytes_sent = time.monotonic() - begin, probe.controller.sent
    results.notes += [*_unsteady(results), *(slow(results.pairs) or _gains(results))]
    return probe.controller, results


def measure_streams(ranks: Job, results: ProbeResult, budget: Budget) -> None:
    """Repeat the ring, in a job with several connections between two ranks; at rank 0. Raises JobError."""
    controller = Controller(ranks)
    probe = _Probe(controller, budget, results)
    begin = time.monotonic()
    probe.network_size()
    probe.rate(STREAMS, patterns.shifted(results.layout.hosts, 1))
    controller.end()
    results.bytes_sent += controller.sent
    results.seconds += time.monotonic() - begin
    more, one = results.rate(STREAMS), results.rate(RING)
    if more and one and more > _GAIN * one:
        results.notes.append(
            f"{MANY_STREAMS} connections between two ranks carry {more / one:.2f} times as much as one: start jobs "
            f"with --streams {MANY_STREAMS} (PACELINE_STREAMS), and probe again with it"
        )


Step = tuple[str, bool, Callable[[], object]]


class _Probe:
    def __init__(self, controller: Controller, budget: Budget, results: ProbeResult) -> None:
        self.controller, self.budget, self.results = controller, budget, results
        self.hosts = results.layout.hosts
        ranks = sorted((rank, number) for number, host in enumerate(self.hosts) for rank in host.ranks)
        self.host_of = [number for _, number in ranks]
        self.fastest = self.slowest = 0.0

    def steps(self) -> list[Step]:
        """Return the steps: name, whether the cluster file needs it, and what to do."""
        hosts, several, inside = len(self.hosts), self.results.layout.ranks_per_host > 1, self.hosts[0]
        steps: list[Step] = []
        if hosts > 1:
            steps += [("rate between hosts", True, self.ring), (LATENCY, True, self.latency)]
        if several:
            steps += [(INSIDE, True, self.inside)]
            steps += [(INSIDE_LATENCY, True, lambda: self.echo(INSIDE_LATENCY, [inside.ranks[:2]]))]
        steps += [(MESSAGE, True, self.messages)]
        if hosts > 1:
            steps += [(ONE, False, self.alone)]
        if hosts > 2:
            steps += [
                (BOTH, False, lambda: self.rate(BOTH, patterns.both_ways(self.hosts))),
                (INCAST, False, lambda: self.rate(INCAST, patterns.incast(self.hosts))),
                (FAN_OUT, False, lambda: self.rate(FAN_OUT, patterns.fan_out(self.hosts))),
                ("other pairs of hosts", False, self.pairs),
            ]
        if hosts > 1 and several:
            every = patterns.shifted(self.hosts, 1, self.results.layout.ranks_per_host)
            steps += [(SEVERAL, False, lambda: self.rate(SEVERAL, every))]
        steps += [
            (f"compression: {name}", True, functools.partial(self.compress, name)) for name in self.budget.compression
        ]
        return [*steps, ("machines", False, self.machines)]

    def compress(self, method: str) -> None:
        """Measure what compressing takes, on all ranks at once, as when they train; the slowest counts."""
        from paceline.probe.compression import slowest

        answers = self.controller.ask("compression", method=method, repeats=self.budget.repeats)
        self.results.compression.append(slowest(answers))

    def rate(self, name: str, flows: Flows) -> list[list[float]]:
        """Measure a pattern between hosts."""
        busiest = patterns.most_through_one(flows, self.host_of)
        size = self.budget.size(self.fastest, self.slowest, busiest)
        taken = self.controller.transfer(flows, size, self.budget.repeats)
        self._keep(name, len(flows), size, [busiest * size * 8 / max(times) for times in zip(*taken, strict=True)])
        return taken

    def _keep(self, name: str, flows: int, size: int, rates: list[float]) -> None:
        self.results.rates[name] = Rate(name, flows, size, Sample(tuple(rates)))

    def network_size(self) -> None:
        """Measure roughly the rates of the fastest and the slowest pair of neighbors, to choose sizes."""
        self.fastest, self.slowest = self._roughly(patterns.shifted(self.hosts, 1))

    def _roughly(self, flows: Flows) -> tuple[float, float]:
        size = min(_FIRST_SIZE, self.budget.most_bytes)
        while True:
            times = [min(taken) for taken in self.controller.transfer(flows, size, 1)]
            if max(times) >= _LONG_ENOUGH_S or size >= self.budget.most_bytes:
                return size * 8 / min(times), size * 8 / max(times)
            size = min(size * _GROWTH, self.budget.most_bytes)

    def ring(self) -> None:
        """Send from every host to the next one, all at once; repeat while results differ, and use the steadiest."""
        self.network_size()
        flows = patterns.shifted(self.hosts, 1)
        best: tuple[Rate, list[list[float]]] | None = None
        for _ in range(_MOST_RUNS):
            taken = self.rate(RING, flows)
            rate = self.results.rates[RING]
            if best is None or rate.sample.spread < best[0].sample.spread:
                best = rate, taken
            if rate.sample.spread <= _UNSTEADY:
                break
        assert best is not None
        self.results.rates[RING], taken = best
        self._pairs(flows, taken)

    def pairs(self) -> None:
        """Send from every host to hosts other than the next one."""
        for distance in patterns.distances(len(self.hosts)):
            flows = patterns.shifted(self.hosts, distance)
            size = self.budget.size(self.fastest, self.slowest)
            self._pairs(flows, self.controller.transfer(flows, size, self.budget.repeats), size)

    def _pairs(self, flows: Flows, taken: list[list[float]], size: int | None = None) -> None:
        size = size or self.results.rates[RING].size
        for (source, to), times in zip(flows, taken, strict=True):
            names = self._host(source).name, self._host(to).name
            self.results.pairs[names] = size * 8 / Sample(tuple(times)).median

    def _host(self, rank: int) -> Host:
        return self.hosts[self.host_of[rank]]

    def alone(self) -> None:
        """Measure neighbors, one pair after the other, while the network is otherwise idle."""
        size, rates = self.budget.size(self.fastest, self.slowest), []
        for flow in patterns.alone(self.hosts):
            (times,) = self.controller.transfer([flow], size, self.budget.repeats)
            rates += [size * 8 / taken for taken in times]
        self._keep(ONE, 1, size, rates)

    def latency(self) -> None:
        """Measure the latency between neighbors."""
        self.echo(LATENCY, [(source, to) for source, to in patterns.alone(self.hosts)[:_PAIRS]])

    def echo(self, what: str, pairs: list[Any]) -> None:
        """Return half of the round trips: medians of batches."""
        halves: list[float] = []
        for initiator, responder in pairs:
            replies = self.controller.ask(
                "echo", initiator=initiator, responder=responder, most=self.budget.echoes, limit_s=_ECHO_S
            )
            halves += [Sample(tuple(batch)).median / 2 for batch in _batches(replies[initiator]["seconds"])]
        self.results.costs[what] = Cost(what, Sample(tuple(halves)))

    def inside(self) -> None:
        """Send from each rank of a host to the next one; one host after the other, and the slowest counts."""
        slowest: Rate | None = None
        for host in self.hosts[:_PAIRS]:
            flows = patterns.inside(host)
            fastest, least = self._roughly(flows)
            size = self.budget.size(fastest, least, share=_INSIDE_SHARE)
            taken = self.controller.transfer(flows, size, self.budget.repeats)
            rates = Sample(tuple(size * 8 / max(times) for times in zip(*taken, strict=True)))
            if slowest is None or rates.median < slowest.sample.median:
                slowest = Rate(INSIDE, len(flows), size, rates)
        assert slowest is not None
        self.results.rates[INSIDE] = slowest

    def messages(self) -> None:
        """Send the same bytes in more and more messages, to find the cost of each additional one."""
        between = self.hosts[0].ranks[:2] if len(self.hosts) == 1 else (self.hosts[0].first, self.hosts[1].first)
        rate = self.slowest or self.results.rates[INSIDE].sample.median
        least, most = _MESSAGES_TOTAL
        total = max(least, min(most, self.budget.most_bytes, int(rate / 8 * _MESSAGES_S)))
        total -= total % MESSAGE_SIZES[0]
        taken, repeats = [], _MESSAGE_RUNS * self.budget.repeats
        for size in MESSAGE_SIZES:
            replies = self.controller.ask(
                "messages", source=between[0], to=between[1], total=total, size=size, repeats=repeats
            )
            self.controller.sent += total * (repeats + 1)
            taken.append(replies[between[0]]["seconds"])
        counts = [total // size for size in MESSAGE_SIZES]
        values = tuple(slope(counts, times) for times in zip(*taken, strict=True))
        self.results.costs[MESSAGE] = Cost(MESSAGE, Sample(values))

    def machines(self) -> None:
        """Measure all ranks at once, as when they train."""
        self.results.machines = self.controller.ask("machine", seconds=self.budget.transfer_s * 2)


def _batches(values: list[float]) -> list[list[float]]:
    """Return at most ten batches of equal length."""
    length = max(1, len(values) // _BATCHES)
    return [values[begin : begin + length] for begin in range(0, len(values) - length + 1, length)]


def _unsteady(results: ProbeResult) -> list[str]:
    rate = results.rates.get(RING) or results.rates.get(INSIDE)
    if rate is None or rate.sample.spread <= _UNSTEADY:
        return []
    varied = f"the rate varied by ±{units.percent(rate.sample.spread)}"
    return [f"{varied}: other work uses the network or the cores; probe again"]


def _gains(results: ProbeResult) -> list[str]:
    notes = []
    if several := _clearly_more(results, SEVERAL, RING):
        notes.append(
            f"all ranks of a host at once get {several:.2f} times the rate of one: strategies in which several "
            "ranks of a host send at once are faster than forecast"
        )
    if alone := _clearly_more(results, ONE, RING):
        notes.append(
            f"a single stream gets {alone:.2f} times the rate of each when all hosts send: the network between "
            "them carries less than their NICs"
        )
    return notes


def _clearly_more(results: ProbeResult, one: str, other: str) -> float | None:
    """Return this rate divided by the other, if every repeat of it was faster than all of the other's."""
    if one not in results.rates or other not in results.rates:
        return None
    more, less = results.rates[one].sample, results.rates[other].sample
    gain = more.median / less.median
    return gain if gain > _GAIN and min(more.values) > max(less.values) else None
