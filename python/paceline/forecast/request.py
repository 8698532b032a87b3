"""The request: trace, cluster and settings, checked. The command line, reports and Python all make a `Sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from paceline._core import Cluster, Trace
from paceline._internal import units
from paceline._internal.nearest import nearest
from paceline._internal.units import shown
from paceline.catalog.builtin import fields_given, load_cluster, load_trace
from paceline.catalog.channels import with_channel
from paceline.catalog.constants import as_rate
from paceline.catalog.distribution import ordered
from paceline.catalog.gpus import Hardware, find_hardware, titled
from paceline.catalog.libraries import COORDINATED, DEFAULT, NONE, Library, find_library, library_names
from paceline.catalog.models.config import Config
from paceline.catalog.models.exchanges import Links, in_whole_groups, is_split
from paceline.catalog.models.spec import OPTIONS as MODEL_OPTIONS
from paceline.catalog.models.spec import check_sequences, find_workload, switched_on
from paceline.catalog.models.traits import TRANSFORMER_ENGINE
from paceline.catalog.models.workload import Workload
from paceline.catalog.nodes import Nodes, known_nodes, nodes_of, nodes_of_device, with_inside
from paceline.catalog.own_modules import with_modules
from paceline.catalog.rates import adjusted, device_rate
from paceline.catalog.recordings import has_operators, is_of_tensorflow, is_published, refuse_on_recording
from paceline.catalog.strategies import (
    Strategy,
)
from paceline.errors import InvalidArgumentError, Source, naming
from paceline.forecast import sharding, trainer_file
from paceline.forecast.likeness import Conditions, conditions_of_recording
from paceline.forecast.trainer_file import Given, TrainerFile
from paceline.forecast.wording import notes
from paceline.operators.power import is_idle, limited
from paceline.operators.steps import retimed, update_bytes
from paceline.settings.keywords import ClusterFields
from paceline.settings.kinds import longest_refused
from paceline.settings.table import DEFAULT_WORKERS, EACH, SETTINGS, SWEPT, by_current_names

_CLUSTER = ("message_overhead", "gpus_per_node", "intra_bandwidth", "stragglers", "degraded")
_SIZES = ("bucket_size", "chunk")
"""In a file, their values have units."""
Traces = str | Path | Trace | Sequence[str | Path | Trace]
_NAMES = "paceline list traces, or paceline list models"
Named = str | Path | Trace | Config
"""A workload: a name or a file, a trace, or a model that a trainer's file describes."""


@dataclass(frozen=True)
class Sweep:
    """A product of scenarios to forecast. Made by `of`, which checks every value."""

    traces: Sequence[Named]
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
    file: TrainerFile | None = None
    """The trainer's file that model and options were read from."""
    each: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Several values that change the traces or the cluster; `values` has the first of each."""
    typed: Mapping[str, object] = field(default_factory=dict)
    """Values as they were given, by setting."""
    beside: Sequence[str] = ()
    """All shardings that are forecast, where these are a part of them."""
    _workloads: dict[str | Path | Config, Workload | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Models that were looked up."""
    _recordings: dict[str | Path | Config, Trace | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Recordings with operators that were loaded; None for other traces."""
    _gathered: dict[Named, tuple[Workload, Trace]] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Models whose units are gathered, and their traces."""

    @property
    def inputs(self) -> list[object]:
        """Values that may be paths to input files."""
        orders = self.each.get("send_order", [])
        single = (self.values.get(name) for name in ("cluster", "gpu", "send_order"))
        return [*self.traces, *single, *(self.values.get("placement") or ()), *orders]

    @property
    def parts(self) -> list[Sweep]:
        """One for each combination of values that change the traces or the cluster."""
        if not self.each:
            return [self]
        combinations = product(*self.each.values())
        return [self.changed(dict(zip(self.each, values, strict=True))) for values in combinations]

    @property
    def by_options_of_file(self) -> list[Sweep]:
        """The request, divided where a trainer's file gives other options on other numbers of GPUs or shardings.

        Raises InvalidArgumentError if one of them contradicts the file.
        """
        shardings = self.get("sharding") or ()
        if self.file is None:
            return [self]
        every = [own for some in self._divided("workers") for own in some._divided("sharding")]
        return [replace(own, beside=shardings) for own in every] if len(every) > 1 else every

    def _divided(self, setting: str) -> list[Sweep]:
        """Return the request, divided where the file gives other options under another of a setting's values."""
        values = self.get(setting) or ()
        if len(values) < 2:
            return [self]
        options = [(value, {**self.changed({setting: [value]}).values, setting: None}) for value in values]
        runs = [[value for value, _ in run] for _, run in groupby(options, key=itemgetter(1))]
        return [self] if len(runs) == 1 else [self.changed({setting: run}) for run in runs]

    def described_file(self, shardings: Sequence[str] = ()) -> TrainerFile | None:
        """Return the trainer's file, with what it says on other numbers of GPUs, and under other shardings.

        `shardings`: by default those that are forecast. Raises InvalidArgumentError if one contradicts the file.
        """
        if self.file is None:
            return None
        counts = self.get("workers") or () if self.file.given.place != "advise" else ()
        on = {str(count): self.changed({"workers": [count]}).values for count in counts}
        names = shardings or self.get("sharding") or ()
        under = {name: self.changed({"sharding": [name]}).values for name in names}
        return self.file.described(self.values, on, "on {} GPUs").described(self.values, under, "under {}")

    @property
    def compared_shardings(self) -> Sequence[str] | None:
        """All shardings that are forecast; None if none was given."""
        return self.beside or self.get("sharding")

    def changed(self, values: Mapping[str, Any]) -> Sweep:
        """Return the request with other values, under which a trainer's file is read again.

        `values`: checked, by setting; None: not given. Raises InvalidArgumentError if they contradict the file.
        """
        each = {name: several for name, several in self.each.items() if name not in values}
        if self.file is None:
            own = {name: value for name, value in {**self.values, **values}.items() if value is not None}
            return replace(self, values=own, each=each)
        model, file, given = self.file.under(values)
        return replace(self, traces=[model], values=given.values, sources=given.sources, each=given.each, file=file)

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
        values, others, typed = {}, {}, {}
        each: dict[str, list[Any]] = {}
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
            typed[name] = value
            sources.setdefault(name, setting.source(given_by, value, where))
            if given_by == "key" and name in _SIZES:
                _refuse_unitless(name, value, sources[name])
            checked = setting.check(value, sources[name], place)
            if name in EACH and setting.kind_of(place).is_list:
                if len(checked) > 1:
                    each[name] = checked
                checked = checked[0]
            values[name] = [checked] if name in SWEPT and not setting.kind_of(place).is_list else checked
        listed = traces if isinstance(traces, Sequence) and not isinstance(traces, str) else [traces]
        if not listed:
            raise InvalidArgumentError("no trace is given", remedy="paceline list traces")
        if any(isinstance(one, str) and not one.strip() for one in listed):
            raise InvalidArgumentError("the name of a trace or model is empty", remedy=_NAMES)
        workloads, file = _from_file(listed, Given(place, given_by, values, each, sources))
        if place != "advise" and "expert_dispatch" in values and values.get("expert_parallel", 1) == 1:
            raise InvalidArgumentError(
                "has no effect where no GPUs share experts",
                setting="expert_dispatch",
                source=sources["expert_dispatch"],
                remedy="{expert_parallel=8}, or drop {this}",
            )
        with naming(sources):
            for loss, batch in product(
                each.get("loss", [values.get("loss")]), each.get("batch", [values.get("batch")])
            ):
                if loss is not None and batch is not None:
                    check_sequences(loss, batch)
        return cls(workloads, values, sources, given_by, others, timeline, plot, one_strategy, file, each, typed)

    @property
    def trace(self) -> Named:
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
        names = self.get("coordinator") or NONE
        return ([names] if isinstance(names, str) else list(names)) != [NONE]

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
                    f"{wrong[0]} GPUs are not a multiple of {size}, the GPUs {what}",
                    setting=setting,
                    remedy=f"{{workers={max(1, wrong[0] // size) * size}}}",
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
            usual = COORDINATED if is_of_tensorflow(trace) else DEFAULT
            recorded = trace.library if trace.library in library_names() else usual
            if under and not find_library(recorded).coordinator:
                recorded = COORDINATED
            name = recorded if trace.computes else NONE
        library = find_library(name)
        if under and not (library.is_bare or library.coordinator):
            raise InvalidArgumentError(
                f"has no effect on {library.name}, whose ranks need not agree",
                setting="coordinator",
                remedy=f"{{library={COORDINATED}}}, or drop {{this}}",
            )
        # What computes nothing is one message; training fuses its gradients into large ones.
        return library if trace.computes else library.for_message(trace.gradient_bytes)

    def gloo_note(self, named: Named, trace: Trace) -> list[str]:
        """Return a note if the times are those of a GPU, and the library is gloo because the recording was made so."""
        on_gpu = self._device(named) is not None or self.get("samples_per_s") is not None
        if not on_gpu or self.get("library") is not None or self.library_of(trace, None).name != "ddp-gloo":
            return []
        library = f"{self.spelling('library')} {DEFAULT}"
        return [notes.recorded_over_gloo(library)]

    def machine(self) -> Cluster:
        """Return the cluster, except for its bandwidth and channel. Raises InvalidArgumentError."""
        return load_cluster(self._cluster(), **self._fields())

    def _cluster(self) -> Cluster | None:
        """Return the cluster given, or else the nodes that are assumed of the GPU; None if none is named."""
        whole = self._whole_cluster()
        return None if whole is None else self._in_groups(whole)

    def _whole_cluster(self) -> Cluster | None:
        """Return that cluster with all GPUs of its nodes; `_cluster` has whole groups of them."""
        if self.get("cluster") is not None:
            return self._with_inside()[0]
        nodes = self.nodes()
        return None if nodes is None else nodes.cluster

    def _in_groups(self, cluster: Cluster) -> Cluster:
        """Return a cluster of which no group that shares experts or samples has parts of two nodes.

        Nodes of which the user says how many GPUs they have stay as they are.
        """
        tensor, context = self.get("tensor_parallel") or 1, self.get("context_parallel") or 1
        sizes = (self.get("expert_parallel") or 1, tensor * context if context > 1 else 1)
        if self.get("gpus_per_node") is not None or max(self.workers) * self.gpus_per_rank <= cluster.gpus_per_node:
            return cluster
        return in_whole_groups(cluster, sizes)

    def groups_note(self) -> list[str]:
        """Return a note if GPUs of each node are not used, so that no group has parts of two nodes."""
        whole = self._whole_cluster()
        if whole is None or (used := self._in_groups(whole).gpus_per_node) == whole.gpus_per_node:
            return []
        return [notes.whole_groups(used, whole.gpus_per_node, self.spelling("gpus_per_node"))]

    def _with_inside(self) -> tuple[Cluster, list[str]]:
        """Return the cluster given, with the inside of its GPU's nodes if it does not say, and the note on that."""
        cluster = self._loaded()

        def nodes() -> Nodes | None:
            return self.nodes() if cluster.gpu is None else known_nodes(cluster.gpu)

        settings = {**self.cluster_fields, **{name: self.get(name) for name in _CLUSTER}}
        return with_inside(self.get("cluster"), cluster, settings, nodes, self.spelling("intra_bandwidth"))

    def nodes(self) -> Nodes | None:
        """Return the nodes that are assumed of the GPU of a model, or of a recording."""
        workload = self.workload(self.trace)
        if workload is not None:
            return nodes_of(workload.hardware)
        if (device := self._device(self.trace)) is not None:
            return nodes_of_device(device_rate(load_trace(_recording(self.trace)), device).device)
        hardware = self._computed_on(self.trace) or titled(load_trace(_recording(self.trace)).device)
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
        # A file of jobs has no channel of its own.
        names = ("gpus_per_node", "bandwidth", *(() if self.given_by == "key" else ("channel",)), "cluster")
        settings = {name: self.spelling(name) for name in names}
        if self.is_one_a_node:
            return [notes.one_rank_a_node(self.spelling("samples_per_s"), settings)]
        nodes = self.nodes()
        if nodes is None:
            return []
        larger = nodes.note_on_larger(self.get("gpus_per_node") or 1, self.spelling("gpus_per_node"))
        return [note for note in (nodes.note(self._given_of_nodes, settings), larger) if note is not None]

    @property
    def assumed_network(self) -> str:
        """The network that is assumed between nodes, and how to give it; empty where a built-in cluster has the GPU."""
        if self.get("cluster") is not None or self.is_one_a_node:
            return ""
        nodes = self.nodes()
        if nodes is None or nodes.known is not None:
            return ""
        between, settings = nodes.between(self._given_of_nodes)
        return f"{between}: {self.spelling('cluster')} or {self.spelling(settings[0])}" if between else ""

    @property
    def _given_of_nodes(self) -> Mapping[str, Any]:
        """Settings of nodes that are given; a library may have a channel of its own."""
        names = self.get("library") or [None]
        if self.workload(self.trace) is None:
            names = [self.library_of(load_trace(_recording(self.trace)), name).name for name in names]
        own = [find_library(name).channel for name in names if name is not None]
        return {**self.values, "channel": own[0]} if any(own) else self.values

    def other_gpus_note(self) -> list[str]:
        """Return a note if a model is computed by other GPUs than the cluster's nodes have."""
        workload, theirs = self.workload(self.trace), self._gpu_of_cluster()
        if workload is None or theirs is None or find_hardware(theirs).name == workload.hardware.name:
            return []
        name = self._loaded().name
        return [notes.other_gpus(workload.hardware.title, name, find_hardware(theirs).title)]

    def power_limit_note(self) -> list[str]:
        """Return a note if a power limit is set that does not change the clock of products."""
        workload, limit = self.workload(self.trace), self.get("power_limit")
        hardware = self._computed_on(self.trace) if workload is None else workload.hardware
        if limit is None or hardware is None or not is_idle(hardware):
            return []
        return [notes.limit_without_effect(limit, hardware.title)]

    def last_node_note(self, machine: Cluster) -> list[str]:
        """Return a note if nodes whose GPUs have cards of their own are not all full."""
        per_node = machine.gpus_per_node
        if machine.gpu is None or per_node == 1:
            return []
        own, full = self.get("tensor_parallel") or 1, per_node * self.gpus_per_rank
        return [
            notes.last_node(
                units.count(count * self.gpus_per_rank, "GPU"),
                count % per_node * own,
                per_node * own,
                count // per_node * full,
                -(-count // per_node) * full,
            )
            for count in self.workers
            if count > per_node and count % per_node
        ]

    def recording_notes(self, named: Named, trace: Trace) -> list[str]:
        """Return what a configuration does not say, or what is assumed of a recording with several passes a step."""
        workload = self.workload(named)
        if workload is not None:
            return list(workload.model.notes)
        scaled, recording = [], self._with_operators(named)
        if recording is not None and self.get("batch") not in (None, recording.batch):
            scaled = [notes.scaled_batch(self.spelling("batch"), recording.batch)]
        if not trace.accumulates:
            return scaled
        if not any(map(sharding.in_every_pass, self.get("sharding") or ())):
            return [*scaled, notes.last_pass(trace.name)]
        return [*scaled, *notes.too_few_exchanges(trace.name, self.spelling("accumulate"))]

    def _fields(self) -> dict[str, Any]:
        """Return the fields given, in which a rank stands for its tensor-parallel GPUs."""
        fields = self._own_fields()
        ways = self.get("tensor_parallel") or 1
        if ways == 1:
            return fields
        own = load_cluster(self._cluster(), **fields)
        nodes = self._tensor_nodes(own)
        intra = as_rate(ways * own.intra_bandwidth_bps)
        shared = {"gpus_per_node": own.gpus_per_node * nodes // ways, "gpus_per_rank": ways}
        return fields | shared | {"intra_bandwidth": intra}

    def _own_fields(self) -> dict[str, Any]:
        """Return the fields given of nodes whose ranks are GPUs."""
        return {**{name: self.get(name) for name in _CLUSTER}, **self.cluster_fields}

    def _tensor_nodes(self, own: Cluster) -> int:
        """Return how many nodes tensor-parallel GPUs are on. Raises InvalidArgumentError if that is not whole."""
        ways, per_node = self.get("tensor_parallel") or 1, own.gpus_per_node
        if per_node % ways == 0:
            return 1
        if ways % per_node:
            raise InvalidArgumentError(
                f"must divide the GPUs of a node, {per_node}, or be a multiple, not {ways}",
                setting="tensor_parallel",
                remedy=f"{{this={per_node}}}, or {{gpus_per_node={ways}}}",
            )
        return int(ways // per_node)

    def undivided(self) -> Cluster:
        """Return the first cluster with its network, before its channel is decided and it is shared."""
        rates = {name: (self.get(name) or (None,))[0] for name in ("bandwidth", "latency")}
        return load_cluster(self._cluster(), **{**self._own_fields(), **rates})

    def machines(self, machine: Cluster, library: Library) -> list[Cluster]:
        """Return a cluster for each bandwidth, with its channel decided. Raises InvalidArgumentError."""
        if self.get("channel") not in (None, library.channel) and library.channel:
            raise InvalidArgumentError(
                f"has no effect on {library.name}, which sends over {library.channel}",
                setting="channel",
                remedy="drop {this}",
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
        fields, nodes = self._fields(), 1
        if (self.get("tensor_parallel") or 1) > 1:
            # The cards of all nodes of a rank are its own.
            nodes = self._tensor_nodes(load_cluster(self._cluster(), **self._own_fields()))
        # What was given explicitly wins over the channel's.
        made = [load_cluster(cluster, **fields, latency=latency) for cluster, latency in linked]
        return made if nodes == 1 else [one.replace(bandwidth_bps=nodes * one.bandwidth_bps) for one in made]

    def steps(self) -> list[Trace]:
        """Return the traces as changed by the options, of models that all gather their units with what that computes.

        Raises InvalidArgumentError.
        """
        kinds = {sharding.kind(one) for one in self.get("sharding") or (sharding.NONE,)}
        if not kinds <= {*sharding.GATHERED}:
            return [self._step(named) for named in self.traces]
        return [self._step(named) if (own := self.gathered(named)) is None else own[1] for named in self.traces]

    def step(self) -> Trace:
        """Return the first trace as changed by the options. Raises InvalidArgumentError."""
        return self._step(self.trace)

    def gathered(self, named: Named) -> tuple[Workload, Trace] | None:
        """Return a model that gathers its parameters for each pass, as FSDP2 does, and its trace.

        None for recordings and with a measured rate or device, whose times have what gathering takes; for pipelines,
        which gather once; and for Megatron-FSDP, whose parameters are views of what is gathered. Raises
        InvalidArgumentError.
        """
        workload = self.workload(named)
        if workload is None or self.get("samples_per_s") is not None or self.get("device") is not None:
            return None
        if workload.pipeline > 1 or workload.kernels == TRANSFORMER_ENGINE:
            return None
        if named not in self._gathered:
            copying = replace(workload, gathered=2)
            self._gathered[named] = copying, self._changed(copying.trace())
        return self._gathered[named]

    def workload(self, named: Named) -> Workload | None:
        """Return the workload of a model from a configuration; None for a recording. Raises InvalidArgumentError."""
        if not isinstance(named, str | Path | Config):
            return self._looked_up(named)
        if named not in self._workloads:
            self._workloads[named] = self._looked_up(named)
        return self._workloads[named]

    def _looked_up(self, named: Named) -> Workload | None:
        given = {name: self.get(name) for name in MODEL_OPTIONS}
        if isinstance(given["seq"], str):
            raise longest_refused()
        workload = find_workload(named, default_gpu=self._gpu_of_cluster(), **given)
        if workload is not None and workload.has_exchanges:
            links = self._links(workload)
            if max(workload.expert, workload.context) > 1 or links.nodes is not None:
                workload = replace(workload, links=links)
        if workload is None:
            refuse_on_recording(_recording(named), switched_on(given))
        return workload

    def _links(self, workload: Workload) -> Links:
        """Return over what tokens come to experts, and keys and values to queries. Raises InvalidArgumentError."""
        assumed = nodes_of(workload.hardware).cluster
        source = self._in_groups(assumed if self.get("cluster") is None else self._loaded())
        rates = self.get("bandwidth") or [None]
        own = load_cluster(source, gpus_per_node=self.get("gpus_per_node"), bandwidth=rates[0])
        links = Links.of(own)
        per_node = links.gpus_per_node
        shared = workload.tensor * workload.context
        if len(rates) > 1 and max(workload.expert, shared) > per_node:
            setting = "tensor_parallel" if workload.tensor > per_node else "context_parallel"
            raise InvalidArgumentError(
                f"{max(workload.expert, shared)} GPUs are on several nodes, whose exchanges need one bandwidth",
                setting="expert_parallel" if workload.expert > per_node else setting,
                remedy="{bandwidth=400Gbps}",
            )
        if workload.tensor > per_node:
            links = replace(links, nodes=with_channel(own, self.get("channel"), bare=True))
        on_several = max(self.workers) * workload.gpus > per_node
        sharing = shared if workload.context > 1 else 1
        for size, setting in ((workload.expert, "expert_parallel"), (sharing, "context_parallel")):
            if on_several and is_split(size, per_node):
                raise InvalidArgumentError(
                    f"groups of {size} GPUs do not divide the {per_node} of a node",
                    setting=setting,
                    remedy=f"{{this={per_node}}}, or {{gpus_per_node={size}}}",
                )
        return links

    def _gpu_of_cluster(self) -> str | None:
        """Return the GPU that the cluster's nodes have, if it says so and if it is a known one."""
        if self.get("cluster") is None:
            return None
        gpu = self._loaded().gpu
        try:
            return gpu if gpu is None else find_hardware(gpu).name
        except InvalidArgumentError:
            return None

    def base(self, named: Named) -> Trace:
        """Return a trace before the options change it. Raises InvalidArgumentError."""
        workload = self.workload(named)
        if workload is not None:
            return workload.trace()
        trace, hardware = self._with_operators(named) or load_trace(_recording(named)), self._computed_on(named)
        return trace if hardware is None else retimed(trace, hardware)

    def _with_operators(self, named: Named) -> Trace | None:
        """Return a recording that has operators, loaded once; None for other traces."""
        if isinstance(named, Trace):
            return named if named.has_operators else None
        if named not in self._recordings:
            is_one = self.workload(named) is None and has_operators(_recording(named))
            self._recordings[named] = load_trace(_recording(named)) if is_one else None
        return self._recordings[named]

    def recorded(self, named: Named) -> Conditions | None:
        """Return the conditions of a recording whose operators give its times; None if these were measured."""
        recording = self._with_operators(named)
        if recording is None or self.get("samples_per_s") is not None:
            return None
        return conditions_of_recording(recording)

    def update_bytes(self, named: Named) -> int:
        """Return the bytes of temporaries in the optimizer's step of a recording with its operators; 0 of others."""
        recording = self._with_operators(named)
        return 0 if recording is None else update_bytes(recording)

    def _computed_on(self, named: Named) -> Hardware | None:
        """Return the GPU on which a trace's operators are timed again; None if it has none, or no GPU is named."""
        gpu, limit = self.get("gpu"), self.get("power_limit")
        recording = None if gpu is None and limit is None else self._with_operators(named)
        if recording is None:
            return None
        if gpu is not None:
            hardware = find_hardware(gpu)
        elif (own := titled(recording.device)) is not None:
            hardware = own
        else:
            raise InvalidArgumentError(
                "needs the GPU, which is not a built-in one", setting="power_limit", remedy="{gpu=FILE.json}"
            )
        return hardware if limit is None else limited(hardware, limit)

    def _changed(self, trace: Trace) -> Trace:
        """Return a trace with other modules and another order of sending, if they are asked for."""
        for setting, change in (("add_module", with_modules), ("send_order", ordered)):
            if self.get(setting) is not None:
                try:
                    trace = change(trace, self.get(setting))
                except InvalidArgumentError as error:
                    raise error.at(setting) from None
        return trace

    def _step(self, named: Named) -> Trace:
        workload = self.workload(named)
        trace = self._changed(self.base(named))
        if workload is not None:
            if self.get("device") is not None:
                raise InvalidArgumentError(
                    f"has no effect on {workload.model.name}, whose times are computed",
                    setting="device",
                    remedy="drop {this}",
                )
            rate = self.get("samples_per_s")
            # Of whole samples, of which a rank computes a part of each that it shares.
            return adjusted(trace, samples_per_s=None if rate is None else rate * workload.context)
        changes = {name: self.get(name) for name in ("samples_per_s", "batch", "dtype")}
        try:
            return adjusted(trace, device=self._device(named), **changes)
        except InvalidArgumentError as error:
            if error.setting == "device":
                error.setting = self._device_setting
            raise

    def refuse_idle_links(self, machine: Cluster, strategies: Sequence[Strategy] = ()) -> None:
        """Raise InvalidArgumentError for settings of links inside nodes if there are none."""
        colocated = machine.servers == "colocated" and any("servers" in one.knobs for one in strategies)
        if self.get("intra_bandwidth") is not None and machine.gpus_per_node == 1 and not colocated:
            raise self._alone("intra_bandwidth")

    def _alone(self, name: str) -> InvalidArgumentError:
        if (self.get("tensor_parallel") or 1) > 1:
            return InvalidArgumentError(
                "has no effect, as a node is one data-parallel rank, whose GPUs exchange at their bus bandwidth",
                setting=name,
                remedy="drop {this}",
            )
        return InvalidArgumentError(
            "has no effect with one GPU per node", setting=name, remedy="{gpus_per_node=8}, or drop {this}"
        )

    def device_note(self, named: Named) -> list[str]:
        """Return the source of the named device's rate."""
        recording, hardware = self._with_operators(named), self._computed_on(named)
        if recording is not None and hardware is not None and hardware.under_limit != recording.device:
            setting = self.spelling("power_limit" if self.get("gpu") is None else "gpu")
            return [notes.computed_again(setting, recording.device, hardware.under_limit)]
        device = self._device(named)
        if device is None:
            return []
        return [f"{self.spelling(self._device_setting)}: {device_rate(load_trace(_recording(named)), device).cited}"]

    @property
    def _device_setting(self) -> str:
        return "gpu" if self.get("device") is None else "device"

    def _device(self, named: Named) -> str | None:
        """Return the GPU whose published rate a recording gets, if one is named."""
        gpu: str | None = self.get(self._device_setting)
        if gpu is None or self._computed_on(named) is not None:
            return None
        if self._device_setting == "gpu" and (self.workload(named) or not is_published(_recording(named), gpu)):
            return None
        return gpu


def _recording(named: Named) -> str | Path | Trace:
    """Return what is no model."""
    assert not isinstance(named, Config)
    return named


def _from_file(listed: Sequence[str | Path | Trace], given: Given) -> tuple[Sequence[Named], TrainerFile | None]:
    """Return the workloads, with the model of a trainer's file in its place; its options join the values."""
    file = trainer_file.find(listed)
    merged = None if file is None else trainer_file.merge(*file, given)
    if merged is not None:
        return [merged[0]], merged[1]
    if file is None:
        trainer_file.check_there(listed)
    if file is not None and "model" in given.values:
        raise trainer_file.unknown(file[0])
    if "model" in given.values:
        raise InvalidArgumentError(
            "is for a trainer's file, which may not name its model",
            setting="model",
            remedy=f"paceline simulate {given.values['model']!s:.80}, or drop {{model}}",
        )
    return listed, None


def _check_field(name: str, place: str) -> None:
    """Refuse a keyword that is no field of a cluster. Raises InvalidArgumentError."""
    if name in ClusterFields.__annotations__:
        return
    used = [one.name for one in SETTINGS.values() if place in one.uses]
    near = nearest(name, [*used, *ClusterFields.__annotations__])
    hint = near or f"one of {', '.join(used[:8])}, … (docs/reference/settings.md)"
    raise InvalidArgumentError(f"{place}: unknown option '{name:.80}'", remedy=hint)


def _refuse_unitless(name: str, value: object, source: Source) -> None:
    for size in value if isinstance(value, list) else [value]:
        if isinstance(size, int | float) and not isinstance(size, bool):
            raise InvalidArgumentError(
                f"{shown(size)} has no unit", setting=name, source=source, remedy=f"{{this={shown(size)}MB}}"
            )
