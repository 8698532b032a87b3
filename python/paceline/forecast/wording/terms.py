"""Words for parts of an iteration, resources, changes and evidence."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._core import Cluster, Note
from paceline._internal import units
from paceline._internal.block import Fact, Pair
from paceline.catalog.gpus import architecture_title
from paceline.catalog.libraries import NONE
from paceline.catalog.models.workload import Workload
from paceline.forecast.kinds import (
    About,
    Comparable,
    Evidence,
    Exchange,
    Ground,
    Measure,
    Part,
    Remark,
    Resource,
)
from paceline.forecast.likeness import FP32_QUANTIZED
from paceline.settings.table import SETTINGS

COMPUTATION = "compute"
NCCL, RCCL = "NCCL", "RCCL"
NATIVE = "native"

RESOURCES = {
    Resource.COMPUTE: COMPUTATION,
    Resource.NICS: "NICs",
    Resource.INSIDE: "intra-node links",
    Resource.UPLINKS: "rack uplinks",
    Resource.LEAF_SPINE: "leaf-spine links",
    Resource.EDGE_AGGREGATION: "edge-aggregation links",
    Resource.AGGREGATION_CORE: "aggregation-core links",
    Resource.LOCAL: "local links",
    Resource.GLOBAL: "global links",
    Resource.TORUS: "torus links",
    Resource.LATENCY: "latency",
    Resource.HOST: "host copies",
    Resource.ADDITIONS: "additions",
    Resource.COMPRESSION: "compression",
    Resource.COORDINATOR: "coordinator",
    Resource.BUFFER: "fusion buffer",
    Resource.LATE: "late ranks",
    Resource.CALLS: "framework overhead",
    Resource.SLOWED: "compute slowed by NCCL kernels",
    Resource.HOST_LINK: "offload (GPU-host copies)",
    Resource.CPU_STEP: "offload (CPU optimizer step)",
    Resource.DRIVE: "offload (NVMe drive)",
    Resource.STREAMS: "the framework's connections",
}
_PARTS = {
    Part.COMPUTE: COMPUTATION,
    Part.CALLS: "framework overhead",
    Part.SLOWED: "slowed by NCCL kernels",
    Part.HOST_LINK: "offload (GPU-host copies)",
    Part.CPU_STEP: "offload (CPU optimizer step)",
    Part.DRIVE: "offload (NVMe drive)",
}
"""Parts of a critical path that are not called by their value, which `--json` has."""
PLACES = {
    Resource.NICS: "network between nodes",
    Resource.INSIDE: "inside the node",
    Resource.COORDINATOR: "coordinator",
}
"""Where an iteration is bound; elsewhere it is the resource."""
LIMITS = {
    Resource.NICS: "network bandwidth",
    Resource.INSIDE: "intra-node bandwidth",
    Resource.UPLINKS: "rack uplinks",
    Resource.INSIDE_AND_NICS: "links inside and between nodes together",
    Resource.NICS_AND_LINKS: "links of nodes and between switches together",
    Resource.CHANNEL: "TCP between nodes",
}
"""Words for the shortage of a resource that another one exceeds on the critical path."""
_MEASURES = {
    Measure.COMPUTE: "2x faster compute",
    Measure.BANDWIDTH: "2x network bandwidth",
    Measure.BANDWIDTH_OF_NODES: "2x bandwidth of the nodes",
    Measure.RATE_OF_LINKS: "2x rate of {links}",
    Measure.BANDWIDTH_INSIDE: "2x intra-node bandwidth",
    Measure.BANDWIDTH_INSIDE_NODES: "2x intra-node bandwidth",
    Measure.BANDWIDTH_INSIDE_AND_BETWEEN: "2x bandwidth inside and between nodes",
    Measure.BANDWIDTH_OF_NODES_AND_LINKS: "2x bandwidth of nodes and between switches",
    Measure.OVERSUBSCRIPTION_OF_RACKS: "1/2 oversubscription of racks",
    Measure.OVERSUBSCRIPTION: "1/2 oversubscription",
    Measure.NO_OVERSUBSCRIPTION: "no oversubscription",
    Measure.CONNECTIONS: "2x connections between nodes",
    Measure.HOST: "2x rate of host copies",
    Measure.ADDITIONS: "2x rate of additions",
    Measure.LATENCY: "1/2 latency",
    Measure.COST: "1/2 per-message cost",
    Measure.LATENCY_AND_COST: "1/2 latency and per-message cost",
    Measure.RDMA: "RDMA instead of TCP",
    Measure.STRATEGY: "another strategy",
    Measure.BUCKET_SIZE: "best bucket size",
    Measure.MULTICAST: "switch multicast",
    Measure.AGGREGATION: "in-network aggregation",
    Measure.MULTICAST_AND_AGGREGATION: "multicast and in-network aggregation",
    Measure.WITHOUT_SLOWEST: "no straggler",
    Measure.HOST_LINK: "2x GPU-host bandwidth",
    Measure.CPU_STEP: "2x faster CPU optimizer step",
    Measure.DRIVE: "2x faster NVMe drive",
    Measure.LESS_OFFLOADED: "less offloaded",
    Measure.FUSED_STEP: "a fused optimizer step",
}
WAITS = {
    Measure.LATENCY: "latency",
    Measure.COST: "per-message cost",
    Measure.LATENCY_AND_COST: "latency and per-message cost",
}
"""The quantity that each of these halves, where it bounds an iteration."""
_EXCHANGES = {
    Exchange.TENSOR: "TP all-reduces",
    Exchange.EXPERT: "EP all-to-alls",
    Exchange.CONTEXT: "CP waits",
}
_REMARKS = {
    Remark.WITHIN: "including {exchanges}",
    Remark.CHANNEL: "still over {channel}",
    Remark.SLOWER: "no gain: {slower}{duration}",
    Remark.RANK: "rank {rank}",
    Remark.RECORDED_RANK: "recorded rank {rank}",
    Remark.CHANCE: "ranks differ only by chance",
    Remark.ALIKE: "all ranks are alike",
    Remark.TOO_MANY: "too many messages",
    Remark.NO_STRATEGY: "no strategy can use it",
    Remark.NOT_MODELED: "not modeled in this kind of fabric",
    Remark.USED: "already used",
    Remark.BY: "{strategy}",
    Remark.JOBS: "{jobs}",
    Remark.NO_FORM: "no job's strategy can use it",
    Remark.PLANNED: "not for {names}, which {do} more than all-reduces",
    Remark.HIGHEST_RATE: "more than the highest rate of a cluster",
    Remark.RATIO: "{ratio:g}:1",
    Remark.STOPPED: "interrupted",
}
_COMPARABLE = {
    Comparable.ONE_NODE: "GPUs of one node",
    Comparable.OVER_CHANNEL: "{family} over {channel}",
    Comparable.BETWEEN_NODES: "{family} between nodes",
    Comparable.ALIKE: "training in these conditions",
}
_EVIDENCE = {
    Ground.VALIDATED: "{strategy} on an emulated network, 2-{most:g} workers",
    Ground.PUBLISHED: "{comparable} and the like: {sources}",
    Ground.SERVED_ALONE: "nobody has measured one worker with a server",
    Ground.SILENT: "nothing is communicated, so only the trace could be wrong",
    Ground.COORDINATED: "published coordinators are of one machine (paceline study load-imbalance)",
    Ground.SHARDED_RECORDING: "published sharded runs are of models with a --gpu, not of recordings",
    Ground.NOT_VALIDATED: "{strategy} has not been compared with real runs",
    Ground.WORKERS_VALIDATED: "bare {strategy} (no framework cost) was validated up to {most:g} workers, one per node",
    Ground.LINKS_VALIDATED: "bare {strategy} (no framework cost) was validated at {slowest:,g}-{fastest:,g} Gbps",
    Ground.LIBRARY_UNPUBLISHED: "nobody has published {library} with {strategy}",
    Ground.TRANSFORMERS_UNPUBLISHED: "nobody has published transformers with {strategy}",
    Ground.ALL_REDUCES: "too few all-reduces alone have been published",
    Ground.NOTHING_PUBLISHED: "{comparable}: nothing has been published",
    Ground.ONE_SOURCE: "{comparable}: constants were fitted to the only source, {sources}",
    Ground.GPUS: "{own:,.0f} GPUs are too far beyond published runs, of up to {most:,g} ({comparable})",
    Ground.LINKS: "{rate} is too far from published runs, at {slowest:,g}-{fastest:,g} Gbps ({comparable})",
    Ground.UNMEASURED: "fewer than two sources have measured {condition} in such conditions",
    Ground.TOO_FEW: "{setting}: too few published runs have it",
    Ground.NONE_OF_IT: "{setting}: no published run has it",
    Ground.WAIT: "{setting}: published runs have at most {duration}",
    Ground.SLOW_RANK: "{setting}: no published run has a slow rank",
    Ground.SLOW_LINK: "{setting}: no published run has a slow link",
    Ground.OVERSUBSCRIBED: "{setting}: no published run is oversubscribed {most:g}:1",
    Ground.HABIT: "{setting}: published runs use the default of {whose}",
}
_CONDITIONS = {
    "architecture": "{} GPUs",
    "model": "{}",
    "precision": "products in {}",
    "scale": "{}",
    "split": "{} parallelism",
    "software": "{} kernels",
    "weights": "{}",
}
_WEIGHTS = {
    "trained": "training of all weights",
    "adapted": "adapters beside frozen weights",
    "quantized": "adapters beside quantized weights",
    FP32_QUANTIZED: "quantized weights under FP32 products (no autocast)",
}
_MODELS = {
    "decoder": "decoders",
    "encoder": "encoders",
    "encoder-decoder": "encoders with decoders",
    "images": "models of images",
    "experts": "mixtures of experts",
    "images and text": "models of images and text",
    "other mixers": "models whose blocks have other layers than attention and MLPs",
}
_MOST_SOURCES = 4
"""That are named."""
_BASES = (Ground.VALIDATED, Ground.PUBLISHED)


def part(name: str) -> str:
    """Return what a part of a critical path is called."""
    return _PARTS.get(Part(name), name)


def place(resource: Resource) -> str:
    """Return where most of an iteration is: a place, or a resource by its name."""
    return PLACES.get(resource, RESOURCES[resource])


def measure(what: Measure, links: Sequence[Resource] = ()) -> str:
    """Return what a change of a scenario is called; `links`: those of which it changes the rate."""
    return _MEASURES[what].format(links=_listed(sorted(RESOURCES[link] for link in links)))


def remark(about: About | None) -> str:
    """Return what is to be said of a change; nothing if there is nothing."""
    if about is None:
        return ""
    if about.remark is Remark.BUCKETS:
        return _buckets(about)
    names = [name for name, _ in about.jobs]
    return _REMARKS[about.remark].format(
        exchanges=_listed([_EXCHANGES[one] for one in about.exchanges]),
        channel=about.channel.upper(),
        slower=_buckets(about) + " " if about.count else about.strategy and f"{about.strategy} ",
        duration=units.duration(about.seconds),
        rank=about.rank,
        strategy=about.strategy,
        jobs=", ".join(f"{name}: {strategy}" for name, strategy in about.jobs),
        names=_listed(names),
        do="does" if len(names) == 1 else "do",
        ratio=about.ratio,
    )


def _listed(words: list[str]) -> str:
    return units.listed(words) if words else ""


def _buckets(about: About) -> str:
    if about.size is None:
        return "every tensor separately"
    return f"--bucket-size {bucket_size(about.size)}, {units.count(about.count, 'bucket')}"


def bucket_size(size: int | None) -> str:
    """Return the size of a bucket as it is typed: `256KiB`, or `none`."""
    if size is None:
        return "none"
    return f"{size // 2**20}MiB" if size >= 2**20 else f"{size // 2**10}KiB"


def note(one: Note, rank: str = "GPU") -> str:
    """Return a degenerate case in words; `rank`: what a node has several of."""
    match one:
        case Note.NoSwitch():
            return "sharp needs no switch on one node: it only reduces inside"
        case Note.SwitchLimits():
            limits = []
            if one.levels is not None:
                limits.append("{1} levels of switches, each adds up at most {0}".format(*one.levels))
            if one.pieces is not None:
                limits.append("pieces of {:,} elements, {:,} of which fit a switch's memory".format(*one.pieces))
            return f"sharp: {', '.join(limits)}"
        case Note.SharedTensors():
            return f"sharded-ps does not reduce inside nodes here (1 {rank} per node): servers share every tensor"
        case Note.NoRing():
            return "hierarchical only reduces inside the node here (1 node)"
        case Note.RingOfNodes():
            return f"hierarchical is ring here (1 {rank} per node)"
        case Note.OneGroup():
            return f"hsdp is zero3 here (one group of all {one.ranks} ranks)"
        case Note.ClosedForm():
            return (
                f"{one.strategy} with {one.workers:,} workers is a closed-form estimate: too many messages to simulate"
            )
    raise AssertionError(one)


_LIBRARIES = {
    "ddp": ("DDP", "NCCL"),
    "ddp-gloo": ("DDP", "Gloo"),
    "horovod": ("Horovod", "NCCL"),
    "horovod-uncached": ("Horovod before 2019", "NCCL"),
    "horovod-nccl2": ("Horovod of 2018", "NCCL 2"),
    "horovod-ddl": ("Horovod", "DDL"),
    "horovod-oneccl": ("Horovod", "oneCCL"),
    "horovod-mpi": ("Horovod", "MPI"),
    "horovod-mpi-gpu": ("Horovod", "CUDA-aware MPI"),
}
"""Frameworks and their backends, by the name of the library."""
_SHARDINGS = {"zero3": "zero3 (FSDP)", "hsdp": "hsdp (FSDP)"}


def collectives(cluster: Cluster, workload: Workload | None) -> str:
    """Return the library of collectives of the GPUs: NCCL, or AMD's RCCL."""
    is_amd = cluster.intra_link == "xgmi" or (workload is not None and workload.hardware.is_amd)
    return RCCL if is_amd else NCCL


def renamed(facts: Sequence[Fact], name: str) -> list[Fact]:
    """Return facts with a library of collectives by its name, and its platform; what was measured stays NCCL's."""

    def own(words: str) -> str:
        return words.replace(NCCL, name).replace("CUDA", "HIP" if name == RCCL else "CUDA")

    def of(value: str | Pair) -> str | Pair:
        return own(value) if isinstance(value, str) else (value[0], own(value[1]))

    return [
        fact if fact.label == "Likely" else Fact(fact.label, *map(of, fact.values), tone=fact.tone) for fact in facts
    ]


def strategy(name: str, collectives: str = NCCL) -> str:
    """Return a strategy for prose; `native` with whose algorithms it is."""
    return f"{name} ({collectives})" if name == NATIVE else name


def framework(library: str, strategy: str, own: str) -> str:
    """Return a framework and what it runs as one name.

    Args:
        library: The name of the library.
        strategy: What it runs.
        own: What it runs by itself.

    Example:
        >>> framework("ddp", "native", "native"), framework("ddp", "ring", "native"), framework("none", "ring", "ring")
        ('DDP (NCCL)', 'DDP (ring)', 'ring')
    """
    if library == NONE:
        return strategy
    name, backend = _LIBRARIES.get(library, (library, ""))
    if strategy == own:
        return f"{name} ({backend})" if backend else name
    return f"{name} ({strategy})" if backend in ("", "NCCL") else f"{name} ({backend}, {strategy})"


def library(name: str) -> str:
    """Return a library for prose: `DDP`, `Horovod over MPI`; what is over NCCL does not say so."""
    title, backend = _LIBRARIES.get(name, (name, ""))
    return title if backend in ("", "NCCL") else f"{title} over {backend}"


def sharding_cell(name: str) -> str:
    """Return a sharding for tables: its name, and `none (DDP)`."""
    return f"{name} (DDP)" if name == NONE else name


def sharding(name: str) -> str:
    """Return a sharding for prose: `zero3 (FSDP)`, and `DDP` for none."""
    return "DDP" if name == NONE else _SHARDINGS.get(name, name)


def without_activations(trace: str) -> str:
    """Return that memory is forecast without activations."""
    return f"Memory leaves out activations: {trace} does not have them"


def evidence(given: Evidence) -> str:
    """Return what an interval is based on, or that there is none, and why."""
    return reason(given) if given.ground in _BASES else f"no interval: {reason(given)}"


def reason(given: Evidence) -> str:
    """Return what an interval is based on, or why there is none."""
    least, most = given.least / 1e9, given.most / 1e9
    return _EVIDENCE[given.ground].format(
        strategy=given.strategy,
        library=library(given.library),
        condition=_condition(given),
        setting=_setting(given.setting, given.value),
        whose=given.library or "the schedule",
        comparable="" if given.comparable is None else _comparable(given, given.comparable),
        sources=_sources(given.sources),
        most=given.most,
        duration=units.duration(given.most),
        own=given.own,
        rate=units.rate(given.own),
        slowest=least,
        fastest=most,
    )


def _condition(given: Evidence) -> str:
    value = str(given.value)
    if given.condition == "architecture" and value == "cpu":
        return "CPUs"
    words = _MODELS | _WEIGHTS
    word = architecture_title(value) if given.condition == "architecture" else words.get(value, value)
    return _CONDITIONS.get(given.condition, "{}").format(word)


def _sources(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SOURCES
    return ", ".join(names[:_MOST_SOURCES]) + (f" and {more} more" if more > 0 else "")


def _comparable(given: Evidence, comparable: Comparable) -> str:
    return _COMPARABLE[comparable].format(
        family=given.family.upper() if given.family in ("nccl", "mpi", "ddl") else given.family,
        channel=given.channel.upper(),
    )


def _setting(name: str, value: object) -> str:
    if not name:
        return ""
    return SETTINGS[name].spelling(value) or SETTINGS[name].name
