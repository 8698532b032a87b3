"""Simulates jobs together, in pairs and alone, and with changes of the network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from paceline import _core
from paceline._core import Cluster
from paceline._internal.console import Bar
from paceline._internal.system import cores
from paceline._internal.units import listed
from paceline.catalog.library import load_cluster
from paceline.catalog.strategies import feasible, find_strategy, with_switch
from paceline.errors import InvalidArgumentError
from paceline.forecast.bottleneck import with_faster_links
from paceline.forecast.explain import NOT_IN_THIS_FABRIC
from paceline.forecast.jobs.spec import Mix, PlacedJob
from paceline.forecast.sharding import NONE
from paceline.settings.table import naming_core_errors

SCHEMA = 1
# What each strategy becomes if the switch can do more.
_WITH = {
    "multicast": {
        "ps": "ps-multicast",
        "ps-aggregation": "ps-multicast-aggregation",
        "ring": "ring-multicast",
    },
    "aggregation": {
        "ps": "ps-aggregation",
        "ps-multicast": "ps-multicast-aggregation",
        **dict.fromkeys(
            ("ring", "ring-multicast", "recursive-doubling", "halving-doubling", "tree", "hierarchical", "native"),
            "sharp",
        ),
    },
}


@dataclass(frozen=True)
class JobResult:
    """What one job gets of the shared network; times in seconds per iteration, while all jobs run."""

    name: str
    trace: str
    strategy: str
    library: str
    """The library whose costs it has, alone and beside others."""
    sharding: str
    """`none`, `zero3`, `hsdp:8`, …"""
    workers: int
    nodes: tuple[int, ...]
    server_nodes: tuple[int, ...]
    iterations: int
    """Iterations over which the mean is taken."""
    iteration_s: float
    alone_s: float
    """The same iterations on the same nodes without the other jobs."""
    samples_per_s: float
    notes: tuple[str, ...]

    @property
    def slowdown(self) -> float:
        """How many times longer an iteration takes than alone."""
        return self.iteration_s / self.alone_s if self.alone_s > 0 else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        fields = vars(self) | {"slowdown": self.slowdown}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


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

    change: str
    iteration_s: tuple[float, ...] | None
    """Of each job; None if the change is not possible, for the reason in `note`."""
    speedups: tuple[float, ...] = ()
    mean_speedup: float = 1.0
    """Geometric mean over the jobs."""
    note: str = ""


@dataclass(frozen=True)
class JobsResult:
    """Several jobs on one network."""

    mix: Mix
    jobs: tuple[JobResult, ...]
    pairs: tuple[tuple[float, ...], ...]
    """Slowdown of job i with only job j beside it; 1 on the diagonal."""
    links: tuple[SharedLink, ...]
    """Links that carried data, busiest first."""
    measured_s: float
    what_if: tuple[WhatIf, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        names = [job.name for job in self.jobs]
        return {
            "schema": SCHEMA,
            "cluster": json.loads(self.mix.cluster.to_json()),
            "nodes": self.mix.nodes,
            "network": self.mix.network,
            "measured_s": self.measured_s,
            "notes": list(self.mix.notes),
            "jobs": [job.to_dict() for job in self.jobs],
            "slowdown_beside": {
                name: dict(zip(names, row, strict=True)) for name, row in zip(names, self.pairs, strict=True)
            },
            "links": [{**vars(link), "jobs": list(link.jobs)} for link in self.links],
            "what_if": [
                {
                    "change": one.change,
                    "iteration_s": None if one.iteration_s is None else dict(zip(names, one.iteration_s, strict=True)),
                    "mean_speedup": one.mean_speedup,
                    "note": one.note,
                }
                for one in self.what_if
            ],
        }


@dataclass(frozen=True)
class _Ran:
    """One simulation: for each job the ends of its rounds in picoseconds, and which of them are measured."""

    marks: dict[str, list[int]]
    measured: dict[str, tuple[int, int]]
    sync_every: dict[str, int]
    """Iterations of a round."""
    samples: dict[str, int]
    """Of a worker in an iteration."""
    notes: dict[str, tuple[str, ...]]
    links: list[dict[str, Any]]
    measured_s: float

    def mean_s(self, name: str, between: tuple[int, int] | None = None) -> float:
        first, last = between or self.measured[name]
        rounds = (last - first) * self.sync_every[name]
        return (self.marks[name][last] - self.marks[name][first]) * 1e-12 / rounds


def _run(
    mix: Mix,
    jobs: Sequence[PlacedJob],
    *,
    marks: list[int] | None = None,
    timeline: Path | None = None,
) -> _Ran:
    wanted = {
        "nodes": mix.nodes,
        "network": mix.network,
        "iterations": mix.iterations,
        "jobs": [job.for_core(mix.seed) for job in jobs],
        **({"marks": marks} if marks is not None else {}),
    }
    with naming_core_errors():
        text = _core.simulate_mix([job.scenario.trace for job in jobs], mix.cluster, json.dumps(wanted), timeline)
    found = json.loads(text)
    return _Ran(
        {job["name"]: job["marks_ps"] for job in found["jobs"]},
        {job["name"]: tuple(job["measured"]) for job in found["jobs"]},
        {job["name"]: job["sync_every"] for job in found["jobs"]},
        {job["name"]: job["samples"] for job in found["jobs"]},
        {job["name"]: tuple(job["notes"]) for job in found["jobs"]},
        found["links"],
        found["measured_s"],
    )


def simulate_jobs(mix: Mix, *, timeline: Path | None = None, bar: Bar | None = None) -> JobsResult:
    """Simulate the jobs of a mix together, in pairs and alone, and with changes of the network.

    Args:
        mix: The jobs, from `paceline.forecast.jobs.spec.read`.
        timeline: A file for a Chrome trace of all jobs together.
        bar: Shows progress.

    Returns:
        The slowdown of each job, who causes it, the links they share, and what would help.

    Raises:
        InvalidArgumentError: A job cannot be simulated; the message begins with its name.
    """
    jobs = mix.jobs
    changes = _changes(mix)
    pairs = list(combinations(jobs, 2)) if len(jobs) > 2 else []
    mixes: list[tuple[Mix, Sequence[PlacedJob]]] = [(mix, pair) for pair in pairs]
    mixes += [(changed, changed.jobs) for _, changed, _ in changes if changed is not None]
    with ThreadPoolExecutor(cores()) as pool:
        whole = pool.submit(_run, mix, jobs, timeline=timeline)
        others = [pool.submit(_run, changed, subset) for changed, subset in mixes]
        ran = _counted(whole, others, bar)
        together, beside, changed_runs = ran[0], ran[1 : 1 + len(pairs)], ran[1 + len(pairs) :]
        # Each job alone is run as far as in any of these, and compared over the same iterations.
        last = {
            job.name: max(one.measured[job.name][1] for one in [together, *beside] if job.name in one.marks)
            for job in jobs
        }
        alone = {job.name: pool.submit(_run, mix, [job], marks=[last[job.name] + 1]) for job in jobs}
        forecasts = {job.name: pool.submit(job.by_itself.result) for job in jobs}
        # On the nodes that a forecast of one job assumes, where it matters which they are.
        packed = {
            job.name: pool.submit(_run, mix, [job.packed], marks=[last[job.name] + 1])
            for job in jobs
            if not mix.is_alike_everywhere and job.packed != job
        }
        alone_runs = {name: future.result() for name, future in alone.items()}
        packed_runs = alone_runs | {name: future.result() for name, future in packed.items()}
        scale = {
            name: _scale(future.result().iteration_s, packed_runs[name].mean_s(name, together.measured[name]))
            for name, future in forecasts.items()
        }

    def slowdown(run: _Ran, name: str) -> float:
        base = alone_runs[name].mean_s(name, run.measured[name])
        return run.mean_s(name) / base if base > 0 else 1.0

    runs_of_pairs = beside or [together]  # Two jobs together are their only pair.
    by_pair = {
        frozenset((a.name, b.name)): run for (a, b), run in zip(combinations(jobs, 2), runs_of_pairs, strict=False)
    }
    matrix = tuple(
        tuple(1.0 if a is b else slowdown(by_pair[frozenset((a.name, b.name))], a.name) for b in jobs) for a in jobs
    )
    results = tuple(_result(job, together, alone_runs[job.name], scale[job.name]) for job in jobs)
    runs = iter(changed_runs)
    what_if = tuple(
        WhatIf(change, None, note=note) if changed is None else _gain(change, results, next(runs), scale, note)
        for change, changed, note in changes
    )
    links = tuple(
        SharedLink(one["name"], one["kind"], one["busy"], tuple(jobs[number].name for number in one["jobs"]))
        for one in together.links
    )
    return JobsResult(mix, results, matrix, links, together.measured_s, what_if)


def _counted(whole: Any, others: Sequence[Any], bar: Bar | None) -> list[_Ran]:  # noqa: ANN401 - futures
    futures = [whole, *others]
    results = []
    for number, future in enumerate(futures, start=1):
        results.append(future.result())
        if bar is not None:
            bar(number, len(futures))
    return results


def _scale(forecast_s: float, messages_s: float) -> float:
    """Return how many times longer an iteration takes than its messages say: what the job's library costs."""
    return forecast_s / messages_s if messages_s > 0 else 1.0


def _result(job: PlacedJob, together: _Ran, alone: _Ran, scale: float) -> JobResult:
    first, last = together.measured[job.name]
    iteration_s = scale * together.mean_s(job.name)
    summary = json.loads(job.scenario.trace.summary())
    samples: float = job.scenario.workers * together.samples[job.name]
    if job.scenario.workload is not None:
        samples /= job.scenario.workload.context
    return JobResult(
        name=job.name,
        trace=summary["name"],
        strategy=job.scenario.strategy.name,
        library=job.by_itself.library.name,
        sharding=job.scenario.options.get("sharding", NONE),
        workers=job.scenario.workers,
        nodes=job.nodes,
        server_nodes=job.server_nodes,
        iterations=(last - first) * together.sync_every[job.name],
        iteration_s=iteration_s,
        alone_s=scale * alone.mean_s(job.name, (first, last)),
        samples_per_s=samples / iteration_s if iteration_s > 0 else 0.0,
        notes=together.notes[job.name],
    )


def _gain(change: str, before: Sequence[JobResult], run: _Ran, scale: Mapping[str, float], note: str) -> WhatIf:
    after = tuple(scale[job.name] * run.mean_s(job.name) for job in before)
    speedups = tuple(job.iteration_s / now if now > 0 else 1.0 for job, now in zip(before, after, strict=True))
    mean = math.exp(sum(math.log(gain) for gain in speedups) / len(speedups)) if all(speedups) else 0.0
    return WhatIf(change, after, speedups, mean, note)


def _changes(mix: Mix) -> list[tuple[str, Mix | None, str]]:
    """Return what could be changed: its name, the mix with it or None, and a note."""
    described = json.loads(mix.cluster.to_json())
    twice = _core.parse_rate(described["bandwidth"]) * 2
    changes: list[tuple[str, Mix | None, str]] = []
    try:
        faster = load_cluster(mix.cluster, bandwidth=f"{twice:.0f}bps")
        jobs = tuple(replace(job, scenario=with_faster_links(job.scenario, inside=False)) for job in mix.jobs)
        changes.append(("twice the bandwidth", replace(_on(mix, faster), jobs=jobs), ""))
    except InvalidArgumentError:
        changes.append(("twice the bandwidth", None, "more than the highest rate of a cluster"))
    changes += _less_oversubscribed(mix, described)
    for feature, becomes in _WITH.items():
        able = with_switch(mix.cluster, feature)
        if able is None:
            changes.append((f"{feature} in the switch", None, NOT_IN_THIS_FABRIC))
            continue
        possible = {one.name for one in feasible(map(find_strategy, becomes.values()), able)[0]}
        jobs = tuple(_using(job, {old: new for old, new in becomes.items() if new in possible}) for job in mix.jobs)
        names = [
            f"{new.name}: {new.scenario.strategy.name}"
            for new, old in zip(jobs, mix.jobs, strict=True)
            if new is not old
        ]
        if not names:
            used = any(feature in job.scenario.strategy.knobs for job in mix.jobs)
            planned = [job.name for job in mix.jobs if job.is_planned and job.scenario.strategy.name in becomes]
            why = "already used" if used else "no job's strategy has a form that uses it"
            if planned and not used:
                why = f"not for {listed(planned)}, which {'does' if len(planned) == 1 else 'do'} more than all-reduces"
            changes.append((f"{feature} in the switch", None, why))
            continue
        changes.append((f"{feature} in the switch", replace(_on(mix, able), jobs=jobs), ", ".join(names)))
    return changes


def _less_oversubscribed(mix: Mix, described: Mapping[str, Any]) -> list[tuple[str, Mix | None, str]]:
    """Return the change of racks or a fabric that have less than their nodes send."""
    for part in ("racks", "fabric"):
        over = described.get(part, {}).get("oversubscription", 1.0)
        if over > 1:
            relaxed = {**described[part], "oversubscription": max(1.0, over / 2)}
            change = "half the oversubscription" if over >= 2 else "no oversubscription"
            note = f"{max(1.0, over / 2):g}:1"
            try:
                return [(change, _on(mix, load_cluster(mix.cluster, **{part: relaxed})), note)]
            except InvalidArgumentError:
                return []
    return []


def _on(mix: Mix, cluster: Cluster) -> Mix:
    return replace(mix, cluster=cluster)


def _using(job: PlacedJob, becomes: Mapping[str, str]) -> PlacedJob:
    name = becomes.get(job.scenario.strategy.name)
    if name is None or job.is_planned:
        return job
    return replace(job, scenario=job.scenario.under(find_strategy(name)))
