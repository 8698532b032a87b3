"""Published and simulated values. The model is calibrated on most of them; each row says whether it is."""

from __future__ import annotations

from paceline.forecast.coordination.networks import networks
from paceline.studies.load_imbalance import runs
from paceline.studies.load_imbalance.runs import BASELINE, GPUS, GRAPH, LARGEST, STRONG, STRONG_NETWORK, Point, Results
from paceline.studies.report import Compared, Prediction

_INFERRED_AT = 12_288


def compared(results: Results) -> list[Compared]:
    """Return every published value that the model covers."""
    base = results[Point(STRONG_NETWORK, BASELINE, LARGEST)]
    reduction = base.iteration_s - base.compute_s
    table = f"ResNet-50, {LARGEST} GPUs, negotiate"
    rows = [
        ("throughput below linear", 3.3, base.iteration_s / base.compute_s, "x"),
        ("all-reduce, of the GPU's time", 70.3, 100 * reduction / base.iteration_s, "%"),
        ("coordinator, of the GPU's time", 46.0, 100 * base.coordinator_s / base.iteration_s, "%"),
        (
            "GPU idle inside the all-reduce (at least)",
            67.0,
            100 * (base.coordinator_s + base.copy_s) / reduction,
            "%",
        ),
    ]
    gains = [
        ("global-sleep, over all GPU counts", 10.0, best(results, runs.GLOBAL_SLEEP), "%"),
        ("graph, over all GPU counts", 21.0, best(results, GRAPH), "%"),
        ("strong scaling, any coordinator", 19.0, max(strong_gains(results).values()) * 100, "%"),
    ]
    balanced = results[runs.extra_points()[-1]]
    found = [
        Compared(of, row, "ResNet-50", published, simulated, unit, True)
        for of, listed in ((table, rows), ("greatest gain", gains))
        for row, published, simulated, unit in listed
    ]
    found += _iterations(results)
    efficiency = 100 * balanced.compute_s / balanced.iteration_s
    row = f"scaling efficiency, {runs.BALANCED_GPUS} GPUs, balanced, overlap, no congestion"
    return [*found, Compared("the cause removed", row, "ResNet-50", 93.0, efficiency, "%", False)]


def best(results: Results, coordinator: str) -> float:
    """Return ResNet-50's largest gain in weak scaling, in percent."""
    return max(100 * runs.gain(results, Point(STRONG_NETWORK, coordinator, gpus)) for gpus in GPUS)


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
            found = results[Point(name, GRAPH, _INFERRED_AT)].iteration_s
            calibrated = network.compute_source == "inferred"
            table = f"iteration on {_INFERRED_AT} GPUs, from the graph's traversal"
            rows.append(Compared(table, "graph", name, round(inferred * 1e3, 1), found * 1e3, "ms", calibrated))
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
        if point.gpus == LARGEST and point.coordinator == BASELINE:
            ms = results[point].iteration_s * 1e3
            values.append(Prediction(f"gain on {LARGEST} GPUs", point.network, BASELINE, ms, "ms"))
        elif point.gpus == LARGEST:
            values.append(Prediction(f"gain on {LARGEST} GPUs", point.network, point.coordinator, percent, "%"))
        if point.network == STRONG_NETWORK and point.coordinator != BASELINE:
            values.append(Prediction("ResNet-50, gain in weak scaling", _gpus(point), point.coordinator, percent, "%"))
    return values


def _gpus(point: Point) -> str:
    return f"{point.gpus} GPUs"
