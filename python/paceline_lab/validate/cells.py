"""Cells of a comparison: a trace under a strategy on a number of workers and servers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from paceline._core import Trace
from paceline._internal import units
from paceline._internal.system import cores
from paceline.catalog import libraries
from paceline.catalog.builtin import load_trace
from paceline.catalog.compression import NONE, parse
from paceline.catalog.strategies import Strategy, all_strategies, find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast import compression as compressions
from paceline.forecast.sharding import in_groups, only_able

from paceline_lab.replay.traces import MOST_SHRINK, shrunk

LINK_S = 0.125
"""With `--shrink auto` and unscaled times, bytes are divided so that a trace's gradients take this long on one link."""
RANKS_PER_CORE = 2
"""This many ranks per core keep up. With more, times and bytes grow, so that messages come more slowly."""
MOST_RANKS = 64
_HIERARCHY = 2
UNBOUNDED = "none"
"""No bound on staleness."""


@dataclass(frozen=True)
class Cell:
    """One comparison. Bytes of the trace are divided by `shrink`, its times multiplied by `scale`."""

    trace: str
    strategy: Strategy
    workers: int
    servers: int
    """0 for strategies without servers."""
    bandwidth_bps: float
    shrink: float
    scale: float
    ranks_per_host: int = 1
    bucket_size: str | None = None
    racks: int = 1
    """Racks among which the hosts are divided."""
    sharding: str | None = None
    """None: gradients are all-reduced, or go to servers."""
    compression: str | None = None
    """How gradients are compressed: `none`, `powersgd:4`, …; None if this is not compared."""
    staleness: int | str | None = None
    """Bound on staleness in iterations, or `none`; None if workers wait for each other."""

    @property
    def planned_sharding(self) -> str | None:
        """The sharding whose plan is played; a compressed exchange is one of a plan without sharding."""
        return self.sharding if self.compression is None else NONE

    @property
    def hosts(self) -> int:
        """Number of hosts with workers."""
        return self.workers // self.ranks_per_host

    @property
    def hosts_per_rack(self) -> int | None:
        """Hosts in a rack; None without racks."""
        return None if self.racks == 1 else -(-self.hosts // self.racks)

    @property
    def needs_switch(self) -> bool:
        """Whether a switch reduces."""
        return "aggregation" in self.strategy.knobs

    def loaded(self) -> Trace:
        """Return the trace to run and simulate. Raises InvalidArgumentError."""
        return shrunk(load_trace(self.trace), self.shrink)

    def title(self) -> str:
        """Return a title for people."""
        where = units.count(self.workers, "worker")
        where += f", {units.count(self.servers, 'server')}" if self.servers else ""
        stale = None if self.staleness is None else f"staleness {self.staleness}"
        where += "".join(f", {word}" for word in (self.sharding, self.compressed, stale) if word is not None)
        return f"{self.trace}, {self.strategy.name}, {where}"

    @property
    def compressed(self) -> str | None:
        """The compression in prose, in which `none` would be read as a word."""
        return "no compression" if self.compression == NONE else self.compression

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that identify it in JSON."""
        return {
            "trace": self.trace,
            "strategy": self.strategy.name,
            "sharding": self.sharding,
            "compression": self.compression,
            "workers": self.workers,
            "servers": self.servers,
            "staleness": self.staleness,
            "ranks_per_host": self.ranks_per_host,
            "rate_bps": self.bandwidth_bps,
            "shrink": self.shrink,
            "scale": self.scale,
        }


@dataclass(frozen=True)
class Skipped:
    """A cell that was not compared, and why."""

    cell: Cell
    reason: str
    failed: bool = False
    """It was tried, and failed."""

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**self.cell.to_dict(), "reason": self.reason, "failed": self.failed}


@dataclass(frozen=True)
class Selection:
    """The product of values to compare."""

    traces: Sequence[str]
    strategies: Sequence[str]
    workers: Sequence[int]
    servers: Sequence[int] = (1,)
    shardings: Sequence[str | None] = (None,)
    compressions: Sequence[str | None] = (None,)
    staleness: Sequence[int | str] = (UNBOUNDED,)
    """For strategies whose workers do not wait for each other."""


@dataclass(frozen=True)
class Network:
    """The network of all cells."""

    bandwidths_bps: Sequence[float]
    shrink: float | None = None
    """None: chosen for each trace so that its gradients take LINK_S on one link."""
    scale: float | None = None
    """None: the number of ranks per core, if more than RANKS_PER_CORE share one."""
    bucket_size: str | None = None
    racks: int = 1


ALL = "all"
SMALL, MODELS = "allreduce:8MB", ("netop-inception-v3", "netop-vgg-16", "resnet-50")
QUICK = (Selection(("resnet-50",), (ALL,), (4,)),)
DEFAULT = (
    Selection(MODELS, (ALL,), (4,)),
    Selection(("resnet-50",), (ALL,), (2, 8)),
    Selection(("resnet-50",), ("ps", "ps-multicast-aggregation"), (4, 8), (2, 4)),
    Selection(("resnet-50",), ("ring", "halving-doubling", "recursive-doubling", "tree"), (3,)),
    Selection((SMALL,), ("ps", "ring", "recursive-doubling", "halving-doubling", "tree"), (4,)),
)
FULL = (Selection((*MODELS, "netop-resnet-101", "netop-resnet-200", SMALL), (ALL,), (2, 3, 4, 8), (1, 2, 4, 8)),)


def cells(wanted: Iterable[Selection], network: Network) -> list[Cell]:
    """Return each cell once, in order. Raises InvalidArgumentError for unknown names."""
    planned: dict[Cell, None] = {}
    for one in wanted:
        if too_many := [count for count in one.workers if count > MOST_RANKS]:
            raise InvalidArgumentError(
                f"--workers: must be at most {MOST_RANKS} ranks on one machine, not {too_many[0]}",
                remedy=f"--workers {MOST_RANKS}",
            )
        strategies = strategies_of(one.strategies)
        if one.shardings != (None,):
            named = () if ALL in one.strategies else strategies
            strategies = only_able(strategies, named, strategies_of([ALL]))
        able = {
            compressed: _only_able(strategies, compressed, named=ALL not in one.strategies)
            for compressed in one.compressions
        }
        for bandwidth, trace in product(network.bandwidths_bps, one.traces):
            loaded = load_trace(trace)
            for workers, strategy, compressed in product(one.workers, strategies, one.compressions):
                if strategy not in able[compressed]:
                    continue
                shrink, scale = _sizes(loaded, workers, bandwidth, network, compressed)
                every = product(
                    one.servers if "servers" in strategy.knobs else (0,),
                    one.shardings,
                    (None,) if strategy.is_synchronous else one.staleness,
                )
                for servers, sharding, stale in every:
                    ranks = _ranks_per_host(strategy, workers, sharding)
                    fused = sharding is not None or compressed is not None
                    size = network.bucket_size or (_bucket(shrink) if fused else None)
                    where = (workers, servers, bandwidth, shrink, scale, ranks, size, network.racks)
                    planned[Cell(trace, strategy, *where, _with_group(sharding, ranks), compressed, stale)] = None
    return list(planned)


def _only_able(strategies: Sequence[Strategy], compressed: str | None, *, named: bool) -> list[Strategy]:
    """Leave out strategies that cannot exchange what is compressed, or the same uncompressed in a plan.

    Raises InvalidArgumentError for one that the user named.
    """
    if compressed is None:
        return list(strategies)
    options = {"compression": "fp16" if compressed == NONE else compressed}
    obstacles = {strategy: compressions.obstacle(options, strategy) for strategy in strategies}
    for strategy, why in obstacles.items():
        if why and named:
            raise InvalidArgumentError(
                f"{strategy.name} {why}", setting="strategy", remedy="{strategy=ring}, or drop {compression}"
            )
    return [strategy for strategy, why in obstacles.items() if not why]


def _sizes(
    trace: Trace, workers: int, bandwidth_bps: float, network: Network, compressed: str | None
) -> tuple[float, float]:
    """Return the divisor of bytes and the factor of times. Raises InvalidArgumentError."""
    if compressed in (None, NONE):
        return chosen(trace, workers, bandwidth_bps, network.shrink, network.scale)
    if not trace.computes:
        raise InvalidArgumentError(
            f"needs computation, and {trace.name} computes nothing", setting="compression", remedy="drop {this}"
        )
    if compressions.gpu_of(trace.device) is None:
        raise InvalidArgumentError(
            f"nobody measured what {compressed} takes to compute on the device of {trace.name}",
            setting="compression",
            remedy="a trace of a GPU (list: paceline list gpus)",
        )
    if parse(compressed or NONE).method != "powersgd":
        return chosen(trace, workers, bandwidth_bps, network.shrink, network.scale)
    if network.shrink not in (None, 1):
        raise InvalidArgumentError(
            f"{compressed} needs the shapes of tensors, which are lost when bytes are divided",
            setting="compression",
            remedy="drop --shrink",
        )
    return chosen(trace, workers, bandwidth_bps, 1.0, network.scale)


def chosen(
    trace: Trace, workers: int, bandwidth_bps: float, shrink: float | None, scale: float | None
) -> tuple[float, float]:
    """Return the divisor of bytes and the factor of times: as given, or chosen for ranks that share cores."""
    times = scale if scale is not None else auto_scale(trace, workers)
    return shrink if shrink is not None else auto_shrink(trace, bandwidth_bps, times), times


def auto_scale(trace: Trace, workers: int) -> float:
    """Return the factor of times at which the machine keeps up with this many ranks; 1 without computation."""
    crowded = workers > RANKS_PER_CORE * cores()
    return workers / cores() if crowded and trace.computes else 1.0


def auto_shrink(trace: Trace, bandwidth_bps: float, scale: float = 1.0) -> float:
    """Return the divisor with which the bytes take LINK_S x scale on one link; 1 without computation."""
    if not trace.computes:
        return 1.0
    bits = 8 * trace.gradient_bytes
    shrink = max(1, math.ceil(bits / (bandwidth_bps * LINK_S * scale)))
    if shrink > MOST_SHRINK:
        raise InvalidArgumentError(
            f"--bandwidth: {units.rate(bandwidth_bps)} would shrink the trace by {shrink:,}, more than {MOST_SHRINK:,}",
            remedy="a higher --bandwidth",
        )
    return float(shrink)


def _ranks_per_host(strategy: Strategy, workers: int, sharding: str | None) -> int:
    """Return several ranks per host for a strategy or sharding with a hierarchy, otherwise one."""
    has_levels = "inside" in strategy.knobs or in_groups(sharding or "")
    return _HIERARCHY if has_levels and workers % _HIERARCHY == 0 and workers > _HIERARCHY else 1


def _bucket(shrink: float) -> str:
    """Return DDP's size of buckets, divided as the trace's bytes are: libraries that shard states fuse gradients."""
    return f"{int(libraries.find_library(libraries.DEFAULT).required('bucket_size') / shrink)}B"


def _with_group(sharding: str | None, ranks_per_host: int) -> str | None:
    """Return the sharding with the ranks of a host as its group, unless it names one."""
    return f"hsdp:{ranks_per_host}" if sharding == "hsdp" else sharding


def strategies_of(names: Sequence[str]) -> list[Strategy]:
    """Return each strategy once; `all` are those of all-reduces that run over sockets and shared memory.

    Raises InvalidArgumentError.
    """
    chosen: dict[Strategy, None] = {}
    for name in names:
        chosen |= dict.fromkeys(all_strategies() if name == ALL else [find_strategy(name)])
    if ALL not in names and any(strategy.is_offloaded for strategy in chosen):
        raise InvalidArgumentError(
            "--strategy: native is a library's own all-reduce and is not run here", remedy="--strategy ring"
        )
    return [strategy for strategy in chosen if not strategy.is_offloaded]
