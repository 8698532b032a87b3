"""Turns requests into scenarios: names become traces, clusters and strategies, and invalid requests are refused.

The command line, a report's specification and Python all make a `Sweep`, and `prepare` makes its scenarios.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from paceline._core import Cluster, Trace
from paceline._internal import units
from paceline._internal.files import check_writable
from paceline._internal.units import shown
from paceline.catalog.channels import with_channel
from paceline.catalog.devices import adjusted, device_rate
from paceline.catalog.libraries import COORDINATED, DEFAULT, NONE, Library, find_library, library_names
from paceline.catalog.library import NO_NETWORK, fields_given, load_cluster, load_trace
from paceline.catalog.placement import read_placement
from paceline.catalog.strategies import KNOBS, Strategy, all_strategies, check_knobs, feasible, find_strategy
from paceline.errors import InvalidArgumentError, Source, naming
from paceline.forecast.coordination.model import Coordination
from paceline.forecast.coordination.options import Coordinated, coordinated
from paceline.forecast.simulate import Scenario, used_by
from paceline.forecast.table import EXTRAS, SERVERS, SWITCH, extras
from paceline.settings.kinds import PLACEMENTS
from paceline.settings.table import DEFAULT_WORKERS, SETTINGS, by_current_names, naming_core_errors

CORE = (
    "placement",
    "chunk",
    "distribution",
    "pull",
    "inside",
    "network",
    "barrier",
    "overlap",
    "iterations",
    "seed",
    "critical_path",
    "detail",
)
"""Options of every scenario of a sweep."""
_SWEPT = ("workers", "bandwidth", "latency", "compute_speedup", "bucket_size", "strategy", "servers")
_CLUSTER = ("message_overhead", "gpus_per_node", "intra_bandwidth", "stragglers", "degraded")
_SIZES = ("bucket_size", "chunk")
"""In a file, their values have units."""
Traces = str | Path | Trace | Sequence[str | Path | Trace]


@dataclass(frozen=True)
class Sweep:
    """A product of scenarios to forecast. Made by `of`, which checks every value."""

    traces: Sequence[str | Path | Trace]
    values: Mapping[str, Any]
    """Values by setting; settings that are not given are absent. Swept settings have lists."""
    sources: Mapping[str, Source]
    given_by: Literal["flag", "keyword", "key"]
    cluster_fields: Mapping[str, object] = field(default_factory=dict)
    """Other fields of the cluster, from Python."""
    timeline: Path | None = None
    plot: Path | None = None
    one_strategy: bool = False
    """If no strategy is named, it is the library's own instead of all."""

    @classmethod
    def of(
        cls,
        traces: Traces,
        given: Mapping[str, object],
        place: str,
        given_by: Literal["flag", "keyword", "key"] = "keyword",
        *,
        where: str = "",
        timeline: Path | None = None,
        plot: Path | None = None,
        one_strategy: bool = False,
    ) -> Sweep:
        """Check the values given to `place`, a command or function of the table; None counts as not given.

        `where`: the file and the place in it that the values come from. Raises InvalidArgumentError, which carries
        setting and source.
        """
        values, others = {}, {}
        named, sources = by_current_names(place, given, given_by, where)
        for name, value in named.items():
            if value is None:
                continue
            setting = SETTINGS.get(name)
            if setting is None or place not in setting.uses:
                others[name] = value
                continue
            sources.setdefault(name, setting.source(given_by, value, where))
            if given_by == "key" and name in _SIZES:
                _refuse_unitless(name, value, sources[name])
            checked = setting.check(value, sources[name], place)
            values[name] = [checked] if name in _SWEPT and not setting.kind_of(place).is_list else checked
        listed = traces if isinstance(traces, Sequence) and not isinstance(traces, str) else [traces]
        if not listed:
            raise InvalidArgumentError("no trace is given; `paceline traces` lists the built-in traces")
        return cls(listed, values, sources, given_by, others, timeline, plot, one_strategy)

    @property
    def trace(self) -> str | Path | Trace:
        """The first trace."""
        return self.traces[0]

    def get(self, name: str) -> Any:  # noqa: ANN401
        """Return the value of a setting; None if it was not given."""
        return self.values.get(name)

    def spelling(self, name: str) -> str:
        """Return how a setting is given here, for messages."""
        return self.sources[name].name if name in self.sources else SETTINGS[name].source(self.given_by).name

    @property
    def has_coordinator(self) -> bool:
        """Whether a coordinator is asked for."""
        asked = self.get("coordinator") or NONE
        return ([asked] if isinstance(asked, str) else list(asked)) != [NONE]

    @property
    def workers(self) -> Sequence[int]:
        """Numbers of workers, at least one."""
        return self.get("workers") or DEFAULT_WORKERS

    def library_of(self, trace: Trace, *, coordinated: bool | None = None) -> Library:
        """Return the library that was asked for, or else that of the trace, or else the usual one.

        A trace that computes nothing is one exchange: nobody's training, so it is bare. Under a coordinator, the usual
        one is Horovod. Raises InvalidArgumentError for a library that has none.

        `coordinated`: whether it is of the rows with a coordinator; by default, if there are any.
        """
        under = self.has_coordinator if coordinated is None else coordinated
        name = self.get("library")
        if name is None:
            summary = json.loads(trace.summary())
            computes = summary["forward_s"] + summary["backward_s"] + summary["optimizer_s"] > 0
            recorded = summary["library"] if summary["library"] in library_names() else DEFAULT
            if under and not find_library(recorded).coordinator:
                recorded = COORDINATED
            name = recorded if computes else NONE
        found = find_library(name)
        if under and not (found.is_bare or found.coordinator):
            raise InvalidArgumentError(
                f"has no effect on {found.name}, whose ranks need not agree; leave it out, or give "
                f"{self.spelling('library')} {COORDINATED}",
                setting="coordinator",
            )
        return found

    def machine(self) -> Cluster:
        """Return the cluster, except for its bandwidth and channel. Raises InvalidArgumentError."""
        return load_cluster(self.get("cluster"), **self._fields())

    def _fields(self) -> dict[str, Any]:
        return {**{name: self.get(name) for name in _CLUSTER}, **self.cluster_fields}

    def machines(self, machine: Cluster, library: Library) -> list[Cluster]:
        """Return a cluster for each bandwidth, with its channel decided. Raises InvalidArgumentError."""
        if self.get("channel") not in (None, library.channel) and library.channel:
            raise InvalidArgumentError(
                f"has no effect on {library.name}, which sends over {library.channel}; leave it out", setting="channel"
            )
        channel = self.get("channel") or library.channel or None
        given = fields_given(self.get("cluster"))
        linked = [
            (
                with_channel(
                    load_cluster(machine, bandwidth=rate, latency=latency), channel, bare=library.is_bare, given=given
                ),
                latency,
            )
            for rate, latency in product(self.get("bandwidth") or (None,), self.get("latency") or (None,))
        ]
        # What was given explicitly wins over the channel's.
        return [load_cluster(cluster, **self._fields(), latency=latency) for cluster, latency in linked]

    def steps(self) -> list[Trace]:
        """Return the traces as changed by the options. Raises InvalidArgumentError."""
        return [self._step(trace) for trace in self.traces]

    def step(self) -> Trace:
        """Return the first trace as changed by the options. Raises InvalidArgumentError."""
        return self._step(self.trace)

    def _step(self, named: str | Path | Trace) -> Trace:
        trace = load_trace(named)
        if self.get("add_module") is not None:
            with naming_core_errors():
                try:
                    trace = trace.with_modules(self.get("add_module"))
                except InvalidArgumentError as error:
                    raise error.at("add_module") from None
        changes = {name: self.get(name) for name in ("device", "samples_per_s", "batch", "dtype")}
        return adjusted(trace, **changes)

    def refuse_idle_links(self, machine: Cluster, strategies: Sequence[Strategy] = ()) -> None:
        """Raise InvalidArgumentError for settings of links inside nodes if there are none."""
        described = json.loads(machine.to_json())
        colocated = described["servers"] == "colocated" and any("servers" in one.knobs for one in strategies)
        if self.get("intra_bandwidth") is not None and described["gpus_per_node"] == 1 and not colocated:
            raise self._alone("intra_bandwidth")

    def _alone(self, name: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"has no effect with one GPU per node; add {self.spelling('gpus_per_node')} or leave it out", setting=name
        )

    def device_note(self, trace: Trace) -> list[str]:
        """Return the source of the named device's rate."""
        device = self.get("device")
        return [] if device is None else [f"{self.spelling('device')}: {device_rate(trace, device).cited}"]


def _refuse_unitless(name: str, value: object, source: Source) -> None:
    for size in value if isinstance(value, list) else [value]:
        if isinstance(size, int | float) and not isinstance(size, bool):
            raise InvalidArgumentError(
                f'{shown(size)} has no unit; write "{shown(size)}MB"', setting=name, source=source
            )


@dataclass(frozen=True)
class Prepared:
    """The scenarios, and notes for the user."""

    scenarios: list[Scenario]
    notes: list[str] = field(default_factory=list)
    meant: frozenset[str] = frozenset(EXTRAS)
    """What was asked for that not everybody has: servers by name or number; by name or with a cluster, its switch."""


def prepare(sweep: Sweep) -> Prepared:
    """Check everything that can be checked without simulating. Raises InvalidArgumentError."""
    with naming(sweep.sources):
        return _prepared(sweep)


def _prepared(sweep: Sweep) -> Prepared:
    _check_outputs(sweep)
    traces, machine = sweep.steps(), sweep.machine()
    sweep, small = _without_small(sweep, machine)
    library = sweep.library_of(traces[0])
    own = sweep.get("strategy") or _own(sweep, library)
    strategies, by_name = _strategies(own, servers_first=sweep.get("servers") is not None)
    meant = {extra for strategy in by_name for extra in extras(strategy.name)}
    meant |= {extra for extra, given in ((SERVERS, "servers"), (SWITCH, "cluster")) if sweep.get(given) is not None}
    strategies, notes = _only_feasible(strategies, by_name, machine)
    notes += [*small, *_unknown_libraries(sweep, traces)]
    check_knobs(strategies, [knob for knob in KNOBS if knob in sweep.values])
    for trace in traces:
        _refuse_without_effect(sweep, strategies, trace, machine)
    _check_stragglers(sweep, machine)
    scenarios: list[Scenario] = []
    for trace in traces:
        how = coordinated(sweep, trace, machine)
        under = [coordination for coordination in how.coordinations if coordination is not None]
        sides = [
            _Side.of(
                sweep,
                traces,
                trace,
                machine,
                coordinations=coordinations,
                fused=how.bucket_size if coordinations is under else None,
            )
            for coordinations in ([None] if len(under) < len(how.coordinations) else [], under)
            if coordinations
        ]
        able, unreachable = _only_reachable(sweep, strategies, by_name, how, (trace, sides[-1].clusters))
        notes += [*unreachable, *how.notes, *_of_two_libraries(sweep, sides)]
        for count, place, speedup in product(
            sweep.workers, range(len(sides[0].clusters)), sweep.get("compute_speedup") or [None]
        ):
            for side in sides:
                scenarios += plan(
                    [trace],
                    [side.clusters[place]],
                    able,
                    workers=[count],
                    servers=sweep.get("servers") or [None],
                    compute_speedups=[speedup],
                    library=side.library,
                    bucket_sizes=side.bucket_sizes,
                    options={name: sweep.get(name) for name in CORE} | {"placement": side.placement},
                    coordinations=side.coordinations,
                )
    if sweep.timeline is not None and len(scenarios) != 1:
        raise InvalidArgumentError(
            f"--timeline: shows one scenario, but {len(scenarios)} are requested: give one value of "
            f"{_several(sweep, strategies)}"
        )
    devices = [note for trace in traces for note in sweep.device_note(trace)]
    said = dict.fromkeys([*notes, *_unmeasured(sweep, machine), *devices])
    return Prepared(scenarios, list(said), frozenset(meant))


@dataclass(frozen=True)
class _Side:
    """What the rows with a coordinator, or those without one, have in common: each is as if asked by itself."""

    coordinations: Sequence[Coordination | None]
    library: Library
    clusters: Sequence[Cluster]
    bucket_sizes: Sequence[int | str | None]
    placement: str | list[int] | None

    @classmethod
    def of(
        cls,
        sweep: Sweep,
        traces: Sequence[Trace],
        trace: Trace,
        machine: Cluster,
        *,
        coordinations: Sequence[Coordination | None],
        fused: int | None,
    ) -> _Side:
        """`fused`: the size up to which a coordinator fuses, unless one was asked for."""
        library = sweep.library_of(trace, coordinated=coordinations != [None])
        clusters = sweep.machines(machine, library)
        sizes = sweep.get("bucket_size") or [fused]
        return cls(coordinations, library, clusters, sizes, _placement(sweep, traces, library))


def _of_two_libraries(sweep: Sweep, sides: Sequence[_Side]) -> list[str]:
    libraries = list(dict.fromkeys(side.library.name for side in sides))
    if len(libraries) == 1:
        return []
    return [
        f"rows without a coordinator are of {libraries[0]}, the others of {libraries[1]}: {sweep.spelling('library')} "
        f"{libraries[1]} compares the same library"
    ]


def plan(
    traces: Sequence[Trace],
    clusters: Sequence[Cluster],
    strategies: Sequence[Strategy],
    *,
    workers: Sequence[int],
    servers: Sequence[int | None],
    compute_speedups: Sequence[float | None],
    library: Library,
    bucket_sizes: Sequence[int | str | None],
    options: Mapping[str, Any],
    coordinations: Sequence[Coordination | None] = (None,),
) -> list[Scenario]:
    """Return the scenarios of a sweep, ordered as their arguments are in `product` below.

    A knob is passed to the strategies that use it: one without servers runs once, whatever the number of servers.
    """
    return [
        Scenario.of(
            trace,
            cluster,
            strategy,
            count,
            library=library,
            **used_by(strategy, options),
            servers=server_count,
            compute_speedup=speedup,
            bucket_size=bucket_size,
            coordination=coordination,
        )
        for trace, count, cluster, speedup, coordination, bucket_size, strategy in product(
            traces, workers, clusters, compute_speedups, coordinations, bucket_sizes, strategies
        )
        for server_count in (servers if "servers" in strategy.knobs else [None])
    ]


def _unmeasured(sweep: Sweep, cluster: Cluster) -> list[str]:
    """Return a note if the cluster file is a probe of a single host, which measured no network."""
    if sweep.get("cluster") is None or sweep.get("bandwidth") is not None:
        return []
    described = json.loads(cluster.to_json())
    several = max(sweep.workers) > described.get("gpus_per_node", 1)
    if not several or NO_NETWORK.partition(",")[0] not in described.get("provenance", ""):
        return []
    return [
        f"{sweep.spelling('cluster')} {sweep.get('cluster')}: {NO_NETWORK}; its rate inside the host is used "
        f"between nodes: give {sweep.spelling('bandwidth')}"
    ]


def _check_outputs(sweep: Sweep) -> None:
    if sweep.timeline is not None:
        check_writable("--timeline", sweep.timeline)
    if sweep.plot is None:
        return
    if sweep.plot == sweep.timeline:
        raise InvalidArgumentError("--plot and --timeline name the same file")
    from paceline.forecast.plotting import check_plot

    check_plot(sweep.plot)


def _own(sweep: Sweep, library: Library) -> list[str]:
    """Return the strategies if none is named: all, or what the library does by itself if the question is about one."""
    return [library.strategy] if sweep.one_strategy or sweep.get("library") is not None else ["all"]


def _strategies(words: Sequence[str], *, servers_first: bool) -> tuple[list[Strategy], set[Strategy]]:
    """Return the requested strategies, each once, and those requested by name.

    Parameter servers come last unless they are meant: the first strategy is the one that others are compared with.
    """
    by_name = {find_strategy(word): None for word in words if word != "all"}
    every = all_strategies() if "all" in words else ()
    if not servers_first:
        every = tuple(sorted(every, key=lambda strategy: "servers" in strategy.knobs))
    return list(dict.fromkeys([*by_name, *every])), set(by_name)


def _only_feasible(
    strategies: list[Strategy], by_name: set[Strategy], cluster: Cluster
) -> tuple[list[Strategy], list[str]]:
    able, unable = feasible(strategies, cluster)
    name = json.loads(cluster.to_json())["name"]
    for strategy in unable:
        if strategy in by_name:
            needs = " and ".join(sorted({"multicast", "aggregation"} & strategy.knobs))
            raise InvalidArgumentError(
                f"{strategy.name} needs {needs} in the switch, which cluster '{name}' does not have "
                "(switch in its file)",
                setting="strategy",
            )
    if not unable:
        return able, []
    names = units.listed([strategy.name for strategy in unable])
    return able, [f"left out {names}: the switch of cluster '{name}' does not support them"]


def _only_reachable(
    sweep: Sweep,
    strategies: list[Strategy],
    by_name: set[Strategy],
    how: Coordinated,
    job: tuple[Trace, Sequence[Cluster]],
) -> tuple[list[Strategy], list[str]]:
    """Leave out strategies that were not asked for by name and whose exchanges are too large to be simulated."""
    coordination = next((it for it in how.coordinations if it is not None), None)
    if coordination is None:
        return strategies, []
    unable = {}
    trace, clusters = job
    library, network = sweep.library_of(trace), sweep.get("network")
    sizes = sweep.get("bucket_size") or [how.bucket_size]
    for strategy, cluster, workers, size in product(strategies, clusters, sweep.workers, sizes):
        scenario = Scenario.of(
            trace,
            cluster,
            strategy,
            workers,
            library=library,
            coordination=coordination,
            bucket_size=size,
            network=network,
        )
        reason = None if strategy in by_name else scenario.unreachable()
        if reason is not None:
            unable[strategy] = reason
    if not unable:
        return strategies, []
    names = units.listed([strategy.name for strategy in unable])
    able = [strategy for strategy in strategies if strategy not in unable]
    if not able:
        raise InvalidArgumentError(next(iter(unable.values())), setting="strategy")
    return able, [f"left out {names}: too many messages, and no closed form at this size"]


def _refuse_without_effect(sweep: Sweep, strategies: list[Strategy], trace: Trace, cluster: Cluster) -> None:
    described = json.loads(cluster.to_json())
    sweep.refuse_idle_links(cluster, strategies)
    if sweep.get("inside") is not None and described["gpus_per_node"] == 1:
        raise sweep._alone("inside")
    is_random = bool({"jitter", "fabric"} & described.keys()) or sweep.has_coordinator
    if sweep.get("seed") is not None and not is_random:
        raise InvalidArgumentError(
            "has no effect on a cluster without jitter; leave it out, or add jitter to its file", setting="seed"
        )
    summary = json.loads(trace.summary())
    if summary["forward_s"] + summary["backward_s"] + summary["optimizer_s"] == 0:
        given = {"overlap": sweep.get("overlap") is False}
        given |= {name: sweep.get(name) is not None for name in ("compute_speedup", "pull")}
        for name in (name for name, is_given in given.items() if is_given):
            raise InvalidArgumentError(
                f"has no effect on {summary['name']}, which computes nothing; leave it out", setting=name
            )


def _without_small(sweep: Sweep, machine: Cluster) -> tuple[Sweep, list[str]]:
    """Leave out the usual numbers of workers that do not have a slow rank, with a note."""
    rank = _highest_slow_rank(machine)
    able = [workers for workers in sweep.workers if workers > rank]
    if sweep.get("workers") is not None or not able or len(able) == len(sweep.workers):
        return sweep, []
    small = units.listed([str(workers) for workers in sweep.workers if workers <= rank])
    note = f"left out {small} workers: the cluster's stragglers include rank {rank}"
    return replace(sweep, values={**sweep.values, "workers": able}), [note]


def _highest_slow_rank(machine: Cluster) -> int:
    return max((one["rank"] for one in json.loads(machine.to_json()).get("stragglers", ())), default=-1)


def _check_stragglers(sweep: Sweep, machine: Cluster) -> None:
    """Refuse a slow rank that some of the numbers of workers do not have."""
    fewest, rank = min(sweep.workers), _highest_slow_rank(machine)
    if rank < fewest:
        return
    there_is = f"there is no rank {rank} with {units.count(fewest, 'worker')}, only 0 to {fewest - 1}"
    if sweep.get("stragglers"):
        raise InvalidArgumentError(there_is, setting="stragglers")
    name = sweep.get("cluster")
    where = json.loads(machine.to_json())["name"] if isinstance(name, Cluster) else name
    more = f"give more than {rank} {sweep.spelling('workers')}"
    raise InvalidArgumentError(f"{where}: stragglers: {there_is}; {more} or take it out", setting="cluster")


def _unknown_libraries(sweep: Sweep, traces: Sequence[Trace]) -> list[str]:
    """Return a note for each trace that names a library which is not known, and so does not decide."""
    if sweep.get("library") is not None:
        return []
    told = [json.loads(trace.summary()) for trace in traces]
    return [
        f"{one['name']}: was recorded with '{units.printable(one['library'][:80])}', which is not among the "
        f"libraries; forecast as {sweep.library_of(trace).name} ({sweep.spelling('library')})"
        for trace, one in zip(traces, told, strict=True)
        if one["library"] and one["library"] not in library_names()
    ]


def _placement(sweep: Sweep, traces: Sequence[Trace], library: Library) -> str | list[int] | None:
    placement: str | list[int] | None = sweep.get("placement")
    if placement is None or placement in PLACEMENTS:
        return placement
    [bucket_size, *more] = sweep.get("bucket_size") or [None]
    if more or len(traces) > 1:
        what = "bucket size" if more else "trace"
        raise InvalidArgumentError(f"assigns the tensors of one {what}; give one", setting="placement")
    if isinstance(placement, list):
        return placement
    bucket_size = bucket_size or library.value("bucket_size")
    if bucket_size is None and "fused_per_cycle" in library.constants:
        raise InvalidArgumentError(
            f"a file places buckets, and those of {library.name} depend on the network; give "
            f"{sweep.spelling('bucket_size')} too",
            setting="placement",
        )
    fewest = min(sweep.get("servers") or [1])
    size = None if bucket_size in (None, "none") else int(bucket_size)
    return read_placement(Path(placement), traces[0], size, fewest)


def _several(sweep: Sweep, strategies: list[Strategy]) -> str:
    lengths = {name: len(sweep.get(name) or ()) for name in _SWEPT}
    lengths |= {"workers": len(sweep.workers), "strategy": len(strategies)}
    traces = ["TRACE"] if len(sweep.traces) > 1 else []
    return units.listed([*traces, *(sweep.spelling(name) for name, length in lengths.items() if length > 1)])
