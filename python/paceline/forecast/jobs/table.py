"""The answer about several jobs for people, with its tables, and as `--json` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline._internal import block, units
from paceline._internal.console import Column, render
from paceline.catalog.builtin import cluster_document
from paceline.forecast.jobs.model import JobResult, JobsResult, SharedLink
from paceline.forecast.sharding import NONE
from paceline.forecast.wording import jobs, labels, terms
from paceline.forecast.wording.jobs import UNKNOWN, times

SCHEMA = 1
_MOST_LINKS = 8


def lines(result: JobsResult) -> list[str]:
    """Return the answer for people."""
    return [
        *block.headline(jobs.headline(result)),
        "",
        *block.block(jobs.facts(result)),
        "",
        *table(result),
        *block.notes(jobs.notes(result)),
    ]


def table(result: JobsResult) -> list[str]:
    """Return all tables, as lines: jobs, slowdowns in pairs, shared links, changes; one job has changes alone."""
    if len(result.jobs) == 1:
        return _what_if(result)
    every = [_jobs(result), ["Slowdown next to one other job", *_matrix(result)], _links(result), _what_if(result)]
    return [line for one in every for line in [*one, ""]][:-1]


def _jobs(result: JobsResult) -> list[str]:
    time = units.time_unit(job.iteration_s for job in result.jobs if job.iteration_s is not None)
    are_sharded = any(job.sharding != NONE for job in result.jobs)
    columns = [
        Column("job", left=True),
        Column("trace", left=True, spare=3),
        Column("strategy", left=True, spare=2),
        *([Column("sharding", left=True, spare=1)] if are_sharded else []),
        Column("workers"),
        Column("nodes", left=True, spare=4),
        Column(f"iter {time[1]}"),
        Column(f"alone {time[1]}"),
        Column("slowdown"),
        Column("samples/s", spare=6),
        Column(f"compute {time[1]}", spare=7),
    ]
    rows = [
        [
            job.name,
            job.trace,
            job.strategy,
            *([terms.sharding_cell(job.sharding)] if are_sharded else []),
            f"{job.workers:,}",
            _numbers([*job.nodes, *job.server_nodes]),
            UNKNOWN if job.iteration_s is None else units.in_unit(job.iteration_s, time),
            UNKNOWN if job.alone_s is None else units.in_unit(job.alone_s, time),
            times(job.slowdown),
            UNKNOWN if job.iteration_s is None else units.digits(job.samples_per_s),
            UNKNOWN if job.compute_s is None else units.in_unit(job.compute_s, time),
        ]
        for job in result.jobs
    ]
    return render(columns, [rows])


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
    columns = [Column("job", left=True), *map(Column, names), Column("all")]
    rows = [
        [name, *("-" if row is column else times(result.pairs[row][column]) for column in range(len(names)))]
        for row, name in enumerate(names)
    ]
    for row, cells in enumerate(rows):
        cells[1 + row] = "-"
        cells.append(times(result.jobs[row].slowdown))
    return render(columns, [rows])


def shared(result: JobsResult) -> list[SharedLink]:
    """Return the links that several jobs use, busiest first."""
    return [link for link in result.links if len(link.jobs) > 1]


def _links(result: JobsResult) -> list[str]:
    links = shared(result)
    if not links:
        return ["No link carries data of more than one job."]
    columns = [Column("Shared links", left=True), Column("busy"), Column("jobs", left=True)]
    rows = [[link.name, units.percent(link.busy), ", ".join(link.jobs)] for link in links[:_MOST_LINKS]]
    lines = render(columns, [rows])
    more = len(links) - len(rows)
    return [*lines, f"{more} more: --json"] if more else lines


def _what_if(result: JobsResult) -> list[str]:
    names = [job.name for job in result.jobs]
    columns = [
        Column("What if", left=True),
        *([Column("mean")] if len(names) > 1 else []),
        *map(Column, names),
        Column("", left=True),
    ]
    rows = [
        [
            jobs.change(one),
            *(["-" if one.iteration_s is None else times(one.mean_speedup)] if len(names) > 1 else []),
            *(["-"] * len(names) if one.iteration_s is None else map(times, one.speedups)),
            jobs.remark(one),
        ]
        for one in result.what_if
    ]
    return render(columns, [rows])


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
