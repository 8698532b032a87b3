"""The vocabulary of a forecast: parts of an iteration, resources, changes, evidence. `wording` has their words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any


class Resource(Enum):
    """Possible bottlenecks of an iteration."""

    COMPUTE = auto()
    NICS = auto()
    """The network between nodes, both directions of all NICs."""
    INSIDE = auto()
    UPLINKS = auto()
    LEAF_SPINE = auto()
    EDGE_AGGREGATION = auto()
    AGGREGATION_CORE = auto()
    LOCAL = auto()
    GLOBAL = auto()
    TORUS = auto()
    LATENCY = auto()
    """With what a message costs the processes that send and receive it."""
    HOST = auto()
    """Copies into and out of buffers."""
    ADDITIONS = auto()
    COMPRESSION = auto()
    COORDINATOR = auto()
    BUFFER = auto()
    LATE = auto()
    CALLS = auto()
    """Handing gradients over to the library."""
    SLOWED = auto()
    """NCCL's kernels, beside which computation is slower."""
    HOST_LINK = auto()
    """Copies between a GPU and the memory of its host, of what is offloaded; and so the next two."""
    CPU_STEP = auto()
    DRIVE = auto()
    STREAMS = auto()
    """The library's connections between two nodes."""
    CHANNEL = auto()
    """TCP between nodes, in place of RDMA."""
    INSIDE_AND_NICS = auto()
    NICS_AND_LINKS = auto()
    """Of the nodes and between switches at once."""

    @property
    def is_between_switches(self) -> bool:
        """Whether it is links between switches of a fabric."""
        return self in _BETWEEN_SWITCHES

    @property
    def is_offload(self) -> bool:
        """Whether it is of the host, which has what is offloaded."""
        return self in _OFFLOAD


_BETWEEN_SWITCHES = frozenset(
    (
        *(Resource.LEAF_SPINE, Resource.EDGE_AGGREGATION, Resource.AGGREGATION_CORE),
        *(Resource.LOCAL, Resource.GLOBAL, Resource.TORUS),
    )
)
_OFFLOAD = frozenset((Resource.HOST_LINK, Resource.CPU_STEP, Resource.DRIVE))


class Part(StrEnum):
    """A part of the critical path; its value is what `--json` has. The native module produces them."""

    COMPUTE = "compute"
    WORKER_EGRESS = "worker egress"
    WORKER_INGRESS = "worker ingress"
    SERVER_EGRESS = "server egress"
    SERVER_INGRESS = "server ingress"
    INSIDE = "inside the node"
    RACK_UPLINK = "rack uplink"
    LEAF_SPINE = "leaf-spine link"
    EDGE_AGGREGATION = "edge-aggregation link"
    AGGREGATION_CORE = "aggregation-core link"
    LOCAL = "local link"
    GLOBAL = "global link"
    TORUS = "torus link"
    HOST = "host copies"
    ADDITIONS = "additions"
    LATENCY = "latency"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    COMPRESSION = "compression"
    NETWORK = "network"
    """Of exchanges that a closed form gives."""
    COORDINATOR = "coordinator"
    BUFFER = "fusion buffer"
    LATE = "late ranks"
    CALLS = "library calls"
    SLOWED = "slowed by NCCL"
    HOST_LINK = "GPU-host copies"
    """Of what is offloaded, and so the next two; the native module has them in `compute`."""
    CPU_STEP = "CPU optimizer step"
    DRIVE = "NVMe drive"

    def __repr__(self) -> str:
        """Return that of its value, as in `repr(result)`."""
        return repr(self.value)

    @property
    def resource(self) -> Resource:
        """The resource that it occupies; both directions of all NICs are one."""
        return Resource.__members__.get(self.name, _RESOURCES.get(self, Resource.NICS))


_RESOURCES = {Part.RACK_UPLINK: Resource.UPLINKS}


class Measure(Enum):
    """A change of a scenario whose gain is forecast."""

    COMPUTE = auto()
    BANDWIDTH = auto()
    """Twice the bandwidth, and so for all that name a bandwidth, a rate or a number."""
    BANDWIDTH_OF_NODES = auto()
    """That of nodes whose switches keep theirs."""
    RATE_OF_LINKS = auto()
    """That of links between switches."""
    BANDWIDTH_INSIDE = auto()
    BANDWIDTH_INSIDE_NODES = auto()
    BANDWIDTH_INSIDE_AND_BETWEEN = auto()
    BANDWIDTH_OF_NODES_AND_LINKS = auto()
    OVERSUBSCRIPTION_OF_RACKS = auto()
    OVERSUBSCRIPTION = auto()
    """Half of it, of racks or of a fabric."""
    NO_OVERSUBSCRIPTION = auto()
    CONNECTIONS = auto()
    HOST = auto()
    ADDITIONS = auto()
    LATENCY = auto()
    """Half of it, and so for the next two."""
    COST = auto()
    """The cost of a message for the processes that send and receive it."""
    LATENCY_AND_COST = auto()
    RDMA = auto()
    STRATEGY = auto()
    BUCKET_SIZE = auto()
    MULTICAST = auto()
    """In the switch, and so for the next two."""
    AGGREGATION = auto()
    MULTICAST_AND_AGGREGATION = auto()
    WITHOUT_SLOWEST = auto()
    HOST_LINK = auto()
    """Twice its rate, and so for the next two."""
    CPU_STEP = auto()
    DRIVE = auto()
    LESS_OFFLOADED = auto()
    FUSED_STEP = auto()
    """One kernel for the CPU's step. Of this and the one before, the remark has the option."""


class Remark(Enum):
    """A remark on a change beside its gain, or why there is none."""

    WITHIN = auto()
    """Exchanges of GPUs within their compute change with it: `exchanges`."""
    CHANNEL = auto()
    """It is still over this `channel`."""
    SLOWER = auto()
    """Nothing is faster: the best takes `seconds`."""
    RANK = auto()
    RECORDED_RANK = auto()
    CHANCE = auto()
    ALIKE = auto()
    TOO_MANY = auto()
    NO_STRATEGY = auto()
    NOT_MODELED = auto()
    USED = auto()
    BUCKETS = auto()
    """The `size` of the best, None for every tensor by itself, and the number of buckets: `count`."""
    BY = auto()
    """The strategy that has the gain."""
    JOBS = auto()
    """The strategies that jobs have then: `jobs`."""
    NO_FORM = auto()
    PLANNED = auto()
    """Not for these `jobs`, which do more than all-reduces."""
    HIGHEST_RATE = auto()
    RATIO = auto()
    """The oversubscription that is left: `ratio`."""
    STOPPED = auto()


class Exchange(Enum):
    """Exchanges of GPUs within the compute of a model."""

    TENSOR = auto()
    EXPERT = auto()
    CONTEXT = auto()


@dataclass(frozen=True)
class About:
    """A remark with what it is about; fields are those that its kind names."""

    remark: Remark
    strategy: str = ""
    channel: str = ""
    exchanges: tuple[Exchange, ...] = ()
    jobs: tuple[tuple[str, str], ...] = ()
    """Names, with their strategies."""
    seconds: float = 0.0
    ratio: float = 1.0
    rank: int = 0
    size: int | None = None
    count: int = 0


FURTHER = 2.0
"""Evidence reaches up to this factor beyond what was measured."""


class Comparable(Enum):
    """Measurements that a forecast is compared with."""

    ONE_NODE = auto()
    OVER_CHANNEL = auto()
    """Of a library's family over a channel."""
    BETWEEN_NODES = auto()
    """Of a library's family, over any."""
    ALIKE = auto()
    """Measured training steps in like conditions."""


class Ground(Enum):
    """The basis of an interval, or why there is none."""

    VALIDATED = auto()
    """Runs of a strategy on an emulated network of up to `most` workers."""
    PUBLISHED = auto()
    """Comparable measurements from `sources`."""

    SERVED_ALONE = auto()
    SILENT = auto()
    COORDINATED = auto()
    SHARDED_RECORDING = auto()

    # The others are outside the evidence.
    NOT_VALIDATED = auto()
    WORKERS_VALIDATED = auto()
    """The bare schedule was run on up to `most` workers, one a node."""
    LINKS_VALIDATED = auto()
    """It was run on links of `least` to `most` bits per second."""
    LIBRARY_UNPUBLISHED = auto()
    TRANSFORMERS_UNPUBLISHED = auto()
    ALL_REDUCES = auto()
    NOTHING_PUBLISHED = auto()
    ONE_SOURCE = auto()
    GPUS = auto()
    """Measurements end at `most` GPUs, and the forecast has `own`."""
    LINKS = auto()
    """Measurements have links of `least` to `most` bits per second, and the forecast of `own`."""
    UNMEASURED = auto()
    """Fewer than two sources have measured the `value` of a `condition`."""
    TOO_FEW = auto()
    """Too few measurements are of the value of `setting`."""
    NONE_OF_IT = auto()
    WAIT = auto()
    """Measurements have at most `most` seconds of the setting."""
    SLOW_RANK = auto()
    SLOW_LINK = auto()
    OVERSUBSCRIBED = auto()
    """By `most`:1."""
    HABIT = auto()
    """Measurements are of what the library does by itself, not of the value of `setting`."""


@dataclass(frozen=True)
class Evidence:
    """The basis of an interval, or why there is none; fields are those that its ground names."""

    ground: Ground
    strategy: str = ""
    library: str = ""
    """Empty: none, the bare schedule."""
    setting: str = ""
    value: object = None
    condition: str = ""
    """The name of a property of `likeness.Conditions`."""
    comparable: Comparable | None = None
    family: str = ""
    channel: str = ""
    sources: tuple[str, ...] = ()
    own: float = 0.0
    """The forecast's, where that is less than `least` or more than `most` by too much."""
    least: float = 0.0
    most: float = 0.0

    def on(self, ground: Ground, **fields: Any) -> Evidence:  # noqa: ANN401
        """Return it with another ground and further fields."""
        return Evidence(**{**vars(self), "ground": ground, **fields})

    @property
    def is_unpublished(self) -> bool:
        """Whether nobody has published a measurement of this strategy."""
        return self.ground in (Ground.LIBRARY_UNPUBLISHED, Ground.TRANSFORMERS_UNPUBLISHED)
