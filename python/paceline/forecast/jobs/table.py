"""The tables of several jobs for people: how each fares, who hurts whom, which links they share, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline.catalog.builtin import cluster_document
from paceline.forecast.jobs.model import JobResult, JobsResult, SharedLink
from paceline.forecast.kinds import Resource
from paceline.forecast.sharding import NONE
from paceline.forecast.wording import jobs, labels, terms
from paceline.forecast.wording.jobs import UNKNOWN, times

SCHEMA = 1
_MOST_LINKS = 8
_SHORT = {Resource.NICS: "network"}


def table(result: JobsResult) -> list[str]:
    """Return all tables, as lines."""
    lines = [jobs.title(result), "", *_jobs(result)]
    if len(result.jobs) > 1:
        lines += ["", *_matrix(result)]
        lines += ["", *_links(result)]
    return [*lines, "", *_what_if(result)]


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
            UNKNOWN if job.iteration_s is None else units.in_unit(job.iteration_s, time),
            UNKNOWN if job.alone_s is None else units.in_unit(job.alone_s, time),
            times(job.slowdown),
            UNKNOWN if job.iteration_s is None else units.digits(job.samples_per_s),
            UNKNOWN if job.compute_s is None else units.in_unit(job.compute_s, time),
            UNKNOWN if job.bottleneck is None else _SHORT.get(job.bottleneck) or terms.place(job.bottleneck),
        ]
        for job in result.jobs
    ]
    return render(columns, [rows], highlight_first=False)


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
        [name, *("-" if row is column else times(result.pairs[row][column]) for column in range(len(names)))]
        for row, name in enumerate(names)
    ]
    for row, cells in enumerate(rows):
        cells[1 + row] = "-"
        cells.append(times(result.jobs[row].slowdown))
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
            terms.measure(one.measure),
            "-" if one.iteration_s is None else f"{one.mean_speedup:.2f}",
            *(["-"] * len(names) if one.iteration_s is None else [f"{gain:.2f}" for gain in one.speedups]),
            terms.remark(one.about),
        ]
        for one in result.what_if
    ]
    return render(columns, [rows], highlight_first=False)


def to_dict(result: JobsResult) -> dict[str, Any]:
    """Return it as `--json` prints it."""
    names = [job.name for job in result.jobs]
    return {
        "schema": SCHEMA,
        **({"resolution": "collectives"} if result.by_collective else {}),
        **({"partial": True} if result.is_partial else {}),
        "cluster": cluster_document(result.mix.cluster),
        "nodes": result.mix.nodes,
        "network": result.mix.network,
        "measured_s": result.measured_s,
        "notes": list(result.mix.notes),
        "jobs": [_of_job(job) for job in result.jobs],
        "slowdown_beside": {
            name: dict(zip(names, row, strict=True)) for name, row in zip(names, result.pairs, strict=True)
        },
        "links": [{**vars(link), "jobs": list(link.jobs)} for link in result.links],
        "what_if": [
            {
                "change": labels.measure(one.measure),
                "iteration_s": None if one.iteration_s is None else dict(zip(names, one.iteration_s, strict=True)),
                "mean_speedup": one.mean_speedup,
                "note": terms.remark(one.about),
            }
            for one in result.what_if
        ],
    }


def _of_job(job: JobResult) -> dict[str, Any]:
    bottleneck = None if job.bottleneck is None else labels.place(job.bottleneck)
    notes = list(map(terms.note, job.notes))
    fields = vars(job) | {"bottleneck": bottleneck, "notes": notes, "slowdown": job.slowdown}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
