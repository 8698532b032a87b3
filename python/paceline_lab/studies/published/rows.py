"""The forecast of a published row, in the row's own metric: a call of `paceline.simulate` with the row's data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from paceline._core import Cluster, Gradient, Layer, Trace, Worker
from paceline.catalog import channels
from paceline.catalog.builtin import load_cluster, load_trace
from paceline.catalog.builtin_names import cluster_names
from paceline.catalog.constants import as_rate
from paceline.catalog.libraries import find_library
from paceline.catalog.nodes import inside_of, node_fields
from paceline.catalog.rates import adjusted, rates_of
from paceline.errors import InvalidArgumentError
from paceline.forecast.evidence import Question, interval
from paceline.forecast.result import Result
from paceline.forecast.simulate import simulate
from paceline.forecast.wording import terms

from paceline_lab.studies.published.data import Kind, Metric, Row
from paceline_lab.studies.published.engines import CannotForecastError, Engine, engine_of

# Model names that differ from those of the built-in traces.
_MODELS = {
    "inception3": "inception-v3",
    "inception": "inception-v3",
    "mobilenet": "mobilenet-v2",
    "bert": "bert-base",
    "gpt2": "gpt2-small",
}
_P3DN = "p3dn.24xlarge"
# The default batch of tf_cnn_benchmarks.
_BATCH = 64


@dataclass(frozen=True)
class Forecast:
    """A row's forecast in its own metric; `low` and `high`: a ring's closed form without and with full overlap."""

    row: Row
    engine: str
    value: float
    low: float
    high: float
    iteration_s: float
    assumed: tuple[str, ...]
    likely: tuple[float, float] | None = None
    """The interval that holds a measurement with a probability of 80 %, from other sources than the row's."""
    evidence: str = ""
    """The basis of the interval, or why there is none."""

    @property
    def error(self) -> float | None:
        """Forecast divided by published, minus 1; None if nothing is published."""
        return None if self.row.measured is None else self.value / self.row.measured - 1

    @property
    def is_likely(self) -> bool | None:
        """Return whether the published value lies in the 80 % interval; None without one of them."""
        if self.likely is None or self.row.measured is None:
            return None
        return self.likely[0] <= self.row.measured <= self.likely[1]

    @property
    def inside(self) -> bool:
        """Return whether the published value lies within the bounds."""
        return self.position == "inside"

    @property
    def position(self) -> str:
        """Return where the published value lies: `inside` the bounds, `below` or `above` them; empty without one."""
        if self.row.measured is None:
            return ""
        if self.row.measured < self.low:
            return "below"
        return "above" if self.row.measured > self.high else "inside"


@dataclass(frozen=True)
class _Step:
    """The computation of one GPU, and the assumptions about it."""

    trace: Trace
    batch: int
    samples_per_s: float
    assumed: tuple[str, ...]

    @property
    def compute_s(self) -> float:
        return self.batch / self.samples_per_s

    @property
    def gradient_bytes(self) -> int:
        return self.trace.gradient_bytes


def forecast(row: Row) -> Forecast:
    """Return the forecast of a row. Raises CannotForecastError with the reason."""
    if row.metric is None:
        raise CannotForecastError(
            f"metric '{row.metric_text[:80]}' is unknown; docs/results/published.md lists the known ones"
        )
    if row.nodes > 1 and row.link_bps is None:
        raise CannotForecastError(f"net_gbps_per_node is empty, but there are {row.nodes} nodes")
    if row.metric.collectives_only and row.gpus == 1:
        raise CannotForecastError("one GPU has no collectives")
    if row.metric.over > row.gpus:
        raise CannotForecastError(f"metric '{row.metric_text[:80]}' covers more GPUs than the row has")
    engine = engine_of(row)
    try:
        step = _step(row)
        result = _run(row, engine, step)
        iteration = result.iteration_s
        iterations = (iteration, *_bounds(row, step))
        value, low, high = (_in_metric(row, row.metric, engine, step, seconds) for seconds in iterations)
    except InvalidArgumentError as error:
        raise CannotForecastError(str(error)) from None
    low, high = min(low, high), max(low, high)
    likely, ground = interval(iteration, _question(row, engine, result), without=frozenset((row.id,)))
    span = None if likely is None else sorted((value * likely.low_s / iteration, value * likely.high_s / iteration))
    return Forecast(
        row,
        engine.name,
        value,
        low,
        high,
        iteration,
        (*step.assumed, *engine.assumed),
        None if span is None else (span[0], span[1]),
        terms.evidence(ground),
    )


def _question(row: Row, engine: Engine, result: Result) -> Question:
    library = find_library(engine.library)
    return Question(
        library=library.name,
        family=library.family,
        strategy=result.strategy,
        channel=engine.channel,
        workers=row.gpus,
        nodes=row.nodes,
        link_bps=row.link_bps or result.bandwidth_bps,
        own=result.strategy == library.strategy,
        computes=result.compute_s > 0,
    )


def _step(row: Row) -> _Step:
    name, assumed = _MODELS.get(row.model.lower(), row.model), []
    try:
        trace = load_trace(name) if not name.startswith("allreduce") and "/" not in name else None
    except InvalidArgumentError:
        trace = None
    if trace is None:
        raise CannotForecastError(f"model '{row.model[:80]}' is not a built-in trace (`paceline list traces`)")
    batch, rate = row.batch, row.samples_per_s
    known = rates_of(trace.name)
    device = next((known[name] for name in known if name.lower() in row.gpu.lower()), None)
    if batch is None:
        batch = _BATCH
        assumed.append(f"batch {batch}")
    if rate is None:
        if device is None:
            raise CannotForecastError("no base_1gpu_img_s, and no known rate of this model on this GPU")
        rate = device.samples_per_s
        assumed.append(f"one GPU does {rate:g} samples/s ({device.source})")
    return _Step(adjusted(trace, batch=batch, samples_per_s=rate), batch, rate, tuple(assumed))


def question(row: Row, engine: Engine) -> dict[str, Any]:
    """Return the keywords of `paceline.simulate` that ask for the row, other than its trace."""
    cluster = _machines(row)
    link = {"bandwidth": as_rate(row.link_bps)} if row.link_bps is not None else {}
    if row.flow_bps is not None:
        link["stream_bandwidth"] = as_rate(row.flow_bps)
    return {
        "cluster": cluster,
        "library": engine.spec,
        "channel": engine.channel,
        "workers": row.gpus,
        "gpus_per_node": row.gpus_per_node,
        **link,
        **engine.options,
    }


def cluster_named(row: Row) -> str | None:
    """Return the name of the built-in cluster that the row names, if it does."""
    words = f"{row.gpu} {row.system} {row.source}".lower()
    return next((name for name in cluster_names() if name in words or (name == _P3DN and "p3dn" in words)), None)


def _machines(row: Row) -> str | Cluster:
    """Return the built-in cluster that the row names, or nodes with its GPUs."""
    named = cluster_named(row)
    return named or load_cluster(None, **(node_fields(row.gpu) if row.gpus_per_node > 1 else {}))


def _run(row: Row, engine: Engine, step: _Step) -> Result:
    if row.gpus_per_process is not None and row.gpus_per_process < min(row.gpus, row.gpus_per_node):
        return _run_processes(row, engine, step, row.gpus_per_process)
    trace = step.trace
    if row.metric is not None and row.metric.collectives_only:
        trace = _without_computation(trace)
    return simulate(trace, **question(row, engine), critical_path=False)


def _run_processes(row: Row, engine: Engine, step: _Step, gpus: int) -> Result:
    """Simulate processes that drive several GPUs each, several of them on a node, each beside a server.

    A rank is a process. It computes as one alone on a node does, its reduction between its GPUs included.
    """
    batch = gpus * step.batch
    alone = _run(replace(row, gpus=gpus, nodes=1, gpus_per_process=None), engine, step).iteration_s
    trace = adjusted(step.trace, batch=batch, samples_per_s=batch / alone)
    of_node = row.gpus_per_node // gpus
    library = find_library(engine.library)
    is_ray = library.family == "ray"
    # Two processes of a node exchange through shared memory in Ray, through gRPC's own sockets in TensorFlow.
    local = channels.constant("inside.object-store") if is_ray else library.required("host_bandwidth")
    link = {} if row.link_bps is None else {"bandwidth": as_rate(row.link_bps)}
    cluster = load_cluster(None, gpus_per_node=of_node, intra_bandwidth=as_rate(local), **link)
    processes = row.gpus // gpus
    keywords: dict[str, Any] = {
        "library": engine.spec,
        "channel": engine.channel,
        "workers": processes,
        # Ray cuts objects of 10 MB, which it spreads over the servers.
        **({"placement": "even"} if is_ray else {}),
        **engine.options,
        "servers": processes,
    }
    return simulate(trace, cluster.replace(servers="colocated"), "ps", **keywords, critical_path=False)


def _without_computation(trace: Trace) -> Trace:
    """Return the trace's tensors, all ready at once: the library still fuses them as it does."""
    workers = [
        Worker(
            [
                Layer(
                    layer.name,
                    0.0,
                    layer.tensors,
                    activation_bytes=layer.activation_bytes,
                    backward_bytes=layer.backward_bytes,
                )
                for layer in worker.forward
            ],
            [Gradient(one.tensor, 0.0, one.bytes, one.shape) for one in worker.gradients],
            backward_s=0.0,
        )
        for worker in trace.workers
    ]
    return trace.replace(workers=workers, backward_spread=0.0)


def _bounds(row: Row, step: _Step) -> tuple[float, float]:
    """Return iteration times without and with full overlap, by the ring's closed form at the link's nominal rate."""
    inside = channels.constant(f"inside.{inside_of(row.gpu) or 'pcie'}")
    link = (row.link_bps if row.nodes > 1 else None) or inside
    ring = 2 * (row.gpus - 1) / row.gpus * step.gradient_bytes * 8 / link
    if row.metric is not None and row.metric.collectives_only:
        return ring, 0.0
    return step.compute_s + ring, max(step.compute_s, ring)


def _in_metric(row: Row, metric: Metric, engine: Engine, step: _Step, iteration_s: float) -> float:
    if metric.kind is Kind.SECONDS:
        return iteration_s / metric.unit
    rate = row.gpus * step.batch / iteration_s
    if metric.kind is Kind.RATE:
        return rate / row.gpus if metric.per_gpu else rate
    gpus = min(row.gpus, metric.over * row.gpus_per_node if metric.over_nodes else metric.over)
    base = step.samples_per_s
    if gpus > 1:
        fewer = replace(row, gpus=gpus, nodes=-(-gpus // row.gpus_per_node))
        base = gpus * step.batch / _run(fewer, engine, step).iteration_s
    if metric.kind is Kind.FACTOR:
        return rate / base
    return rate / base / (row.gpus / gpus) / metric.unit
