"""Words for the bottleneck of an iteration and for changes that would help."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline._internal.block import Fact, Pair
from paceline.catalog.models.workload import Workload
from paceline.forecast.kinds import Measure, Part, Resource
from paceline.forecast.result import PathPart, Result
from paceline.forecast.verdict.bottleneck import MIN_GAIN, Bound, Largest, Relief, bottleneck, largest
from paceline.forecast.wording import terms

_ADDED = {Resource.CALLS: "framework overhead adds", Resource.SLOWED: "NCCL kernels slow it by another"}
_WAYS = {
    Part.WORKER_EGRESS: ("worker", "egress"),
    Part.WORKER_INGRESS: ("worker", "ingress"),
    Part.SERVER_EGRESS: ("server", "egress"),
    Part.SERVER_INGRESS: ("server", "ingress"),
}
"""Whose NIC it is, and which way."""
_LINE = 64
_LAUNCHING = 0.9
"""Share of a pass in which the host launches kernels, from which on the GPU waits for it: noise of times is 10 %."""
_LAUNCHES = "2x faster kernel launches (CPU)"
_BY_RESOURCE = (Resource.COORDINATOR, Resource.BUFFER, Resource.INSIDE, Resource.CALLS, Resource.SLOWED)
"""Resources that are not called by their largest part."""


def _name(of: Largest, workload: Workload | None = None) -> str:
    if of.resource is Resource.COMPUTE and workload is not None and is_launching(workload):
        help_ = "or compiled kernels" if workload.cuda_graphs else "compiled kernels, or CUDA graphs"
        return f"kernel launches on the host (larger batches help, {help_})"
    if of.resource is Resource.NICS:
        return _cards(of.parts)
    by_resource = of.resource.is_between_switches or of.resource in _BY_RESOURCE
    return terms.RESOURCES[of.resource] if by_resource else terms.part(of.parts[0].part)


def _cards(parts: Sequence[PathPart]) -> str:
    """Name the ends of links that make up most of a share: `network (worker egress and ingress)`."""
    large = [part for part in parts if part.seconds > parts[0].seconds / 2]
    ways: dict[str, list[str]] = {}
    for part in large:
        if part.part not in _WAYS:
            return "network"
        role, way = _WAYS[Part(part.part)]
        ways.setdefault(role, []).append(way)
    ends = units.listed([f"{role} {units.listed(each)}" for role, each in ways.items()])
    rest = sum(part.seconds for part in parts) - sum(part.seconds for part in large)
    return f"network (mostly {ends})" if rest > parts[0].seconds / 5 else f"network ({ends})"


def _details(of: Largest, noun: str = "GPU") -> str:
    """Return ` (slowest GPU, NCCL kernels slow it by another 4%)`, or nothing."""
    words = [f"slowest {noun}"] if of.is_of_slowest else []
    words += [f"{_ADDED[resource]} {units.percent(added, 0)}" for resource, added in of.added]
    words += ["mostly queueing"] if of.is_queueing else []
    return f" ({', '.join(words)})" if words else ""


def is_launching(workload: Workload) -> bool:
    """Whether a pass takes as long as the host needs to launch its kernels."""
    return workload.host_s > _LAUNCHING * (workload.forward_s + workload.backward_s)


def waits_for_host(result: Result, workload: Workload | None) -> bool:
    """Whether GPUs wait most for their host: for its launches of kernels, or for what is offloaded."""
    is_offload = bool(result.critical_path) and bottleneck(result).is_offload
    return is_offload or (workload is not None and is_launching(workload))


def path(result: Result | Largest, noun: str = "GPU", workload: Workload | None = None) -> str:
    """Return `compute, 98% of the critical path (slowest GPU)`; this is its largest part, not what bounds it.

    Args:
        result: The forecast.
        noun: What ranks are called.
        workload: The model; None: a recording.
    """
    of = result if isinstance(result, Largest) else largest(result)
    return f"{_name(of, workload)}, {_share(of)}{_details(of, noun)}"


def _share(of: Largest) -> str:
    """Return `98% of the critical path`."""
    return f"{units.percent(of.share, 0)} of the critical path"


def headline(known: Bound) -> str:
    """Return `compute-bound, 98% of the critical path`, or `bound by network bandwidth`."""
    is_part = _limit(known) is None or known.is_largest
    return f"{kind(known)}, {_share(known.largest)}" if is_part else kind(known)


def kind(known: Bound) -> str:
    """Return `compute-bound`, `bound by network bandwidth`, or that no change helps."""
    name, of = _limit(known), known.largest
    if name is None:
        return f"mostly {_name(of)}" + (" (no single change helps)" if known.relief is not None else "")
    return "compute-bound" if known.is_largest and of.resource is Resource.COMPUTE else f"bound by {name}"


def is_said(known: Bound) -> bool:
    """Whether the headline says all of the bottleneck."""
    return not _details(known.largest) and (limit(known) is None or known.is_largest)


def bound(known: Bound) -> str:
    """Return what the change that gains most relieves, and the largest part of the critical path."""
    name = limit(known)
    if name is None or known.is_largest:
        return path(known.largest)
    return f"{name} (largest share: {path(known.largest)})"


def limit(known: Bound) -> str | None:
    """Return what the change that gains most relieves: `network bandwidth`; None if no change helps."""
    name = _limit(known)
    if known.is_largest or known.relief is None or known.relief.resource is not Resource.STREAMS:
        return name
    return f"{name} ({units.rate(known.flow_bps)} of {units.rate(known.bandwidth_bps)}, {known.channel.upper()})"


def _limit(known: Bound) -> str | None:
    """Return the same without figures."""
    best = known.relief
    if best is None or not best.helps:
        return None
    if known.is_largest:
        return _name(known.largest)
    if best.measure in terms.WAITS:
        return terms.WAITS[best.measure]
    return terms.LIMITS.get(best.resource) or terms.RESOURCES[best.resource]


def fact(known: Bound, noun: str = "GPU", workload: Workload | None = None) -> Fact:
    """Return the line `Bottleneck`; `noun`: what ranks are called; `workload`: the model."""
    name, of = limit(known), known.largest
    lines = [f"{_name(of, workload)}, {_share(of)}", _details(of, noun).strip()]
    if name is not None and not known.is_largest:
        lines = [name, f"largest share: {path(of, noun, workload)}"]
    is_short = len(" ".join(lines)) <= _LINE
    return Fact("Bottleneck", *([" ".join(lines).strip()] if is_short else lines), tone="limit")


def relief(one: Relief) -> str:
    """Return what a change is called, with what changes with it."""
    about = terms.remark(one.about)
    if one.measure in (Measure.LESS_OFFLOADED, Measure.FUSED_STEP):
        return about
    name = terms.measure(one.measure, one.links)
    return f"{name}, {about}" if about else name


def effects(tried: Sequence[Relief], workload: Workload | None = None) -> list[Pair]:
    """Return the gains of changes that help, and the names of those that do not; `workload`: the model."""
    is_host = workload is not None and is_launching(workload)
    pairs: list[Pair] = [
        (units.factor(one.gain), _LAUNCHES if is_host and one.resource is Resource.COMPUTE else relief(one))
        for one in tried
        if one.helps
    ]
    same = [relief(one) for one in tried if not one.helps and one.gain >= 1 / MIN_GAIN]
    slower = [f"{relief(one)} ({units.factor(1 / one.gain)})" for one in tried if one.gain < 1 / MIN_GAIN]
    pairs += [("no gain", ", ".join(same))] if same else []
    return [*pairs, *([("slower", ", ".join(slower))] if slower else [])]


def gain(one: Relief) -> str:
    """Return what a change would bring: `2x network bandwidth: 1.3x`."""
    return f"{relief(one)}: {units.factor(one.gain)}"
