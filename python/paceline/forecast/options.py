"""Turns requests into scenarios: names become traces, clusters and strategies, and invalid requests are refused.

The command line, a report's specification and Python all make a `Sweep`, and `prepare` makes its scenarios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from paceline._core import Cluster, Trace
from paceline._internal import units
from paceline._internal.files import check_distinct, check_writable
from paceline._internal.nearest import nearest
from paceline._internal.units import shown
from paceline.catalog.channels import with_channel
from paceline.catalog.constants import as_rate
from paceline.catalog.devices import adjusted, device_rate
from paceline.catalog.hardware import find_hardware, titled
from paceline.catalog.libraries import COORDINATED, DEFAULT, NONE, Library, find_library, library_names
from paceline.catalog.library import NO_NETWORK, cluster_names, fields_given, load_cluster, load_trace
from paceline.catalog.models.roofline import Links, is_split
from paceline.catalog.models.spec import OPTIONS as MODEL_OPTIONS
from paceline.catalog.models.spec import find_workload, refuse_on_recording
from paceline.catalog.models.workload import Workload
from paceline.catalog.nodes import Nodes, known_nodes, nodes_of, nodes_of_device, with_inside
from paceline.catalog.placement import read_placement
from paceline.catalog.strategies import (
    KNOBS,
    SWITCHES,
    Strategy,
    all_strategies,
    check_knobs,
    feasible,
    find_strategy,
    lacks,
    with_switch,
)
from paceline.errors import InvalidArgumentError, Source, naming
from paceline.forecast import compression, sharding
from paceline.forecast.coordination.model import Coordination
from paceline.forecast.coordination.options import Coordinated, coordinated
from paceline.forecast.lowering import unreachable
from paceline.forecast.scenario import Scenario, used_by
from paceline.forecast.table import EXTRAS, SERVERS, SWITCH, extras
from paceline.settings.keywords import ClusterFields
from paceline.settings.kinds import PLACEMENTS
from paceline.settings.table import DEFAULT_WORKERS, SETTINGS, by_current_names

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
    *sharding.OPTIONS,
    "memory",
)
"""Options of every scenario of a sweep."""
_SWEPT = (
    *("library", "workers", "bandwidth", "latency", "compute_speedup", "bucket_size", "strategy", "servers"),
    "sharding",
    *compression.OPTIONS,
)
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

    @property
    def inputs(self) -> list[object]:
        """What may be paths to files that are read."""
        return [*self.traces, *(self.values.get(name) for name in ("cluster", "placement", "gpu"))]

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
            setting = SETTINGS.get(name)
            is_used = setting is not None and place in setting.uses
            if given_by == "keyword" and not is_used and (setting is None or value is not None):
                _check_field(name, place)
            if value is None:
                continue
            if setting is None or not is_used:
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
        """Numbers of data-parallel ranks, at least one. Raises InvalidArgumentError if they are not whole."""
        counts: Sequence[int] = self.get("workers") or DEFAULT_WORKERS
        own = self.gpus_per_rank
        groups = self._groups()
        if self.get("workers") is None:
            whole = [count // own for count in counts if all(count % size == 0 for size, *_ in groups)]
            return whole or ([1, 2, 4, 8] if len(groups) == 1 else [max(size for size, *_ in groups) // own])
        for size, what, setting in groups:
            if wrong := [count for count in counts if count % size]:
                raise InvalidArgumentError(
                    f"{wrong[0]} GPUs are not a multiple of {size}, the GPUs {what}", setting=setting
                )
        return [count // own for count in counts]

    def _groups(self) -> list[tuple[int, str, str]]:
        """Return of how many GPUs their number is a multiple, what these are, and the setting that says so."""
        tensor, own = self.get("tensor_parallel") or 1, self.gpus_per_rank
        groups = [
            (
                own,
                "of a data-parallel rank (tensor x pipeline)",
                "tensor_parallel" if tensor > 1 else "pipeline_parallel",
            )
        ]
        if (context := self.get("context_parallel") or 1) > 1:
            groups.append((own * context, "that share a sample", "context_parallel"))
        if (ranks := (self.get("expert_parallel") or 1) // tensor) > 1:
            what = "that have all experts" if own == tensor else "of the stages that have all experts"
            groups.append((own * ranks, what, "expert_parallel"))
        return groups

    @property
    def gpus_per_rank(self) -> int:
        """GPUs of a data-parallel rank: tensor-parallel ones times stages."""
        return (self.get("tensor_parallel") or 1) * (self.get("pipeline_parallel") or 1)

    def libraries_of(self, trace: Trace, *, coordinated: bool | None = None) -> list[Library]:
        """Return the libraries that were asked for, or else that of the trace, or else the usual one.

        A trace that computes nothing is one exchange: nobody's training, so it is bare. Under a coordinator, the usual
        one is Horovod. Raises InvalidArgumentError for a library that has none.

        `coordinated`: whether it is of the rows with a coordinator; by default, if there are any.
        """
        return [self.library_of(trace, name, coordinated=coordinated) for name in self.get("library") or [None]]

    def library_of(self, trace: Trace, name: str | None, *, coordinated: bool | None = None) -> Library:
        """Return a library, or that of the trace if no name is given; see `libraries_of`."""
        under = self.has_coordinator if coordinated is None else coordinated
        if name is None:
            recorded = trace.library if trace.library in library_names() else DEFAULT
            if under and not find_library(recorded).coordinator:
                recorded = COORDINATED
            name = recorded if trace.computes else NONE
        found = find_library(name)
        if under and not (found.is_bare or found.coordinator):
            raise InvalidArgumentError(
                f"has no effect on {found.name}, whose ranks need not agree; leave it out, or give "
                f"{self.spelling('library')} {COORDINATED}",
                setting="coordinator",
            )
        return found

    def gloo_note(self, trace: Trace) -> list[str]:
        """Return a note if the times are those of a GPU, and the library is gloo because the recording was made so."""
        on_gpu = self.get("device") is not None or self.get("samples_per_s") is not None
        if not on_gpu or self.get("library") is not None or self.library_of(trace, None).name != "ddp-gloo":
            return []
        library = f"{self.spelling('library')} {DEFAULT}"
        return [f"forecast over gloo, as it was recorded; {library} forecasts NCCL, which GPUs use"]

    def machine(self) -> Cluster:
        """Return the cluster, except for its bandwidth and channel. Raises InvalidArgumentError."""
        return load_cluster(self._cluster(), **self._fields())

    def _cluster(self) -> Cluster | None:
        """Return the cluster given, or else the nodes that are assumed of the GPU; None if none is named."""
        if self.get("cluster") is not None:
            return self._with_inside()[0]
        nodes = self.nodes()
        return None if nodes is None else nodes.cluster

    def _with_inside(self) -> tuple[Cluster, list[str]]:
        """Return the cluster given, with the inside of its GPU's nodes if it does not say, and the note on that."""
        cluster = self._loaded()

        def nodes() -> Nodes | None:
            return self.nodes() if cluster.gpu is None else known_nodes(cluster.gpu)

        settings = {**self.cluster_fields, **{name: self.get(name) for name in _CLUSTER}}
        return with_inside(self.get("cluster"), cluster, settings, nodes, self.spelling("intra_bandwidth"))

    def nodes(self) -> Nodes | None:
        """Return the nodes that are assumed of the GPU of a model, of `--device` or of `record --on`."""
        workload = self.workload(self.trace)
        if workload is not None:
            return nodes_of(workload.hardware)
        if self.get("device") is not None:
            device_rate(load_trace(self.trace), self.get("device"))
            return nodes_of_device(self.get("device"))
        hardware = titled(load_trace(self.trace).device)
        return None if hardware is None or self.get("samples_per_s") is not None else nodes_of(hardware)

    @property
    def is_one_a_node(self) -> bool:
        """Whether every rank has a node because nothing says how many share one, though a GPU's rate is given."""
        described = any(self.get(name) is not None for name in ("cluster", "gpus_per_node"))
        several = self.get("samples_per_s") is not None and max(self.workers) > 1
        return several and not described and self.nodes() is None

    def _loaded(self) -> Cluster:
        """Return the cluster given. Raises InvalidArgumentError, which names the setting."""
        try:
            return load_cluster(self.get("cluster"))
        except InvalidArgumentError as error:
            raise error.at("cluster") from None

    def nodes_note(self) -> list[str]:
        """Return which nodes are assumed if no cluster is given, or what is assumed inside those of one."""
        if self.get("cluster") is not None:
            return self._with_inside()[1]
        settings = {name: self.spelling(name) for name in ("gpus_per_node", "bandwidth", "cluster")}
        if self.is_one_a_node:
            return [
                f"no GPU is named, and {self.spelling('samples_per_s')} is that of one rank: assuming one rank a node; "
                f"{settings['gpus_per_node']}, or {settings['cluster']}, says how many share one"
            ]
        nodes = self.nodes()
        note = None if nodes is None else nodes.note(self.values, settings)
        return [] if note is None else [note]

    def other_gpus_note(self) -> list[str]:
        """Return a note if a model is computed by other GPUs than the cluster's nodes have."""
        workload, theirs = self.workload(self.trace), self._gpu_of_cluster()
        if workload is None or theirs is None or find_hardware(theirs) == workload.hardware:
            return []
        name = self._loaded().name
        return [
            f"computation and memory are those of the {workload.hardware.title}, links those of {name}, whose nodes "
            f"have the {find_hardware(theirs).title}"
        ]

    def last_node_note(self, machine: Cluster) -> list[str]:
        """Return a note if nodes whose GPUs have cards of their own are not all full."""
        per_node = machine.gpus_per_node
        if machine.gpu is None or per_node == 1:
            return []
        own, full = self.get("tensor_parallel") or 1, per_node * self.gpus_per_rank
        return [
            f"{units.count(count * self.gpus_per_rank, 'GPU')}: the last node has {count % per_node * own} of its "
            f"{per_node * own}, and so few cards slow all nodes down; {count // per_node * full} or "
            f"{-(-count // per_node) * full} GPUs fill all"
            for count in self.workers
            if count > per_node and count % per_node
        ]

    def recording_notes(self, named: str | Path | Trace, trace: Trace) -> list[str]:
        """Return what a configuration does not say, or what is assumed of a recording with several passes a step."""
        workload = self.workload(named)
        if workload is not None:
            return list(workload.model.notes)
        if not trace.accumulates:
            return []
        if not any(map(sharding.in_every_pass, self.get("sharding") or ())):
            return [
                f"{trace.name} was recorded with several passes a step, and is forecast to exchange gradients "
                "after the last one only, as under model.no_sync()"
            ]
        return [
            f"{trace.name} was recorded with several passes a step, and only the last one is forecast with "
            "exchanges, too few of them; record steps of one pass, and forecast them with "
            f"{self.spelling('accumulate')}"
        ]

    def _fields(self) -> dict[str, Any]:
        """Return the fields given, in which a rank stands for its tensor-parallel GPUs."""
        fields = {**{name: self.get(name) for name in _CLUSTER}, **self.cluster_fields}
        ways = self.get("tensor_parallel") or 1
        if ways == 1:
            return fields
        own = load_cluster(self._cluster(), **fields)
        if own.gpus_per_node % ways:
            raise InvalidArgumentError(
                f"{ways} does not divide the GPUs of a node, {own.gpus_per_node}; see {self.spelling('gpus_per_node')}",
                setting="tensor_parallel",
            )
        intra = as_rate(ways * own.intra_bandwidth_bps)
        return fields | {"gpus_per_node": own.gpus_per_node // ways, "intra_bandwidth": intra}

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

    def workload(self, named: str | Path | Trace) -> Workload | None:
        """Return the workload of a model from a configuration; None for a recording. Raises InvalidArgumentError."""
        given = {name: self.get(name) for name in MODEL_OPTIONS}
        found = find_workload(named, default_gpu=self._gpu_of_cluster(), **given)
        if found is not None and max(found.expert, found.context) > 1:
            found = replace(found, links=self._links(found))
        if found is None:
            refuse_on_recording(named, given)
        return found

    def _links(self, workload: Workload) -> Links:
        """Return over what tokens come to experts, and keys and values to queries. Raises InvalidArgumentError."""
        source = nodes_of(workload.hardware).cluster if self.get("cluster") is None else self._loaded()
        rates = self.get("bandwidth") or [None]
        found = Links.of(load_cluster(source, gpus_per_node=self.get("gpus_per_node"), bandwidth=rates[0]))
        per_node = found.gpus_per_node
        shared = workload.tensor * workload.context
        if len(rates) > 1 and max(workload.expert, shared) > per_node:
            raise InvalidArgumentError(
                f"{max(workload.expert, shared)} GPUs are on several nodes, and what they exchange while they compute "
                f"depends on the bandwidth; give one {self.spelling('bandwidth')}",
                setting="expert_parallel" if workload.expert > per_node else "context_parallel",
            )
        on_several = max(self.workers) * workload.gpus > per_node
        for size, setting in ((workload.expert, "expert_parallel"), (shared, "context_parallel")):
            if on_several and is_split(size, per_node):
                raise InvalidArgumentError(
                    f"groups of {size} GPUs do not divide the {per_node} of a node; see "
                    f"{self.spelling('gpus_per_node')}",
                    setting=setting,
                )
        return found

    def _gpu_of_cluster(self) -> str | None:
        """Return the GPU that the cluster's nodes have, if it says so and if it is a known one."""
        if self.get("cluster") is None:
            return None
        gpu = self._loaded().gpu
        try:
            return gpu if gpu is None else find_hardware(gpu).name
        except InvalidArgumentError:
            return None

    def _step(self, named: str | Path | Trace) -> Trace:
        workload = self.workload(named)
        trace = load_trace(named) if workload is None else workload.trace()
        if self.get("add_module") is not None:
            try:
                trace = trace.with_modules(self.get("add_module"))
            except InvalidArgumentError as error:
                raise error.at("add_module") from None
        if workload is not None:
            if self.get("device") is not None:
                raise InvalidArgumentError(
                    f"has no effect on {workload.model.name}, whose times are computed; leave it out", setting="device"
                )
            rate = self.get("samples_per_s")
            # Of whole samples, of which a rank computes a part of each that it shares.
            return adjusted(trace, samples_per_s=None if rate is None else rate * workload.context)
        changes = {name: self.get(name) for name in ("device", "samples_per_s", "batch", "dtype")}
        return adjusted(trace, **changes)

    def refuse_idle_links(self, machine: Cluster, strategies: Sequence[Strategy] = ()) -> None:
        """Raise InvalidArgumentError for settings of links inside nodes if there are none."""
        colocated = machine.servers == "colocated" and any("servers" in one.knobs for one in strategies)
        if self.get("intra_bandwidth") is not None and machine.gpus_per_node == 1 and not colocated:
            raise self._alone("intra_bandwidth")

    def _alone(self, name: str) -> InvalidArgumentError:
        if (self.get("tensor_parallel") or 1) > 1:
            return InvalidArgumentError(
                "has no effect, as a node is one data-parallel rank: its tensor-parallel GPUs exchange at the "
                "bus_bandwidth of --gpu; leave it out",
                setting=name,
            )
        return InvalidArgumentError(
            f"has no effect with one GPU per node; add {self.spelling('gpus_per_node')} or leave it out", setting=name
        )

    def device_note(self, trace: Trace) -> list[str]:
        """Return the source of the named device's rate."""
        device = self.get("device")
        return [] if device is None else [f"{self.spelling('device')}: {device_rate(trace, device).cited}"]


def _check_field(name: str, place: str) -> None:
    """Refuse a keyword that is no field of a cluster. Raises InvalidArgumentError."""
    if name in ClusterFields.__annotations__:
        return
    used = [one.name for one in SETTINGS.values() if place in one.uses]
    near = nearest(name, [*used, *ClusterFields.__annotations__])
    hint = f"did you mean {near}?" if near else "docs/reference/settings.md lists them"
    raise InvalidArgumentError(f"{place}: unknown option '{name:.80}'; {hint}")


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
    own = sweep.get("strategy") or _own(sweep, sweep.libraries_of(traces[0]))
    strategies, by_name = _strategies(own, servers_first=sweep.get("servers") is not None)
    meant = {extra for strategy in by_name for extra in extras(strategy.name)}
    meant |= {SERVERS} if sweep.get("servers") is not None else set()
    # On one node, no switch is between workers.
    several = max(sweep.workers) > machine.gpus_per_node
    meant |= {SWITCH} if sweep.get("cluster") is not None and several else set()
    strategies, notes = _only_feasible(strategies, by_name, machine)
    sharding.check(sweep.get("sharding"), sweep.values)
    compression.check(sweep)
    strategies = compression.only_able(sweep, strategies, by_name)
    if any(sharding.kind(one) != sharding.NONE for one in sweep.get("sharding") or ()):
        strategies = sharding.only_able(strategies, by_name, all_strategies(), sweep.get("sharding"))
        notes += sharding.out_of_step(strategies if by_name else [], sweep.get("sharding"))
    elif "accumulate" in sweep.values:
        # The native module refuses those that were named.
        strategies = [one for one in strategies if one.is_of_ranks or one in by_name]
    notes += [*small, *_unknown_libraries(sweep, traces)]
    check_knobs(strategies, [knob for knob in KNOBS if knob in sweep.values])
    for trace in traces:
        _refuse_without_effect(sweep, strategies, trace, machine)
    _check_stragglers(sweep, machine)
    _check_nics(machine)
    scenarios: list[Scenario] = []
    for named, trace in zip(sweep.traces, traces, strict=True):
        how = coordinated(sweep, trace, machine)
        workload = sweep.workload(named)
        if not trace.gradient_bytes and not sharding.is_plan(sweep.values):
            raise InvalidArgumentError(
                f"{trace.name}: has no gradients, so there is nothing to synchronise; with "
                f"{sweep.spelling('sharding')} zero3, ranks gather its parameters"
            )
        if workload is not None and sweep.get("bucket_size"):
            sharding.check_buckets(sweep.get("sharding"))
        under = [coordination for coordination in how.coordinations if coordination is not None]
        for name in sweep.get("library") or [None]:
            sides = [
                _Side.of(
                    sweep,
                    traces,
                    (trace, name),
                    machine,
                    coordinations=coordinations,
                    fused=how.bucket_size if coordinations is under else None,
                )
                for coordinations in ([None] if len(under) < len(how.coordinations) else [], under)
                if coordinations
            ]
            its = _its_own(sweep, strategies, sides[-1].library)
            about = (trace, sides[-1].clusters, sides[-1].library)
            able, unreachable = _only_reachable(sweep, its, by_name, how, about)
            notes += [*unreachable, *how.notes, *_of_two_libraries(sweep, sides)]
            for count, place, speedup in product(
                sweep.workers, range(len(sides[0].clusters)), sweep.get("compute_speedup") or [None]
            ):
                for side in sides:
                    planned = plan(
                        [trace],
                        [side.clusters[place]],
                        able,
                        workers=[count],
                        servers=sweep.get("servers") or [None],
                        compute_speedups=[speedup],
                        library=side.library,
                        bucket_sizes=side.bucket_sizes,
                        options={one: sweep.get(one) for one in CORE} | {"placement": side.placement},
                        coordinations=side.coordinations,
                        shardings=sweep.get("sharding") or [None],
                        compressions=sweep.get("compression") or [None],
                        syncs=sweep.get("sync_every") or [None],
                    )
                    scenarios += [replace(one, workload=workload, one_a_node=sweep.is_one_a_node) for one in planned]
    if sweep.timeline is not None and len(scenarios) != 1:
        raise InvalidArgumentError(
            f"--timeline: shows one scenario, but {len(scenarios)} are requested: give one value of "
            f"{_several(sweep, strategies)}"
        )
    devices = [note for trace in traces for note in sweep.device_note(trace)]
    if sweep.gpus_per_rank > 1:
        notes.append(_ranks_note(sweep))
    if (shared := sweep.get("context_parallel") or 1) > 1:
        notes.append(f"{shared} neighbouring workers share every sample; batches are theirs together")
    recorded = [note for trace in traces for note in sweep.gloo_note(trace)]
    for named, trace in zip(sweep.traces, traces, strict=True):
        recorded += sweep.recording_notes(named, trace)
    about_nodes = [*sweep.nodes_note(), *sweep.other_gpus_note(), *sweep.last_node_note(machine)]
    notes += _bare_note(strategies, traces, machine)
    said = dict.fromkeys([*notes, *_unmeasured(sweep, machine), *devices, *recorded, *about_nodes])
    return Prepared(scenarios, list(said), frozenset(meant))


def _bare_note(strategies: Sequence[Strategy], traces: Sequence[Trace], machine: Cluster) -> list[str]:
    """Return a note if exchanges of NCCL, as they were measured, are compared with the messages of schedules alone."""
    kinds = {strategy.is_offloaded for strategy in strategies}
    if len(kinds) == 1 or machine.gpu is None or any(trace.computes for trace in traces):
        return []
    return [
        "native takes as long as NCCL, whose latencies were measured; the other strategies are messages alone, without "
        "what a library and its kernels cost, and look faster for it where buffers are small"
    ]


def _ranks_note(sweep: Sweep) -> str:
    """Return what a worker is, if it is several GPUs."""
    ways, stages = sweep.get("tensor_parallel") or 1, sweep.get("pipeline_parallel") or 1
    what = [f"{ways} tensor-parallel"] * (ways > 1) + [f"{stages} stages"] * (stages > 1)
    note = f"a worker is a data-parallel rank of {sweep.gpus_per_rank} GPUs ({' x '.join(what)})"
    if stages == 1:
        return note
    return f"{note}; the slowest stage is simulated, and memory is that of a GPU of the stage that needs most"


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
        about: tuple[Trace, str | None],
        machine: Cluster,
        *,
        coordinations: Sequence[Coordination | None],
        fused: int | None,
    ) -> _Side:
        """Make it for a trace and the library asked for.

        `fused`: the size up to which a coordinator fuses, unless one was asked for.
        """
        trace, name = about
        library = sweep.library_of(trace, name, coordinated=coordinations != [None])
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
    shardings: Sequence[str | None] = (None,),
    compressions: Sequence[str | None] = (None,),
    syncs: Sequence[int | None] = (None,),
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
            **sharding.used_by(shard, used_by(strategy, options)),
            sharding=shard,
            compression=compressed,
            sync_every=every,
            servers=server_count,
            compute_speedup=speedup,
            bucket_size=bucket_size,
            coordination=coordination,
        )
        for trace, count, cluster, speedup, coordination, bucket_size, shard, compressed, every, strategy in product(
            *(traces, workers, clusters, compute_speedups, coordinations, bucket_sizes),
            *(shardings, compressions, syncs, strategies),
        )
        for server_count in (servers if "servers" in strategy.knobs else [None])
    ]


def _unmeasured(sweep: Sweep, cluster: Cluster) -> list[str]:
    """Return a note if the cluster file is a probe of a single host, which measured no network."""
    if sweep.get("cluster") is None or sweep.get("bandwidth") is not None:
        return []
    several = max(sweep.workers) > cluster.gpus_per_node
    if not several or NO_NETWORK.partition(",")[0] not in cluster.provenance:
        return []
    return [
        f"{sweep.spelling('cluster')} {sweep.get('cluster')}: {NO_NETWORK}; its rate inside the host is used "
        f"between nodes: give {sweep.spelling('bandwidth')}"
    ]


def _check_outputs(sweep: Sweep) -> None:
    if sweep.timeline is not None:
        check_writable("--timeline", sweep.timeline)
    check_distinct([("--plot", sweep.plot), ("--timeline", sweep.timeline)], sweep.inputs)
    if sweep.plot is None:
        return
    from paceline.forecast.plotting import check_plot

    check_plot(sweep.plot)


def _own(sweep: Sweep, libraries: Sequence[Library]) -> list[str]:
    """Return the strategies if none is named: all, or what libraries do by themselves if the question is about them."""
    about = sweep.one_strategy or sweep.get("library") is not None or sharding.is_plan(sweep.values)
    about = about or compression.is_asked(sweep.values)
    return [library.strategy for library in libraries] if about else ["all"]


def _its_own(sweep: Sweep, strategies: list[Strategy], library: Library) -> list[Strategy]:
    """Return the strategies of one of several libraries: its own, if none is named."""
    if sweep.get("strategy") is not None or len(sweep.get("library") or ()) < 2:
        return strategies
    return [strategy for strategy in strategies if strategy.name == library.strategy]


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
    for strategy in unable:
        if strategy in by_name:
            reason = f"{strategy.name} {lacks(strategy, cluster)}{_able_remedy(strategy, cluster)}"
            raise InvalidArgumentError(reason, setting="strategy")
    if not unable:
        return able, []
    names = units.listed([strategy.name for strategy in unable])
    return able, [f"left out {names}: the switch of cluster '{cluster.name}' does not support them"]


def _able_remedy(strategy: Strategy, cluster: Cluster) -> str:
    """Return how to make a built-in cluster whose switches can do what a strategy needs; empty if that is no remedy."""
    needs = [kind for kind in sorted(SWITCHES & strategy.knobs) if not getattr(cluster.switch, kind)]
    if not needs or cluster.name not in cluster_names():
        return ""
    if (able := with_switch(cluster, *needs)) is None or lacks(strategy, able):
        return "; it is not modelled in fabrics of this kind"
    changed = units.listed([f'"{kind}": true' for kind in needs])
    return (
        f"; `paceline clusters {cluster.name} --export mine.json`, set {changed} in its switch, and give --cluster "
        "mine.json"
    )


def _only_reachable(
    sweep: Sweep,
    strategies: list[Strategy],
    by_name: set[Strategy],
    how: Coordinated,
    job: tuple[Trace, Sequence[Cluster], Library],
) -> tuple[list[Strategy], list[str]]:
    """Leave out strategies that were not asked for by name and whose exchanges are too large to be simulated."""
    coordination = next((it for it in how.coordinations if it is not None), None)
    if coordination is None:
        return strategies, []
    unable = {}
    trace, clusters, library = job
    network = sweep.get("network")
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
        reason = None if strategy in by_name else unreachable(scenario)
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
    sweep.refuse_idle_links(cluster, strategies)
    if sweep.get("inside") is not None and cluster.gpus_per_node == 1:
        raise sweep._alone("inside")
    is_random = cluster.jitter is not None or cluster.fabric is not None or sweep.has_coordinator
    if sweep.get("seed") is not None and not is_random:
        raise InvalidArgumentError(
            "has no effect on a cluster without jitter; leave it out, or add jitter to its file", setting="seed"
        )
    libraries = sweep.libraries_of(trace)
    timed = cluster.gpu is not None and all(one.is_bare or one.name == DEFAULT for one in libraries)
    if timed and not sweep.has_coordinator and all(strategy.is_offloaded for strategy in strategies):
        # A plan, in which ranks wait for each other and collectives take what NCCL's model says.
        for name, is_given in (
            ("network", sweep.get("network") is not None),
            ("barrier", sweep.get("barrier") is False),
        ):
            if is_given:
                raise InvalidArgumentError(
                    f"has no effect on {units.listed([it.name for it in strategies])} on these GPUs, where collectives "
                    "take the times of NCCL's model; leave it out",
                    setting=name,
                )
    compression.check_trace(sweep, trace)
    if not trace.computes:
        given = {"overlap": sweep.get("overlap") is False}
        given |= {name: sweep.get(name) is not None for name in ("compute_speedup", "pull")}
        for name in (name for name, is_given in given.items() if is_given):
            raise InvalidArgumentError(
                f"has no effect on {trace.name}, which computes nothing; leave it out", setting=name
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
    return max((one.rank for one in machine.stragglers), default=-1)


def _check_stragglers(sweep: Sweep, machine: Cluster) -> None:
    """Refuse a slow rank that some of the numbers of workers do not have."""
    fewest, rank = min(sweep.workers), _highest_slow_rank(machine)
    if rank < fewest:
        return
    there_is = f"there is no rank {rank} with {units.count(fewest, 'worker')}, only 0 to {fewest - 1}"
    if sweep.get("stragglers"):
        raise InvalidArgumentError(there_is, setting="stragglers")
    name = sweep.get("cluster")
    where = machine.name if isinstance(name, Cluster) else name
    more = f"give more than {rank} {sweep.spelling('workers')}"
    raise InvalidArgumentError(f"{where}: stragglers: {there_is}; {more} or take it out", setting="cluster")


def _check_nics(machine: Cluster) -> None:
    """Refuse a slow NIC of one GPU where the simulator has one link for all NICs of a node."""
    if machine.has_rails:
        return
    for one in machine.degraded:
        if (link := one.link.strip()).startswith("worker"):
            raise InvalidArgumentError(
                f"{link} is the NIC of one GPU, which strategies have on rails only, and NCCL's collectives "
                "(allreduce:1GB without a strategy) on any cluster; name a node, such as node0",
                setting="degraded",
            )


def _unknown_libraries(sweep: Sweep, traces: Sequence[Trace]) -> list[str]:
    """Return a note for each trace that names a library which is not known, and so does not decide."""
    if sweep.get("library") is not None:
        return []
    return [
        f"{trace.name}: was recorded with '{units.printable(trace.library[:80])}', which is not among the "
        f"libraries; forecast as {sweep.library_of(trace, None).name} ({sweep.spelling('library')})"
        for trace in traces
        if trace.library and trace.library not in library_names()
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
