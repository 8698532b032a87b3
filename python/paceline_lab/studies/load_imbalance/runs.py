"""The simulations: nine networks under five coordinators on up to 24,576 GPUs of Summit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from paceline._core import Trace
from paceline.catalog.builtin import load_cluster, load_trace
from paceline.catalog.libraries import NONE, find_library
from paceline.catalog.strategies import all_coordinators, find_strategy
from paceline.forecast.coordinator_model.model import Coordination
from paceline.forecast.coordinator_model.networks import networks
from paceline.forecast.coordinator_model.options import BALANCED
from paceline.forecast.execute import execute
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario

BATCH = 32
GPUS = (6, 96, 384, 1536, 6144, 12_288, 24_576)
LARGEST = GPUS[-1]
# HOROVOD_FUSION_THRESHOLD of the published runs, in bytes.
FUSED = 64 << 20
WEAK, STRONG = "weak", "strong"
# Strong scaling: the global batch in images, and the network.
GLOBAL_BATCH, STRONG_NETWORK = 24_576, "resnet-50"
# Figures are then stable to a point of a percentage, whatever the seed.
ITERATIONS = 2000
# The networks whose published figures the constants were fitted to; the others' are checked.
FITTED = ("resnet-50", "googlenet", "vgg-16")
# The other reading of "a complete training": 90 epochs without leaving out the rest of an epoch.
OTHER_ITERATIONS = round(90 * 1_281_167 / (32 * 12_288))
BASELINE, GLOBAL_SLEEP, GRAPH = "negotiate", "global-sleep", "graph"
# Dynamic partitioning is the publication's future work, and it only names the tuning of a common sleep.
DYNAMIC = "partitioned:dynamic"
# The part of a V100's time for 32 images that does not depend on the batch (launches of small kernels), and the part of
# the contention that does not. Calibrated on published strong scaling: up to 19 % gain, a slight drop above 1,536 GPUs.
FIXED_SHARE = 0.47
FIXED_CONTENTION = 0.37
# Romero et al., NSDI 2022: the same response cache on well-balanced processes, with overlap.
BALANCED_GPUS = 27_600


@dataclass(frozen=True, order=True)
class Point:
    """One run of the study."""

    network: str
    coordinator: str
    gpus: int
    scaling: str = WEAK
    overlap: bool = False
    # Without the published cause: no preemption, no late wake-ups, and the collective takes its closed-form time.
    balanced: bool = False
    # Computation is inferred as if a training had OTHER_ITERATIONS.
    other_reading: bool = False

    @property
    def batch(self) -> int:
        """Batch of one GPU."""
        return GLOBAL_BATCH // self.gpus if self.scaling == STRONG else BATCH


Results = Mapping[Point, Result]


def compute_s(network: str, batch: int, *, other_reading: bool = False) -> float:
    """Return the computation time of a batch on one V100, in seconds."""
    known = networks()[network]
    ms = known.compute_ms_other if other_reading and known.compute_ms_other is not None else known.compute_ms
    return ms * 1e-3 * (FIXED_SHARE + (1 - FIXED_SHARE) * batch / BATCH)


@lru_cache(maxsize=256)
def step(network: str, batch: int, *, other_reading: bool = False) -> Trace:
    """Return the trace of one V100 in mixed precision: gradients are float16."""
    trace = load_trace(network).with_batch(batch).with_dtype("float16")
    return trace.scaled_to_rate(batch / compute_s(network, batch, other_reading=other_reading))


@lru_cache(maxsize=16)
def contention_s(network: str) -> float:
    """Return the time at batch 32 in which input pipeline and graph scheduling are both active, in seconds."""
    return result_of(run_of(Point(network, GRAPH, GPUS[0]), 1)).contention_s or 0.0


def run_of(point: Point, iterations: int = ITERATIONS) -> Scenario:
    """Return the scenario: `simulate --library none --cluster summit --strategy native --coordinator …`, NCCL 2.8."""
    trace = step(point.network, point.batch, other_reading=point.other_reading)
    return scenario(point, trace, None, iterations)


def scenario(point: Point, trace: Trace, bandwidth: str | None, iterations: int = ITERATIONS) -> Scenario:
    """Return the scenario of a point on a trace, whose network need not be one of the publication's."""
    known = networks().get(point.network)
    share = None if known is None else known.contention_share
    constants = {} if share is None else {"contention_share": share}
    return Scenario.of(
        trace,
        load_cluster("summit", bandwidth=bandwidth),
        find_strategy("native"),
        point.gpus,
        library=replace(find_library(NONE), nccl="2.8"),
        coordination=Coordination(
            point.coordinator,
            contention_s=_strong_contention_s(point) if point.scaling == STRONG else None,
            graph_nodes=None if known is None else known.graph_nodes,
            constants={**constants, **(BALANCED if point.balanced else {})},
        ),
        bucket_size=FUSED,
        overlap=point.overlap,
        iterations=iterations,
    )


def _strong_contention_s(point: Point) -> float:
    """Scale the pipeline's work with the number of images, except for a fixed part."""
    return contention_s(point.network) * (FIXED_CONTENTION + (1 - FIXED_CONTENTION) * point.batch / BATCH)


def points() -> Iterator[Point]:
    """Return the published runs, which become rows."""
    names = [it.name for it in all_coordinators()]
    for network in networks():
        for gpus in GPUS:
            yield from (Point(network, name, gpus) for name in names)
    for gpus in GPUS[1:]:
        yield from (Point(STRONG_NETWORK, name, gpus, STRONG) for name in names)


def balanced_points() -> list[Point]:
    """Return the runs of the opposite published case, without and with overlap."""
    return [Point(STRONG_NETWORK, BASELINE, BALANCED_GPUS, overlap=it, balanced=True) for it in (False, True)]


def extra_points() -> list[Point]:
    """Return the runs beside the published ones: of claims, of variants, and of another reading of an assumption."""
    overlapped = [Point(STRONG_NETWORK, name, LARGEST, overlap=True) for name in (BASELINE, GRAPH)]
    unpublished = [Point(STRONG_NETWORK, DYNAMIC, gpus) for gpus in GPUS]
    unpublished += [Point(STRONG_NETWORK, f"{GLOBAL_SLEEP}:{every}", LARGEST) for every in (2, 4, 8)]
    read = [
        Point(network, name, gpus, other_reading=True)
        for network, known in networks().items()
        if known.compute_ms_other is not None
        for gpus in GPUS
        for name in (BASELINE, GRAPH)
    ]
    return overlapped + unpublished + balanced_points() + read


def simulate(progress: Callable[[int, int], None] | None = None, iterations: int = ITERATIONS) -> Results:
    """Simulate all runs on all cores."""
    requested = [*points(), *extra_points()]
    # Start the longest first, so that no core idles at the end.
    ordered = sorted(requested, key=lambda point: -point.gpus)
    done = dict(zip(ordered, execute([run_of(point, iterations) for point in ordered], progress), strict=True))
    return {point: done[point] for point in requested}


@dataclass(frozen=True)
class Parts:
    """Parts of an iteration besides compute, in seconds."""

    coordinator: float
    copy: float
    collective: float


def parts(result: Result) -> Parts:
    """Return the parts; every result of the study has a coordinator."""
    return Parts(result.coordinator_s or 0.0, result.copy_s or 0.0, result.collective_s or 0.0)


def gain(results: Results, point: Point) -> float:
    """Return the baseline's iteration time divided by this one's, minus 1."""
    base = replace(point, coordinator=BASELINE)
    return results[base].iteration_s / results[point].iteration_s - 1
