"""The native module: the contract between Rust and Python. JSON is for files."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict, Unpack

__version__: str

class Layer:
    """A forward layer."""

    name: str
    duration_s: float
    """Once its inputs are available."""
    tensors: list[str]
    """Names of the parameters that it needs."""
    activation_bytes: int | None
    """Of a sample, kept for the backward pass; None: unknown."""
    backward_bytes: int | None
    """Of a sample, that only the backward pass needs; None: unknown."""
    def __init__(
        self,
        name: str,
        duration_s: float,
        tensors: Sequence[str] = ...,
        *,
        activation_bytes: int | None = None,
        backward_bytes: int | None = None,
    ) -> None: ...

class Gradient:
    """A gradient, and when it may be sent."""

    tensor: str
    ready_s: float
    """After the start of the backward pass."""
    bytes: int
    shape: list[int] | None
    """None: not known."""
    def __init__(self, tensor: str, ready_s: float, bytes: int, shape: Sequence[int] | None = None) -> None: ...

class Worker:
    """One recorded worker."""

    forward: list[Layer]
    gradients: list[Gradient]
    backward_s: float | None
    """None: until the last gradient is ready."""
    optimizer_s: float
    def __init__(
        self,
        forward: Sequence[Layer],
        gradients: Sequence[Gradient],
        *,
        backward_s: float | None = None,
        optimizer_s: float = 0.0,
    ) -> None: ...
    @property
    def forward_s(self) -> float:
        """Seconds of the forward layers."""

class Distributed:
    """A tensor in the order in which servers distribute them."""

    tensor: str
    bytes: int | None
    """None: those of its gradient."""
    def __init__(self, tensor: str, bytes: int | None = None) -> None: ...

class Trace:
    """One worker's compute in one iteration, and when each gradient is ready. Immutable.

    The file format is described in docs/reference/trace-format.md; `paceline.load_trace` also knows the built-in
    traces.
    """

    name: str
    provenance: str
    """How it was made, with its sources."""
    batch: int
    """Samples per worker and iteration."""
    dtype: str
    """Element type of gradients: float64, float32, float16 or bfloat16."""
    device: str
    """The hardware on which it was recorded."""
    library: str
    """The library that synchronized gradients while it was recorded; empty if none did."""
    workers: list[Worker]
    """Simulated worker i behaves like recorded worker i modulo their number."""
    distribution: list[Distributed]
    """All tensors that are not frozen, in the order in which servers distribute them."""
    variables: list[Distributed]
    """The model's variables in the order in which the framework created them, as far as the trace lists them; those
    that are no tensor of the trace have their bytes."""
    frozen: list[tuple[str, int]]
    """Names and bytes of parameters that are not trained."""
    optimizer_bytes: int | None
    """Of the optimizer's states; None: unknown."""
    backward_spread: float
    """How much workers differ (docs/reference/trace-format.md, variation)."""
    layer_count: int
    tensor_count: int
    worker_count: int
    gradient_bytes: int
    """Of all tensors."""
    frozen_bytes: int
    """Of all parameters that are not trained."""
    forward_s: float
    """Of the first worker, as the next ones."""
    backward_s: float
    optimizer_s: float
    computes: bool
    """Whether these are not all zero."""
    has_operators: bool
    """Whether it can be timed again for another GPU."""
    accumulates: bool
    """Whether a step was recorded with several passes."""

    def __init__(
        self, name: str, batch: int, dtype: str, workers: Sequence[Worker], **fields: Unpack[_OtherTraceFields]
    ) -> None:
        """Raises InvalidArgumentError for what docs/reference/trace-format.md does not allow."""
    @staticmethod
    def read(path: str | PathLike[str]) -> Trace:
        """Read a trace file.

        Args:
            path: The file.

        Raises:
            InvalidArgumentError: The file is missing or malformed; the message names the place in it.
        """
    @staticmethod
    def from_json(text: str | bytes, source: str = "trace") -> Trace:
        """Parse a trace.

        Args:
            text: The JSON, as `to_json` returns it, or the bytes of a file.
            source: Its name in error messages.

        Raises:
            InvalidArgumentError: It is malformed; the message names the place in it.

        Example:
            >>> trace = paceline.load_trace("resnet-50")
            >>> paceline.Trace.from_json(trace.to_json()) == trace
            True
        """
    @staticmethod
    def from_dict(document: dict[str, object], source: str = "trace") -> Trace:
        """Make a trace of the content of its file, such as an edited one of `to_dict`.

        Args:
            document: The fields of docs/reference/trace-format.md.
            source: Its name in error messages.

        Raises:
            InvalidArgumentError: It is malformed; the message names the place in it.

        Example:
            >>> document = paceline.load_trace("resnet-50").to_dict()
            >>> document["batch"] = 64
            >>> paceline.Trace.from_dict(document).batch
            64
        """
    @staticmethod
    def all_reduce(spec: str) -> Trace:
        """Make a trace without computation, of gradients only.

        Args:
            spec: `"allreduce:100MB"`, or `"allreduce:100MB/4"` for four equal tensors.

        Raises:
            InvalidArgumentError: `spec` is malformed.
        """
    @staticmethod
    def import_sends(
        aggregation: str | PathLike[str],
        distribution: str | PathLike[str],
        *,
        name: str,
        batch: int,
        forward_s: float,
        first_gradient_s: float = 0.0,
        backward_s: float | None = None,
        dtype: str = "float32",
        device: str = "",
        provenance: str = "",
        dependency: str | None = None,
        exclude: Sequence[str] = (),
    ) -> Trace:
        """Make a trace from two recordings of sends (docs/reference/trace-format.md).

        Args:
            aggregation: CSV of the gradients that workers sent to servers.
            distribution: CSV of the parameters that servers sent to workers.
            name: Name of the trace.
            batch: Samples of an iteration.
            forward_s: Duration of the forward pass in seconds.
            first_gradient_s: Time from the start of the backward pass to the first send, in seconds.
            backward_s: Duration of the backward pass in seconds; by default until the last send.
            dtype: Dtype of the gradients.
            device: What it was recorded on.
            provenance: How it was recorded.
            dependency: The operation after whose first send a worker's gradients count (section 5.1 of the paper).
            exclude: Tensors that are left out of both files: parts of names, or patterns such as `*/moving_*`.

        Raises:
            InvalidArgumentError: A file is missing or malformed, a value is out of range, a worker never sends the
                dependency, or a pattern matches no tensor.
        """
    def scaled_to_rate(self, samples_per_s: float) -> Trace:
        """Scale all durations so that one worker alone reaches a rate.

        Args:
            samples_per_s: The rate.

        Raises:
            InvalidArgumentError: The rate is not positive, or the trace has no computation.
        """
    def with_batch(self, batch: int) -> Trace:
        """Change the batch, and scale forward and backward durations with it.

        Args:
            batch: Samples of an iteration.

        Raises:
            InvalidArgumentError: The batch is out of range.
        """
    def with_dtype(self, dtype: str) -> Trace:
        """Change the dtype of the gradients, and with it their sizes.

        Args:
            dtype: float64, float32, float16 or bfloat16.

        Raises:
            InvalidArgumentError: The dtype is unknown.
        """
    def with_modules(self, spec: str) -> Trace:
        """Add modules in the middle: those bound by computation or by the network, or modules of a file.

        Args:
            spec: The kind of module, and how many: `"compute:25"`, `"network:25"`, or `"mine.json:25"` for a file in
                the format of docs/reference/trace-format.md, Modules.

        Raises:
            InvalidArgumentError: `spec` or the file is malformed; the message names the file and the field.
        """
    def replace(self, **fields: Unpack[_TraceFields]) -> Trace:
        """Return the trace with other values of some fields, which are checked as if they were read from a file.

        Args:
            **fields: `name`, `provenance`, `batch`, `dtype`, `device`, `library`, `workers`, `distribution`,
                `frozen`, `optimizer_bytes` or `backward_spread`; `operators`, which only None can replace. Other
                `workers` have no operators.

        Raises:
            InvalidArgumentError: A value is not allowed (docs/reference/trace-format.md).

        Example:
            >>> trace = paceline.load_trace("netop-vgg-16")
            >>> last = trace.replace(distribution=trace.distribution[::-1])
            >>> last.distribution[-1].tensor
            'conv1_1/weights'
        """
    def summary(self) -> str:
        """Return totals as JSON. Deprecated, with a FutureWarning: the fields above say the same."""

    def to_json(self) -> str:
        """Return the trace in its file format."""
    def to_dict(self) -> dict[str, object]:
        """Return the content of the trace's file, to be changed and loaded again by `from_dict`."""
    def operators(self) -> dict[str, Any] | None:
        """Return the content of the field `operators`; None if the trace has none."""
    def buckets(self, bucket_size: int | None = None) -> list[list[str]]:
        """Return the names of the gradients of each fused bucket, in the order in which they become ready.

        Args:
            bucket_size: Bytes of a bucket at most; None puts every tensor into a bucket of its own.
        """

class _OtherTraceFields(TypedDict, total=False):
    provenance: str
    device: str
    library: str
    distribution: Sequence[Distributed]
    variables: Sequence[Distributed]
    frozen: Sequence[tuple[str, int]]
    optimizer_bytes: int | None
    backward_spread: float
    operators: None

class _TraceFields(_OtherTraceFields, total=False):
    name: str
    batch: int
    dtype: str
    workers: Sequence[Worker]

class Racks:
    """Nodes in racks."""

    nodes_per_rack: int
    oversubscription: float
    """The nodes' rates over the uplink's."""
    def __init__(self, nodes_per_rack: int, oversubscription: float) -> None: ...

class Switch:
    """Features of the network between the nodes beyond unicast."""

    multicast: bool
    aggregation: bool
    cut_through: bool
    memory: int | None
    """Bytes of partial sums at once; None: unlimited."""
    radix: int | None
    """Most workers in one aggregation; None: unlimited."""
    def __init__(
        self,
        *,
        multicast: bool,
        aggregation: bool,
        cut_through: bool = False,
        memory: int | None = None,
        radix: int | None = None,
    ) -> None: ...

class Degraded:
    """A link, or all links of a switch, that carries less than it should."""

    link: str
    factor: float
    """The share of its rate that is left; 0: it is removed."""
    def __init__(self, link: str, factor: float) -> None: ...

class Straggler:
    """A slow rank, and the factor by which its computation takes longer."""

    rank: int
    factor: float
    def __init__(self, rank: int, factor: float) -> None: ...

class Mesh:
    """GPUs of a node with links to some of the others."""

    peers: int
    """How many others each GPU has a link to."""
    bridge_bps: float
    """Rate of the bus to all others, in bits per second."""
    def __init__(self, peers: int, bridge_bps: float) -> None: ...

class Fabric:
    """The switches between the nodes. Fields that its kind does not have are None."""

    kind: Literal["leaf-spine", "rails", "fat-tree", "dragonfly", "torus"]
    nodes_per_leaf: int | None
    spines: int | None
    radix: int | None
    oversubscription: float | None
    """None, too, if links have a rate of their own."""
    routers_per_group: int | None
    global_links: int | None
    groups: int | None
    dimensions: list[int] | None
    nodes_per_switch: int
    """On a switch that has any."""
    capacity: int | None
    """The most nodes that it can have; None: there is no limit."""
    link_bandwidth_bps: float | None
    hop_latency_s: float
    routing: Literal["ecmp", "adaptive"]
    def with_link_bandwidth(self, bits_per_s: float) -> Fabric:
        """Return the fabric with links between switches of a rate of their own."""
    def with_oversubscription(self, oversubscription: float) -> Fabric:
        """Return the fabric with other links between switches. Raises InvalidArgumentError for a kind without."""

class PartCosts:
    """The time of a part of compressing, in seconds."""

    bucket_s: float
    tensor_s: float
    element_s: float
    received_s: float
    def __init__(
        self, *, bucket_s: float = 0.0, tensor_s: float = 0.0, element_s: float = 0.0, received_s: float = 0.0
    ) -> None: ...

class Sockets:
    """NCCL's TCP sockets between two ranks: helper threads of a connection, and sockets of a thread."""

    threads: int
    """0: the proxy's thread sends and receives itself."""
    per_thread: int
    def __init__(self, threads: int, per_thread: int) -> None: ...

class CompressionCosts:
    """The time of compressing by one method, such as `powersgd:4`."""

    method: str
    compress: PartCosts
    between: PartCosts
    decompress: PartCosts
    def __init__(self, method: str, compress: PartCosts, between: PartCosts, decompress: PartCosts) -> None: ...

class _ClusterFields(TypedDict, total=False):
    name: str
    provenance: str
    bandwidth_bps: float
    bandwidth_measured: bool
    channel: str
    efficiency: float | None
    stream_bandwidth_bps: float | None
    latency_s: float
    message_overhead_s: float
    gpus_per_node: int
    gpus_per_rank: int
    gpu: str | None
    nics_per_node: int
    gpudirect: bool
    nccl_plugin: str | None
    nccl_sockets: Sockets
    intra_link: Literal["pcie", "xgmi", "nvlink", "nvswitch"] | None
    intra_bandwidth_bps: float
    peer_access: bool
    sockets: int
    mesh: Mesh | None
    intra_latency_s: float
    host_bandwidth_bps: float | None
    reduction_bandwidth_bps: float | None
    node_contention: float
    servers: Literal["own-nodes", "colocated"]
    racks: Racks | None
    fabric: Fabric | None
    degraded: Sequence[Degraded]
    switch: Switch
    stragglers: Sequence[Straggler]
    jitter: float | None
    compression_costs: Sequence[CompressionCosts]

class Cluster:
    """Nodes, links, racks, and what the switch can do. Immutable.

    The file format is described in docs/reference/cluster-format.md; `paceline.load_cluster` also knows the built-in
    clusters, and overrides fields.
    """

    name: str
    provenance: str
    """The source of the figures."""
    bandwidth_bps: float
    """Rate of a node's NICs in bits per second, each way; with rails, of a GPU's."""
    bandwidth_measured: bool
    """False: a probe of one host repeats the rate inside it."""
    channel: Literal["none", "auto", "tcp", "rdma"]
    """The carrier of messages between nodes; `none`: unknown, messages get the whole bandwidth."""
    efficiency: float | None
    """The share of the bandwidth that messages get; None: the channel's."""
    stream_bandwidth_bps: float | None
    """The most that one connection carries; None: what the channel's connections carry."""
    latency_s: float
    """Between two nodes, one way."""
    message_overhead_s: float
    """Of a message at its sender."""
    gpus_per_node: int
    """Ranks of a node."""
    gpus_per_rank: int
    """GPUs that a rank stands for, such as tensor-parallel ones."""
    gpu: str | None
    """The GPUs' name; None: not said."""
    nics_per_node: int
    gpudirect: bool
    """Whether NICs read and write the memory of GPUs; otherwise, messages pass through the host's."""
    nccl_plugin: str | None
    """The plugin by which NCCL uses RDMA; None: it needs none."""
    nccl_sockets: Sockets
    """NCCL's sockets where it has no RDMA."""
    intra_link: Literal["pcie", "xgmi", "nvlink", "nvswitch"] | None
    """The links between the GPUs of a node; None: unknown."""
    intra_bandwidth_bps: float
    peer_access: bool
    sockets: int
    """Rate of a rank's link inside the node, each way."""
    mesh: Mesh | None
    """None: every GPU reaches every other at that rate."""
    intra_latency_s: float
    host_bandwidth_bps: float | None
    """Rate at which a rank processes what it sends and receives; None: that takes no time."""
    reduction_bandwidth_bps: float | None
    """Rate at which a rank adds what it receives; None: that takes no time."""
    node_contention: float
    """By which share computation takes longer while several GPUs of a node compute."""
    servers: Literal["own-nodes", "colocated"]
    """Where parameter servers run."""
    racks: Racks | None
    fabric: Fabric | None
    """None: one switch, or racks."""
    has_rails: bool
    """Whether every GPU has a NIC of its own, whose rate `bandwidth_bps` is."""
    degraded: list[Degraded]
    switch: Switch
    stragglers: list[Straggler]
    jitter: float | None
    """Standard deviation of the logarithm of computation times; None: they do not vary."""
    compression_costs: list[CompressionCosts]

    @staticmethod
    def read(path: str | PathLike[str]) -> Cluster:
        """Read a cluster file.

        Args:
            path: The file.

        Raises:
            InvalidArgumentError: The file is missing or malformed; the message names the place in it.
        """
    @staticmethod
    def from_json(text: bytes, source: str) -> Cluster:
        """Parse a cluster.

        Args:
            text: The JSON, in UTF-8.
            source: What error messages call it.

        Raises:
            InvalidArgumentError: It is malformed; the message names the place in it.
        """
    def replace(self, **fields: Unpack[_ClusterFields]) -> Cluster:
        """Return the cluster with other values of some fields. Raises InvalidArgumentError."""
    def with_fields(self, fields: str) -> Cluster:
        """Return the cluster with fields in the spelling of its file, as users write them: a JSON object.

        A fabric that replaces one switch has none of its features unless the fields say so. Raises
        InvalidArgumentError.
        """
    def to_json(self) -> str:
        """Return the cluster in its file format."""
    @property
    def links(self) -> str:
        """Links that `degraded` may name, as patterns in which `N` stands for any number."""
    @property
    def nodes_per_switch(self) -> int | None:
        """Nodes of a rack, or on a switch of the fabric; None if one switch connects all."""
    @property
    def most_nodes(self) -> int | None:
        """The most nodes that the fabric can have; None if there is no limit."""

class Graph:
    """The operations of one training step and their dependencies (docs/reference/coordinator-plan.md). Immutable."""

    name: str
    nodes: int
    edges: int
    all_reduces: int
    fetches: list[str]
    """Names of the nodes from which the file wants it traversed; may be empty."""

    @staticmethod
    def read(path: str | PathLike[str]) -> Graph:
        """Read a graph file.

        Args:
            path: The file.

        Raises:
            InvalidArgumentError: The file is missing or malformed; the message names the place in it.
        """
    @staticmethod
    def from_json(text: bytes, source: str) -> Graph:
        """Parse a graph.

        Args:
            text: The JSON, in UTF-8.
            source: What error messages call it.

        Raises:
            InvalidArgumentError: It is malformed; the message names the place in it.
        """
    def to_json(self) -> str:
        """Return the graph in its file format."""
    def traversal_s(self, fetches: Sequence[str], bucket_size: int, times: int, *, as_listed: bool = False) -> float:
        """Return the median time of one traversal with its fusion, in seconds, of so many.

        Raises InvalidArgumentError, as `plan`.
        """

    def plan(self, fetches: Sequence[str], bucket_size: int, *, as_listed: bool = False) -> str:
        """Return ids and buckets as JSON; `paceline_lab.plan.plan_graph` is the typed form.

        Args:
            fetches: Names of the nodes that a step computes.
            bucket_size: Bytes of a fused bucket at most; 0 fuses nothing.
            as_listed: Whether ids follow the graph's list, not the depth.

        Raises:
            InvalidArgumentError: A fetch is unknown, there are none, what they need has a cycle, or the list has a
                child before its parent.
        """

class LinkUse:
    """How busy the links of one kind were, in seconds per iteration."""

    kind: str
    links: int
    busiest_s: float
    mean_s: float

class Busy:
    """Busy time of a link or worker, in seconds per iteration."""

    name: str
    kind: str
    busy_s: float

class PathPart:
    """A part of the critical path, in seconds per iteration."""

    part: str
    seconds: float

class ExposedBy:
    """Exposed communication by collective: `paceline.forecast.sharded.ExposedBy`."""

    all_gather_s: float
    reduce_scatter_s: float
    all_reduce_s: float
    compression_s: float

class Memory:
    """Bytes at the peak of a rank's memory: `paceline.forecast.sharded.Memory`."""

    peak_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    communication_bytes: int
    activations_bytes: int | None
    apart_bytes: int
    state_bytes: int

class Sharded:
    """Exposed communication and memory, from the plan of an iteration: `paceline.forecast.sharded.Sharded`."""

    sharding: str
    shard_ranks: int
    passes: int
    sync_every: int
    units: int
    parameters: int
    exposed: ExposedBy
    straggling_s: float
    slowed_s: float
    calls_s: float
    memory: Memory
    resolution: Literal["messages", "collectives"]

class Note:
    """A degenerate case that a user should know about: one of the classes within."""

    class NoSwitch(Note):
        """`sharp` on one node has no switch."""

    class SwitchLimits(Note):
        """The radix or the memory of switches shapes `sharp`."""

        levels: tuple[int, int] | None
        """The most that a switch adds up, and the levels of the tree that follows."""
        pieces: tuple[int, int] | None
        """Elements of a piece, and how many pieces the memory of a switch then holds."""

    class SharedTensors(Note):
        """`sharded-ps` with one rank per node: servers share every tensor."""

    class NoRing(Note):
        """`hierarchical` on one node has no ring between nodes."""

    class RingOfNodes(Note):
        """`hierarchical` with one rank per node is a ring between the nodes."""

    class OneGroup(Note):
        """`hsdp` with one group of all ranks is `zero3`."""

        ranks: int

    class ClosedForm(Note):
        """Exchanges take their closed form: their messages are too many to be simulated."""

        strategy: str
        workers: int

class Spread:
    """The moments at which workers come to a part of an iteration, in seconds from its beginning."""

    min_s: float
    median_s: float
    max_s: float
    spread_s: float
    """From the first worker to the last."""
    workers_s: list[float] | None
    """Each worker's by rank, if `detail` was requested."""

class Staggering:
    """How far apart workers come to the parts of an iteration."""

    pull: Spread | None
    """When the last new parameter arrives; None without servers."""
    backward: Spread
    """When backward passes begin."""
    push: Spread
    """When they end."""

class Asynchronous:
    """The steady state of workers that do not wait for each other. Immutable."""

    bound: int | None
    """Iterations that workers may be apart; None: any number."""
    iterations: int
    """Measured iterations of the worker with the fewest."""
    staleness: list[tuple[int, int]]
    """Others' updates of a tensor since a worker pulled it, and how many of its gradients met so many."""
    mean: float
    median: int
    p90: int
    blocked_s: float
    """Seconds of an iteration in which the bound holds a worker back."""
    fastest_s: float
    slowest_s: float

class Outcome:
    """The result of one simulation: what `paceline.forecast.result.Result` has of it. Immutable."""

    trace: str
    strategy: str
    workers: int
    servers: int
    bandwidth_bps: float
    iteration_s: float
    samples_per_s: float | None
    scaling_efficiency: float | None
    exposed_communication_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    bytes_sent_per_worker: float
    messages: int
    batch: int
    gradient_bytes: int
    buckets: int
    server_shares: list[float]
    """Each server's share of the bytes that servers hold; empty where no server has tensors of its own."""
    links: list[LinkUse]
    critical_path: list[PathPart]
    queued_s: float | None
    busy: list[Busy] | None
    """None: not requested."""
    coordinator: str | None
    """None: without one, as in the next ones."""
    coordinator_s: float | None
    copy_s: float | None
    collective_s: float | None
    latest_s: float | None
    contention_s: float | None
    staggering: Staggering | None
    """None: of a plan, of a coordinator, or without computation."""
    asynchronous: Asynchronous | None
    """None: workers wait for each other."""
    sharded: Sharded
    algorithm_bandwidth_bps: float | None
    """Of a trace without computation, as the next one."""
    bus_bandwidth_bps: float | None
    notes: list[Note]

class RankGroup:
    """Ranks of one exchange: those of a block of `size * stride` ranks that are equal modulo `stride`. Immutable."""

    size: int
    stride: int
    def __init__(self, size: int, stride: int) -> None: ...
    def around(self, rank: int) -> list[int]:
        """Return the ranks of the group in which a rank is, in order."""
    def __hash__(self) -> int: ...

class Exchanged:
    """The exchange of a step: `elements` of the whole, of which each rank has an equal shard. Immutable."""

    collective: Literal["all-reduce", "reduce-scatter", "all-gather"]
    group: RankGroup
    elements: int
    dtype: Literal["float64", "float32", "float16", "bfloat16"]
    size: int
    """Bytes of the whole."""
    def __hash__(self) -> int: ...

class PlanStep:
    """A step. It begins when the step before it on its stream and all of `after` have ended. Immutable."""

    number: int
    stream: Literal["compute", "all-gather", "reduce-scatter", "all-reduce", "compression", "background"]
    """`background`: exchanges begin in order and do not wait for each other."""
    kind: Literal["forward", "backward", "optimizer", "exchange", "compress", "decompress", "outer-optimizer"]
    name: str
    duration_s: float
    """Of computation."""
    exchanged: Exchanged | None
    after: list[int]
    after_previous: list[int]
    """Steps of the iteration before."""
    unit: int | None
    """The unit's number; None: all."""

class PlanUnit:
    """Tensors that are exchanged as one. Immutable."""

    name: str
    elements: int
    """Those that are trained."""
    frozen: int
    """Others."""
    pull_only: bool
    """It has no gradients: servers distribute it and do not add to it."""
    priority: int | None
    """Its place in the order in which servers distribute; None: there are no servers."""

class Plan:
    """One rank's steps in an iteration (docs/reference/iteration-plan.md), the same on all ranks. Immutable."""

    trace: str
    sharding: Literal["none", "zero1", "zero2", "zero3", "hsdp"]
    world: int
    """Ranks."""
    steps: tuple[PlanStep, ...]
    units: list[PlanUnit]
    ends_with_compute: bool
    """Whether the next iteration begins when the computation of this one has ended."""
    has_servers: bool
    """Whether servers add gradients up."""
    exchanges_only: bool
    """Whether nothing is computed."""
    @staticmethod
    def from_json(text: str, source: str) -> Plan:
        """Parse a plan, which error messages call `source`. Raises InvalidArgumentError."""
    def to_json(self) -> str:
        """Return the plan in its file format."""

class Replay:
    """A worker's actions in a simulation. Immutable."""

    plan: Plan
    factors: list[tuple[float, float]]
    """Of the times of an iteration: of computation, and of the backward pass."""
    same_order: bool
    """Whether all recorded workers hand over buckets in one order; otherwise ranks use the first recorded one's."""

class Library:
    """A communication library (`paceline.catalog.libraries`): what it implies, and its constants. Immutable."""

    def __init__(
        self,
        name: str,
        strategy: str,
        *,
        server_place: str | None = None,
        nccl: str | None = None,
        options: Mapping[str, object] | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        """`options`: `servers`, a number or `per-node`, `chunk`, `pull`, `inside`, `overlap`, `barrier`.

        `constants`: in SI units, by the names of the library's file. Raises InvalidArgumentError for unknown values,
        TypeError for unknown names.
        """

class Channels:
    """The share of links that messages get over TCP and RDMA (`paceline.catalog.channels`). Immutable."""

    def __init__(
        self,
        *,
        tcp_share: float,
        rdma_share: float,
        rdma_share_roce: float,
        rdma_roce_to_bps: float,
        tcp_stream_bps: float,
        tcp_stream_at_bps: float,
        tcp_stream_100g_bps: float,
        tcp_jitter: float,
        rdma_jitter: float,
        rdma_latency_s: float,
    ) -> None: ...

class Coordination:
    """A coordinator with its constants. Immutable."""

    def __init__(
        self,
        coordinator: str,
        *,
        contention_s: float | None = None,
        graph_nodes: float | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        """`constants`: those that differ from Summit's. Raises InvalidArgumentError."""

class PlannedCollective:
    """A collective of a plan, and how long it takes by NCCL's model if no other runs. Immutable."""

    collective: Literal["all-reduce", "reduce-scatter", "all-gather"]
    size: int
    """Ranks of a group."""
    stride: int
    """From one rank to the next."""
    bytes: int
    """Of the whole."""
    seconds: float
    busy: float
    """The share of that time in which the links are busy, 0 to 1."""

class Lowered:
    """A scenario as a simulation takes it. Immutable."""

    cluster: Cluster
    """With what the library's processes cost; its bandwidth is that of a node's messages."""
    channel: str
    """`tcp`, `rdma`, or `none`: messages get the whole bandwidth."""
    flow_bps: float
    """The rate of its link that the messages of a node get."""
    bucket_size: int | None
    """Largest bucket in bytes; None: every tensor is sent by itself."""
    spread: float
    """Standard deviation of the logarithm of the workers' computation times that the channel implies."""
    has_plan: bool
    """Whether an iteration is other than that of its trace: sharded, accumulated, compressed, or not each time."""

class _ScenarioOptions(TypedDict, total=False):
    servers: int
    chunk: Literal["whole", "per-worker"] | int
    placement: Literal["round-robin", "tensorflow", "even"] | Sequence[int]
    distribution: Literal["round-robin", "block"]
    pull: Literal["layer", "step"]
    inside: Literal["root", "ring"]
    network: Literal["fifo", "fluid"]
    barrier: bool
    staleness: int | Literal["none"]
    overlap: bool
    iterations: int
    seed: int
    critical_path: bool
    detail: bool
    compute_speedup: float
    offloaded: Sequence[tuple[float, float]]
    bucket_size: int | Literal["none"]
    sharding: str
    reshard_after_forward: Literal["yes", "no"] | int
    prefetch: int
    accumulate: int
    accumulate_sync: bool
    unit: str
    param_dtype: str
    reduce_dtype: str
    optimizer: str
    held: tuple[str, str, str, bool, int, int]
    update_bytes: int
    state_bytes: float
    releases_gradients: bool
    offloads_parameters: bool
    sync_every: int

class _Parallel(_ScenarioOptions, total=False):
    tensor_parallel: int
    pipeline_parallel: int
    microbatches: int
    expert_ranks: int

class Scenario:
    """A forecast to make, checked and lowered (crates/scenario): `paceline.forecast.lowering` makes it. Immutable."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        strategy: str,
        workers: int,
        *,
        library: Library,
        channels: Channels,
        assumed: Mapping[str, float] | None = None,
        coordination: Coordination | None = None,
        compression: CompressionCosts | None = None,
        **options: Unpack[_Parallel],
    ) -> None:
        """`assumed`: constants of NCCL's times that have other values, by name. `compression`: the method, and costs.

        Raises InvalidArgumentError, which names the setting, TypeError for an unknown option.
        """
    def replace(self, **options: Unpack[_ScenarioOptions]) -> Scenario:
        """Return the scenario with other values of some options. Raises InvalidArgumentError."""
    @property
    def lowered(self) -> Lowered: ...
    @property
    def most_messages(self) -> int:
        """About how many messages a simulation has at most."""
    @property
    def is_limited_by_connections(self) -> bool:
        """Whether the connections of a node to its next one carry less than its link."""
    def run(
        self,
        timeline: str | PathLike[str] | None = None,
        *,
        ranks: int | None = None,
        stages: Sequence[Trace] = (),
    ) -> Outcome:
        """Simulate without the GIL. Raises InvalidArgumentError.

        Args:
            timeline: A file for Chrome trace JSON.
            ranks: Limits it to the first workers and the first server.
            stages: Traces of a pipeline's stages; memory is that of a GPU of the stage that needs most.
        """
    def plan(self) -> Plan:
        """Return the plan that is executed. Raises InvalidArgumentError: a coordinator has none."""
    def memory(self, stages: Sequence[Trace]) -> Memory:
        """Return the peak on a GPU of the stage that needs most, as if exchanges took no time.

        Raises InvalidArgumentError.
        """
    def collectives(self) -> list[PlannedCollective] | None:
        """Return the times of the plan's collectives, each once; None if messages are simulated.

        Raises InvalidArgumentError.
        """
    def unreachable(self) -> str | None:
        """Return why the exchanges under a coordinator can be neither simulated nor taken from a closed form, if so."""
    def replay(self, worker: int, iterations: int) -> Replay:
        """Return what a worker does in the simulation. Raises InvalidArgumentError."""
    def server_nodes(self, cluster: Cluster) -> int:
        """Return how many nodes of their own its servers need on a cluster."""

NCCL_RELEASE: str
NCCL_RELEASES: list[str]
"""NCCL's newest release whose tables are known."""
NCCL_KINDS: list[Literal["allreduce", "allgather", "reducescatter", "broadcast", "reduce"]]
NCCL_ALGORITHMS: list[Literal["ring", "tree", "nvls", "nvls-tree", "pat"]]
NCCL_PROTOCOLS: list[Literal["LL", "LL128", "Simple"]]

class NcclConstant:
    """A constant of NCCL's times: the fields of `paceline.catalog.constants.Constant`."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def unit(self) -> str: ...
    @property
    def uncertainty(self) -> float: ...
    @property
    def source(self) -> str: ...
    @property
    def calibrated(self) -> str: ...
    @property
    def prior(self) -> float | None: ...

def nccl_constants() -> list[NcclConstant]:
    """Return the constants of NCCL's times, in the order of their file (crates/nccl/data/calibration.json)."""

def nccl_evidence() -> tuple[int, float, float]:
    """Return how many published bandwidths were forecast, their mean error, and that without their own source."""

class NcclGeneration:
    """GPUs that NCCL treats alike. Immutable."""

    @property
    def name(self) -> Literal["volta", "ampere", "hopper", "blackwell"]: ...
    @property
    def gpus(self) -> list[str]:
        """Parts of the names of its GPUs, in lower case."""

    @property
    def channels(self) -> int:
        """Rings inside a node, each with a share of the links."""

    @property
    def nvls_share(self) -> float:
        """The share of the links that NVLS gets in NCCL's model; 0 without it."""

    @property
    def plateau(self) -> float:
        """By what rings of large buffers over several nodes have longer latencies."""

    @property
    def slot(self) -> float:
        """The rate of the PCI Express slot of a GPU or a NIC. Bytes per second."""

def nccl_generations() -> list[NcclGeneration]:
    """Return the generations, oldest first."""

def nccl_generation_of(gpu: str) -> NcclGeneration | None:
    """Return the generation of a GPU by its name (`H100 80GB`); None if the name does not tell."""

class NcclGroup:
    """The ranks of a communicator: `per_node` on each of its nodes, the last of which may have fewer. Immutable.

    `concurrent` groups of this layout run the same collective at once on the same nodes and share the NICs, such as the
    groups that all-reduce shards under HSDP.
    """

    def __init__(self, ranks: int, per_node: int, concurrent: int = 1) -> None:
        """Raise InvalidArgumentError for a number that is not whole or below 1."""

    def __hash__(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def per_node(self) -> int: ...
    @property
    def concurrent(self) -> int: ...
    @property
    def nodes(self) -> int:
        """Nodes with ranks of the group."""

    @property
    def per_node_used(self) -> int:
        """Ranks on a full node: `per_node`, or all if there are fewer."""

class NcclMachine:
    """Nodes and their links as NCCL sees them. Rates are bytes per second, each way. Immutable."""

    @staticmethod
    def of(cluster: Cluster) -> NcclMachine:
        """Return a cluster as NCCL sees it. Raises InvalidArgumentError for links that this model does not know."""

    def behind_slow_links(self, cluster: Cluster, size: int, stride: int, world: int) -> NcclMachine:
        """Return the machine with the network that slow links between switches leave to groups of ranks.

        Groups have `size` ranks, `stride` apart, of `world`. Less is left only where links carry less than the NICs of
        a leaf need. Raises InvalidArgumentError for links that the cluster does not have.
        """

    def __hash__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def generation(self) -> NcclGeneration: ...
    @property
    def gpus_per_node(self) -> int: ...
    @property
    def intra_link(self) -> Literal["pcie", "xgmi", "nvlink", "nvswitch"]: ...
    @property
    def link(self) -> float:
        """Rate of a GPU's link inside the node."""

    @property
    def nominal(self) -> float:
        """Rate of all NICs of a node."""

    @property
    def network(self) -> float:
        """The same of the slowest node."""

    @property
    def nics(self) -> int: ...
    @property
    def nic_share(self) -> float | None:
        """The share of the network that messages get, if the cluster sets it."""

    @property
    def hop_s(self) -> float:
        """The time of a hop between nodes beside NCCL's own figures: the latency of TCP. Seconds."""

    @property
    def transport(self) -> Literal["rdma", "rdma-through-host", "sockets"]:
        """The transport of messages between nodes."""

    def carrying(self, group: NcclGroup, assumed: dict[str, float] | None = None) -> NcclMachine:
        """Return the machine whose `network` is what its transport carries for a group.

        With sockets, or without GPUDirect, that is less than the wire.
        """

    @property
    def assumed(self) -> list[str]:
        """Assumptions about links and GPUs that the cluster does not name."""

    @property
    def has_nvls(self) -> bool:
        """Whether the switches inside the node add and multicast."""

    def network_of(self, group: NcclGroup) -> float:
        """Return the wire rate between nodes that a group gets.

        A group reaches the NICs of its own GPUs, and concurrent groups share them: with a NIC for each GPU, a group of
        one rank a node has one NIC, and all groups together have all of them.
        """

    def check(self, group: NcclGroup) -> None:
        """Raise InvalidArgumentError if the group does not fit on the nodes."""

class NcclEstimate:
    """An estimate of NCCL's own model for one combination (src/graph/tuning.cc). Immutable."""

    @property
    def algorithm(self) -> Literal["ring", "tree", "nvls", "nvls-tree", "pat"]: ...
    @property
    def protocol(self) -> Literal["LL", "LL128", "Simple"]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def latency_s(self) -> float: ...
    @property
    def bandwidth(self) -> float:
        """Bytes of the buffer per second."""

class NcclTime:
    """A collective and its forecast time: `paceline.forecast.nccl.CollectiveTime`. Immutable."""

    @property
    def kind(self) -> Literal["allreduce", "allgather", "reducescatter", "broadcast", "reduce"]: ...
    @property
    def size(self) -> int:
        """Bytes, as nccl-tests counts them.

        They are those of the whole buffer, which for all-gather and reduce-scatter holds a shard of every rank.
        """

    @property
    def group(self) -> NcclGroup: ...
    @property
    def seconds(self) -> float: ...
    @property
    def algorithm(self) -> Literal["ring", "tree", "nvls", "nvls-tree", "pat", "none"]:
        """`none`: a group of one rank sends nothing."""

    @property
    def protocol(self) -> Literal["LL", "LL128", "Simple"]: ...
    @property
    def machine(self) -> NcclMachine: ...
    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of the buffer per second."""

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second that pass each rank's link, as nccl-tests defines it."""

    @property
    def tuning(self) -> NcclEstimate | None:
        """The choice of NCCL's own model; None for one rank."""

def nccl_time(
    kind: str,
    size: int,
    group: NcclGroup,
    on: NcclMachine | Cluster,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    caller: str | None = None,
    assumed: Mapping[str, float] | None = None,
) -> NcclTime:
    """Return the time of a collective: see `paceline.forecast.nccl.collective_time`.

    Args:
        kind: Which collective.
        size: Bytes of the whole buffer.
        group: The ranks.
        on: The nodes. Of a cluster, slow links between switches count too.
        algorithm: Instead of NCCL's choice.
        protocol: Instead of NCCL's choice.
        caller: What starts it; None: `stream`.
        assumed: Constants that have other values, by name.

    Raises:
        InvalidArgumentError: A value is unknown, the group does not fit, or NCCL has no such combination.
    """

def nccl_estimates(kind: str, size: int, group: NcclGroup, machine: NcclMachine) -> list[NcclEstimate]:
    """Return the estimates with which NCCL itself chooses, fastest first; none for one rank.

    Raises InvalidArgumentError.
    """

def nccl_bus_factor(kind: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth."""

def strategies() -> str:
    """Return the registered strategies as JSON."""

class JobsWatch:
    """Stops simulations of jobs, and says how far they are."""

    def __init__(self) -> None: ...
    def stop(self) -> None:
        """End all simulations soon, with what they have."""

    @property
    def rounds(self) -> int:
        """Iterations that all jobs of a simulation have made, summed over simulations."""

class PlacedJob:
    """A job and its place."""

    def __init__(
        self,
        name: str,
        scenario: Scenario,
        *,
        ranks_per_node: int,
        gpus_per_rank: int,
        nodes: Sequence[int],
        server_nodes: Sequence[int],
        start_s: float,
    ) -> None: ...

class JobOutcome:
    """Measurements of a job."""

    name: str
    marks_ps: list[int]
    """The end of every round of iterations, from the start of the simulation."""
    sync_every: int
    """Iterations of a round."""
    samples: int
    """Of a worker in an iteration."""
    measured: tuple[int, int]
    """The first and the last mark between which all jobs ran."""
    notes: list[Note]

class SharedLink:
    """How busy a link was while all jobs ran."""

    name: str
    kind: str
    busy: float
    """Share of the time."""
    jobs: list[int]
    """Numbers of those that used it."""

class JobsOutcome:
    """The result for all jobs."""

    jobs: list[JobOutcome]
    """In the order given."""
    links: list[SharedLink]
    """Those that carried data, busiest first."""
    measured_s: float
    is_complete: bool
    """Whether it was not stopped."""

class JobsOnNetwork:
    """Several jobs on one network, at their places: all of them or some are simulated (`paceline.forecast.jobs`)."""

    def __init__(self, cluster: Cluster, jobs: Sequence[PlacedJob], nodes: int, network: str, watch: JobsWatch) -> None:
        """`nodes`: those of the cluster. Raises InvalidArgumentError; the message begins with a job's name."""

    @property
    def has_collectives_only(self) -> bool:
        """Whether collectives can be single events: no job has servers."""

    def messages(self, iterations: int) -> list[int]:
        """Return the messages of each job in the time of so many iterations of the slowest one."""

    def run(
        self,
        which: list[int],
        *,
        iterations: int,
        marks: list[int] | None = None,
        by_collective: bool = False,
        timeline: PathLike[str] | None = None,
    ) -> JobsOutcome:
        """Simulate the jobs of these numbers, ascending. Raises InvalidArgumentError.

        They run to `iterations` of the slowest one, or to these `marks` of each.
        """

def switches(strategy: str, nodes: int, nodes_per_rack: int | None) -> str:
    """Return JSON: for each role of an aggregating switch, its rack; null if it connects racks.

    Raises InvalidArgumentError.
    """

def coordinator_constants() -> str:
    """Return the measured constants of the coordinators as JSON."""

def coordinators() -> str:
    """Return the registered coordinators as JSON."""

def coordinator_name(name: str) -> str:
    """Return the usual spelling of a coordinator's name, alias or name with an argument: "gs:4".

    Raises InvalidArgumentError.
    """

class Agreement:
    """Counts of a simulation of coordinators, on the first rank."""

    votes: int
    sleeps: int
    """Votes that also agreed on a common sleep."""
    reports: int
    decisions: int
    negotiated: list[int]
    """Bytes of each negotiated bucket, in order."""
    planned: list[int]
    """Bytes of each planned bucket."""
    steps: list[int]
    """Nanoseconds of each step."""

def simulate_agreement(
    *,
    ranks: int,
    policy: str,
    steps: int,
    gradients: Sequence[tuple[int, int]],
    cycle_time: int,
    threshold: int,
    bucket: tuple[int, int],
    capacity: int,
    vote: int,
    tell: int,
    latency: int,
    bytes_per_s: float,
    apart: int = 0,
    waits: int | None = None,
) -> Agreement:
    """Drive the coordinators' state machines with simulated events. Times are nanoseconds.

    Args:
        ranks: How many, up to 64.
        policy: As `coordinators` lists them.
        steps: Of every rank.
        gradients: Bytes of each, and when it is ready after the start of a step; in this order.
        cycle_time: From the start of one cycle to that of the next.
        threshold: Most bytes of a negotiated bucket.
        bucket: Most bytes of the first planned bucket, and of the others.
        capacity: Tensors of the response cache.
        vote: From the last vote to the tally.
        tell: From the last report until all are gathered, and from a decision until it is known.
        latency: Of an all-reduce of no bytes.
        bytes_per_s: Of an all-reduce.
        apart: How many gradients, counted from the first, have another type.
        waits: When the script waits for the sums; None: when the last gradient is ready.

    Raises:
        InvalidArgumentError: Values are out of range.
    """

def parse_rate(text: str) -> float:
    """Return bits per second from text such as "25Gbps". Raises InvalidArgumentError."""

def parse_size(text: str) -> int:
    """Return bytes from text such as "64MB". Raises InvalidArgumentError."""

def parse_time(text: str) -> float:
    """Return seconds from text such as "10us". Raises InvalidArgumentError."""

def written_rate(bits_per_s: float) -> str:
    """Return a rate as cluster files spell it, "25Gbps"."""

def written_time(seconds: float) -> str:
    """Return a time as cluster files spell it, "10us"."""

def nearest(word: str, candidates: list[str]) -> str | None:
    """Return the candidate most similar to a misspelled word, if one is similar enough."""

def mpi_exchange(rank: int, size: int, settings: str, blob: bytes) -> list[bytes]:
    """Return the blobs of all ranks, in rank order, through the MPI library of `settings` (as for Engine.start).

    Initializes MPI. Raises InvalidArgumentError if there is no library, or it disagrees about `rank` and `size`;
    JobError for ranks that do not come.
    """

def cuda_driver(named: str | None = None) -> tuple[PathLike[str], str, list[str]]:
    """Return path and version of the CUDA driver that a job would use, and the names of its devices.

    `named` is PACELINE_CUDA_LIBRARY. Raises InvalidArgumentError if it cannot be loaded or finds no device.
    """

def mpi_library(named: str | None = None) -> tuple[PathLike[str], str]:
    """Return path, and name and version, of the MPI library that a job would use; it is loaded, not initialized.

    `named` is PACELINE_MPI_LIBRARY. Raises InvalidArgumentError, which names what was tried.
    """

def ucx_library(
    named: str | None = None, package: str | None = None, transport: str = "grpc+ucx"
) -> tuple[PathLike[str], str]:
    """Return path and version of the UCX that a job over this transport would use; it is loaded.

    `named` is PACELINE_UCX_LIBRARY; `package`, the folder of a Python package's libraries. Raises InvalidArgumentError,
    which names what was tried, or what this machine lacks for the transport.
    """

def mpi_on_devices(named: str | None = None, limit_s: float = 10.0) -> str:
    """Return, as JSON, what the MPI library that a job would use says of the memory of CUDA devices: `abi takes said`.

    `named` is PACELINE_MPI_LIBRARY. MPI is initialized, which takes at most `limit_s`, and finalized when the process
    ends. Raises InvalidArgumentError without a usable library, JobError if ranks do not come.
    """

class Engine:
    """This process's part of a job: connections to all ranks, shared memory, two background threads.

    `settings` is JSON from `paceline.job.settings`; `rendezvous` in it is "host:port" of rank 0 where there is no
    `exchange`. `exchange` returns the blobs of all ranks in rank order: an all-gather of small messages, by torch's
    store for example.
    """

    rank: int
    size: int
    """Ranks of the job, parameter servers with processes of their own included."""
    @staticmethod
    def start(
        rank: int, size: int, settings: str, exchange: Callable[[bytes], list[bytes]] | None = None
    ) -> Engine: ...
    def world(self, shown: str | None = None) -> Communicator:
        """Return the communicator of all ranks, which call this together. Messages call it `shown`; None: default.

        Unless a strategy was named, they measure which is fastest for each message size.
        """
    def group(self, ranks: Sequence[int], name: str) -> Communicator:
        """Return a communicator of these ranks of the job, in this order; each of them calls this with the same name.

        It waits for the others. A group of a shape not seen before measures as world() does.
        """
    def with_servers(self, name: str) -> Communicator:
        """Return a communicator of all ranks and, after them, the servers, for messages between the two.

        Each process makes it for itself, without waiting; messages call it by the name. Raises InvalidArgumentError if
        the job has no server processes.
        """
    def coordinator(
        self,
        ranks: Sequence[int],
        name: str,
        *,
        cycle_time_s: float = 0.001,
        threshold: int = 128 << 20,
        capacity: int = 1024,
        warn_after_s: float | None = 60.0,
        give_up_after_s: float | None = 600.0,
        core: int | None = None,
        lent: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
        placement: Mapping[str, int] = ...,
        policy: str = "negotiate",
        bucket: tuple[int, int] = ...,
        prescribed: tuple[str, Sequence[Sequence[tuple[str, str, int]]]] | None = None,
    ) -> Coordinator:
        """Return a coordinator of these ranks of the job, in this order; each of them calls this with the same name.

        Tensors that become ready within `cycle_time_s` seconds are fused, in all-reduces of up to `threshold` bytes;
        the coordinator remembers `capacity` names. A tensor that not all ranks have requested is reported after
        `warn_after_s` seconds, and fails after `give_up_after_s` (None: never). `core` is where its thread and the
        engine's progress thread run. `placement` names the parameter server of tensors by name; others are placed in
        turn. `policy` is one that `coordinators` lists. `bucket` has the most bytes of the first planned bucket, and of
        others.
        """
    def next_notice(self, timeout_s: float) -> tuple[int, str | None] | None:
        """Return the `notify` of a finished operation, and its error; None after the timeout. Releases the GIL."""
    def status(self) -> str:
        """Return JSON: transports by peer, the first rank on each peer's host, operations in flight, bytes moved."""
    def serve(self, timeout_s: float) -> bool:
        """On a parameter server: take part in what workers start, for a while; return whether they have all left."""
    def start_timeline(self, path: str) -> None:
        """Start recording what this rank does into a file, which grows meanwhile."""
    def stop_timeline(self) -> None:
        """Complete the timeline, if one was started; close() does so too."""
    def mark(self, category: str, name: str, begin: int, end: int) -> None:
        """Add what the script did to the timeline; times by time.monotonic_ns()."""
    def close(self, patience_s: float | None = 0.0) -> None:
        """Leave the job and end the threads; operations in flight fail. Idempotent.

        Those that this rank has begun are completed first. It waits for ranks that have not begun them yet for so long
        while nothing moves; None: as long as a caller would wait.
        """
    def note_cause(self, cause: str) -> None:
        """Note why this rank is about to leave, unless there is a reason already; the others' errors say it."""
    def forget_after_fork(self) -> None:
        """In a forked child: release the parent's connections, so that peers see them end. Other calls then refuse."""

class Communicator:
    """A group of ranks. All of them call the same operations in the same order."""

    rank: int
    size: int
    ranks: list[int]
    def drain(self, patience_s: float) -> bool:
        """Wait until no operation is in flight; return False if nothing has moved for so long."""
    def submit(
        self,
        call: str,
        *,
        inputs: Sequence[tuple[int, int]] = (),
        outputs: Sequence[tuple[int, int]] = (),
        dtype: str = "uint8",
        op: str = "sum",
        root: int = 0,
        tag: int = 0,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        strategy: str | None = None,
        label: str = "",
        timeout_s: float | None = None,
        keep: object = None,
        notify: int | None = None,
        background: bool = True,
        step: tuple[bool, int] | None = None,
        pull_only: bool = False,
        bucket: int | None = None,
        stream: int | None = None,
    ) -> Operation:
        """Begin an operation. Buffers are (address, elements), taken one after the other as if they were one.

        `keep` is held until the operation has finished: the owner of the memory. `notify` asks for a notice. With
        `background=False` nothing moves until somebody waits: for callers that do so at once. `bucket` is the number
        by which an all-reduce is placed on servers; without it they are counted. With `stream`, a `CUstream`, the
        buffers are memory of the device of that stream.

        | call | inputs | outputs | else |
        | --- | --- | --- | --- |
        | all_reduce, broadcast, reduce | in place | none | op; root |
        | all_gather | own elements | all ranks', in rank order | counts: of each rank (default: all alike) |
        | gather | own elements | at root as all_gather | root, counts |
        | scatter | at root: all ranks' in order | own elements | root, counts |
        | reduce_scatter | all ranks' parts, in rank order | own part | op, counts |
        | all_to_all | parts for each rank | parts from each | counts: sent; out_counts: received |
        | barrier | | | |
        | send | elements | none | root: to whom; tag |
        | recv | none | elements | root: from whom, -1: anybody; tag |
        """
    def all_reduce(self, address: int, elements: int, dtype: str, op: str) -> None:
        """All-reduce one buffer and wait for it. If that is interrupted, the communicator fails at all ranks."""
    def choices(self) -> list[tuple[int, str]]:
        """Return pairs of a size in bytes, rising, and the strategy that all-reduces up to that size use."""

class Operation:
    """An operation in flight."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait without the GIL; return False after the timeout. Raises JobError if it failed. Ctrl-C interrupts."""
    def done(self) -> bool:
        """Return whether it is over; on a device, whether that has the result."""
    def ready(self) -> bool:
        """Return whether wait() returns at once, which is when the notice comes. A device may still be at work."""
    def source(self) -> int:
        """Return the rank from which a finished recv from any rank came."""
    def hold(self, stream: int) -> None:
        """Once it has been waited for: what this stream is told from now on sees the result. Only for device memory."""

class Coordinator:
    """Operations on named tensors, which ranks request in any order: they start when all have requested them.

    It has a thread of its own, which sleeps while there is nothing to agree on. Any thread may call it.
    """

    rank: int
    size: int
    ranks: list[int]
    def place(self, servers: Mapping[str, int]) -> None:
        """Assign tensors to parameter servers, by name. Every rank does the same before it submits any of them."""
    def request(
        self,
        call: str,
        name: str,
        *,
        inputs: Sequence[tuple[int, int]] = (),
        dtype: str = "uint8",
        shape: Sequence[int] = (),
        device: str = "cpu",
        op: str = "",
        own: Sequence[int] = (),
        root: int | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        keep: object = None,
        stream: int | None = None,
    ) -> NamedOperation:
        """Describe an operation on a tensor; it is asked for by `submit`.

        `stream`: its memory, of an all-reduce or a broadcast, is on a CUDA device, and is read once this stream has
        come where it is now.

        Raises InvalidArgumentError for what cannot be.

        `inputs` are (address, elements), taken one after the other; `keep` owns them, and is held until it is over.
        `dtype` is compared and told to people; one that the runtime does not reduce is moved as bytes, and then
        `inputs` and `shape` count bytes. `shape` is what all ranks must have alike.

        | call | inputs | shape | else | result |
        | --- | --- | --- | --- | --- |
        | all_reduce | in place | of the tensor | op: sum, min, max, product; prescale, postscale | |
        | broadcast | in place | of the tensor | root: a rank of the group | |
        | all_gather | own rows | of a row | own: [rows] | all rows, in rank order |
        | reduce_scatter | the tensor | of the tensor | op, prescale, postscale | own rows (first ranks: one more) |
        | all_to_all | rows for each rank | of a row | own: rows for each rank | rows from each rank |
        | barrier | | | | |
        """
    def submit(self, operations: Sequence[NamedOperation], *, waits: bool = False) -> None:
        """Request operations that start together or not at all. `waits`: the caller will wait for them at once.

        Raises JobError if the coordinator has failed, and InvalidArgumentError for a request that was submitted before,
        or whose name is in flight.
        """
    def submit_step(self, of: str, operations: Sequence[NamedOperation], *, late: bool = False) -> None:
        """Request operations on gradients of optimizer `of`, in an order to be planned.

        docs/explanation/coordinator.md describes the plans. `late`: they were not computed, but stand for what was
        missing at the end of the backward pass. `flush(of)` follows when no more come in the step, and `ended(of)`
        after they have been waited for. Raises as `submit`.
        """
    def flush(self, of: str) -> None:
        """Report that no more operations come in this step of `of`. Raises JobError if the coordinator failed."""
    def ended(self, of: str) -> None:
        """Report that the operations of a step have been waited for. It waits for no rank that is behind.

        Ctrl-C interrupts. Raises JobError if the coordinator has failed.
        """
    def counts(self) -> dict[str, int]:
        """Return the messages exchanged (votes, reports, decisions), and the buckets started, by kind."""
    def join(self) -> NamedOperation:
        """Take part in sums with zeros from now on, until all ranks have joined: then the operation has finished.

        Meanwhile nothing but sums and barriers can be agreed on; the rest fails on all ranks that have asked for it.

        Its source() is the rank that joined last.
        """
    def close(self) -> None:
        """End the thread; operations in flight fail. Idempotent. The end of the engine does it too."""

class NamedOperation:
    """An operation on a named tensor."""

    name: str
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait without the GIL; return False after the timeout. Raises JobError if it failed. Ctrl-C interrupts."""
    def done(self) -> bool: ...
    def hold(self, stream: int) -> None:
        """Make this stream of a device wait for the result of an operation that has been waited for."""
    def data(self) -> bytearray:
        """Return the result of a finished all_gather, reduce_scatter or all_to_all, as writable memory.

        It has the buffer protocol, and is really a class of the native module.
        """
    def own(self) -> list[list[int]]:
        """Return what each rank gave as `own`."""
    def source(self) -> int:
        """Return the rank that joined last, of a join."""
