"""Published and simulated values: what the model was fitted on, and what it is checked with.

Each row carries the bounds within which a simulated value agrees with the publication. Where the publication gives a
range, that is it; where it gives a figure, read off a plot or rounded in the text, it is the figure and a tolerance.
"""

from __future__ import annotations

from statistics import mean

from paceline.forecast.coordinator_model.networks import networks

from paceline_lab.studies.load_imbalance import runs
from paceline_lab.studies.load_imbalance.runs import (
    BASELINE,
    FITTED,
    GPUS,
    GRAPH,
    LARGEST,
    STRONG,
    STRONG_NETWORK,
    Point,
    Results,
)
from paceline_lab.studies.report import Compared, Prediction

_INFERRED_AT = 12_288
# Percentage points: gains that the publication rounds ("up to 16 %"), and shares of a GPU's time.
_GAIN, _SHARE = 3.0, 4.0
# "5-21 %" and so on are whole numbers.
_ROUNDING = 0.5
_GAINS = "gain over the baseline"
# Percent: the largest gains of ResNet-50 in weak scaling (Fig. 10), and those in graph order of the others (Fig. 13).
PUBLISHED_MOST = {"global-sleep": 10.0, "nonblocking": 16.0, "partitioned": 18.0, GRAPH: 21.0}
PUBLISHED_RANGES = {
    "resnet-18": (5.0, 21.0),
    "resnet-34": (5.0, 21.0),
    "resnet-101": (5.0, 21.0),
    "resnet-152": (5.0, 21.0),
    "inception-v3": (10.0, 18.0),
    "vgg-16": (2.0, 6.0),
}
# GoogLeNet's on average and at most; AlexNet's on average.
PUBLISHED_GRAPH = {"googlenet": (25.0, 35.0), "alexnet": (-6.0,)}


def compared(results: Results) -> list[Compared]:
    """Return every published value that the model covers."""
    balanced = results[runs.balanced_points()[-1]]
    efficiency = 100 * balanced.compute_s / balanced.iteration_s
    row = f"scaling efficiency, {runs.BALANCED_GPUS} GPUs, balanced, overlap, no congestion"
    return [
        *_resnet_50(results),
        *_gains(results),
        *_iterations(results),
        Compared("the cause removed", row, "ResNet-50", 93.0, efficiency, "%", False, (90.0, 96.0)),
    ]


def _resnet_50(results: Results) -> list[Compared]:
    """Return where an iteration on 24,576 GPUs goes, under the baseline and in graph order."""
    base, graph = (results[Point(STRONG_NETWORK, name, LARGEST)] for name in (BASELINE, GRAPH))
    parts, graph_parts = runs.parts(base), runs.parts(graph)
    reduction = base.iteration_s - base.compute_s
    idle = 100 * (parts.coordinator + parts.copy) / reduction
    rows = [
        (BASELINE, "throughput below linear", 3.3, base.iteration_s / base.compute_s, "x", (3.1, 3.5)),
        (
            BASELINE,
            "all-reduce, of the GPU's time",
            70.3,
            100 * reduction / base.iteration_s,
            "%",
            _about(70.3, _SHARE),
        ),
        (
            BASELINE,
            "coordinator, of the GPU's time",
            46.0,
            100 * parts.coordinator / base.iteration_s,
            "%",
            _about(46.0, _SHARE),
        ),
        (BASELINE, "GPU idle inside the all-reduce, at least", 67.0, idle, "%", (67.0 - _ROUNDING, 100.0)),
        (
            GRAPH,
            "coordinator, of the GPU's time",
            3.4,
            100 * graph_parts.coordinator / graph.iteration_s,
            "%",
            (2.4, 4.4),
        ),
        (
            GRAPH,
            "collective with the waiting in it, of the GPU's time",
            59.0,
            100 * graph_parts.collective / graph.iteration_s,
            "%",
            _about(59.0, _SHARE),
        ),
    ]
    return [
        Compared(f"ResNet-50, {LARGEST} GPUs, {name}", row, "ResNet-50", published, simulated, unit, True, bounds)
        for name, row, published, simulated, unit, bounds in rows
    ]


def _gains(results: Results) -> list[Compared]:
    """Return the gains over all GPU counts: the largest, the smallest or the mean, as the publication has it."""
    rows = [
        (STRONG_NETWORK, f"{name}, at most", published, best(results, name), _about(published, _GAIN))
        for name, published in PUBLISHED_MOST.items()
    ]
    strong = max(strong_gains(results).values()) * 100
    rows.append((STRONG_NETWORK, "strong scaling, any coordinator, at most", 19.0, strong, _about(19.0, _GAIN)))
    for network, bounds in PUBLISHED_RANGES.items():
        gains, wide = graph_gains(results, network).values(), (bounds[0] - _ROUNDING, bounds[1] + _ROUNDING)
        rows.append((network, f"{GRAPH}, at least", bounds[0], min(gains), wide))
        rows.append((network, f"{GRAPH}, at most", bounds[1], max(gains), wide))
    usual, most = PUBLISHED_GRAPH["googlenet"]
    gains = graph_gains(results, "googlenet").values()
    rows.append(("googlenet", f"{GRAPH}, on average", usual, mean(gains), _about(usual, _GAIN)))
    rows.append(("googlenet", f"{GRAPH}, at most", most, max(gains), _about(most, _GAIN)))
    (average,) = PUBLISHED_GRAPH["alexnet"]
    by_gpus = graph_gains(results, "alexnet")
    rows.append(("alexnet", f"{GRAPH}, on average", average, mean(by_gpus.values()), _about(average, _GAIN)))
    rows += [
        ("alexnet", f"{GRAPH}, on {gpus} GPUs", average, by_gpus[gpus], _about(average, _GAIN))
        for gpus in (GPUS[0], LARGEST)
    ]
    return [
        Compared(_GAINS, row, network, published, simulated, "%", network in FITTED, bounds)
        for network, row, published, simulated, bounds in rows
    ]


def _about(value: float, tolerance: float) -> tuple[float, float]:
    return value - tolerance, value + tolerance


def best(results: Results, coordinator: str, network: str = STRONG_NETWORK) -> float:
    """Return the largest gain in weak scaling, in percent."""
    return max(100 * runs.gain(results, Point(network, coordinator, gpus)) for gpus in GPUS)


def graph_gains(results: Results, network: str) -> dict[int, float]:
    """Return the gains in graph order by number of GPUs, in percent."""
    return {gpus: 100 * runs.gain(results, Point(network, GRAPH, gpus)) for gpus in GPUS}


def strong_gains(results: Results) -> dict[tuple[str, int], float]:
    """Return the gains by coordinator and number of GPUs."""
    points = [point for point in results if point.scaling == STRONG and point.coordinator != BASELINE]
    return {(point.coordinator, point.gpus): runs.gain(results, point) for point in points}


def _iterations(results: Results) -> list[Compared]:
    """Return iteration times derived from the traversal's share of a training; inferred ones are calibrated."""
    rows = []
    for name, network in networks().items():
        inferred = network.inferred_iteration_s()
        if inferred is not None:
            simulated = results[Point(name, GRAPH, _INFERRED_AT)].iteration_s
            calibrated = network.compute_source == "inferred"
            table = f"iteration on {_INFERRED_AT} GPUs, from the graph's traversal"
            rows.append(Compared(table, "graph", name, round(inferred * 1e3, 1), simulated * 1e3, "ms", calibrated))
    return rows


def predictions(results: Results) -> list[Prediction]:
    """Return the values of the tables: gains by network, and by number of GPUs."""
    values = []
    for point in results:
        if point.overlap or point.balanced:
            continue
        if point.scaling == STRONG:
            rate = results[point].samples_per_s or 0.0
            values.append(Prediction("ResNet-50, strong scaling", _gpus(point), point.coordinator, rate, "/s"))
            continue
        percent = 100 * runs.gain(results, point)
        if point.other_reading:
            if point.coordinator == GRAPH:
                table = f"{GRAPH}: gain if the inferred trainings had {runs.OTHER_ITERATIONS} iterations"
                values.append(Prediction(table, _gpus(point), point.network, percent, "%"))
            continue
        if point.gpus == LARGEST and point.coordinator == BASELINE:
            ms = results[point].iteration_s * 1e3
            values.append(Prediction(f"gain on {LARGEST} GPUs", point.network, BASELINE, ms, "ms"))
        elif point.gpus == LARGEST:
            values.append(Prediction(f"gain on {LARGEST} GPUs", point.network, point.coordinator, percent, "%"))
        if point.network == STRONG_NETWORK and point.coordinator != BASELINE:
            values.append(Prediction("ResNet-50, gain in weak scaling", _gpus(point), point.coordinator, percent, "%"))
        if point.coordinator == GRAPH:
            values.append(Prediction(f"{GRAPH}: gain in weak scaling", _gpus(point), point.network, percent, "%"))
    return values


def _gpus(point: Point) -> str:
    return f"{point.gpus} GPUs"
