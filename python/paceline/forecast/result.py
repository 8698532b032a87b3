"""The result of a forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from paceline._core import Outcome
from paceline.catalog.compression import OPTIONS as COMPRESSION
from paceline.catalog.libraries import NONE
from paceline.forecast.asynchronous import Asynchronous
from paceline.forecast.kinds import Evidence, Part
from paceline.forecast.sharded import Sharded
from paceline.forecast.staggering import Staggering
from paceline.forecast.wording import terms

SCHEMA_VERSION = 1
"""Of the objects that `--json` prints: fields may be added; a changed or removed one makes another version."""
COORDINATED = ("coordinator", "coordinator_s", "copy_s", "collective_s", "latest_s", "contention_s")
"""Fields of a result that it has under a coordinator."""
WITHIN = ("tensor_parallel_s", "expert_parallel_s", "context_parallel_s")
"""Parts of a model's computation that are exchanges."""
MODELED = (
    "assumed",
    "tokens_per_s_per_gpu",
    "mfu",
    "trained_parameters",
    "real_tokens_per_s_per_gpu",
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

REQUESTED = (
    *("chunk", "placement", "distribution", "add_module", "modules", "send_order"),
    *("gpu", "power_limit_w", "baseline", "speedup", "measured_scale", "longest_seq", "offload_s"),
)
"""Fields of a result that it has if they were asked for, or if its strategy has the choice."""


@dataclass(frozen=True)
class Interval:
    """The interval that holds the measured iteration time with a probability of `level`. Times are seconds."""

    low_s: float
    high_s: float
    level: float
    cases: int
    """Comparable measurements."""
    basis: str
    """Their description."""
    clipped: bool = False
    """Whether it would begin below `low_s`, the time of computation alone."""
    spread: float = 0.0
    """The standard deviation of the logarithm of measured over forecast time, of usual errors."""

    def at_least(self, least_s: float) -> Interval:
        """Return the interval without what is faster than this time, which nothing can be."""
        if self.low_s >= least_s:
            return self
        return replace(self, low_s=least_s, high_s=max(self.high_s, least_s), clipped=True)


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

    part: Part
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
    """With what is offloaded, as both passes."""
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
    """The library that is modeled; `none`: the bare schedule."""
    channel: str = "none"
    """The carrier of messages between nodes: `tcp`, `rdma`, or `none`, where messages get the whole bandwidth."""
    flow_bandwidth_bps: float = 0.0
    """The share of a node's rate that its messages get, in bits per second."""
    interval: Interval | None = None
    """The interval that holds a measured iteration with a probability of 80 %; None outside the evidence."""
    evidence: str = ""
    """The measurements that the interval is based on, or why there is none."""
    ground: Evidence | None = field(default=None, repr=False)
    """The same as a value."""
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
    """Assumptions of the compute times, for models from a configuration: GPU, tokens, precision, checkpointing."""
    tokens_per_s_per_gpu: float | None = None
    """Tokens per second and GPU, for language models from a configuration."""
    mfu: float | None = None
    """Model FLOPs utilization, for models from a configuration: 6 FLOPs per parameter and token, and attention's."""
    real_tokens_per_s_per_gpu: float | None = None
    """Tokens per second and GPU that are no padding, if some are."""
    trained_parameters: int | None = None
    """Parameters that are trained, if some are not: adapters beside frozen weights."""
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
    server_shares: tuple[float, ...] = ()
    """Each server's share of the bytes that servers hold; empty where no server has tensors of its own."""
    compression: str | None = None
    """How gradients were compressed: `none`, `powersgd:4`, …; None if it was not asked for."""
    sync_every: int | None = None
    """Iterations between two exchanges of parameters, 1 for gradients in each; None if it was not asked for."""
    chunk: str | int | None = None
    """Message size, if it was asked for."""
    placement: str | None = None
    """How tensors are assigned to servers, for strategies that have a choice."""
    distribution: str | None = None
    """In which order servers serve workers, for strategies that have a choice."""
    add_module: str | None = None
    """Modules that were added to the trace: `compute:25`."""
    modules: int | None = None
    """How many these are."""
    send_order: str | None = None
    """The order of tensors in which servers distribute them, if it was asked for."""
    gpu: str | None = None
    """The GPU whose times the trace has, if it was asked for."""
    power_limit_w: float | None = None
    """The power limit of each GPU, if one was set."""
    baseline: str | None = None
    """The row with which `speedup` compares, if it was asked for."""
    speedup: float | None = None
    """Its iteration time over this one."""
    offload_s: float | None = None
    """Seconds of both passes and the step beyond what the GPU computes; None: nothing is offloaded."""
    measured_scale: float | None = None
    """Times that computation takes as long as forecast, so that it is as measured, if it was asked for."""
    longest_seq: int | None = None
    """Tokens of the longest sequence with which it fits, if that was asked for; 0: not even the shortest does."""
    staggering: Staggering | None = None
    """How far apart workers come to the parts of an iteration; None: a plan, a coordinator, or no computation."""
    sharded: Sharded | None = None
    """Exposed communication by collective, and memory, if the iteration has a plan (`sharding`, `accumulate`)."""
    asynchronous: Asynchronous | None = None
    """Staleness, and waiting for the bound on it, if workers do not wait for each other (`async-ps`)."""
    _shown: ClassVar[Callable[[Result], str] | None] = None
    """Returns what notebooks show; set by `output.html`."""

    @property
    def gpus(self) -> int:
        """GPUs of all ranks."""
        return self.workers * (self.gpus_per_worker or 1)

    @classmethod
    def of(cls, outcome: Outcome) -> Result:
        """Return what the native module says; what a scenario says besides has its defaults.

        Args:
            outcome: The result of a simulation.
        """
        sharded = Sharded.of(outcome.sharded)
        compute_s = outcome.forward_s + outcome.backward_s + outcome.optimizer_s
        path = [PathPart(Part(it.part), it.seconds) for it in outcome.critical_path]
        busy = outcome.busy
        return cls(
            trace=outcome.trace,
            strategy=outcome.strategy,
            workers=outcome.workers,
            servers=outcome.servers,
            bandwidth_bps=outcome.bandwidth_bps,
            iteration_s=outcome.iteration_s,
            samples_per_s=outcome.samples_per_s,
            scaling_efficiency=outcome.scaling_efficiency,
            exposed_communication_s=outcome.exposed_communication_s,
            forward_s=outcome.forward_s,
            backward_s=outcome.backward_s,
            optimizer_s=outcome.optimizer_s,
            bytes_sent_per_worker=outcome.bytes_sent_per_worker,
            messages=outcome.messages,
            batch=outcome.batch,
            gradient_bytes=outcome.gradient_bytes,
            buckets=outcome.buckets,
            links=tuple(LinkUse(it.kind, it.links, it.busiest_s, it.mean_s) for it in outcome.links),
            critical_path=_told_apart(path, compute_s, sharded),
            queued_s=outcome.queued_s,
            notes=tuple(map(terms.note, outcome.notes)),
            algorithm_bandwidth_bps=outcome.algorithm_bandwidth_bps,
            bus_bandwidth_bps=outcome.bus_bandwidth_bps,
            busy=None if busy is None else tuple(Busy(it.name, it.kind, it.busy_s) for it in busy),
            coordinator=outcome.coordinator,
            coordinator_s=outcome.coordinator_s,
            copy_s=outcome.copy_s,
            collective_s=outcome.collective_s,
            latest_s=outcome.latest_s,
            contention_s=outcome.contention_s,
            staggering=Staggering.of(outcome.staggering),
            sharded=sharded,
            server_shares=tuple(outcome.server_shares),
            asynchronous=Asynchronous.of(outcome.asynchronous),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as `--json` prints it, without fields that do not apply."""
        plain: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        plain |= {it.name: getattr(self, it.name) for it in fields(self)}
        del plain["ground"]
        plain["links"] = [vars(link) for link in self.links]
        plain["critical_path"] = [vars(part) for part in self.critical_path]
        plain["notes"] = list(self.notes)
        plain["interval"] = None if self.interval is None else vars(self.interval)
        plain["staggering"] = None if self.staggering is None else self.staggering.to_dict()
        plain["sharded"] = None if self.sharded is None else self.sharded.to_dict()
        plain["asynchronous"] = None if self.asynchronous is None else self.asynchronous.to_dict()
        plain["busy"] = None if self.busy is None else [vars(busy) for busy in self.busy]
        plain["server_shares"] = list(self.server_shares) or None
        for name in (
            "server_shares",
            *COMPRESSION,
            "algorithm_bandwidth_bps",
            "bus_bandwidth_bps",
            "busy",
            "sharded",
            "asynchronous",
            *MODELED,
            *COORDINATED,
            *REQUESTED,
            "staggering",
        ):
            if plain[name] is None:
                del plain[name]
        if self.coordinator is not None:
            plain["compute_s"] = self.compute_s
        return plain

    def _repr_html_(self) -> str | None:
        return None if Result._shown is None else Result._shown(self)

    @property
    def compute_s(self) -> float:
        """Seconds that one worker alone computes and offloads in an iteration."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def gpu_s(self) -> float:
        """Seconds of them that its GPU computes."""
        return self.compute_s - (self.offload_s or 0.0)


def _told_apart(path: Sequence[PathPart], compute_s: float, own: Sharded) -> tuple[PathPart, ...]:
    """Return the parts, largest first, of which computation is the trace's: without what communication adds to it."""
    added = {Part.CALLS: own.calls_s, Part.SLOWED: own.slowed_s}
    parts = []
    for part in path:
        if part.part is not Part.COMPUTE or not any(added.values()):
            parts.append(part)
            continue
        # The path has them in the share that it has of all computation.
        share = min(1.0, part.seconds / (compute_s + sum(added.values())))
        parts += [PathPart(name, seconds * share) for name, seconds in added.items() if seconds > 0]
        parts.append(PathPart(Part.COMPUTE, max(0.0, part.seconds - share * sum(added.values()))))
    return tuple(sorted(parts, key=lambda part: -part.seconds))
