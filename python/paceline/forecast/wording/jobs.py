"""What is said of several jobs on one network."""

from __future__ import annotations

from paceline._internal import units
from paceline.forecast.jobs.model import JobResult, JobsResult
from paceline.forecast.wording import terms

_NOTICED = 0.005
UNKNOWN = "?"
"""It was stopped before this was known."""


def times(slowdown: float | None) -> str:
    """Return how many times slower a job is."""
    return UNKNOWN if slowdown is None else f"{slowdown:.2f}"


def title(result: JobsResult) -> str:
    """Return the jobs' nodes and network, in a line."""
    cluster = result.mix.cluster
    rate = units.rate(cluster.bandwidth_bps)
    words = [units.count(len(result.jobs), "job"), units.count(result.mix.nodes, "node"), f"{rate} per node"]
    if cluster.gpus_per_node > 1:
        words.append(f"shared by {cluster.gpus_per_node} GPUs")
    if cluster.racks is not None:
        words.append(f"racks of {cluster.racks.nodes_per_rack}, {cluster.racks.oversubscription:g}:1 oversubscribed")
    words += [f"{result.mix.network} network", *["each collective as a whole"] * result.by_collective]
    return ", ".join(words)


def sentences(result: JobsResult) -> list[str]:
    """Return who suffers most, from whom, and what would help most, as sentences."""
    if result.is_partial:
        done = ", ".join(f"{job.name} {job.iterations}" for job in result.jobs)
        return [f"Stopped: what is shown is of the iterations made until then ({done}), and '{UNKNOWN}' is not known."]
    lines = []
    if len(result.jobs) > 1:
        lines.append(_who(result))
    best = max((one for one in result.what_if if one.iteration_s is not None), key=lambda one: one.mean_speedup)
    if best.mean_speedup > 1 + _NOTICED:
        change = terms.measure(best.measure)
        lines.append(f"For the mix {change} would bring most: {best.mean_speedup:.2f} times faster on average.")
    else:
        lines.append("Neither bandwidth nor a better switch would make this mix faster.")
    return lines


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


def notes(result: JobsResult) -> list[str]:
    """Return the notes on jobs."""
    return [f"note: {job.name}: {terms.note(note)}" for job in result.jobs for note in job.notes]
