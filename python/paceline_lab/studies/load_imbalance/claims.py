"""The figures that decide the paper's claims, in the order of claims.toml."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import mean

from paceline.forecast.coordinator_model.networks import networks

from paceline_lab.studies.claims import Figures, judged
from paceline_lab.studies.load_imbalance import runs
from paceline_lab.studies.load_imbalance.compared import graph_gains, strong_gains
from paceline_lab.studies.load_imbalance.runs import (
    BASELINE,
    GPUS,
    GRAPH,
    LARGEST,
    STRONG,
    STRONG_NETWORK,
    Point,
    Results,
)
from paceline_lab.studies.report import ClaimResult


def claims(results: Results) -> list[ClaimResult]:
    """Return each claim with the numbers that decide it."""
    return judged("load-imbalance", list(_figures(results)))


def _figures(results: Results) -> Iterator[Figures]:
    base, graph = (results[Point(STRONG_NETWORK, name, LARGEST)] for name in (BASELINE, GRAPH))
    communication = {}
    for gpus in GPUS:
        it = results[Point(STRONG_NETWORK, BASELINE, gpus)]
        communication[gpus] = (it.iteration_s - it.compute_s) * 1e3
    linear = _correlation([(math.log2(gpus), ms) for gpus, ms in communication.items()])
    yield {"correlation": linear, **{f"{gpus} GPUs, ms": communication[gpus] for gpus in (6, LARGEST)}}
    before, after = runs.parts(base), runs.parts(graph)
    yield {
        "comes back": (after.collective - before.collective) / before.coordinator,
        "gain": runs.gain(results, Point(STRONG_NETWORK, GRAPH, LARGEST)),
        "else": base.iteration_s / (base.iteration_s - before.coordinator) - 1,
    }
    remedies = ("global-sleep", "nonblocking", "partitioned", GRAPH)
    yield {name: runs.gain(results, Point(STRONG_NETWORK, name, LARGEST)) for name in remedies}
    rates = {gpus: results[Point(STRONG_NETWORK, BASELINE, gpus, STRONG)].samples_per_s or 0.0 for gpus in GPUS[1:]}
    beyond = [rates[gpus] / rates[1536] - 1 for gpus in GPUS if gpus > 1536]
    yield {"most": max(beyond), "least": min(beyond), "greatest gain": max(strong_gains(results).values())}
    overlapped = {name: results[Point(STRONG_NETWORK, name, LARGEST, overlap=True)] for name in (BASELINE, GRAPH)}
    yield {
        f"{name}, faster with overlap by": alone.iteration_s / overlapped[name].iteration_s - 1
        for name, alone in ((BASELINE, base), (GRAPH, graph))
    }
    plain, balanced = (results[point] for point in runs.balanced_points())
    yield {
        "with overlap": balanced.compute_s / balanced.iteration_s,
        "without": plain.compute_s / plain.iteration_s,
    }
    yield {f"{gpus} GPUs": _idle(results, gpus) for gpus in GPUS}
    family = [
        graph_gains(results, name) for name in ("resnet-18", "resnet-34", "resnet-50", "resnet-101", "resnet-152")
    ]
    yield _ends([gain for gains in family for gain in gains.values()])
    yield {
        name: max(graph_gains(results, name).values()) / 100
        for name in ("resnet-18", "resnet-34", "resnet-101", "resnet-152")
    }
    average = mean(graph_gains(results, "googlenet").values()) / 100
    yield {"on average": average, **_ends(graph_gains(results, "googlenet").values())}
    at_scale = {name: graph_gains(results, name)[LARGEST] / 100 for name in networks()}
    best = max(at_scale, key=lambda name: at_scale[name])
    yield {"most": at_scale[best], f"of {best} on {LARGEST} GPUs": at_scale[best]}
    for network in ("inception-v3", "vgg-16", "alexnet"):
        gains = graph_gains(results, network)
        yield {**_ends(gains.values()), "on 6 GPUs": gains[GPUS[0]] / 100, f"on {LARGEST}": gains[LARGEST] / 100}


def _ends(gains: Iterable[float]) -> Figures:
    """Return the smallest and the largest of gains in percent, as shares."""
    values = list(gains)
    return {"least": min(values) / 100, "most": max(values) / 100}


def _idle(results: Results, gpus: int) -> float:
    """Return the share of the all-reduce in which the GPU does nothing: coordinator and copies."""
    base = results[Point(STRONG_NETWORK, BASELINE, gpus)]
    parts = runs.parts(base)
    return (parts.coordinator + parts.copy) / (base.iteration_s - base.compute_s)


def _correlation(points: list[tuple[float, float]]) -> float:
    x, y = ([point[axis] for point in points] for axis in (0, 1))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    both = sum((a - mean_x) * (b - mean_y) for a, b in points)
    return both / math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
