"""Compression and rarer synchronization in forecasts: what they need, what compressing costs, and how rows are named.

What is sent is decided by the native module (crates/iteration/src/compression.rs); what compressing takes is measured,
by `paceline probe --compression`, or that of the GPU's memory and of launching kernels, by the counts below.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline._core import CompressionCosts, PartCosts, Trace
from paceline._internal import units
from paceline.catalog.compression import NONE, OPTIONS, Compression, parse
from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.catalog.gpus import Hardware, find_hardware, titled
from paceline.catalog.strategies import SWITCHES, Strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding
from paceline.forecast.wording import notes
from paceline.operators.machine import Machine

if TYPE_CHECKING:
    from paceline.forecast.request import Sweep
    from paceline.forecast.result import Result
    from paceline.forecast.scenario import Scenario

_BY_RATE = " (by its rate)"
"""The end of the device's name in a built-in trace."""
_FLOPS = 2.0
"""Of an element in a product with a matrix of one column."""


@dataclass(frozen=True)
class _Work:
    """Work of a part on a GPU: kernels and bytes of memory traffic, counted in the hooks' source."""

    kernels: float = 0.0
    kernels_per_tensor: float = 0.0
    moved: float = 0.0
    """Bytes of an element."""
    moved_per_received: float = 0.0
    flops: float = 0.0
    """Of an element."""


def _cast(size: int) -> tuple[_Work, ...]:
    """Torch's `_compress_hook`: `to`, `div_`; and `copy_` at the end."""
    return _Work(2, moved=size + 2 + 2 + 2), _Work(), _Work(1, moved=2 + size)


def _powersgd(size: int, rank: int) -> tuple[_Work, ...]:
    """Torch's `powerSGD_hook`, with error feedback and warm start.

    Before P: the error is added (read two, write one), the sum copied, a factor orthogonalized, M read for M Q. Before
    Q: M is read for P. At the end M is written, and the error is a difference. Orthogonalizing a column takes about six
    kernels on matrices that caches hold.
    """
    orthogonalized = 6.0 * rank + 4
    before = _Work(4, 1 + orthogonalized, (3 + 2 + 1) * size, flops=_FLOPS * rank)
    between = _Work(1, 1 + orthogonalized, size, flops=_FLOPS * rank)
    return before, between, _Work(3, 1, (1 + 3) * size, flops=_FLOPS * rank)


def _topk(size: int, world: int) -> tuple[_Work, ...]:
    """`topk_hook`: the residual is added, magnitudes are taken, and a radix select of 8 bits a pass reads them 5 times.

    Of what arrives, both parts are copied, places are widened, and values are added at 32-byte sectors, read and
    written.
    """
    before = _Work(24, moved=(3 + 2 + 5) * size)
    return before, _Work(), _Work(2 + 4 * world, moved=3 * size, moved_per_received=2 * (size + 4) + 12 + 12 + 64)


def _int8(size: int) -> tuple[_Work, ...]:
    """`int8_hook`: passes of `_quantized` and `_restored` in float32, and what is left over."""
    quantized, restored = 2 * 4 + 4 + 3 * 8 + 8 + 5 + 2, 5 + 8
    before = _Work(15, moved=3 * size + 2 * size + quantized + restored + 3 * size)
    between = _Work(18, moved=8 + 12 + quantized + restored + 12, moved_per_received=restored + 4)
    return before, between, _Work(4, moved=restored + 4 + size)


def works(compression: Compression, size: int, world: int) -> tuple[_Work, ...]:
    """Return what is done before the first exchange of a bucket, between two, and after the last one.

    Elements have `size` bytes, and there are `world` ranks.
    """
    match compression.method:
        case "powersgd":
            return _powersgd(size, int(compression.parameter or 1))
        case "topk":
            return _topk(size, world)
        case "int8":
            return _int8(size)
        case _:
            return _cast(size)


def on_gpu(compression: Compression, hardware: Hardware, size: int, world: int) -> CompressionCosts:
    """Return the costs of each part on a GPU: launches, and bytes over the memory's rate, or FLOPs over the peak."""
    rate = Machine(hardware).plain_rate
    peak = hardware.peak_flops.get("fp32") or min(hardware.peak_flops.values())
    parts = [
        PartCosts(
            bucket_s=work.kernels * hardware.launch_s,
            tensor_s=work.kernels_per_tensor * hardware.launch_s,
            element_s=max(work.moved / rate, work.flops / peak),
            received_s=work.moved_per_received / rate,
        )
        for work in works(compression, size, world)
    ]
    return CompressionCosts(compression.name, *parts)


def _hardware(scenario: Scenario, device: str) -> Hardware | None:
    """Return the GPU on which the scenario computes, if it is known."""
    if scenario.workload is not None:
        return scenario.workload.hardware
    return gpu_of(device)


def gpu_of(device: str) -> Hardware | None:
    """Return the GPU that a trace names as its device, if it is known."""
    gpu = titled(device)
    for name in [device.removesuffix(_BY_RATE)] if gpu is None and device else []:
        try:
            gpu = find_hardware(name)
        except InvalidArgumentError:
            return None
    return gpu


def _costs(scenario: Scenario, compression: Compression) -> tuple[CompressionCosts, str]:
    """Return the costs of each part, and where they come from. Raises InvalidArgumentError if they are not known."""
    cluster, trace = scenario.cluster, scenario.trace
    measured = {one.method: one for one in cluster.compression_costs}
    if (own := measured.get(compression.name)) is not None:
        return own, f"measured on {cluster.name}"
    hardware = _hardware(scenario, trace.device)
    if hardware is not None:
        size = DTYPE_BYTES[trace.dtype]
        return on_gpu(compression, hardware, size, scenario.workers), f"roofline of {hardware.title}"
    device = units.printable(trace.device[:60]) or "the machine of the trace"
    command = f"paceline run -np 2 -- paceline probe --compression {compression.name} -o cluster.json"
    raise InvalidArgumentError(
        f"nobody measured what {compression.name} takes to compute on {device}",
        setting="compression",
        remedy=f"{command} (then {{cluster=cluster.json}})",
    )


def note(scenario: Scenario) -> list[str]:
    """Return where the costs of a scenario's compression come from."""
    kind = scenario.options.get("compression", NONE)
    if kind == NONE or scenario.workers == 1:
        return []
    return [notes.compression_costs(kind, _costs(scenario, parse(kind))[1])]


def native(scenario: Scenario) -> CompressionCosts | None:
    """Return the compression of a scenario with its costs. Raises InvalidArgumentError if these are not known."""
    kind = scenario.options.get("compression", NONE)
    return None if kind == NONE or scenario.workers == 1 else _costs(scenario, parse(kind))[0]


def faster(costs: CompressionCosts | None, factor: float) -> CompressionCosts | None:
    """Return the costs on a GPU that is faster by a factor."""
    if costs is None or factor == 1:
        return costs
    parts = [
        PartCosts(
            bucket_s=one.bucket_s / factor,
            tensor_s=one.tensor_s / factor,
            element_s=one.element_s / factor,
            received_s=one.received_s / factor,
        )
        for one in (costs.compress, costs.between, costs.decompress)
    ]
    return CompressionCosts(costs.method, *parts)


def is_asked(options: Mapping[str, Any]) -> bool:
    """Whether rows are compared by one of the two."""
    return any(name in options for name in OPTIONS)


def changes(options: Mapping[str, Any]) -> str | None:
    """Return the setting that makes another iteration of a scenario, if there is one."""
    if options.get("compression", NONE) != NONE:
        return "compression"
    return "sync_every" if options.get("sync_every", 1) > 1 else None


def check(sweep: Sweep) -> None:
    """Refuse what does not go together with what is asked of a sweep. Raises InvalidArgumentError."""
    kinds = [name for name in sweep.get("compression") or [] if name != NONE]
    setting = "compression" if kinds else "sync_every"
    if not kinds and all(every == 1 for every in sweep.get("sync_every") or [1]):
        return
    what = "gradients are compressed" if kinds else "parameters are exchanged"
    if sweep.has_coordinator:
        raise InvalidArgumentError(
            f"{what} by hooks and optimizers, which no coordinator orders", setting=setting, remedy="drop {coordinator}"
        )
    if others := [one for one in sweep.get("sharding") or [] if one != sharding.NONE]:
        raise InvalidArgumentError(
            f"needs all-reduces, and {others[0]} reduce-scatters its gradients in every iteration",
            setting=setting,
            remedy="{sharding=none}, or drop {this}",
        )
    if sweep.get("barrier") is False:
        raise InvalidArgumentError(
            f"where {what}, ranks wait for each other", setting="barrier", remedy="drop --no-barrier"
        )


def check_trace(sweep: Sweep, trace: Trace) -> None:
    """Refuse a trace that computes nothing. Raises InvalidArgumentError."""
    changed = changes({name: max(sweep.get(name) or [1]) for name in ("sync_every",)})
    changed = "compression" if any(name != NONE for name in sweep.get("compression") or []) else changed
    if changed is not None and not trace.computes:
        raise InvalidArgumentError(
            f"needs computation, and {trace.name} computes nothing", setting=changed, remedy="drop {this}"
        )


def only_able(sweep: Sweep, strategies: Sequence[Strategy], named: Collection[Strategy]) -> list[Strategy]:
    """Leave out strategies that cannot exchange what is asked for.

    Raises InvalidArgumentError for one that the user named.
    """
    kinds, every = sweep.get("compression") or [NONE], max(sweep.get("sync_every") or [1])
    obstacles = {
        strategy: next(
            filter(None, (obstacle({"compression": name, "sync_every": every}, strategy) for name in kinds)), ""
        )
        for strategy in strategies
    }
    for strategy, why in obstacles.items():
        if strategy in named and why:
            setting = "sync_every" if kinds == [NONE] else "compression"
            raise InvalidArgumentError(
                f"{strategy.name} {why}",
                setting="strategy",
                remedy=f"{{strategy=native}} or ring, or drop {{{setting}}}",
            )
    return [strategy for strategy, why in obstacles.items() if not why]


def obstacle(options: Mapping[str, Any], strategy: Strategy) -> str:
    """Return why a strategy cannot exchange what a scenario with these options does; empty if it can."""
    if changes(options) is None:
        return ""
    if "servers" in strategy.knobs or SWITCHES & strategy.knobs:
        return "exchanges by servers or the switch, not by collectives between ranks"
    method = parse(options.get("compression", NONE))
    return f"has no all-gather, which {method.method} needs" if method.gathers and not sharding.able(strategy) else ""


def changes_row(result: Result) -> bool:
    """Whether a row is of another iteration than that of the library."""
    return result.compression not in (None, NONE) or (result.sync_every or 1) > 1
