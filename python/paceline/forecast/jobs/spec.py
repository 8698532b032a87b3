"""The file of `paceline simulate --jobs`: a cluster, and the jobs that share it."""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline import _core
from paceline._core import Cluster, written_rate
from paceline._internal import units
from paceline._internal.documents import ComplexityError, read_small, toml_of
from paceline._internal.files import unread
from paceline._internal.nearest import nearest
from paceline._internal.units import shown
from paceline.catalog.builtin import fields_given, load_cluster
from paceline.catalog.channels import with_channel
from paceline.catalog.libraries import DEFAULT, NONE, find_library
from paceline.catalog.models.workload import Workload
from paceline.catalog.nodes import Nodes, known_nodes, with_inside
from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding
from paceline.forecast.lowering import lowered, native
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.scenario import Scenario
from paceline.settings.table import SETTINGS, SIMULATE, of_place

MOST_JOBS = 12
"""Each pair is simulated, and the table has a column for each job."""
_MOST_BYTES = 1 << 20
_CLUSTER = ("bandwidth", "latency", "message_overhead", "gpus_per_node", "intra_bandwidth")
_FIELDS = ("racks", "switch", "fabric", "degraded", "servers_on")
_SHARED = ("network", "iterations", "seed")
_TOP = ("cluster", "nodes", *_CLUSTER, *_FIELDS, *_SHARED, "job")
_OWN = ("name", "trace", "workers", "strategy", "nodes", "gpus_per_node", "start")
_NOT_OF_A_JOB = {
    *(*_CLUSTER, *_SHARED, "cluster", "stragglers", "degraded", "channel"),
    *("coordinator", "coordinator_constants", "executor", "critical_path", "add_module", "memory"),
}
OF_THE_CLUSTER = ("cluster", "bandwidth", "latency", "gpus_per_node", "intra_bandwidth", *_SHARED)
"""Settings at the top of a file that the command may give, too."""
SETTINGS_OF_FILES = frozenset(
    {*_CLUSTER, *_SHARED, "cluster", "degraded", *_OWN} | {one.name for one in of_place("report")} - _NOT_OF_A_JOB
)
"""Settings that a file of jobs has."""
_MOST_NODES = 60_000
_MOST_ITERATIONS = 1000
"""Each is simulated once for all jobs together, for each pair and for each change of the network."""
PACKED, SPREAD = "packed", "spread"
DEFAULT_ITERATIONS = 10


@dataclass(frozen=True)
class PlacedJob:
    """A job, and the nodes of the cluster on which it runs."""

    name: str
    scenario: Scenario
    """The bare schedule, whose messages share the network."""
    by_itself: Scenario
    """The scenario of the job by itself, with the costs of its library."""
    ranks_per_node: int
    gpus_per_rank: int
    """GPUs that share the layers of a rank."""
    nodes: tuple[int, ...]
    server_nodes: tuple[int, ...]
    start_s: float

    @cached_property
    def is_planned(self) -> bool:
        """Whether its iteration is other than that of its trace: sharded, accumulated, compressed, or not each time."""
        return lowered(self.scenario).has_plan

    @property
    def spans_nodes(self) -> bool:
        """Whether it sends anything over the network between nodes."""
        return len({*self.nodes, *self.server_nodes}) > 1

    @property
    def packed(self) -> PlacedJob:
        """The same on the first nodes."""
        workers = tuple(range(len(self.nodes)))
        return replace(
            self,
            nodes=workers,
            server_nodes=tuple(len(workers) + at for at in range(len(self.server_nodes))),
            start_s=0.0,
        )

    def changed(self, change: Callable[[Scenario], Scenario]) -> PlacedJob:
        """Return it with a change of its schedule, which its forecast by itself has, too."""
        return replace(self, scenario=change(self.scenario), by_itself=change(self.by_itself))

    def for_core(self, seed: int | None) -> _core.PlacedJob:
        """Return it in the form of the native module."""
        core = native(self.scenario)
        if seed is not None:
            # Of its own, whatever the job's place in the file.
            core = core.replace(seed=seed ^ zlib.crc32(self.name.encode()))
        return _core.PlacedJob(
            self.name,
            core,
            ranks_per_node=self.ranks_per_node,
            gpus_per_rank=self.gpus_per_rank,
            nodes=self.nodes,
            server_nodes=self.server_nodes,
            start_s=self.start_s,
        )


@dataclass(frozen=True)
class Mix:
    """Jobs that share a cluster. The result does not depend on their order."""

    cluster: Cluster
    nodes: int
    """Nodes of the cluster."""
    jobs: tuple[PlacedJob, ...]
    network: str
    iterations: int
    """Iterations of the slowest job that are measured."""
    seed: int | None
    notes: tuple[str, ...] = ()

    @property
    def is_alike_everywhere(self) -> bool:
        """Whether it makes no difference on which nodes a job is."""
        return self.cluster.racks is None and self.cluster.fabric is None and not self.cluster.degraded


def read(path: Path, given: Mapping[str, object] | None = None) -> Mix:
    """Read the file and place the jobs. Raises InvalidArgumentError naming file, job and key.

    `given`: settings of `OF_THE_CLUSTER` that win over those at the top of the file.
    """
    try:
        document = toml_of(read_small(path, _MOST_BYTES))
    except OSError as error:
        raise unread(f"--jobs {path}", error, path) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, ComplexityError, RecursionError) as error:
        raise InvalidArgumentError(
            f"--jobs {path}: is not TOML: {error}", remedy='[[job]] with trace = "resnet-50" and workers = 8'
        ) from None
    except ValueError:  # Python's limit on the digits of an integer
        raise InvalidArgumentError(
            f"--jobs {path}: is not TOML: a number has too many digits", remedy="a smaller number"
        ) from None
    for name, value in (given or {}).items():
        source = SETTINGS[name].source("flag", value)
        checked = SETTINGS[name].check(value, source, SIMULATE)
        if isinstance(checked, list):
            if len(checked) > 1:
                raise InvalidArgumentError(
                    "several jobs are forecast with one value",
                    setting=name,
                    source=source,
                    remedy="{this=" + str(value[0] if isinstance(value, list) else value) + "}",
                )
            [checked] = checked
        document[name] = checked
    return mix(document, str(path))


def mix(document: Mapping[str, Any], where: str) -> Mix:
    """Check the content of a file and place the jobs. Raises InvalidArgumentError naming file, job and key."""
    _known(where, document, _TOP)
    entries = document.get("job")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgumentError(
            f"{where}: job: is missing", remedy='[[job]] with trace = "resnet-50" and workers = 8'
        )
    if len(entries) > MOST_JOBS:
        raise InvalidArgumentError(
            f"{where}: job: must be at most {MOST_JOBS} jobs, not {len(entries)}", remedy="fewer jobs"
        )
    shared = {name: _setting(where, name, document[name]) for name in _SHARED if name in document}
    if shared.get("iterations", 0) > _MOST_ITERATIONS:
        raise InvalidArgumentError(
            f"{where}: iterations: must be at most {_MOST_ITERATIONS}, not {shared['iterations']}",
            remedy=f"iterations = {_MOST_ITERATIONS}",
        )
    cluster, own, assumed = _cluster(where, document, entries)
    if cluster.stragglers:
        raise InvalidArgumentError(
            f"{where}: cluster: has stragglers by rank, and several jobs have a rank of each number",
            remedy="a cluster without stragglers",
        )
    if cluster.jitter is None and "seed" in shared:
        raise InvalidArgumentError(f"{where}: seed: needs a cluster with jitter", remedy="drop seed")
    drafts = [_draft(f"{where}: job {number}", entry, cluster, own) for number, entry in enumerate(entries, start=1)]
    names = [draft.name for draft in drafts]
    for draft in drafts:
        if names.count(draft.name) > 1:
            raise InvalidArgumentError(
                f"{draft.where}: name: there are two jobs '{draft.name}'", remedy="a name of its own for each"
            )
    nodes = _nodes(where, document.get("nodes"), drafts, cluster)
    jobs = tuple(_place(drafts, nodes, cluster))
    # What messages get of a link over the cluster's channel, as for one job.
    flow = lowered(drafts[0].scenario).flow_bps
    inside, notes = _inside(drafts, cluster)
    notes = (*assumed, *notes, _libraries(drafts), *_strategies(drafts, entries))
    notes += tuple(
        f"{draft.name}: a worker here is a data-parallel rank of {draft.gpus_per_rank} GPUs"
        for draft in drafts
        if draft.gpus_per_rank > 1
    )
    notes += tuple(
        f"{draft.name}: {draft.scenario.workload.context} neighboring ranks share every sample"
        for draft in drafts
        if draft.scenario.workload is not None and draft.scenario.workload.context > 1
    )
    notes += tuple(
        f"{draft.name}: {what} take as long as alone and put no load on shared links"
        for draft in drafts
        if (what := _beside(draft.scenario.workload))
    )
    return Mix(
        cluster.replace(
            bandwidth_bps=flow, intra_bandwidth_bps=cluster.intra_bandwidth_bps if inside is None else inside
        ),
        nodes,
        # In this order, so that the order in the file makes no difference.
        tuple(sorted(jobs, key=lambda job: job.name)),
        shared.get("network", SETTINGS["network"].default or "fifo"),
        shared.get("iterations", DEFAULT_ITERATIONS),
        shared.get("seed", 0) if cluster.jitter is not None else None,
        notes,
    )


@dataclass(frozen=True)
class _Draft:
    """A job without its place."""

    where: str
    name: str
    scenario: Scenario
    by_itself: Scenario
    gpus_per_node: int
    """GPUs that it uses on each of its nodes."""
    gpus_per_rank: int
    nodes: str | tuple[int, ...]
    servers: int
    """Servers that need nodes of their own."""
    start_s: float

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each of its nodes."""
        return self.gpus_per_node // self.gpus_per_rank

    @property
    def count(self) -> int:
        """Nodes for its workers."""
        return -(-self.scenario.workers // self.ranks_per_node)


def _inside(drafts: Sequence[_Draft], cluster: Cluster) -> tuple[float | None, tuple[str, ...]]:
    """Return the rate inside nodes where a mesh limits it, and a note if it does not limit all jobs.

    A mesh limits what jobs exchange with `inside = "root"`; the jobs' nodes have one rate.
    """
    # Ranks of several GPUs have the links of all of them, which are theirs alone.
    several = [
        draft for draft in drafts if min(draft.ranks_per_node, draft.scenario.workers) > 1 and draft.gpus_per_rank == 1
    ]
    rates = {draft.name: lowered(draft.scenario).cluster.intra_bandwidth_bps for draft in several}
    limited = {name: rate for name, rate in rates.items() if rate != cluster.intra_bandwidth_bps}
    if not limited:
        return None, ()
    slowest = min(limited.values())
    others = sorted(name for name, rate in rates.items() if rate != slowest)
    if not others:
        return slowest, ()
    return slowest, (
        f"inside nodes, {units.listed(others)} {'gets' if len(others) == 1 else 'get'} only the "
        f"{written_rate(slowest)} that the mesh leaves to {units.listed(sorted(limited))}: "
        "jobs on one network have one rate there",
    )


def _beside(workload: Workload | None) -> str:
    """Return what GPUs of several nodes exchange within the computation of a model; empty if nothing."""
    if workload is None or workload.links is None:
        return ""
    per_node, shared = workload.links.gpus_per_node, workload.tensor * workload.context
    what = ["tokens for experts"] * (workload.expert > per_node)
    what += ["keys and values"] * (workload.context > 1 and shared > per_node)
    return " and ".join(what)


def _libraries(drafts: Sequence[_Draft]) -> str:
    """Return the note on what the jobs' libraries cost."""
    libraries = dict.fromkeys(draft.by_itself.library.name for draft in drafts)
    named = units.listed(["bare schedule" if name == NONE else name for name in libraries])
    return f"Alone, jobs take as long as in simulate ({named}); slowdowns are of messages, without library costs"


def _strategies(drafts: Sequence[_Draft], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note on the strategies of jobs that name none."""
    names: dict[tuple[str, str], list[str]] = {}
    for draft, entry in zip(drafts, entries, strict=True):
        if "strategy" not in entry:
            own = draft.by_itself
            names.setdefault((own.strategy.name, own.library.name), []).append(draft.name)
    return [
        f"Assumed {strategy} for {units.listed(sorted(jobs))}"
        + (f", the default of {library}" if library != NONE else "")
        for (strategy, library), jobs in sorted(names.items())
    ]


def _cluster(where: str, document: Mapping[str, Any], entries: Sequence[Any]) -> tuple[Cluster, Cluster, list[str]]:
    """Return the cluster of bare schedules, the same as it was given, and notes on what is assumed of its nodes."""
    source = document.get("cluster")
    if source is not None and not isinstance(source, str):
        raise InvalidArgumentError(
            f"{where}: cluster: {shown(source, repr)} is not text", remedy='cluster = "dgx-h100"'
        )
    fields = {name: document[name] for name in (*_CLUSTER, *_FIELDS) if name in document}
    if "servers_on" in fields:
        fields["servers"] = fields.pop("servers_on")
    try:
        base, notes = _nodes_of_jobs(where, source, fields, document, entries)
        cluster = load_cluster(base, **fields)
        given = fields_given(source) | set(fields)
        return with_channel(cluster, bare=True, given=given), cluster, notes
    except InvalidArgumentError as error:
        raise error.within(where) from None


def _nodes_of_jobs(
    where: str,
    source: str | None,
    fields: Mapping[str, Any],
    document: Mapping[str, Any],
    entries: Sequence[Any],
) -> tuple[Cluster | None, list[str]]:
    """Return the cluster, of which `paceline simulate` would assume as much, and notes on what is assumed."""
    assumed = _assumed(where, document, entries)
    if len(assumed) > 1 and source is None:
        titles = units.listed([nodes.title for nodes, _ in assumed])
        raise InvalidArgumentError(
            f"cluster: jobs are on {titles}, whose nodes differ",
            remedy='cluster = "dgx-h100" (the one that they share)',
        )
    if source is None:
        return (assumed[0][0].cluster, assumed[0][1]) if assumed else (None, [])
    cluster = load_cluster(source)

    def nodes() -> Nodes | None:
        if cluster.gpu is not None:
            return known_nodes(cluster.gpu)
        inside = {nodes.inside: nodes for nodes, _ in assumed}
        if len(inside) > 1:
            titles = units.listed([nodes.title for nodes in inside.values()])
            raise InvalidArgumentError(
                f"intra_bandwidth: jobs are on {titles}, whose nodes differ",
                remedy='intra_bandwidth = "100Gbps" (the rate that they share)',
            )
        return next(iter(inside.values()), None)

    return with_inside(source, cluster, fields, nodes, "intra_bandwidth")


def _assumed(where: str, document: Mapping[str, Any], entries: Sequence[Any]) -> list[tuple[Nodes, list[str]]]:
    """Return the nodes that `paceline simulate` assumes of the jobs' GPUs, with the notes that say so."""
    groups: list[tuple[Nodes, list[str]]] = []
    allowed = [one.name for one in of_place("report") if one.name not in _NOT_OF_A_JOB]
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry.get("trace"), str):
            continue  # `_draft` says what is wrong.
        given = {key: value for key, value in entry.items() if key in allowed}
        given |= {name: document[name] for name in ("gpus_per_node", "bandwidth") if name in document}
        try:
            sweep = Sweep.of(entry["trace"], given, SIMULATE, "key", where=f"{where}: job {number}")
            assumed = sweep.nodes()
            notes = sweep.nodes_note()
        except InvalidArgumentError:
            continue
        if assumed is not None and all(nodes.cluster != assumed.cluster for nodes, _ in groups):
            groups.append((assumed, notes))
    return groups


def _draft(where: str, entry: Mapping[str, Any], cluster: Cluster, own: Cluster) -> _Draft:
    allowed = [one.name for one in of_place("report") if one.name not in _NOT_OF_A_JOB]
    _known(where, entry, (*_OWN, *allowed))
    name = entry.get("name", entry.get("trace"))
    if not isinstance(name, str) or not name.strip():
        raise InvalidArgumentError(f"{where}: name: {shown(name, repr)} is not a name", remedy='name = "vision"')
    if not name.isprintable():
        raise InvalidArgumentError(
            f"{where}: name: {shown(name, ascii)} has control characters", remedy='name = "vision"'
        )
    where = f"{where} ({name[:40]})"
    trace, typed = entry.get("trace"), entry.get("workers")
    if not isinstance(trace, str) or not trace:
        raise InvalidArgumentError(f"{where}: trace: is missing", remedy='trace = "resnet-50"')
    workers = units.binary_count(typed) if isinstance(typed, str) else typed
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise InvalidArgumentError(
            f"{where}: workers: {shown(typed, repr)} is not a number of ranks", remedy="workers = 8"
        )
    strategy = entry.get("strategy")
    if "strategy" in entry and (not isinstance(strategy, str) or strategy == "all" or "," in strategy):
        raise InvalidArgumentError(
            f"{where}: strategy: {shown(strategy, repr)} is not one strategy", remedy='strategy = "ring"'
        )
    gpus = entry.get("gpus_per_node", min(cluster.gpus_per_node, max(workers, 1)))
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= cluster.gpus_per_node:
        raise InvalidArgumentError(
            f"{where}: gpus_per_node: must be 1-{cluster.gpus_per_node}, the GPUs of a node, not {shown(gpus, repr)}",
            remedy=f"gpus_per_node = {cluster.gpus_per_node}",
        )
    given = {key: value for key, value in entry.items() if key in allowed}
    if given.get("pipeline_parallel", 1) != 1:
        raise InvalidArgumentError(
            f"{where}: pipeline_parallel: is not modeled for several jobs",
            remedy="drop pipeline_parallel, or forecast the job by itself",
        )
    used = own.replace(gpus_per_node=gpus) if "gpus_per_node" in entry else own
    given["workers"] = workers
    try:
        # Without a strategy, that of its library, as for one job.
        own_sweep = Sweep.of(trace, given | {"cluster": used}, SIMULATE, "key", where=where, one_strategy=True)
        forecasts = prepare(own_sweep).scenarios
        if len(forecasts) != 1:
            raise InvalidArgumentError(
                f"{where}: several values are given, and a job has one of each", remedy="one value"
            )
        given["strategy"] = forecasts[0].strategy.name
        bare = given | {"cluster": cluster.replace(gpus_per_node=gpus), "library": NONE}
        if sharding.kind(str(given.get("sharding", NONE))) not in sharding.GATHERED:
            fused = lowered(forecasts[0]).bucket_size
            by_library = f"{int(find_library(DEFAULT).required('bucket_size')) if fused is None else fused}B"
            bare.setdefault("bucket_size", by_library)
        scenarios = prepare(Sweep.of(trace, bare, SIMULATE, "key", where=where)).scenarios
        cores = [native(scenario) for scenario in scenarios]
        for core in cores:
            if core.lowered.has_plan:
                core.plan()
    except InvalidArgumentError as error:
        if error.source is None:
            error.within(where)
        raise
    [scenario], [core], [by_itself] = scenarios, cores, forecasts
    return _Draft(
        where,
        name,
        scenario,
        by_itself,
        gpus,
        scenario.workload.tensor if scenario.workload is not None else 1,
        _wanted(where, entry.get("nodes", PACKED)),
        core.server_nodes(cluster),
        _start(where, entry.get("start", 0)),
    )


def _wanted(where: str, nodes: object) -> str | tuple[int, ...]:
    if nodes in (PACKED, SPREAD):
        return str(nodes)
    if isinstance(nodes, list) and all(isinstance(node, int) and not isinstance(node, bool) for node in nodes):
        if (highest := max(nodes, default=0)) >= _MOST_NODES:
            raise InvalidArgumentError(
                f"{where}: nodes: there is no node {shown(highest)}, as a cluster has at most {_MOST_NODES}",
                remedy=f"nodes = [0, …, {_MOST_NODES - 1}]",
            )
        if len(set(nodes)) == len(nodes) and all(node >= 0 for node in nodes):
            return tuple(nodes)
        raise InvalidArgumentError(f"{where}: nodes: a node is below 0 or given twice", remedy="nodes = [0, 1]")
    raise InvalidArgumentError(
        f'{where}: nodes: must be "packed", "spread" or a list of nodes, not {shown(nodes, repr)}',
        remedy='nodes = "packed"',
    )


def _start(where: str, start: object) -> float:
    if start == 0:
        return 0.0
    try:
        return _core.parse_time(start)  # type: ignore[arg-type]
    except (InvalidArgumentError, TypeError):
        raise InvalidArgumentError(
            f"{where}: start: {shown(start, repr)} is not a time with its unit", remedy='start = "2s"'
        ) from None


def _nodes(where: str, given: object, drafts: Sequence[_Draft], cluster: Cluster) -> int:
    """Return the number of nodes: as given, or else as many as the jobs need, in whole racks.

    Jobs that are spread have all switches of a fabric of a known size.
    """
    needed = sum(draft.count + draft.servers for draft in drafts if isinstance(draft.nodes, str))
    needed += sum(draft.servers for draft in drafts if not isinstance(draft.nodes, str))
    needed += len({node for draft in drafts if not isinstance(draft.nodes, str) for node in draft.nodes[: draft.count]})
    highest = max((node + 1 for draft in drafts if not isinstance(draft.nodes, str) for node in draft.nodes), default=0)
    if given is None and cluster.most_nodes is not None and any(draft.nodes == SPREAD for draft in drafts):
        return max(needed, highest, min(cluster.most_nodes, _MOST_NODES))
    if given is None:
        rack = 1 if cluster.racks is None else cluster.racks.nodes_per_rack
        # In whole racks, unless these are larger than a cluster can be.
        return max(needed, highest, min(-(-max(needed, highest) // rack) * rack, _MOST_NODES))
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MOST_NODES:
        raise InvalidArgumentError(
            f"{where}: nodes: {shown(given, repr)} is not a number of nodes", remedy="nodes = 16"
        )
    if given < max(needed, highest):
        raise InvalidArgumentError(
            f"{where}: nodes: the jobs and their servers need {max(needed, highest)}, not {given}",
            remedy=f"nodes = {max(needed, highest)}",
        )
    return given


def _place(drafts: Sequence[_Draft], nodes: int, cluster: Cluster) -> list[PlacedJob]:
    """Place jobs: first those with given nodes, then the others by start and name."""
    per_switch = cluster.nodes_per_switch or nodes
    for draft in drafts:
        if draft.nodes == SPREAD and (why := _why_not_spread(cluster, nodes)):
            raise InvalidArgumentError(
                f'{draft.where}: nodes: "spread" has no effect: {why}', remedy='nodes = "packed"'
            )
    free = dict.fromkeys(range(nodes))
    placed: list[PlacedJob] = []
    for draft in drafts:
        if isinstance(draft.nodes, str):
            continue
        if len(draft.nodes) not in (draft.count, draft.count + draft.servers):
            besides = f" and {units.count(draft.servers, 'server')}" if draft.servers else ""
            raise InvalidArgumentError(
                f"{draft.where}: nodes: workers{besides} need {draft.count + draft.servers}, not {len(draft.nodes)}",
                remedy=f"{draft.count + draft.servers} nodes",
            )
        for node in draft.nodes:
            free.pop(node, None)

    def take(count: int, *, spread: bool) -> list[int]:
        chosen = _chosen(list(free), count, per_switch, spread=spread)
        for node in chosen:
            del free[node]
        return chosen

    for draft in sorted(drafts, key=lambda draft: (isinstance(draft.nodes, str), draft.start_s, draft.name)):
        spread = draft.nodes == SPREAD
        if isinstance(draft.nodes, str):
            workers, servers = take(draft.count, spread=spread), take(draft.servers, spread=spread)
        else:
            workers, servers = list(draft.nodes[: draft.count]), list(draft.nodes[draft.count :])
            servers = servers or take(draft.servers, spread=False)
        placed.append(
            PlacedJob(
                draft.name,
                draft.scenario,
                draft.by_itself,
                draft.ranks_per_node,
                draft.gpus_per_rank,
                tuple(sorted(workers)),
                tuple(servers),
                draft.start_s,
            )
        )
    return placed


def _why_not_spread(cluster: Cluster, nodes: int) -> str:
    """Return why nodes cannot be taken of several racks or switches; empty if they can."""
    per_switch = cluster.nodes_per_switch
    if per_switch is None:
        return "one switch connects all nodes"
    if per_switch == 1:
        return "every node has a switch of its own"
    if per_switch >= nodes:
        return f"a rack or switch has {per_switch} nodes, and there are {nodes}"
    return ""


def _chosen(free: list[int], count: int, per_switch: int, *, spread: bool) -> list[int]:
    """Return the first free nodes, or one from each rack or switch of a fabric in turn."""
    if not spread:
        return free[:count]
    turns: dict[int, int] = {}
    keyed = []
    for node in free:
        switch = node // per_switch
        keyed.append((turns.setdefault(switch, 0), switch, node))
        turns[switch] += 1
    return [node for _, _, node in sorted(keyed)[:count]]


def _setting(where: str, name: str, value: object) -> Any:  # noqa: ANN401
    setting = SETTINGS[name]
    return setting.check(value, setting.source("key", value, where), SIMULATE)


def _known(where: str, entry: Mapping[str, Any], names: Sequence[str]) -> None:
    for key in entry:
        if key not in names:
            near = nearest(key, list(names))
            hint = near or f"one of {', '.join(dict.fromkeys(names))}"
            raise InvalidArgumentError(f"{where}: unknown key '{key[:80]}'", remedy=hint)
