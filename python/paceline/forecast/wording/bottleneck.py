"""Sentences on what bounds an iteration."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline.forecast.kinds import Part, Resource
from paceline.forecast.result import PathPart, Result
from paceline.forecast.verdict.bottleneck import NOTEWORTHY, Bound, Largest, Relief, largest
from paceline.forecast.wording import terms

_HALF = 50
_ADDED = {Resource.CALLS: "the library's calls are", Resource.SLOWED: "NCCL's kernels slow it by"}
_WAYS = {
    Part.WORKER_EGRESS: ("worker", "egress"),
    Part.WORKER_INGRESS: ("worker", "ingress"),
    Part.SERVER_EGRESS: ("server", "egress"),
    Part.SERVER_INGRESS: ("server", "ingress"),
}
"""Whose NIC it is, and which way."""
_BY_RESOURCE = (Resource.COORDINATOR, Resource.BUFFER, Resource.INSIDE, Resource.CALLS, Resource.SLOWED)
"""What is not called by its largest part."""


def _name(of: Largest) -> str:
    if of.resource is Resource.NICS:
        return _cards(of.parts)
    by_resource = of.resource.is_between_switches or of.resource in _BY_RESOURCE
    return terms.RESOURCES[of.resource] if by_resource else terms.part(of.parts[0].part)


def _cards(parts: Sequence[PathPart]) -> str:
    """Name the ends of links that make up most of a share: `worker egress and ingress`."""
    large = [part for part in parts if part.seconds > parts[0].seconds / 2]
    ways: dict[str, list[str]] = {}
    for part in large:
        role, way = _WAYS.get(Part(part.part), ("the", part.part))
        ways.setdefault(role, []).append(way)
    named = units.listed([f"{role} {units.listed(each)}" for role, each in ways.items()])
    rest = sum(part.seconds for part in parts) - sum(part.seconds for part in large)
    return f"the network, mostly {named}" if rest > parts[0].seconds / 5 else named


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _detail(of: Largest) -> str:
    """Return what the largest part mostly consists of, with a comma before it, or nothing."""
    slowest = ", that of the slowest worker" if of.is_of_slowest else ""
    added = "".join(f"; {_ADDED[resource]} another {_percent(share)}" for resource, share in of.added)
    return f"{slowest}{added}{', most of it queueing' if of.is_queueing else ''}"


def _most(of: Largest) -> str:
    """Return `most`, or `the largest part` if it is not more than half."""
    return "most" if round(of.share * 100) > _HALF else "the largest part"


def path(result: Result | Largest) -> str:
    """Return `most of the critical path: computation (68 %)`; this is not what bounds it, which reliefs tell."""
    of = result if isinstance(result, Largest) else largest(result)
    return f"{_most(of)} of the critical path: {_name(of)} ({_percent(of.share)}{_detail(of)})"


def path_of(of: Largest, whose: str) -> str:
    """Return `most of the critical path of ring is computation (68 %)`; `whose`: the words before `is`."""
    return f"{_most(of)} {whose} is {_name(of)} ({_percent(of.share)}{_detail(of)})"


def bound(found: Bound) -> str:
    """Return what the relief that gains most relieves, `bound by latency`; without one that helps, the path."""
    of, best = found.largest, found.relief
    if best is None or not best.helps:
        return path(of)
    if found.is_largest:
        return f"bound by {_name(of)} ({_percent(of.share)} of the critical path{_detail(of)})"
    if best.resource is Resource.STREAMS:
        carried = f"{units.rate(found.flow_bps)} of {units.rate(found.bandwidth_bps)}"
        return f"bound by what {terms.RESOURCES[best.resource]} carry over {found.channel.upper()} ({carried})"
    if best.measure in terms.WAITS:
        return f"bound by {terms.WAITS[best.measure]}"
    return f"bound by {terms.LIMITS.get(best.resource) or terms.RESOURCES[best.resource]}"


def sentence(subject: str, found: Bound) -> str:
    """Return what bounds the subject, and what reliefs gain; `bound by` is what the relief that gains most relieves."""
    along = path_of(found.largest, f"of the critical path of {subject}")
    along = along[0].upper() + along[1:]
    if found.relief is None:
        return f"{along}."
    effects = "; ".join(map(_effect, found.tried))
    if not found.relief.helps:
        return f"{along}, but no single relief helps: {effects}."
    if found.is_largest:
        return f"{subject} is {bound(found)}: {effects}."
    of = found.largest
    beside = f"{_percent(of.share)} of its critical path is {_name(of)}{_detail(of)}"
    return f"{subject} is {bound(found)}: {effects}; {beside}."


def relief(one: Relief) -> str:
    """Return what a relief is called."""
    return terms.measure(one.measure, one.links)


def _effect(one: Relief) -> str:
    about = terms.remark(one.about)
    what = f"{relief(one)}, {about}," if about else relief(one)
    if one.helps:
        return f"{what} would make it {units.short(one.gain)} times faster"
    if one.gain < 1 / NOTEWORTHY:
        return f"{what} would make it {units.short(1 / one.gain)} times slower"
    return f"{what} would not help"


def gain(one: Relief) -> str:
    """Return what a relief would bring: `twice the bandwidth would make it 1.3 times faster`."""
    return f"{relief(one)} would make it {units.short(one.gain)} times faster"
