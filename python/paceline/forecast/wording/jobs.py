"""The words for several jobs on one network."""

from __future__ import annotations

from paceline._internal import units
from paceline._internal.block import Fact
from paceline.forecast.jobs.model import JobResult, JobsResult, WhatIf
from paceline.forecast.kinds import Remark
from paceline.forecast.wording import terms

_NOTICED = 0.005
UNKNOWN = "?"
"""It was stopped before this was known."""


def times(slowdown: float | None) -> str:
    """Return how many times slower or faster a job is: `1.28x`."""
    return UNKNOWN if slowdown is None else f"{slowdown:.2f}x"


def headline(result: JobsResult) -> str:
    """Return which job suffers most, and from whom."""
    if result.is_partial:
        done = ", ".join(f"{job.name} {job.iterations:,}" for job in result.jobs)
        return f"Interrupted: figures are of the iterations until then ({done}); {UNKNOWN} is not known"
    if len(result.jobs) == 1:
        [job] = result.jobs
        figures = f"{units.duration(job.iteration_s or 0.0)}/iteration, {units.digits(job.samples_per_s)} samples/s"
        return f"{job.name}, {job.strategy}, {units.count(job.workers, 'worker')}: {figures}"
    slowdowns = [job.slowdown or 1.0 for job in result.jobs]
    row = max(range(len(slowdowns)), key=lambda it: slowdowns[it])
    worst = result.jobs[row]
    if slowdowns[row] < 1 + _NOTICED:
        return f"None of {len(result.jobs)} jobs slows another down"
    return f"{worst.name} is hit hardest: {times(slowdowns[row])} slower than alone{_by(result, row, worst)}"


def _by(result: JobsResult, row: int, worst: JobResult) -> str:
    """Return which other job slows it down most, if a single one does."""
    others = zip(result.jobs, result.pairs[row], strict=True)
    most, by = max((slow or 1.0, job.name) for job, slow in others if job is not worst)
    if most < 1 + _NOTICED:
        return ", by no single job"
    return f", by {by}" if len(result.jobs) == 2 else f", mostly by {by} ({times(most)})"


def facts(result: JobsResult) -> list[Fact]:
    """Return what would help most, and the nodes and links."""
    made = []
    if not result.is_partial:
        best = max((one for one in result.what_if if one.iteration_s is not None), key=lambda one: one.mean_speedup)
        change, mean = terms.measure(best.measure), " on average" if len(result.jobs) > 1 else ""
        if best.mean_speedup > 1 + _NOTICED:
            made.append(Fact("Would help", f"{change}: {times(best.mean_speedup)} faster{mean}"))
        else:
            made.append(Fact("Would help", "neither bandwidth nor a better switch"))
    return [*_bottleneck(result), *made, Fact("Setup", _setup(result))]


def _bottleneck(result: JobsResult) -> list[Fact]:
    """Return where most of each job's critical path is."""
    places = [(job.name, terms.place(job.bottleneck)) for job in result.jobs if job.bottleneck is not None]
    if not places:
        return []
    if len(result.jobs) == 1:
        compute = f"compute alone: {units.duration(result.jobs[0].compute_s or 0.0)}"
        return [Fact("Bottleneck", f"{places[0][1]} ({compute})", tone="limit")]
    alike = len({place for _, place in places}) == 1 and len(places) == len(result.jobs)
    return [Fact("Bottleneck", *([f"{places[0][1]}, for all"] if alike else places), tone="limit")]


def _setup(result: JobsResult) -> str:
    """Return the nodes and their network."""
    cluster = result.mix.cluster
    jobs, nodes = units.count(len(result.jobs), "job"), units.count(result.mix.nodes, "node")
    words = [jobs, f"{nodes} of {cluster.gpus_per_node} GPUs" if cluster.gpus_per_node > 1 else nodes]
    words.append(f"{units.rate(cluster.bandwidth_bps)} per node")
    if cluster.racks is not None:
        words.append(f"racks of {cluster.racks.nodes_per_rack}, {cluster.racks.oversubscription:g}:1 oversubscribed")
    words.append("fluid links" if result.mix.network == "fluid" else f"{result.mix.network.upper()} links")
    return ", ".join([*words, *["each collective as a whole"] * result.by_collective])


def change(one: WhatIf) -> str:
    """Return what a change is called, with the ratio that is left."""
    ratio = one.about is not None and one.about.remark is Remark.RATIO
    return f"{terms.measure(one.measure)} ({terms.remark(one.about)})" if ratio else terms.measure(one.measure)


def remark(one: WhatIf) -> str:
    """Return why a change is not possible, or what else is to be said of it, in a word."""
    if one.about is None or one.about.remark in (Remark.RATIO, Remark.JOBS):
        return ""
    return terms.remark(one.about)


def notes(result: JobsResult) -> list[str]:
    """Return the notes on the mix, on jobs, and on their strategies under changes."""
    of_jobs = [f"{job.name}: {terms.note(note)}" for job in result.jobs for note in job.notes]
    return [*result.mix.notes, *of_jobs, *filter(None, map(_strategies, result.what_if))]


def _strategies(one: WhatIf) -> str:
    """Return which jobs have another strategy under a change."""
    if one.about is None or one.about.remark is not Remark.JOBS:
        return ""
    by: dict[str, list[str]] = {}
    for name, strategy in one.about.jobs:
        by.setdefault(strategy, []).append(name)
    return (
        f"With {terms.measure(one.measure)}: {', '.join(f'{name} ({units.listed(jobs)})' for name, jobs in by.items())}"
    )
