"""Where ranks are: which of them share a node.

Local ranks are the launcher's where it says them for all ranks. Then two ranks of a host with the same local rank are
on different nodes, such as two containers that call themselves alike. Otherwise ranks of a host are counted in order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

Said = tuple[str, int | None]
"""A rank's host name and local rank, None where the launcher does not say it."""


@dataclass(frozen=True)
class Places:
    """One rank's place among the others."""

    local_rank: int
    """Among the ranks of this node."""
    local_size: int
    cross_rank: int
    """Among the nodes that have this local rank."""
    cross_size: int
    homogeneous: bool
    """Whether all nodes have as many ranks."""


def places(rank: int, said: Sequence[Said]) -> Places:
    """The place of `rank`, from what all ranks say, in rank order."""
    nodes = _nodes(said)
    of = {member: node for node, members in nodes.items() for member in members}
    local = {member: at for members in nodes.values() for at, member in enumerate(members)}
    alike = [node for node, members in nodes.items() if len(members) > local[rank]]
    return Places(
        local_rank=local[rank],
        local_size=len(nodes[of[rank]]),
        cross_rank=alike.index(of[rank]),
        cross_size=len(alike),
        homogeneous=len({len(members) for members in nodes.values()}) == 1,
    )


def _nodes(said: Sequence[Said]) -> dict[tuple[str, int], list[int]]:
    """The ranks of each node in the order of their local ranks; nodes in the order of their lowest ranks."""
    nodes: dict[tuple[str, int], list[int]] = defaultdict(list)
    seen: Counter[Said] = Counter()
    told = all(local is not None for _, local in said)
    for rank, (host, local) in enumerate(said):
        same = (host, local if told else rank)
        nodes[host, seen[same]].append(rank)
        seen[same] += 1
    if told:
        for members in nodes.values():
            members.sort(key=lambda member: said[member][1] or 0)
    return nodes
