"""Forecast one configuration: `paceline.simulate(trace, cluster, strategy) -> Result`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Unpack

from paceline import _core
from paceline._core import Cluster, Trace
from paceline.catalog import names
from paceline.catalog.channels import with_channel
from paceline.catalog.hardware import titled
from paceline.catalog.libraries import NONE, Library, find_library
from paceline.catalog.models.workload import Workload
from paceline.catalog.strategies import KNOBS, Strategy, find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast import compression as compressions
from paceline.forecast import sharding as shardings
from paceline.forecast.beyond import beyond
from paceline.forecast.coordination.model import Coordination
from paceline.forecast.evidence import Interval, Question, interval
from paceline.forecast.lowering import lowered
from paceline.forecast.memory import of_gpu, of_workload
from paceline.forecast.sharding import Sharded
from paceline.settings.keywords import CoreOptions, SimulateOptions
from paceline.settings.table import SETTINGS, SIMULATE

SCHEMA_VERSION = 1
"""Of the objects that `--json` prints: fields may be added; a changed or removed one makes another version."""
COORDINATED = ("coordinator", "coordinator_s", "copy_s", "collective_s", "latest_s", "contention_s")
"""Fields of a result that it has under a coordinator."""
WITHIN = ("tensor_parallel_s", "expert_parallel_s", "context_parallel_s")
"""Parts of a model's computation that are exchanges."""
MODELLED = (
    "assumed",
    "tokens_per_s_per_gpu",
    "mfu",
    "gpus_per_worker",
    "tensor_parallel_s",
    "expert_parallel_s",
    "context_parallel_s",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_stages",
    "microbatches",
    "context_parallel",
    "expert_parallel",
)
"""Fields of a result that it has for a model from a configuration."""
CALLS, SLOWED = "library calls", "slowed by NCCL"
"""Parts of a critical path: handing gradients over to the library, and what NCCL's kernels slow computation by."""
LONG = 6_000_000
"""A simulation of more messages takes over a second: what tries several leaves it out."""


@dataclass(frozen=True)
class LinkUse:
    """How busy the links of one kind were, in seconds per iteration."""

    kind: str
    links: int
    busiest_s: float
    mean_s: float


@dataclass(frozen=True)
class Busy:
    """How long one worker computed, or one link was occupied, in seconds per iteration."""

    name: str
    kind: str
    busy_s: float


@dataclass(frozen=True)
class PathPart:
    """One part of the critical path, in seconds per iteration."""

    part: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """A forecast. Times are seconds per iteration in the steady state; see docs/explanation/models.md."""

    trace: str
    strategy: str
    workers: int
    """Ranks that train."""
    servers: int
    """Parameter servers; 0 for a strategy without servers."""
    bandwidth_bps: float
    """Rate of a node in bits per second, each way; in a fabric of rails, of a rank, which has a NIC of its own."""
    iteration_s: float
    """Duration of an iteration."""
    samples_per_s: float | None
    """Samples of all workers per second; None if the trace does not know its batch."""
    scaling_efficiency: float | None
    """Samples per second, divided by workers times the rate of one worker alone."""
    exposed_communication_s: float
    """Iteration time beyond the computation of one worker alone."""
    forward_s: float
    backward_s: float
    optimizer_s: float
    bytes_sent_per_worker: float
    """Bytes that a worker sends in an iteration."""
    messages: int
    """Messages of all ranks in an iteration."""
    batch: int
    """Samples of a worker in an iteration, or of all workers that share samples."""
    gradient_bytes: int
    buckets: int
    links: tuple[LinkUse, ...]
    """Use of links by kind."""
    critical_path: tuple[PathPart, ...]
    """Parts of the critical path, largest first."""
    queued_s: float | None
    """Time that messages waited for a link; None if the network model has no queues."""
    notes: tuple[str, ...]
    """Notes, such as what a degenerate case was reduced to."""
    algorithm_bandwidth_bps: float | None = None
    """Bytes over time, for traces without computation."""
    bus_bandwidth_bps: float | None = None
    """Bus bandwidth as nccl-tests defines it, for traces without computation."""
    library: str = NONE
    """The library whose costs it has; `none`: the bare schedule."""
    channel: str = "none"
    """What carries messages between nodes: `tcp`, `rdma`, or `none`, where messages get the whole bandwidth."""
    flow_bandwidth_bps: float = 0.0
    """What the messages of a node get of its rate, in bits per second."""
    interval: Interval | None = None
    """The interval that holds a measured iteration with a probability of 80 %; None outside the evidence."""
    evidence: str = ""
    """The measurements that the interval is based on, or why there is none."""
    compute_speedup: float = 1.0
    """Factor by which computation was sped up."""
    cluster: str = ""
    """The cluster's name; the fields given beside it may differ from those of the built-in cluster."""
    gpus_per_node: int = 1
    """Ranks of a node."""
    has_rails: bool = False
    """Whether each of them has a NIC of its own, whose rate `bandwidth_bps` is; otherwise they share their node's."""
    latency_s: float = 0.0
    """One-way latency between two nodes."""
    bucket_size: int | None = None
    """Most bytes of a bucket; None: no fusion."""
    busy: tuple[Busy, ...] | None = None
    """Busy time of every worker and link, if `detail` was requested."""
    coordinator: str | None = None
    """The coordinator's policy; None: without one. Otherwise computation and the next three add up to an iteration."""
    coordinator_s: float | None = None
    """Waiting until a bucket's exchange begins: ranks that are not ready, late wake-ups, cycles, agreement."""
    copy_s: float | None = None
    """Copies into and out of the fusion buffer."""
    collective_s: float | None = None
    """Inside the exchange: the network, and waiting for ranks that arrive later."""
    latest_s: float | None = None
    """Mean lateness of the latest rank, which the other parts include as waiting."""
    contention_s: float | None = None
    """How long a rank's input pipeline and graph scheduling are both active."""
    assumed: str | None = None
    """What is assumed of the computation, for models from a configuration: GPU, tokens, precision, checkpointing."""
    tokens_per_s_per_gpu: float | None = None
    """Tokens per second and GPU, for language models from a configuration."""
    mfu: float | None = None
    """Model FLOPs utilization, for models from a configuration: 6 FLOPs per parameter and token, and attention's."""
    gpus_per_worker: int | None = None
    """GPUs of a data-parallel rank of such a model, if they are several: tensor-parallel ones times stages."""
    tensor_parallel_s: float | None = None
    """Seconds of its computation that are all-reduces between tensor-parallel GPUs, if there are any."""
    expert_parallel_s: float | None = None
    """Seconds of its computation in which tokens are on their way to experts on other GPUs and back, if any are."""
    context_parallel_s: float | None = None
    """Seconds of its computation in which attention waits for other parts of its sequences, if ranks share samples."""
    tensor_parallel: int | None = None
    """GPUs that share every layer of such a model; 1: none do. So are the next ones."""
    pipeline_parallel: int | None = None
    """Stages."""
    virtual_stages: int | None = None
    """Parts of a stage."""
    microbatches: int | None = None
    """Of an iteration; `batch` has the samples of all of them."""
    context_parallel: int | None = None
    """Ranks that share every sample; `batch` has those that they train together."""
    expert_parallel: int | None = None
    """Ranks that share the experts."""
    compression: str | None = None
    """How gradients were compressed: `none`, `powersgd:4`, …; None if it was not asked for."""
    sync_every: int | None = None
    """Iterations between two exchanges of parameters, 1 for gradients in each; None if it was not asked for."""
    sharded: Sharded | None = None
    """Exposed communication by collective, and memory, if the iteration has a plan (`sharding`, `accumulate`)."""

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Return the result from the native module's JSON.

        Args:
            text: The JSON.
        """
        values: dict[str, Any] = json.loads(text)
        values["links"] = tuple(LinkUse(**link) for link in values["links"])
        values["critical_path"] = tuple(PathPart(**part) for part in values["critical_path"])
        values["notes"] = tuple(values["notes"])
        values["sharded"] = own = Sharded.of(values["sharded"])
        if "busy" in values:
            values["busy"] = tuple(Busy(**busy) for busy in values["busy"])
        found = cls(**values)
        return replace(found, critical_path=_told_apart(found.critical_path, found.compute_s, own))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as `--json` prints it, without fields that do not apply."""
        plain: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        plain |= {field.name: getattr(self, field.name) for field in fields(self)}
        plain["links"] = [vars(link) for link in self.links]
        plain["critical_path"] = [vars(part) for part in self.critical_path]
        plain["notes"] = list(self.notes)
        plain["interval"] = None if self.interval is None else vars(self.interval)
        plain["sharded"] = None if self.sharded is None else self.sharded.to_dict()
        plain["busy"] = None if self.busy is None else [vars(busy) for busy in self.busy]
        for name in (
            *compressions.OPTIONS,
            "algorithm_bandwidth_bps",
            "bus_bandwidth_bps",
            "busy",
            "sharded",
            *MODELLED,
            *COORDINATED,
        ):
            if plain[name] is None:
                del plain[name]
        if self.coordinator is not None:
            plain["compute_s"] = self.compute_s
        return plain

    def _repr_html_(self) -> str:
        from paceline.forecast.html import summary

        return summary(self)

    @property
    def compute_s(self) -> float:
        """Seconds that one worker alone computes in an iteration."""
        return self.forward_s + self.backward_s + self.optimizer_s


@dataclass(frozen=True)
class Scenario:
    """A forecast to make: everything that its result depends on. Made by `of`, which checks every option."""

    trace: Trace
    cluster: Cluster
    strategy: Strategy
    workers: int
    """Ranks that train."""
    library: Library = field(default_factory=lambda: find_library(NONE))
    """The library whose habits and costs it has."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The given options, by their names in `paceline.settings.table`; they win over the library's."""
    timeline: Path | None = None
    """A file for Chrome trace JSON."""
    coordination: Coordination | None = None
    """How ready tensors are coordinated; None: a bucket starts on a rank when it is complete there."""
    workload: Workload | None = None
    """The model, if the trace was made from a configuration."""
    one_a_node: bool = False
    """Whether it was assumed, not said, that every rank has a node: the verdict says so."""

    @classmethod
    def of(
        cls,
        trace: Trace,
        cluster: Cluster,
        strategy: str | Strategy,
        workers: int,
        *,
        library: str | Library = NONE,
        timeline: Path | None = None,
        coordination: Coordination | None = None,
        **options: Unpack[CoreOptions],
    ) -> Scenario:
        """Check every option, and leave out those that are None. Raises InvalidArgumentError."""
        # The library is the bare schedule unless it is given: which one users get by default is up to `prepare`.
        found = library if isinstance(library, Library) else find_library(SETTINGS["library"].check(library))
        # Elsewhere the cluster's own latency counts, even if it is 0.
        own = cluster.channel
        if own == "auto" or (found.channel and own != found.channel):
            cluster = with_channel(cluster, found.channel or None, bare=found.is_bare)
        entry = strategy if isinstance(strategy, Strategy) else find_strategy(SETTINGS["strategy"].check(strategy))
        return cls(
            trace,
            cluster,
            entry,
            SETTINGS["workers"].check(workers, None, SIMULATE),
            found,
            _checked(options),
            timeline,
            coordination,
        )

    def changed(
        self,
        *,
        trace: Trace | None = None,
        cluster: Cluster | None = None,
        workers: int | None = None,
        **options: Unpack[CoreOptions],
    ) -> Scenario:
        """Return the same scenario with these changes."""
        given = {name: value for name, value in self.options.items() if name not in options}
        return replace(
            self,
            trace=trace or self.trace,
            cluster=cluster or self.cluster,
            workers=self.workers if workers is None else workers,
            options=given | _checked(options),
            timeline=None,
        )

    def under(self, strategy: Strategy) -> Scenario:
        """Return the same scenario under another strategy, with the options that it uses."""
        return replace(self, strategy=strategy, options=used_by(strategy, self.options), timeline=None)

    @property
    def bucket_size(self) -> int | None:
        """The largest bucket in bytes, the library's unless it was given; None: every tensor is sent by itself."""
        return lowered(self).bucket_size

    @property
    def most_messages(self) -> int:
        """About how many messages its simulation has at most: a ring's; few of a plan, timed by collective if large."""
        low = lowered(self)
        if {"collectives", "slowdown"} & low.options.keys() or _core.is_planned(json.dumps(low.options)):
            return self.workers
        return 2 * self.workers**2 * len(self.trace.buckets(low.bucket_size))

    def core_options(self) -> dict[str, Any]:
        """Return strategy, workers and options in the form of the native module."""
        return lowered(self).options

    def plan(self) -> str:
        """Return the plan that is executed, as JSON. Raises InvalidArgumentError: a coordinator has none."""
        if self.coordination is not None:
            raise InvalidArgumentError(
                "a coordinator decides in every iteration what is exchanged, so there is no plan; leave it out"
            )
        low = lowered(self)
        return _core.iteration_plan(self.trace, json.dumps(low.options))

    def _sharded(self, found: Result, options: Mapping[str, Any]) -> Sharded | None:
        """Return what is asked of a plan, with the memory of one GPU of a tensor-parallel rank.

        `options`: those that the native module had.
        """
        if found.sharded is None or (self.workload is None and not shardings.is_plan(self.options)):
            return None
        own = found.sharded
        if self.workload is not None:
            if self.workload.pipeline > 1:
                own = replace(own, memory=of_workload(self.workload, options))
            else:
                own = replace(own, memory=of_gpu(own.memory, self.workload))
        return replace(own, capacity_bytes=self.capacity_bytes)

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of a GPU, if it is known."""
        given: int | None = self.options.get("memory")
        if given is not None:
            return given
        if self.workload is not None:
            return self.workload.hardware.memory_bytes
        hardware = titled(self.trace.device)
        return None if hardware is None else hardware.memory_bytes

    def _nodes(self, ranks_per_node: int) -> int:
        """Return over how many nodes its GPUs are: the stages of a pipeline are on nodes of their own."""
        stages = 1 if self.workload is None else self.workload.pipeline
        return -(-self.workers // ranks_per_node) * stages

    @property
    def spans_nodes(self) -> bool:
        """Whether its workers are on several nodes, with a switch between them."""
        return self._nodes(self.cluster.gpus_per_node) > 1

    def unreachable(self) -> str | None:
        """Return why its exchanges cannot be simulated, if they cannot be. Raises InvalidArgumentError."""
        low = lowered(self)
        return _core.unreachable(self.trace, low.cluster, json.dumps(low.options))

    def result(self, ranks: int | None = None) -> Result:
        """Simulate it, without the GIL; `ranks` limits the timeline to the first ones. Raises InvalidArgumentError."""
        low = lowered(self)
        text = _core.simulate(self.trace, low.cluster, json.dumps(low.options), self.timeline, ranks)
        found = Result.from_json(text)
        cluster = self.cluster
        question = Question(
            library=self.library.name,
            family=self.library.family,
            strategy=found.strategy,
            channel=low.channel,
            workers=self.workers,
            nodes=self._nodes(cluster.gpus_per_node),
            link_bps=cluster.bandwidth_bps,
            # NCCL's own choice is a ring except for small buckets.
            own=found.strategy == self.library.strategy
            or (self.library.strategy, found.strategy) == ("native", "ring"),
            computes=found.compute_s > 0,
            coordinated=self.coordination is not None,
            sharded=shardings.is_plan(self.options),
            communicates=found.messages > 0,
            beyond=beyond(self, low),
            architecture="" if self.workload is None else self.workload.hardware.architecture,
        )
        likely, evidence = interval(found.iteration_s, question)
        # Nothing is faster than computation, if that was measured.
        least_s = min(found.compute_s, found.iteration_s)
        figures: dict[str, Any] = {}
        if self.workload is not None:
            passes = self.options.get("accumulate", 1)
            figures |= self.workload.figures(found.samples_per_s, self.workers, passes)
            if self.workload.has_exchanges:
                # Computation that is said to be faster has faster exchanges within it.
                pass_s = self.workload.before_s + self.workload.forward_s + self.workload.backward_s
                faster = (found.forward_s + found.backward_s) / (passes * pass_s)
                figures |= {name: faster * figures[name] for name in WITHIN if name in figures}
            figures |= {"assumed": self.workload.assumed, **self.workload.parallelism}
            if self.workload.context > 1 and found.samples_per_s is not None:
                # Each rank counts its part of a sample as one.
                figures["samples_per_s"] = found.samples_per_s / self.workload.context
            if self.workload.tensor > 1:
                # Its nodes are made of ranks, each of which is several GPUs.
                rank = "one data-parallel rank per node"
                figures["notes"] = tuple(note.replace("one GPU per node", rank) for note in found.notes)
        sharded = self._sharded(found, low.options)
        if sharded is not None and sharded.memory.activations_bytes is None:
            without = f"{found.trace} does not say what activations take, so memory leaves them out"
            figures["notes"] = (*figures.get("notes", found.notes), without)
        if said := compressions.note(self):
            figures["notes"] = (*figures.get("notes", found.notes), *said)
        return replace(
            found,
            **figures,
            sharded=sharded,
            compression=self.options.get("compression"),
            sync_every=self.options.get("sync_every"),
            bandwidth_bps=cluster.bandwidth_bps,
            interval=likely if likely is None or self.workload is not None else likely.at_least(least_s),
            evidence=evidence,
            library=self.library.spec,
            channel=low.channel,
            flow_bandwidth_bps=low.flow_bps,
            compute_speedup=float(self.options.get("compute_speedup", 1.0)),
            cluster=cluster.name,
            gpus_per_node=cluster.gpus_per_node,
            has_rails=cluster.has_rails,
            latency_s=low.cluster.latency_s,
            bucket_size=low.bucket_size,
        )


def _told_apart(path: Sequence[PathPart], compute_s: float, own: Sharded) -> tuple[PathPart, ...]:
    """Return the parts, largest first, of which computation is the trace's: without what communication adds to it."""
    added = {CALLS: own.calls_s, SLOWED: own.slowed_s}
    parts = []
    for part in path:
        if part.part != "compute" or not any(added.values()):
            parts.append(part)
            continue
        # The path has them in the share that it has of all computation.
        share = min(1.0, part.seconds / (compute_s + sum(added.values())))
        parts += [PathPart(name, seconds * share) for name, seconds in added.items() if seconds > 0]
        parts.append(PathPart("compute", max(0.0, part.seconds - share * sum(added.values()))))
    return tuple(sorted(parts, key=lambda part: -part.seconds))


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: SETTINGS[name].check(value, None, SIMULATE) for name, value in options.items() if value is not None}


def used_by(strategy: Strategy, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a strategy uses."""
    return {name: value for name, value in options.items() if name not in KNOBS or name in strategy.knobs}


def traced(scenario: Scenario, ranks: int | None = None) -> tuple[Result, list[dict[str, Any]]]:
    """Return the result and the timeline: events in Chrome's format. Raises InvalidArgumentError.

    `ranks`: limits the timeline to the first workers and the first server.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        path = Path(folder) / "timeline.json"
        result = replace(scenario, timeline=path).result(ranks)
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return result, events


def simulate(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster | None = None,
    strategy: names.Strategy | None = None,
    *,
    workers: int | None = None,
    gpus: int | None = None,
    timeline: str | Path | None = None,
    **options: Unpack[SimulateOptions],
) -> Result:
    """Forecast one iteration of training. The GIL is released while it runs.

    Args:
        trace: A file, a built-in name, `allreduce:100MB`, or a `Trace`.
        cluster: A file, a built-in name, or a `Cluster`; by default `flat`, 25 Gbit/s between single-GPU nodes.
        strategy: How gradients are synchronised; `paceline strategies` lists the names. The default is what the
            library does by itself: `native` for `ddp`.
        workers: Ranks that train, one per GPU; required, unless `gpus` is given.
        gpus: The same, as one counts those of a model.
        timeline: A file to which the run is written as a Chrome trace.
        **options: Settings of a forecast (docs/reference/settings.md), such as `servers=2`, `bucket_size="25MB"` or
            `pull="step"`; the `library` whose costs it has (docs/reference/libraries.md); changes to the trace
            (`device`, `samples_per_s`, `batch`, `dtype`); and fields of the cluster, such as `bandwidth="10Gbps"`,
            `latency="10us"` or `gpus_per_node=4`. Sizes are bytes, or text with a unit. None stands for the default.

    Returns:
        The forecast; times are seconds per iteration in the steady state.

    Raises:
        InvalidArgumentError: A name is unknown, a value invalid, or an option has no effect on this strategy.
        OSError: The timeline cannot be written.

    Example:
        >>> result = paceline.simulate("resnet-50", strategy="ring", workers=8, bandwidth="10Gbps")
        >>> result.workers, result.iteration_s > result.forward_s + result.backward_s
        (8, True)
    """
    from paceline.forecast.options import Sweep, prepare

    if workers is None and gpus is None:
        raise InvalidArgumentError("give the number of ranks that train, such as workers=8", setting="workers")
    given: dict[str, object] = {**options, "cluster": cluster, "strategy": strategy, "workers": workers, "gpus": gpus}
    [scenario] = prepare(Sweep.of(trace, given, SIMULATE, one_strategy=True)).scenarios
    return replace(scenario, timeline=None if timeline is None else Path(timeline)).result()
