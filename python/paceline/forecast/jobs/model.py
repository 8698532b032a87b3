"""Simulates jobs together, in pairs and alone, and with changes of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

from paceline import _core
from paceline._core import Cluster, Note, Racks
from paceline._internal.console import Bar
from paceline._internal.system import cores
from paceline.catalog.strategies import feasible, find_strategy, with_switch
from paceline.errors import InvalidArgumentError
from paceline.forecast.jobs.spec import Mix, PlacedJob
from paceline.forecast.kinds import About, Measure, Remark, Resource
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.sharding import NONE
from paceline.forecast.verdict.bottleneck import bound_by, with_faster_links

_MOST_MESSAGES = 10_000_000
"""With more messages in all simulations (some seconds), collectives are single events."""
_FEW_NODES, _MOST_ON_FEW_NODES = 4, 50_000_000
"""On so few nodes, only where messages take half a minute."""
_TICK_S = 0.1
# What each strategy becomes if the switch can do more.
_WITH = {
    Measure.MULTICAST: (
        "multicast",
        {"ps": "ps-multicast", "ps-aggregation": "ps-multicast-aggregation", "ring": "ring-multicast"},
    ),
    Measure.AGGREGATION: (
        "aggregation",
        {
            "ps": "ps-aggregation",
            "ps-multicast": "ps-multicast-aggregation",
            **dict.fromkeys(
                ("ring", "ring-multicast", "recursive-doubling", "halving-doubling", "tree", "hierarchical", "native"),
                "sharp",
            ),
        },
    ),
}


@dataclass(frozen=True)
class JobResult:
    """One job's times on the shared network, in seconds per iteration, while all jobs run."""

    name: str
    trace: str
    strategy: str
    library: str
    """The library that is modeled, alone and next to other jobs."""
    sharding: str
    """`none`, `zero3`, `hsdp:8`, …"""
    workers: int
    nodes: tuple[int, ...]
    server_nodes: tuple[int, ...]
    iterations: int
    """Iterations over which the mean is taken."""
    iteration_s: float | None
    """None: stopped before it was known."""
    alone_s: float | None
    """The same iterations on the same nodes without the other jobs."""
    samples_per_s: float
    compute_s: float | None
    """Computation of one worker alone, of that. None: stopped before it was known."""
    bottleneck: Resource | None
    """Where most of an iteration's critical path is, beside the other jobs; as `bottleneck.bound_by` says."""
    notes: tuple[Note, ...]

    @property
    def slowdown(self) -> float | None:
        """How many times longer an iteration takes than alone; None: stopped before it was known."""
        if self.iteration_s is None or self.alone_s is None:
            return None
        return self.iteration_s / self.alone_s if self.alone_s > 0 else 1.0


@dataclass(frozen=True)
class SharedLink:
    """A link: how busy it was, and the jobs that used it."""

    name: str
    kind: str
    busy: float
    """Share of the time."""
    jobs: tuple[str, ...]


@dataclass(frozen=True)
class WhatIf:
    """A change of the network and what it brings."""

    measure: Measure
    iteration_s: tuple[float, ...] | None
    """Of each job; None if the change is not possible, for the reason in `about`."""
    speedups: tuple[float, ...] = ()
    mean_speedup: float = 1.0
    """Geometric mean over the jobs."""
    about: About | None = None


@dataclass(frozen=True)
class JobsResult:
    """Several jobs on one network."""

    mix: Mix
    jobs: tuple[JobResult, ...]
    pairs: tuple[tuple[float | None, ...], ...]
    """Slowdown of job i with only job j beside it; 1 on the diagonal, None if stopped before it was known."""
    links: tuple[SharedLink, ...]
    """Links that carried data, busiest first."""
    measured_s: float
    what_if: tuple[WhatIf, ...]
    by_collective: bool = False
    """Whether collectives were single events, because their messages were too many."""
    is_partial: bool = False
    """Whether it was stopped."""


@dataclass(frozen=True)
class _Ran:
    """One simulation."""

    jobs: Mapping[str, _core.JobOutcome]
    """By name."""
    links: list[_core.SharedLink]
    measured_s: float
    is_complete: bool
    """Whether it was not stopped."""

    def mean_s(self, name: str, between: tuple[int, int] | None = None) -> float | None:
        """Return seconds per iteration; None if it was stopped before there was one."""
        job = self.jobs[name]
        first, last = between or job.measured
        marks = job.marks_ps
        if last <= first or last >= len(marks):
            return None
        return (marks[last] - marks[first]) * 1e-12 / ((last - first) * job.sync_every)


class _Simulations:
    """Simulates jobs of a mix, all as one does: with every message, or with collectives as single events."""

    def __init__(self, mix: Mix, changed: Sequence[Mix], packed: Sequence[Mix]) -> None:
        self._watch = _core.JobsWatch()
        self._placed = {id(one): _placed(one, self._watch) for one in (mix, *changed, *packed)}
        self._iterations = mix.iterations
        whole = self._placed[id(mix)]
        jobs = len(mix.jobs)
        # Of each job: with all others and alone, as it is and with each change; and with each of the others.
        times = 2 * (1 + len(changed)) + (jobs - 1 if jobs > 2 else 0)
        messages = sum(whole.messages(self._iterations + 2)) * times
        nodes = {node for job in mix.jobs for node in job.nodes}
        most = _MOST_ON_FEW_NODES if len(nodes) <= _FEW_NODES else _MOST_MESSAGES
        self.by_collective = messages > most and whole.has_collectives_only
        self.total = 0
        self.is_stopped = False

    def run(
        self, mix: Mix, which: Sequence[int], *, marks: list[int] | None = None, timeline: Path | None = None
    ) -> _Ran:
        ran = self._placed[id(mix)].run(
            list(which),
            iterations=self._iterations,
            marks=marks,
            by_collective=self.by_collective and timeline is None,
            timeline=timeline,
        )
        return _Ran({job.name: job for job in ran.jobs}, ran.links, ran.measured_s, ran.is_complete)

    def completed(
        self, pool: Executor, runs: Sequence[Callable[[], _Ran]], bar: Bar | None, *, is_first: bool = False
    ) -> list[_Ran]:
        """Run all; after Ctrl-C they have what they had then, also those that wait for a thread.

        `is_first`: nothing can be said if the first has made no iteration by then, and KeyboardInterrupt is raised.
        """
        if self.is_stopped:
            return [run() for run in runs]
        futures = [pool.submit(run) for run in runs]
        try:
            left = True
            while left:
                left = bool(wait(futures, timeout=_TICK_S).not_done)
                if bar is not None:
                    bar(min(self._watch.rounds, self.total), self.total)
        except KeyboardInterrupt:
            self._watch.stop()
            self.is_stopped = True
            # The threads may be busy with forecasts of single jobs, which nothing stops.
            ran: list[_Ran] = []
            for run, future in zip(runs, futures, strict=True):
                ran.append(run() if future.cancel() else future.result())
                if is_first and not any(job.marks_ps for job in ran[0].jobs.values()):
                    raise
            return ran
        return [future.result() for future in futures]


def _placed(mix: Mix, watch: _core.JobsWatch) -> _core.JobsOnNetwork:
    jobs = [job.for_core(mix.seed) for job in mix.jobs]
    return _core.JobsOnNetwork(mix.cluster, jobs, mix.nodes, mix.network, watch)


def simulate_jobs(mix: Mix, *, timeline: Path | None = None, bar: Bar | None = None) -> JobsResult:
    """Simulate the jobs of a mix together, in pairs and alone, and with changes of the network.

    Args:
        mix: The jobs, from `paceline.forecast.jobs.spec.read`.
        timeline: A file for a Chrome trace of all jobs together.
        bar: Shows progress: iterations that all jobs of a simulation have made, of those of all simulations.

    Returns:
        The slowdown of each job, who causes it, the links they share, and what would help. After Ctrl-C: what of that
        was known by then, with `is_partial`.

    Raises:
        InvalidArgumentError: A job cannot be simulated; the message begins with its name.
        KeyboardInterrupt: Ctrl-C before any job had made an iteration.
    """
    jobs = mix.jobs
    everyone = range(len(jobs))
    pool = ThreadPoolExecutor(cores())
    by_itself = {job.name: pool.submit(result_of, job.by_itself) for job in jobs}
    try:
        changes = _changes(mix, inside=_is_bound_inside(jobs, by_itself))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pairs = list(combinations(everyone, 2)) if len(jobs) > 2 else []
    mixes = [mix, *(changed for _, changed, _ in changes if changed is not None)]
    packed = [_packed(one) for one in mixes]
    simulations = _Simulations(mix, mixes[1:], [own for of_mix in packed for own in of_mix.values()])
    runs = len(mixes) * (1 + len(jobs)) + len(pairs) + sum(map(len, packed))
    # Each to the end of the iterations wanted, after the first and what of the next is under way.
    simulations.total = runs * (mix.iterations + 2)
    try:
        runs_first = [partial(simulations.run, mix, everyone, timeline=timeline)]
        runs_first += [partial(simulations.run, mix, pair) for pair in pairs]
        runs_first += [partial(simulations.run, changed, everyone) for changed in mixes[1:]]
        ran = simulations.completed(pool, runs_first, bar, is_first=True)
        by_themselves = [by_itself]
        by_themselves += [{job.name: pool.submit(result_of, job.by_itself) for job in one.jobs} for one in mixes[1:]]
        beside, together = ran[1 : 1 + len(pairs)], [ran[0], *ran[1 + len(pairs) :]]
        # Each job alone is run as far as in any of these, and compared over the same iterations.
        compared = [[ran[0], *beside], *([one] for one in together[1:])]
        runs_alone: list[Callable[[], _Ran]] = []
        for one, own, runs_of in zip(mixes, packed, compared, strict=True):
            last = {job.name: max(r.jobs[job.name].measured[1] for r in runs_of if job.name in r.jobs) for job in jobs}
            runs_alone += [partial(simulations.run, one, [at], marks=[last[jobs[at].name] + 1]) for at in everyone]
            runs_alone += [partial(simulations.run, only, [0], marks=[last[name] + 1]) for name, only in own.items()]
        later = iter(simulations.completed(pool, runs_alone, bar))
        if not simulations.is_stopped:
            wait([future for of_mix in by_themselves for future in of_mix.values()])
        forecasts: list[_Forecast] = []
        for run, own, results_of in zip(together, packed, by_themselves, strict=True):
            alone = {job.name: next(later) for job in jobs}
            on_first = {name: next(later) for name in own}
            forecasts.append(_Forecast.of(run, alone, on_first, results_of, forecasts[0].scale if forecasts else {}))
    finally:
        # After Ctrl-C nobody waits for the forecasts of single jobs.
        pool.shutdown(wait=False, cancel_futures=True)
    base, *changed_ones = forecasts

    def slowdown(run: _Ran, name: str) -> float | None:
        own, alone = run.mean_s(name), base.alone[name].mean_s(name, run.jobs[name].measured)
        if own is None or alone is None:
            return None
        return own / alone if alone > 0 else 1.0

    runs_of_pairs = beside or [base.together]  # Two jobs together are their only pair.
    by_pair = {frozenset(pair): run for pair, run in zip(combinations(everyone, 2), runs_of_pairs, strict=False)}
    matrix = tuple(
        tuple(1.0 if a == b else slowdown(by_pair[frozenset((a, b))], jobs[a].name) for b in everyone) for a in everyone
    )
    results = tuple(_result(job, base) for job in jobs)
    if all(one.iteration_s is None for one in results):
        raise KeyboardInterrupt
    changed_run = iter(changed_ones)
    what_if = tuple(
        WhatIf(measure, None, about=about) if changed is None else _gain(measure, results, next(changed_run), about)
        for measure, changed, about in changes
    )
    links = tuple(
        SharedLink(one.name, one.kind, one.busy, tuple(jobs[number].name for number in one.jobs))
        for one in base.together.links
    )
    is_partial = not all(run.is_complete for run in [*ran, *(run for one in forecasts for run in one.alone.values())])
    measured_s, by_collective = base.together.measured_s, simulations.by_collective
    return JobsResult(mix, results, matrix, links, measured_s, what_if, by_collective, is_partial)


@dataclass(frozen=True)
class _Forecast:
    """A mix as it is, or with a change: its jobs together and alone, and what their libraries cost."""

    together: _Ran
    alone: dict[str, _Ran]
    scale: dict[str, float]
    """How many times longer an iteration of a job takes than its messages say."""
    by_themselves: Mapping[str, Result]
    """Forecasts of `paceline simulate` for the jobs that have one."""

    @classmethod
    def of(
        cls,
        together: _Ran,
        alone: dict[str, _Ran],
        packed: Mapping[str, _Ran],
        by_themselves: Mapping[str, Future[Result]],
        otherwise: Mapping[str, float],
    ) -> _Forecast:
        """Compare jobs alone, on the nodes that a forecast of one job assumes, with that forecast.

        `otherwise`: the scales of jobs that were stopped before theirs were known.
        """
        scale = {
            name: _scale(forecast, packed.get(name, alone[name]).mean_s(name, together.jobs[name].measured))
            or otherwise.get(name, 1.0)
            for name, forecast in by_themselves.items()
        }
        known = {name: future.result() for name, future in by_themselves.items() if _is_known(future)}
        return cls(together, alone, scale, known)

    def iteration_s(self, name: str) -> float | None:
        """Return what an iteration takes beside the other jobs; None if it was stopped before that was known."""
        return self._with_library(name, self.together.mean_s(name))

    def alone_s(self, name: str) -> float | None:
        """Return what the same iterations take alone."""
        return self._with_library(name, self.alone[name].mean_s(name, self.together.jobs[name].measured))

    def _with_library(self, name: str, seconds: float | None) -> float | None:
        return None if seconds is None else self.scale[name] * seconds


def _is_known(forecast: Future[Result]) -> bool:
    return forecast.done() and not forecast.cancelled()


def _scale(forecast: Future[Result], messages_s: float | None) -> float | None:
    # After Ctrl-C neither may be known.
    if not _is_known(forecast) or messages_s is None or messages_s <= 0:
        return None
    return forecast.result().iteration_s / messages_s


def _packed(mix: Mix) -> dict[str, Mix]:
    """Return each job on the nodes that a forecast of one job assumes, where it matters which they are."""
    if mix.is_alike_everywhere:
        return {}
    return {job.name: replace(mix, jobs=(job.packed,)) for job in mix.jobs if job.packed != job}


def _result(job: PlacedJob, forecast: _Forecast) -> JobResult:
    together = forecast.together.jobs[job.name]
    first, last = together.measured
    iteration_s, by_itself = forecast.iteration_s(job.name), forecast.by_themselves.get(job.name)
    samples: float = job.scenario.workers * together.samples
    if job.scenario.workload is not None:
        samples /= job.scenario.workload.context
    return JobResult(
        name=job.name,
        trace=job.scenario.trace.name,
        strategy=job.scenario.strategy.name,
        library=job.by_itself.library.name,
        sharding=job.scenario.options.get("sharding", NONE),
        workers=job.scenario.workers,
        nodes=job.nodes,
        server_nodes=job.server_nodes,
        iterations=(last - first) * together.sync_every,
        iteration_s=iteration_s,
        alone_s=forecast.alone_s(job.name),
        samples_per_s=samples / iteration_s if iteration_s else 0.0,
        compute_s=None if by_itself is None else by_itself.compute_s,
        bottleneck=None if by_itself is None else bound_by(by_itself, job.spans_nodes, iteration_s),
        notes=tuple(together.notes),
    )


def _gain(measure: Measure, before: Sequence[JobResult], forecast: _Forecast, about: About | None) -> WhatIf:
    after = [forecast.iteration_s(job.name) for job in before]
    pairs = [(job.iteration_s, now) for job, now in zip(before, after, strict=True)]
    known = [(was, now) for was, now in pairs if was is not None and now is not None]
    if len(known) < len(pairs):
        return WhatIf(measure, None, about=About(Remark.STOPPED))
    speedups = tuple(was / now if now > 0 else 1.0 for was, now in known)
    mean = math.exp(sum(math.log(gain) for gain in speedups) / len(speedups)) if all(speedups) else 0.0
    return WhatIf(measure, tuple(now for _, now in known), speedups, mean, about)


def _is_bound_inside(jobs: Sequence[PlacedJob], by_itself: Mapping[str, Future[Result]]) -> bool:
    return any(bound_by(by_itself[job.name].result(), job.spans_nodes) is Resource.INSIDE for job in jobs)


_Changed = tuple[Measure, Mix | None, About | None]


def _changes(mix: Mix, *, inside: bool) -> list[_Changed]:
    """Return what could be changed, the mix with it or None, and what is to be said of it.

    `inside`: whether the links inside nodes bound a job.
    """
    changes: list[_Changed] = []
    try:
        faster = _on(mix, _with_twice_the_bandwidth)
        jobs = tuple(job.changed(lambda one: with_faster_links(one, inside=False)) for job in faster.jobs)
        changes.append((Measure.BANDWIDTH, replace(faster, jobs=jobs), None))
    except InvalidArgumentError:
        changes.append((Measure.BANDWIDTH, None, About(Remark.HIGHEST_RATE)))
    if inside:
        try:
            faster = _on(mix, _with_twice_inside)
            jobs = tuple(job.changed(lambda one: with_faster_links(one, between=False)) for job in faster.jobs)
            changes.append((Measure.BANDWIDTH_INSIDE_NODES, replace(faster, jobs=jobs), None))
        except InvalidArgumentError:
            changes.append((Measure.BANDWIDTH_INSIDE_NODES, None, About(Remark.HIGHEST_RATE)))
    changes += _less_oversubscribed(mix)
    if not any(job.spans_nodes for job in mix.jobs):
        return changes  # No switch carries what they exchange.
    for measure, (feature, becomes) in _WITH.items():
        able = with_switch(mix.cluster, feature)
        if able is None:
            changes.append((measure, None, About(Remark.NOT_MODELED)))
            continue
        possible = {one.name for one in feasible(map(find_strategy, becomes.values()), able)[0]}
        jobs = tuple(_using(job, {old: new for old, new in becomes.items() if new in possible}) for job in mix.jobs)
        using = tuple(
            (new.name, new.scenario.strategy.name) for new, old in zip(jobs, mix.jobs, strict=True) if new is not old
        )
        if not using:
            used = any(feature in job.scenario.strategy.knobs for job in mix.jobs)
            planned = tuple(
                (job.name, job.scenario.strategy.name)
                for job in mix.jobs
                if job.is_planned and job.scenario.strategy.name in becomes
            )
            why = Remark.USED if used else Remark.PLANNED if planned else Remark.NO_FORM
            changes.append((measure, None, About(why, jobs=planned)))
            continue
        on_able = _on(replace(mix, jobs=jobs), partial(_with_switch, feature))
        changes.append((measure, on_able, About(Remark.JOBS, jobs=using)))
    return changes


def _with_switch(feature: str, cluster: Cluster) -> Cluster:
    return with_switch(cluster, feature) or cluster


def _with_twice_the_bandwidth(cluster: Cluster) -> Cluster:
    return cluster.replace(bandwidth_bps=float(round(2 * cluster.bandwidth_bps)))


def _with_twice_inside(cluster: Cluster) -> Cluster:
    return cluster.replace(intra_bandwidth_bps=float(round(2 * cluster.intra_bandwidth_bps)))


def _less_oversubscribed(mix: Mix) -> list[_Changed]:
    """Return the change of racks or a fabric that have less than their nodes send."""
    racks, fabric = mix.cluster.racks, mix.cluster.fabric
    over = racks.oversubscription if racks is not None else None if fabric is None else fabric.oversubscription
    if over is None or over <= 1:
        return []
    left = max(1.0, over / 2)
    try:
        if racks is not None:
            relaxed = Racks(racks.nodes_per_rack, left)
            changed = _on(mix, lambda cluster: cluster.replace(racks=relaxed))
        else:
            assert fabric is not None
            links = fabric.with_oversubscription(left)
            changed = _on(mix, lambda cluster: cluster.replace(fabric=links))
    except InvalidArgumentError:
        return []
    measure = Measure.OVERSUBSCRIPTION if over >= 2 else Measure.NO_OVERSUBSCRIPTION
    return [(measure, changed, About(Remark.RATIO, ratio=left))]


def _on(mix: Mix, change: Callable[[Cluster], Cluster]) -> Mix:
    """Return the mix on its cluster with a change, which the forecasts of its jobs by themselves have, too."""
    jobs = tuple(job.changed(lambda one: one.changed(cluster=change(one.cluster))) for job in mix.jobs)
    return replace(mix, cluster=change(mix.cluster), jobs=jobs)


def _using(job: PlacedJob, becomes: Mapping[str, str]) -> PlacedJob:
    name = becomes.get(job.scenario.strategy.name)
    if name is None or job.is_planned or not job.spans_nodes:
        return job
    return job.changed(lambda one: one.under(find_strategy(name)))
