"""Assigns ranks to workers for the next world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.launch.elastic.roster import Place, Slot, Worker


def agreed(workers: Sequence[Worker]) -> int | None:
    """Return the commit that all return to, the last one of the worker that committed least; None if there is none.

    Ranks commit together, but one may be killed, or learn of a failure, between another's commit and its own. As every
    commit waits until all have made it, ranks are at most one apart, and each holds two. A worker that does not hold
    the commit (a new one, or one that keeps only one) receives it.
    """
    last = [worker.commits[-1] for worker in workers if worker.commits]
    return min(last) if last else None


def places(workers: Sequence[Worker], before: Mapping[Slot, int], generation: int) -> list[tuple[Worker, Place]]:
    """Return the workers by rank. `before`: the ranks of slots in the last world, which are kept where possible.

    Ranks of a host are contiguous. Rank 0 holds the commit to which all return.
    """
    commit = agreed(workers)
    hosts: dict[str, list[Worker]] = {}
    for worker in sorted(workers, key=lambda worker: (before.get(worker.slot, len(before)), worker.slot)):
        hosts.setdefault(worker.slot.host, []).append(worker)
    by_host = list(hosts.values())
    if commit is not None:
        # Swapping the two keeps the ranks of all others.
        host = next(at for at, here in enumerate(by_host) if any(commit in worker.commits for worker in here))
        by_host[0], by_host[host] = by_host[host], by_host[0]
        first = by_host[0]
        at = next(at for at, worker in enumerate(first) if commit in worker.commits)
        first[0], first[at] = first[at], first[0]
    placed: list[tuple[Worker, Place]] = []
    for node, here in enumerate(by_host):
        for local_rank, worker in enumerate(here):
            place = Place(
                generation=generation,
                rank=len(placed),
                size=len(workers),
                local_rank=local_rank,
                local_size=len(here),
                node=node,
                nodes=len(by_host),
                commit=commit,
            )
            placed.append((worker, place))
    return placed
