"""`paceline validate --here`: on every rank of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import job_text
from paceline._core import Cluster
from paceline.cli_probe import refuse_alone, show
from paceline.library import Strategy, load_cluster
from paceline.settings import Settings
from paceline.validate import plot as plots
from paceline.validate.cells import ALL, QUICK, strategies_of
from paceline.validate.here import Comparison, Here, cells, take_part
from paceline.validate.outcome import Validation

if TYPE_CHECKING:
    from paceline.job import Job
    from paceline.probe.layout import Layout


def compare_here(
    *,
    quick: bool,
    trace: list[str] | None,
    strategy: list[str] | None,
    bucket_size: str | None,
    network: str,
    repeats: int | None,
    cluster: str | None,
    plot: Path | None,
    **how: Any,  # noqa: ANN401 - shrink and scale
) -> Validation | None:
    """The comparison, at rank 0; elsewhere None. Raises UserError, JobError."""
    from paceline.probe.layout import Layout

    refuse_alone("paceline validate --here")
    wanted = _strategies(strategy)
    how["bucket_size"] = None if bucket_size == "none" else bucket_size
    with job_text.join(_those_with_knobs_first(wanted)) as ranks:
        with job_text.told_once(ranks):
            layout = Layout.of(ranks)
        job_text.from_first(ranks, lambda: plots.check(plot) if plot is not None else None)
        machines, notes = _cluster(ranks, layout, cluster)
        here = Here(ranks, layout, machines)
        with job_text.told_once(ranks):
            here.check()
        comparison = Comparison(here, network, repeats or (3 if quick else 5), show)
        asked = trace or QUICK[0].traces
        job_text.from_first(ranks, lambda: comparison.simulate(cells(here, asked, wanted, how)))
        if ranks.rank:
            take_part(here)
            return None
        comparison.result.notes += notes
        return comparison.run()


def _probed(cluster: Cluster) -> str:
    fields = json.loads(cluster.to_json())
    names = ("bandwidth", "latency", "message_overhead", "intra_bandwidth", "intra_latency")
    shown = names if fields["gpus_per_node"] > 1 else names[:3]
    return f"simulated as probed: {', '.join(f'{name} {fields[name]}' for name in shown)}"


def _strategies(names: list[str] | None) -> list[Strategy]:
    """Those that are named, else the job's, else all. Raises UserError."""
    own = Settings.from_environment().strategy
    return strategies_of(names or ([own] if own is not None else [ALL]))


def _those_with_knobs_first(strategies: list[Strategy]) -> list[str]:
    """A job's settings agree rather with a strategy that looks at many."""
    return [one.name for one in sorted(strategies, key=lambda one: len(one.knobs), reverse=True)]


def _cluster(ranks: Job, layout: Layout, given: str | None) -> tuple[Cluster, list[str]]:
    """What is simulated, at all ranks, and notes: rank 0 reads the file, or probes. Raises UserError, JobError."""
    from paceline.probe import cluster_file
    from paceline.probe.measure import NEEDED, measure
    from paceline.probe.orders import obey

    if given is not None:
        text = job_text.from_first(ranks, lambda: load_cluster(given).to_json())
        return Cluster.from_json(text.encode(), given), []
    if ranks.rank:
        return Cluster.from_json(json.dumps(obey(ranks)).encode(), "probe"), []
    conductor, found = measure(ranks, layout, NEEDED, show)
    fields = cluster_file.fields(found)
    conductor.end(then=fields)
    cluster = Cluster.from_json(json.dumps(fields).encode(), "probe")
    return cluster, [_probed(cluster), *found.notes]
