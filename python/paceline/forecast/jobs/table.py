"""The tables of several jobs for people: how each fares, who hurts whom, which links they share, what would help."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline.forecast.jobs.model import JobResult, JobsResult, SharedLink
from paceline.forecast.sharding import NONE
from paceline.forecast.verdict.bottleneck import BETWEEN

_MOST_LINKS = 8
_NOTICED = 0.005
_UNKNOWN = "?"
"""It was stopped before this was known."""
_SHORT = {BETWEEN: "network"}


def table(result: JobsResult) -> list[str]:
    """Return all tables, as lines."""
    lines = [_title(result), "", *_jobs(result)]
    if len(result.jobs) > 1:
        lines += ["", *_matrix(result)]
        lines += ["", *_links(result)]
    return [*lines, "", *_what_if(result)]


def _title(result: JobsResult) -> str:
    cluster = result.mix.cluster
    rate = units.rate(cluster.bandwidth_bps)
    words = [units.count(len(result.jobs), "job"), units.count(result.mix.nodes, "node"), f"{rate} per node"]
    if cluster.gpus_per_node > 1:
        words.append(f"shared by {cluster.gpus_per_node} GPUs")
    if cluster.racks is not None:
        words.append(f"racks of {cluster.racks.nodes_per_rack}, {cluster.racks.oversubscription:g}:1 oversubscribed")
    words += [f"{result.mix.network} network", *["each collective as a whole"] * result.by_collective]
    return ", ".join(words)


def _jobs(result: JobsResult) -> list[str]:
    time = units.time_unit(job.iteration_s for job in result.jobs if job.iteration_s is not None)
    are_sharded = any(job.sharding != NONE for job in result.jobs)
    columns = [
        Column("job", left=True),
        Column("trace", left=True),
        Column("strategy", left=True),
        *([Column("sharding", left=True)] if are_sharded else []),
        Column("workers"),
        Column("nodes", left=True),
        Column(f"iteration\n{time[1]}"),
        Column(f"alone\n{time[1]}"),
        Column("slowdown"),
        Column("samples/s"),
        Column(f"computes\n{time[1]}"),
        Column("bound by", left=True),
    ]
    rows = [
        [
            job.name,
            job.trace,
            job.strategy,
            *([job.sharding] if are_sharded else []),
            str(job.workers),
            _numbers([*job.nodes, *job.server_nodes]),
            _UNKNOWN if job.iteration_s is None else units.in_unit(job.iteration_s, time),
            _UNKNOWN if job.alone_s is None else units.in_unit(job.alone_s, time),
            _times(job.slowdown),
            _UNKNOWN if job.iteration_s is None else units.digits(job.samples_per_s),
            _UNKNOWN if job.compute_s is None else units.in_unit(job.compute_s, time),
            _SHORT.get(job.bottleneck or "", job.bottleneck or _UNKNOWN),
        ]
        for job in result.jobs
    ]
    return render(columns, [rows], highlight_first=False)


def _times(slowdown: float | None) -> str:
    return _UNKNOWN if slowdown is None else f"{slowdown:.2f}"


def _numbers(nodes: Sequence[int]) -> str:
    """Return `0-3, 7`."""
    runs: list[list[int]] = []
    for node in sorted(nodes):
        if runs and runs[-1][1] == node - 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(words) if len(words) <= 4 else f"{', '.join(words[:3])}, … ({len(nodes)})"


def _matrix(result: JobsResult) -> list[str]:
    names = [job.name for job in result.jobs]
    columns = [Column("slowdown of", left=True), *(Column(f"beside\n{name}") for name in names), Column("all\nothers")]
    rows = [
        [name, *("-" if row is column else _times(result.pairs[row][column]) for column in range(len(names)))]
        for row, name in enumerate(names)
    ]
    for row, cells in enumerate(rows):
        cells[1 + row] = "-"
        cells.append(_times(result.jobs[row].slowdown))
    return render(columns, [rows], highlight_first=False)


def shared(result: JobsResult) -> list[SharedLink]:
    """Return the links that several jobs use, busiest first."""
    return [link for link in result.links if len(link.jobs) > 1]


def _links(result: JobsResult) -> list[str]:
    links = shared(result)
    if not links:
        return ["No link carries data of more than one job."]
    columns = [Column("shared link", left=True), Column("busy"), Column("jobs", left=True)]
    rows = [[link.name, units.percent(link.busy), ", ".join(link.jobs)] for link in links[:_MOST_LINKS]]
    lines = render(columns, [rows], highlight_first=False)
    more = len(links) - len(rows)
    return [*lines, f"and {more} more"] if more else lines


def _what_if(result: JobsResult) -> list[str]:
    names = [job.name for job in result.jobs]
    columns = [
        Column("what if", left=True),
        Column("times faster\n(mean)"),
        *(Column(name) for name in names),
        Column("", left=True),
    ]
    rows = [
        [
            one.change,
            "-" if one.iteration_s is None else f"{one.mean_speedup:.2f}",
            *(["-"] * len(names) if one.iteration_s is None else [f"{gain:.2f}" for gain in one.speedups]),
            one.note,
        ]
        for one in result.what_if
    ]
    return render(columns, [rows], highlight_first=False)


def verdict(result: JobsResult) -> list[str]:
    """Return who suffers most, from whom, and what would help most, as sentences."""
    if result.is_partial:
        done = ", ".join(f"{job.name} {job.iterations}" for job in result.jobs)
        return [f"Stopped: what is shown is of the iterations made until then ({done}), and '{_UNKNOWN}' is not known."]
    sentences = []
    if len(result.jobs) > 1:
        sentences.append(_who(result))
    best = max((one for one in result.what_if if one.iteration_s is not None), key=lambda one: one.mean_speedup)
    if best.mean_speedup > 1 + _NOTICED:
        sentences.append(
            f"For the mix {best.change} would bring most: {best.mean_speedup:.2f} times faster on average."
        )
    else:
        sentences.append("Neither bandwidth nor a better switch would make this mix faster.")
    return sentences


def _who(result: JobsResult) -> str:
    slowdowns = [job.slowdown or 1.0 for job in result.jobs]
    row = max(range(len(slowdowns)), key=lambda it: slowdowns[it])
    worst: JobResult = result.jobs[row]
    if slowdowns[row] < 1 + _NOTICED:
        return "No job slows down another one."
    beside = zip(result.jobs, result.pairs[row], strict=True)
    most, by = max((slow or 1.0, job.name) for job, slow in beside if job is not worst)
    if most < 1 + _NOTICED:
        return f"{worst.name} suffers most, {slowdowns[row]:.2f} times slower than alone, from no single other job."
    return (
        f"{worst.name} suffers most, {slowdowns[row]:.2f} times slower than alone, mainly from {by} "
        f"({most:.2f} times slower beside it alone)."
    )
