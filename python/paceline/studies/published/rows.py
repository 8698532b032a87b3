"""The forecast of a published row, in the row's own metric."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from paceline._core import Trace
from paceline.catalog.devices import rates_of
from paceline.catalog.library import load_cluster, load_trace
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.simulate import Scenario
from paceline.studies.calls import with_calls
from paceline.studies.draws import mean_iteration_s
from paceline.studies.published.constants import as_rate, as_time, constant
from paceline.studies.published.data import Kind, Metric, Row
from paceline.studies.published.engines import CannotForecastError, Engine, engine_of
from paceline.studies.published.network import Network, inside_bps, network_of, shares_pci_express

# Model names that differ from those of the built-in traces.
_MODELS = {
    "inception3": "inception-v3",
    "inception": "inception-v3",
    "mobilenet": "mobilenet-v2",
    "bert": "bert-base",
    "gpt2": "gpt2-small",
}
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

    @property
    def error(self) -> float:
        """Forecast divided by published, minus 1."""
        return self.value / self.row.measured - 1

    @property
    def inside(self) -> bool:
        """Return whether the published value lies within the bounds."""
        return self.position == "inside"

    @property
    def position(self) -> str:
        """Return where the published value lies: `inside` the bounds, `below` or `above` them."""
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
        return int(json.loads(self.trace.summary())["gradient_bytes"])


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
        iteration = _iteration(row, engine, step)
        iterations = (iteration, *_bounds(row, step))
        value, low, high = (_in_metric(row, row.metric, engine, step, seconds) for seconds in iterations)
    except InvalidArgumentError as error:
        raise CannotForecastError(str(error)) from None
    low, high = min(low, high), max(low, high)
    return Forecast(row, engine.name, value, low, high, iteration, (*step.assumed, *engine.assumed))


def _step(row: Row) -> _Step:
    name, assumed = _MODELS.get(row.model.lower(), row.model), []
    try:
        trace = load_trace(name) if not name.startswith("allreduce") and "/" not in name else None
    except InvalidArgumentError:
        trace = None
    if trace is None:
        raise CannotForecastError(f"model '{row.model[:80]}' is not a built-in trace (`paceline traces`)")
    summary = json.loads(trace.summary())
    batch, rate = row.batch, row.samples_per_s
    known = rates_of(summary["name"])
    device = next((known[name] for name in known if name.lower() in row.gpu.lower()), None)
    if batch is None:
        batch = _BATCH
        assumed.append(f"batch {batch}")
    if rate is None:
        if device is None:
            raise CannotForecastError("no base_1gpu_img_s, and no known rate of this model on this GPU")
        rate = device.samples_per_s
        assumed.append(f"one GPU does {rate:g} samples/s ({device.source})")
    return _Step(trace.with_batch(batch).scaled_to_rate(rate), batch, rate, tuple(assumed))


def _iteration(row: Row, engine: Engine, step: _Step) -> float:
    """Return seconds."""
    network = network_of(row, engine.channel, streams=engine.streams)
    if row.gpus == 1:
        return step.compute_s
    if row.metric is not None and row.metric.collectives_only:
        trace = Trace.all_reduce(f"allreduce:{step.gradient_bytes}B")
        options = {name: value for name, value in engine.options.items() if name != "bucket_size"}
        return _run(row, engine, network, trace, options, jitter=0.0).result().iteration_s
    trace = with_calls(step.trace, engine.call_s, engine.negotiation_s * row.gpus)
    options = dict(engine.options)
    if engine.fuses:
        options["bucket_size"] = fused_bytes(network.flow_bps, network.latency_s, row.gpus)
    if row.gpus_per_node > 1 and shares_pci_express(row.gpu):
        options["compute_speedup"] = 1 / (1 + constant("replicas.share"))
    jitter = constant(f"jitter.{network.channel.value.lower()}") if row.nodes > 1 else 0.0
    return mean_iteration_s(_run(row, engine, network, trace, options, jitter=jitter))


def fused_bytes(flow_bps: float, latency_s: float, ranks: int) -> int:
    """Return how much Horovod fuses: one cycle's tensors, or more if an all-reduce waits long for a ring's steps."""
    sent_while_waiting = flow_bps / 8 * 2 * (ranks - 1) * latency_s
    return int(min(constant("horovod.fusion"), max(constant("horovod.fused"), sent_while_waiting)))


def _run(
    row: Row, engine: Engine, network: Network, trace: Trace, options: dict[str, Any], *, jitter: float
) -> Scenario:
    fields: dict[str, Any] = {
        "bandwidth": as_rate(network.flow_bps),
        "latency": as_time(network.latency_s),
        "gpus_per_node": row.gpus_per_node,
        "intra_bandwidth": as_rate(network.inside_bps),
        **({"jitter": {"sigma": jitter}} if jitter else {}),
        **engine.cluster,
    }
    return Scenario.of(trace, load_cluster(None, **fields), find_strategy(engine.strategy), row.gpus, **options)


def _bounds(row: Row, step: _Step) -> tuple[float, float]:
    """Return iteration times without and with full overlap, by the ring's closed form at the link's nominal rate."""
    link = (row.link_bps if row.nodes > 1 else None) or inside_bps(row.gpu)
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
        base = gpus * step.batch / _iteration(fewer, engine, step)
    if metric.kind is Kind.FACTOR:
        return rate / base
    return rate / base / (row.gpus / gpus) / metric.unit
