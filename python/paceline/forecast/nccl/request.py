"""`allreduce:8B-16GB` on a cluster: what `paceline simulate` is asked about NCCL's collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import _core
from paceline._core import Cluster, Degraded
from paceline._internal import units
from paceline.catalog.builtin import as_nccl_tests, fields_given, load_cluster
from paceline.catalog.builtin_names import COLLECTIVES
from paceline.catalog.channels import with_channel
from paceline.catalog.nccl import Kind
from paceline.errors import InvalidArgumentError, naming
from paceline.forecast.nccl.model import CollectiveTime, Group, Machine, collective_time
from paceline.forecast.request import Sweep

_APPLICABLE = frozenset({"workers", "cluster", "bandwidth", "channel", "gpus_per_node", "intra_bandwidth", "degraded"})
_MOST_BYTES = 10**15


@dataclass(frozen=True)
class Spec:
    """A collective and the sizes of its buffer."""

    kind: Kind
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """A collective on one cluster and number of ranks, for each size."""

    cluster: str
    bandwidth_bps: float
    machine: Machine
    group: Group
    kind: Kind
    times: tuple[CollectiveTime, ...]
    nodes: Cluster
    """The cluster itself, with its network."""


def is_asked(words: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Return whether traces ask for NCCL's collectives.

    `allreduce:SIZE` does if the cluster names its GPUs and nothing is asked for that only the simulator has, such as
    strategies; ranges of sizes and other collectives always do. With a channel, nodes of several GPUs need no name.
    """
    if any(_kind(word) not in (None, "allreduce") or (_kind(word) and "-" in word) for word in words):
        return True
    given = {name for name, value in options.items() if value is not None and value is not False}
    if options.get("cluster") is None or not words or given - _APPLICABLE - {"gpus"}:
        return False
    if any(_kind(word) is None or "/" in word for word in words):
        return False
    cluster = load_cluster(options["cluster"])
    return cluster.gpu is not None or ("channel" in given and cluster.gpus_per_node > 1)


def answers(words: Sequence[str], options: Mapping[str, Any]) -> list[Answer]:
    """Return the answers for every collective, cluster rate and number of ranks. Raises InvalidArgumentError."""
    specs = [parse(word) for word in words]
    sweep = Sweep.of(list(words), options, "simulate", "flag")
    with naming(sweep.sources):
        for name in sweep.values:
            if name not in _APPLICABLE:
                raise InvalidArgumentError(
                    f"has no effect on {words[0]}, whose time is that of NCCL's own algorithms",
                    setting=name,
                    remedy="drop {this}",
                )
        if sweep.get("cluster") is None:
            raise InvalidArgumentError(
                f"{words[0]} needs a cluster", remedy="{cluster=dgx-h100} (list: paceline list clusters)"
            )
        rates = sweep.get("bandwidth") or (None,)
        channel, given = sweep.get("channel"), fields_given(sweep.get("cluster"))
        clusters = [load_cluster(part.machine(), bandwidth=rate) for part in sweep.parts for rate in rates]
        clusters = [
            with_channel(cluster, channel, given=given) if channel or cluster.channel == "auto" else cluster
            for cluster in clusters
        ]
        return [_answer(spec, cluster, workers) for spec in specs for cluster in clusters for workers in sweep.workers]


def _answer(spec: Spec, cluster: Cluster, workers: int) -> Answer:
    machine = Machine.of(cluster)
    group = Group(workers, machine.gpus_per_node)
    _check_degraded(cluster.degraded, group)
    machine = machine.behind_slow_links(cluster, workers, 1, workers)
    times = [collective_time(spec.kind, size, group, machine, caller="nccl-tests") for size in spec.sizes]
    return Answer(cluster.name, cluster.bandwidth_bps, machine, group, spec.kind, tuple(times), cluster)


def _check_degraded(degraded: list[Degraded], group: Group) -> None:
    """Refuse slow links that the group does not use."""
    for one in degraded:
        match = re.fullmatch(r"(node|worker)(\d+)", one.link)
        count = 0 if match is None else group.nodes if match[1] == "node" else group.ranks
        if group.nodes == 1:
            raise InvalidArgumentError(
                f"has no effect on {units.count(group.ranks, 'GPU')} of one node, which use no NIC",
                setting="degraded",
                remedy="drop {this}",
            )
        if match is not None and int(match[2]) >= count:
            raise InvalidArgumentError(
                f"there is no {one.link} with {units.count(group.ranks, 'GPU')}",
                setting="degraded",
                remedy=f"{{this={match[1]}0:{one.factor:g}}} ({match[1]}0 to {match[1]}{count - 1})",
            )


def parse(word: str) -> Spec:
    """Return the collective that `allgather:SIZE` or `allgather:FROM-TO` means. Raises InvalidArgumentError.

    A range has its start, doubled as long as it fits, and its end.
    """
    kind = _kind(word)
    if kind is None:
        raise InvalidArgumentError(
            f"'{word:.80}' is not a collective, and NCCL's are forecast alone",
            remedy=f"paceline simulate {word:.80} (collectives: {', '.join(f'{it}:SIZE' for it in COLLECTIVES)})",
        )
    text = as_nccl_tests(word).partition(":")[2]
    if "/" in text:
        raise InvalidArgumentError(f"{word:.80}: is cut into several tensors", remedy=f"{word.partition('/')[0]:.80}")
    first, dash, last = text.partition("-")
    start, end = _size(word, first), _size(word, last if dash else first)
    if end < start:
        raise InvalidArgumentError(f"{word:.80}: the range ends below its start", remedy=f"{kind}:8B-16GB")
    sizes = [start]
    while sizes[-1] * 2 <= end:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] < end:
        sizes.append(end)
    return Spec(kind, tuple(sizes))


def _size(word: str, text: str) -> int:
    kind = f"{word.partition(':')[0]:.40}"
    try:
        size = _core.parse_size(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{word:.80}: {error.reason}", remedy=f"{kind}:1GB or {kind}:8B-16GB") from None
    if not 1 <= size <= _MOST_BYTES:
        raise InvalidArgumentError(f"{word:.80}: sizes must be 1 B-{units.size(_MOST_BYTES)}", remedy=f"{kind}:1GB")
    return size


def _kind(word: str) -> Kind | None:
    name, colon, _ = str(word).partition(":")
    return next((kind for kind in COLLECTIVES if colon and name == kind and not Path(word).is_file()), None)
