"""Makes the scenarios of a request: combines libraries, strategies and machines, and refuses what has no effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline._core import Cluster, Trace
from paceline._internal import units
from paceline._internal.files import check_distinct, check_writable
from paceline.catalog.builtin import NO_NETWORK
from paceline.catalog.builtin_names import cluster_names
from paceline.catalog.gpus import on_cpu
from paceline.catalog.libraries import DEFAULT, Library, library_names
from paceline.catalog.models.workload import Workload
from paceline.catalog.placement import read_placement
from paceline.catalog.strategies import (
    EXTRAS,
    KNOBS,
    SERVERS,
    SWITCH,
    SWITCHES,
    Strategy,
    all_strategies,
    check_knobs,
    feasible,
    find_strategy,
    lacks,
    with_switch,
)
from paceline.errors import InvalidArgumentError, naming
from paceline.forecast import compression, offload, sharding
from paceline.forecast.coordinator_model.model import Coordination
from paceline.forecast.coordinator_model.options import Coordinated, coordinated
from paceline.forecast.lowering import unreachable
from paceline.forecast.request import Named, Sweep
from paceline.forecast.scenario import Scenario, used_by
from paceline.forecast.wording import notes
from paceline.settings.kinds import PLACEMENTS
from paceline.settings.table import CORE, SWEPT, SWEPT_KNOBS


@dataclass(frozen=True)
class Prepared:
    """The scenarios, and notes for the user."""

    scenarios: list[Scenario]
    notes: list[str] = field(default_factory=list)
    requested_extras: frozenset[str] = frozenset(EXTRAS)
    """Requested extras that not every cluster has: servers by name or number; by name or with a cluster, its switch."""
    unsupported: frozenset[str] = frozenset()
    """The notes on strategies that were skipped, which concern who compares all."""
    noun: str = "GPU"
    """A rank as the user calls it: `worker` if the number of workers was given by that name, or by none and all was
    recorded on CPUs."""


def prepare(sweep: Sweep) -> Prepared:
    """Check everything that can be checked without simulating. Raises InvalidArgumentError."""
    with naming(sweep.sources):
        _check_outputs(sweep)
        prepared = [_prepared(own) for part in sweep.parts for own in part.by_options_of_file]
        together = Prepared(
            [scenario for one in prepared for scenario in one.scenarios],
            list(dict.fromkeys(note for one in prepared for note in one.notes)),
            frozenset().union(*(one.requested_extras for one in prepared)),
            frozenset().union(*(one.unsupported for one in prepared)),
            prepared[0].noun,
        )
        if sweep.timeline is not None and len(together.scenarios) != 1:
            first = together.scenarios[0]
            raise InvalidArgumentError(
                f"--timeline shows one scenario, and {len(together.scenarios)} are requested",
                remedy=f"{{workers={sweep.workers[0]}}} {{strategy={first.strategy.name}}} "
                f"(one value of {_several(sweep, together.scenarios)})",
            )
        return together


def _prepared(sweep: Sweep) -> Prepared:
    traces, machine = sweep.steps(), sweep.machine()
    sweep, small = _without_small(sweep, machine)
    own = sweep.get("strategy") or _own(sweep, sweep.libraries_of(traces[0]))
    strategies, by_name = _strategies(own, servers_first=sweep.get("servers") is not None)
    requested_extras = {extra for strategy in by_name for extra in strategy.extras}
    requested_extras |= {SERVERS} if sweep.get("servers") is not None else set()
    # On one node, no switch is between workers.
    several = max(sweep.workers) > machine.gpus_per_node
    requested_extras |= {SWITCH} if sweep.get("cluster") is not None and several else set()
    strategies, unsupported = _only_feasible(strategies, by_name, machine)
    alone = max(sweep.workers) * sweep.gpus_per_rank == 1 and SERVERS not in requested_extras
    # One GPU sends nothing over a switch.
    remarks = [] if alone else list(unsupported)
    # The optimizer of a model changes its time and memory anyway, which is compared with that of the GPU.
    modeled = all(sweep.workload(named) is not None for named in sweep.traces)
    of_plans = sweep.values.keys() - ({"optimizer", "memory"} if modeled else set())
    given = {name: value for name, value in sweep.values.items() if name in of_plans}
    shardings = sweep.compared_shardings
    sharding.check(shardings, given)
    compression.check(sweep)
    strategies = compression.only_able(sweep, strategies, by_name)
    if any(sharding.kind(one) != sharding.NONE for one in shardings or ()):
        strategies = sharding.only_able(strategies, by_name, all_strategies(), shardings or ())
        remarks += sharding.out_of_step(strategies if by_name else [], shardings)
    elif "accumulate" in sweep.values:
        # The native module refuses those that were named.
        strategies = [one for one in strategies if one.is_of_ranks or one in by_name]
    remarks += [*small, *_unknown_libraries(sweep, traces)]
    check_knobs(strategies, [knob for knob in KNOBS if knob in sweep.values])
    for trace in traces:
        _refuse_without_effect(sweep, strategies, trace, machine)
    _check_stragglers(sweep, machine)
    _check_nics(machine)
    scenarios: list[Scenario] = []
    changes = {name: sweep.get(name) for name in CHANGES if sweep.get(name) is not None}
    for base, (named, trace) in enumerate(zip(sweep.traces, traces, strict=True)):
        how = coordinated(sweep, trace, machine)
        workload, conditions = sweep.workload(named), sweep.recorded(named)
        temporaries = sweep.update_bytes(named)
        if workload is not None:
            check_sharding(workload, shardings, sweep.values)
        if not trace.gradient_bytes and not sharding.is_plan(sweep.values):
            raise InvalidArgumentError(
                f"{trace.name}: has no gradients, so there is nothing to synchronize",
                remedy="{sharding=zero3} (ranks gather its parameters)",
            )
        if workload is not None and sweep.get("bucket_size"):
            sharding.check_buckets(shardings)
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
            remarks += [*unreachable, *how.notes, *_of_two_libraries(sweep, sides)]
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
                        options={one: sweep.get(one) for one in CORE},
                        knobs={one: sweep.get(one) or [None] for one in SWEPT_KNOBS} | {"placement": side.placements},
                        coordinations=side.coordinations,
                        shardings=sweep.get("sharding") or [None],
                        compressions=sweep.get("compression") or [None],
                        syncs=sweep.get("sync_every") or [None],
                    )
                    scenarios += [
                        replace(
                            _with_copies(one, sweep, named),
                            recorded=conditions,
                            update_bytes=temporaries,
                            one_a_node=sweep.is_one_a_node,
                            assumed_network=sweep.assumed_network,
                            base=base,
                            changes=changes | _placed(sweep, side, one),
                        )
                        for one in planned
                    ]
    devices = [note for named in sweep.traces for note in sweep.device_note(named)]
    if sweep.gpus_per_rank > 1:
        remarks += notes.ranks(sweep.get("tensor_parallel") or 1, sweep.get("pipeline_parallel") or 1)
    if (shared := sweep.get("context_parallel") or 1) > 1:
        remarks.append(notes.shared_samples(shared))
    recorded = []
    for named, trace in zip(sweep.traces, traces, strict=True):
        recorded += [*sweep.gloo_note(named, trace), *sweep.recording_notes(named, trace)]
    about_nodes = [
        *([notes.RCCL] if machine.intra_link == "xgmi" and max(sweep.workers) > 1 else []),
        *([] if alone else sweep.nodes_note()),
        *sweep.groups_note(),
        *sweep.other_gpus_note(),
        *sweep.power_limit_note(),
        *sweep.last_node_note(machine),
    ]
    remarks += _bare_note(strategies, traces, machine)
    if modeled and sweep.get("workers") is None:
        remarks.append(notes.usual_numbers(sweep.workers, "--gpus" if sweep.given_by == "flag" else "gpus"))
    every = dict.fromkeys([*remarks, *_unmeasured(sweep, machine), *devices, *recorded, *about_nodes])
    if "workers" in sweep.sources:
        is_of_workers = sweep.spelling("workers").endswith("workers")
    else:
        is_of_workers = all(on_cpu(trace) for trace in traces)
    noun = "worker" if is_of_workers else "GPU"
    return Prepared(scenarios, list(every), frozenset(requested_extras), frozenset(unsupported), noun)


def check_sharding(workload: Workload, shardings: Sequence[str] | None, values: Mapping[str, Any]) -> None:
    """Refuse what a model's precision, offloading and optimizer contradict. Raises InvalidArgumentError.

    Args:
        workload: The model on its GPU.
        shardings: Of which each is forecast.
        values: Settings by name.
    """
    sharding.check_recipe(workload.recipe, shardings, values)
    offload.check(workload, shardings, values.get("accumulate") or 1)


CHANGES = ("add_module", "send_order", "gpu", "power_limit")
"""Settings that change traces."""


def _bare_note(strategies: Sequence[Strategy], traces: Sequence[Trace], machine: Cluster) -> list[str]:
    """Return a note if exchanges of NCCL, as they were measured, are compared with the messages of schedules alone."""
    kinds = {strategy.is_offloaded for strategy in strategies}
    if len(kinds) == 1 or machine.gpu is None or any(trace.computes for trace in traces):
        return []
    return [notes.NATIVE_IS_MEASURED]


@dataclass(frozen=True)
class _Side:
    """Properties that the rows with a coordinator, or those without one, share: each is as if asked by itself."""

    coordinations: Sequence[Coordination | None]
    library: Library
    clusters: Sequence[Cluster]
    bucket_sizes: Sequence[int | str | None]
    placements: Sequence[str | list[int] | None]

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
        placements = [_placement(sweep, one, traces, library) for one in sweep.get("placement") or [None]]
        return cls(coordinations, library, clusters, sizes, placements)


def _with_copies(scenario: Scenario, sweep: Sweep, named: Named) -> Scenario:
    """Return a scenario of a model with what it computes in its sharding: units that are gathered are copied."""
    shards = sharding.kind(scenario.options.get("sharding") or sharding.NONE)
    gathered = sweep.gathered(named) if shards in sharding.GATHERED else None
    if gathered is None:
        return replace(scenario, workload=sweep.workload(named))
    return replace(scenario, workload=gathered[0], trace=gathered[1])


def _placed(sweep: Sweep, side: _Side, scenario: Scenario) -> dict[str, str]:
    """Return the placement of a scenario as it was given, which is longer where it was read from a file."""
    placement = scenario.options.get("placement")
    given = sweep.get("placement")
    if placement is None or given is None:
        return {}
    own = given[side.placements.index(placement)]
    return {"placement": Path(own).name if isinstance(own, str) else f"list {side.placements.index(placement) + 1}"}


def _of_two_libraries(sweep: Sweep, sides: Sequence[_Side]) -> list[str]:
    libraries = list(dict.fromkeys(side.library.name for side in sides))
    if len(libraries) == 1:
        return []
    without, under = libraries
    return [notes.two_libraries(without, under, sweep.spelling("library"))]


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
    knobs: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    coordinations: Sequence[Coordination | None] = (None,),
    shardings: Sequence[str | None] = (None,),
    compressions: Sequence[str | None] = (None,),
    syncs: Sequence[int | None] = (None,),
) -> list[Scenario]:
    """Return the scenarios of a sweep, ordered as their arguments are in `product` below.

    A knob is passed to the strategies that use it: one without servers runs once, whatever the number of servers. So it
    is with `knobs`, of which there are several values.
    """
    return [
        Scenario.of(
            trace,
            cluster,
            strategy,
            count,
            library=library,
            **sharding.used_by(shard, used_by(strategy, {**options, **chosen})),
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
        for chosen in _choices(strategy, knobs)
        for server_count in (servers if "servers" in strategy.knobs else [None])
    ]


def _choices(strategy: Strategy, knobs: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the combinations of the knobs that a strategy uses."""
    used = {name: values for name, values in knobs.items() if name in strategy.knobs}
    return [dict(zip(used, values, strict=True)) for values in product(*used.values())]


def _unmeasured(sweep: Sweep, cluster: Cluster) -> list[str]:
    """Return a note if the cluster file is a probe of a single host, which measured no network."""
    if sweep.get("cluster") is None or sweep.get("bandwidth") is not None:
        return []
    several = max(sweep.workers) > cluster.gpus_per_node
    if not several or cluster.bandwidth_measured:
        return []
    named = f"{sweep.spelling('cluster')} {sweep.get('cluster')}"
    return [notes.unmeasured(named, NO_NETWORK, sweep.spelling("bandwidth"))]


def _check_outputs(sweep: Sweep) -> None:
    if sweep.timeline is not None:
        check_writable("--timeline", sweep.timeline)
    check_distinct([("--plot", sweep.plot), ("--timeline", sweep.timeline)], sweep.inputs)


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
            raise InvalidArgumentError(
                f"{strategy.name} {lacks(strategy, cluster)}",
                setting="strategy",
                remedy=_able_remedy(strategy, cluster),
            )
    if not unable:
        return able, []
    return able, [notes.unsupported([strategy.name for strategy in unable], cluster.name)]


def _able_remedy(strategy: Strategy, cluster: Cluster) -> str:
    """Return another strategy, or how to make a cluster whose switches can do what a strategy needs."""
    needs = [kind for kind in sorted(SWITCHES & strategy.knobs) if not getattr(cluster.switch, kind)]
    other = "{strategy=ring}"
    if not needs or cluster.name not in cluster_names():
        return f"{other} (list: paceline list strategies)"
    if (able := with_switch(cluster, *needs)) is None or lacks(strategy, able):
        return f"{other} (it is not modeled in fabrics of this kind)"
    changed = units.listed([f'"{kind}": true' for kind in needs])
    export = f"paceline list clusters {cluster.name} --export mine.json"
    return f"{other}, or {{cluster=mine.json}} with {changed} in its switch ({export})"


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
    able = [strategy for strategy in strategies if strategy not in unable]
    if not able:
        raise InvalidArgumentError(
            next(iter(unable.values())),
            setting="strategy",
            remedy="{strategy=native}, ring or hierarchical, or fewer {workers}",
        )
    return able, [notes.unreachable([strategy.name for strategy in unable])]


def _refuse_without_effect(sweep: Sweep, strategies: list[Strategy], trace: Trace, cluster: Cluster) -> None:
    sweep.refuse_idle_links(cluster, strategies)
    if sweep.get("send_order") is not None and not any("distribution" in one.knobs for one in strategies):
        users = [one.name for one in all_strategies() if "distribution" in one.knobs]
        raise InvalidArgumentError(
            f"has no effect on {units.listed([one.name for one in strategies])}, without servers",
            setting="send_order",
            remedy=f"{{strategy={users[0]}}}, or drop {{this}}",
        )
    if sweep.get("inside") is not None and cluster.gpus_per_node == 1:
        raise sweep._alone("inside")
    _refuse_of_asynchronous(sweep, strategies, trace)
    is_random = cluster.jitter is not None or cluster.fabric is not None or sweep.has_coordinator
    if sweep.get("seed") is not None and not is_random:
        raise InvalidArgumentError(
            "needs a cluster with jitter",
            setting="seed",
            remedy='drop {this}, or "jitter": {"sigma": 0.05} in the cluster',
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
                    f"has no effect on {units.listed([it.name for it in strategies])}, timed by NCCL's model",
                    setting=name,
                    remedy="drop --no-barrier" if name == "barrier" else "drop {this}",
                )
    compression.check_trace(sweep, trace)
    if not trace.computes:
        given = {"overlap": sweep.get("overlap") is False}
        given |= {name: sweep.get(name) is not None for name in ("compute_speedup", "pull")}
        for name in (name for name, is_given in given.items() if is_given):
            raise InvalidArgumentError(
                f"needs computation, and {trace.name} computes nothing",
                setting=name,
                remedy="drop --no-overlap" if name == "overlap" else "drop {this}",
            )


def _refuse_of_asynchronous(sweep: Sweep, strategies: list[Strategy], trace: Trace) -> None:
    """Refuse what workers that do not wait for each other have not."""
    asynchronous = [strategy for strategy in strategies if not strategy.is_synchronous]
    if not asynchronous:
        return
    name = asynchronous[0].name
    if not trace.computes:
        raise InvalidArgumentError(
            f"{name} has no sums, and {trace.name} is nothing else", setting="strategy", remedy="{strategy=ps}"
        )
    if any(word != "none" for word in sweep.get("coordinator") or ()):
        raise InvalidArgumentError(
            f"agrees on what all ranks exchange, and {name} workers do not wait for each other",
            setting="coordinator",
            remedy="drop {this}, or {strategy=ps}",
        )
    if len(asynchronous) < len(strategies):
        return
    if sweep.get("barrier") is False:
        raise InvalidArgumentError(
            f"{name} workers never begin together", setting="barrier", remedy="drop --no-barrier"
        )
    if sweep.get("distribution") is not None and sweep.get("staleness") in (None, "none"):
        raise InvalidArgumentError(
            "orders what several workers wait for, and without a bound none waits for another",
            setting="distribution",
            remedy="{staleness=3}, or drop {this}",
        )


def _without_small(sweep: Sweep, machine: Cluster) -> tuple[Sweep, list[str]]:
    """Leave out the usual numbers of workers that do not have a slow rank, with a note."""
    rank = _highest_slow_rank(machine)
    able = [workers for workers in sweep.workers if workers > rank]
    if sweep.get("workers") is not None or not able or len(able) == len(sweep.workers):
        return sweep, []
    note = notes.without_small([workers for workers in sweep.workers if workers <= rank], rank)
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
        raise InvalidArgumentError(there_is, setting="stragglers", remedy=f"{{this={fewest - 1}:2}}")
    name = sweep.get("cluster")
    where = machine.name if isinstance(name, Cluster) else name
    raise InvalidArgumentError(
        f"{where}: stragglers: {there_is}", setting="cluster", remedy=f"{{workers={rank + 1}}}, or a cluster without it"
    )


def _check_nics(machine: Cluster) -> None:
    """Refuse a slow NIC of one GPU where the simulator has one link for all NICs of a node."""
    if machine.has_rails:
        return
    for one in machine.degraded:
        if (link := one.link.strip()).startswith("worker"):
            raise InvalidArgumentError(
                f"{link} is the NIC of one GPU, which strategies have on rails only",
                setting="degraded",
                remedy=f"{{this=node0:{one.factor:g}}}, or allreduce:1GB without a strategy",
            )


def _unknown_libraries(sweep: Sweep, traces: Sequence[Trace]) -> list[str]:
    """Return a note for each trace that names a library which is not known, and so does not decide."""
    if sweep.get("library") is not None:
        return []
    return [
        notes.unknown_library(trace.name, trace.library, sweep.library_of(trace, None).name, sweep.spelling("library"))
        for trace in traces
        if trace.library and trace.library not in library_names()
    ]


def _placement(
    sweep: Sweep, placement: str | list[int] | None, traces: Sequence[Trace], library: Library
) -> str | list[int] | None:
    if placement is None or placement in PLACEMENTS:
        return placement
    [bucket_size, *more] = sweep.get("bucket_size") or [None]
    if more or len(traces) > 1:
        what = "bucket size" if more else "trace"
        raise InvalidArgumentError(f"assigns the tensors of one {what}", setting="placement", remedy=f"one {what}")
    if isinstance(placement, list):
        return placement
    bucket_size = bucket_size or library.value("bucket_size")
    if bucket_size is None and "fused_per_cycle" in library.constants:
        raise InvalidArgumentError(
            f"a file places buckets, and those of {library.name} depend on the network",
            setting="placement",
            remedy="{bucket_size=64MiB}",
        )
    fewest = min(sweep.get("servers") or [1])
    size = None if bucket_size in (None, "none") else int(bucket_size)
    return read_placement(Path(placement), traces[0], size, fewest)


def _several(sweep: Sweep, scenarios: Sequence[Scenario]) -> str:
    lengths = {name: len(sweep.get(name) or ()) for name in SWEPT}
    lengths |= {name: len(values) for name, values in sweep.each.items()}
    lengths |= {"workers": len(sweep.workers), "strategy": len({one.strategy.name for one in scenarios})}
    traces = ["TRACE"] if len(sweep.traces) > 1 else []
    return units.listed([*traces, *(sweep.spelling(name) for name, length in lengths.items() if length > 1)])
