"""Words for parts of an iteration, resources, changes and evidence."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._core import Note
from paceline._internal import units
from paceline.forecast.kinds import (
    FURTHER,
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
from paceline.settings.table import SETTINGS

COMPUTATION = "computation"

RESOURCES = {
    Resource.COMPUTE: COMPUTATION,
    Resource.NICS: "NICs",
    Resource.INSIDE: "links inside the node",
    Resource.UPLINKS: "racks' uplinks",
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
    Resource.COORDINATOR: "the coordinator",
    Resource.BUFFER: "the fusion buffer",
    Resource.LATE: "late ranks",
    Resource.CALLS: "the library's calls",
    Resource.SLOWED: "what NCCL's kernels slow computation by",
    Resource.STREAMS: "the library's connections",
}
PLACES = {
    Resource.NICS: "network between nodes",
    Resource.INSIDE: "inside the node",
    Resource.COORDINATOR: "coordinator",
}
"""Where an iteration is bound; elsewhere it is the resource."""
LIMITS = {
    Resource.NICS: "the network's bandwidth",
    Resource.INSIDE: "the bandwidth inside the node",
    Resource.UPLINKS: "the racks' uplinks",
    Resource.INSIDE_AND_NICS: "the links inside and between nodes together",
    Resource.NICS_AND_LINKS: "the links of the nodes and between switches together",
}
"""What is too little of a resource that another one exceeds on the critical path."""
_MEASURES = {
    Measure.COMPUTE: "half the computing time",
    Measure.BANDWIDTH: "twice the bandwidth",
    Measure.BANDWIDTH_OF_NODES: "twice the bandwidth of the nodes",
    Measure.RATE_OF_LINKS: "twice the rate of the {links}",
    Measure.BANDWIDTH_INSIDE: "twice the bandwidth inside the node",
    Measure.BANDWIDTH_INSIDE_NODES: "twice the bandwidth inside nodes",
    Measure.BANDWIDTH_INSIDE_AND_BETWEEN: "twice the bandwidth inside and between nodes",
    Measure.BANDWIDTH_OF_NODES_AND_LINKS: "twice the bandwidth of the nodes and between switches",
    Measure.OVERSUBSCRIPTION_OF_RACKS: "half the oversubscription of the racks",
    Measure.OVERSUBSCRIPTION: "half the oversubscription",
    Measure.NO_OVERSUBSCRIPTION: "no oversubscription",
    Measure.CONNECTIONS: "twice as many connections between nodes",
    Measure.HOST: "twice the rate of host copies",
    Measure.ADDITIONS: "twice the rate of additions",
    Measure.LATENCY: "half the latency",
    Measure.COST: "half the cost of messages",
    Measure.LATENCY_AND_COST: "half the latency and cost of messages",
    Measure.RDMA: "RDMA instead of TCP",
    Measure.STRATEGY: "another strategy",
    Measure.BUCKET_SIZE: "the best bucket size",
    Measure.MULTICAST: "multicast in the switch",
    Measure.AGGREGATION: "aggregation in the switch",
    Measure.MULTICAST_AND_AGGREGATION: "multicast and aggregation in the switch",
    Measure.WITHOUT_SLOWEST: "without the slowest rank",
}
WAITS = {
    Measure.LATENCY: "latency",
    Measure.COST: "the cost of messages",
    Measure.LATENCY_AND_COST: "latency and the cost of messages",
}
"""What each of these halves, where it bounds an iteration."""
_EXCHANGES = {
    Exchange.TENSOR: "tensor parallelism's all-reduces",
    Exchange.EXPERT: "experts' all-to-alls",
    Exchange.CONTEXT: "waiting for keys and values",
}
_REMARKS = {
    Remark.WITHIN: "with {exchanges}",
    Remark.CHANNEL: "still over {channel}",
    Remark.SLOWER: "nothing is faster: {slower}would take {duration}",
    Remark.RANK: "rank {rank}",
    Remark.RECORDED_RANK: "recorded rank {rank}",
    Remark.CHANCE: "ranks differ only by chance",
    Remark.ALIKE: "all ranks are alike here",
    Remark.TOO_MANY: "too many messages to try",
    Remark.NO_STRATEGY: "no strategy can use it",
    Remark.NOT_MODELLED: "it is not modelled in fabrics of this kind",
    Remark.USED: "already used",
    Remark.BY: "{strategy}",
    Remark.JOBS: "{jobs}",
    Remark.NO_FORM: "no job's strategy has a form that uses it",
    Remark.PLANNED: "not for {names}, which {do} more than all-reduces",
    Remark.HIGHEST_RATE: "more than the highest rate of a cluster",
    Remark.RATIO: "{ratio:g}:1",
    Remark.STOPPED: "stopped before it was known",
}
_COMPARABLE = {
    Comparable.ONE_NODE: "GPUs of one node",
    Comparable.OVER_CHANNEL: "{family} over {channel}",
    Comparable.BETWEEN_NODES: "{family} between nodes",
    Comparable.TRANSFORMERS: "transformers on {nodes} of {gpus}",
}
_EVIDENCE = {
    Ground.VALIDATED: "{strategy} on an emulated network, 2 to {most:g} workers",
    Ground.PUBLISHED: "{comparable}: {sources}",
    Ground.SERVED_ALONE: "no measurement is of a single worker with a server",
    Ground.SILENT: "nothing is communicated, so only the trace could be wrong",
    Ground.COORDINATED: "published measurements of coordinators are of one machine (paceline study load-imbalance)",
    Ground.SHARDED_RECORDING: "measurements of sharded training are of models with a --gpu, not of recordings",
    Ground.NOT_VALIDATED: "{strategy} has not been compared with real runs",
    Ground.WORKERS_VALIDATED: "the bare schedule of {strategy} was run on up to {most:g} workers, one a node",
    Ground.LINKS_VALIDATED: "the bare schedule of {strategy} was run on emulated links that stand for {slowest:g} to "
    "{fastest:g} Gbit/s",
    Ground.LIBRARY_UNPUBLISHED: "no measurement of {library} with {strategy} has been published",
    Ground.TRANSFORMERS_UNPUBLISHED: "no measurement of transformers with {strategy} has been published",
    Ground.ALL_REDUCES: "too few measurements of all-reduces alone have been published",
    Ground.NOTHING_PUBLISHED: "{comparable}: nothing has been published",
    Ground.ONE_SOURCE: "{comparable}: the constants were fitted to the only source, {sources}",
    Ground.GPUS: "{comparable}: measurements end at {most:g} GPUs, and intervals at {further:g}",
    Ground.LINKS: "{comparable}: measurements have links of {slowest:g} to {fastest:g} Gbit/s, and intervals reach "
    "from half the slowest to twice the fastest, {half:g} to {twice:g} Gbit/s",
    Ground.EXPERTS: "{model}: no measurement is of a mixture of experts",
    Ground.TOO_FEW: "{setting}: too few measurements are of it",
    Ground.NONE_OF_IT: "{setting}: no measurement is of it",
    Ground.PIPELINE: "{setting}: no measurement is of a pipeline",
    Ground.WAIT: "{setting}: measurements have at most {duration}",
    Ground.SLOW_RANK: "{setting}: no measurement has a slow rank",
    Ground.SLOW_LINK: "{setting}: no measurement has a slow link",
    Ground.OVERSUBSCRIBED: "{setting}: no measurement is of links oversubscribed {most:g}:1",
    Ground.HABIT: "{setting}: measurements are of what {whose} does by itself",
}
_BASES = (Ground.VALIDATED, Ground.PUBLISHED)
_REASONS = (Ground.SERVED_ALONE, Ground.SILENT, Ground.COORDINATED, Ground.SHARDED_RECORDING)
"""Why there is no interval, though this is not outside the evidence."""


def part(name: str) -> str:
    """Return what a part of a critical path is called."""
    return COMPUTATION if name == Part.COMPUTE else name


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
    written = f"{about.size // 2**20}MiB" if about.size >= 2**20 else f"{about.size // 2**10}KiB"
    return f"--bucket-size {written}, {units.count(about.count, 'bucket')}"


def note(one: Note, rank: str = "GPU") -> str:
    """Return a degenerate case in words; `rank`: what a node has several of."""
    match one:
        case Note.NoSwitch():
            return "sharp on a single node has no switch: only the reduction inside the node"
        case Note.SwitchLimits():
            limits = []
            if one.levels is not None:
                limits.append("a switch adds up at most {}: the tree has {} levels".format(*one.levels))
            if one.pieces is not None:
                limits.append("pieces of {} elements, so that a switch's memory holds {} of them".format(*one.pieces))
            return f"sharp: {'; '.join(limits)}"
        case Note.SharedTensors():
            return f"sharded-ps with one {rank} per node has no reduction inside it: servers share every tensor"
        case Note.NoRing():
            return "hierarchical on a single node has no ring between nodes: only the reduction inside it"
        case Note.RingOfNodes():
            return f"hierarchical with one {rank} per node is a ring between the nodes"
        case Note.OneGroup():
            return f"hsdp with one group of all {one.ranks} ranks is zero3"
        case Note.ClosedForm():
            how = "takes its closed form: its messages are too many to be simulated"
            return f"{one.strategy} on {one.workers} workers {how}"
    raise AssertionError(one)


def without_activations(trace: str) -> str:
    """Return that memory is forecast without activations."""
    return f"{trace} does not say what activations take, so memory leaves them out"


def evidence(found: Evidence) -> str:
    """Return what an interval is based on, or that there is none, and why."""
    if found.ground in _BASES:
        return reason(found)
    outside = "" if found.ground in _REASONS else ", because this is outside the evidence"
    return f"no interval{outside}: {reason(found)}"


def reason(found: Evidence) -> str:
    """Return what an interval is based on, or why there is none."""
    least, most = found.least / 1e9, found.most / 1e9
    return _EVIDENCE[found.ground].format(
        strategy=found.strategy,
        library=found.library,
        model=found.model,
        setting=_setting(found.setting, found.value),
        whose=found.library or "the schedule",
        comparable="" if found.comparable is None else _comparable(found, found.comparable),
        sources=", ".join(found.sources),
        most=found.most,
        duration=units.duration(found.most),
        further=FURTHER * found.most,
        slowest=least,
        fastest=most,
        half=least / FURTHER,
        twice=most * FURTHER,
    )


def _comparable(found: Evidence, comparable: Comparable) -> str:
    return _COMPARABLE[comparable].format(
        family=found.family,
        channel=found.channel.upper(),
        nodes="several nodes" if found.has_nodes else "one node",
        gpus="older GPUs" if found.is_older else "today’s GPUs",
    )


def _setting(name: str, value: object) -> str:
    if not name:
        return ""
    return SETTINGS[name].spelling(value) or SETTINGS[name].name
