"""Separate cores for coordinator, framework and input pipeline: the policy `partitioned`.

S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", the variant SCP: threads
that do not share a core cannot preempt each other. A rank's share of its node's cores is divided in three: the
coordinator and the thread that moves tensors get one core, processes that it forks (a DataLoader's workers) some, and
the framework the rest. With `partitioned:dynamic`, framework and forked processes use the coordinator's core as well
while nothing is to be exchanged: the native module moves them off it and back.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidArgumentError

_PIPELINE = 0.25
"""Share of a rank's cores, rounded; workers of an input pipeline are idle most of the time."""
_FEWEST_FOR_A_PIPELINE = 4


@dataclass(frozen=True)
class Cores:
    """A rank's share of the cores."""

    coordinator: int
    framework: tuple[int, ...]
    pipeline: tuple[int, ...]

    def lent(self) -> list[tuple[list[int], list[int]]]:
        """Return the sets of cores that have the coordinator's, if it is lent, and the same without it."""
        sets = dict.fromkeys((self.framework, self.pipeline))
        return [([self.coordinator, *cores], list(cores)) for cores in sets]

    def of_others(self, cores: tuple[int, ...], *, dynamic: bool) -> tuple[int, ...]:
        """Return what threads that get these cores start with."""
        return (self.coordinator, *cores) if dynamic else cores


def share(available: list[int], local_rank: int, local_size: int) -> Cores | None:
    """Return this rank's share of the cores of its node; None if it has fewer than two."""
    each = len(available) // local_size
    mine = available[local_rank * each : (local_rank + 1) * each]
    if len(mine) < 2:
        return None
    rest = mine[1:]
    pipeline = round(_PIPELINE * len(mine)) if len(mine) >= _FEWEST_FOR_A_PIPELINE else 0
    if pipeline == 0:
        return Cores(mine[0], tuple(rest), tuple(rest))
    return Cores(mine[0], tuple(rest[pipeline:]), tuple(rest[:pipeline]))


@dataclass
class _Parted:
    """The affinities of this process before and now."""

    before: dict[int, set[int]]
    """Affinities by thread."""
    threads: int
    """torch's; 0 without torch. TensorFlow's pools do not change once they run."""
    cores: Cores | None
    dynamic: bool


_parted: _Parted | None = None
_watches_forks = False


def partition(local_rank: int, local_size: int, *, dynamic: bool = False, verbose: bool) -> Cores | None:
    """Confine this process's threads, and processes that it forks, to separate cores until `restore`.

    `dynamic`: they start with the coordinator's core as well, and the coordinator takes it while it needs it.
    Returns the cores, None if there is nothing to partition. Raises InvalidArgumentError if the system has no
    affinities.
    """
    global _parted, _watches_forks  # noqa: PLW0603 - a process has its cores once
    if not hasattr(os, "sched_setaffinity"):
        raise InvalidArgumentError(
            "--coordinator partitioned: this system does not let processes choose their cores",
            remedy="--coordinator graph",
        )
    if _parted is not None:
        return _parted.cores
    before = {thread: os.sched_getaffinity(thread) for thread in _threads()}
    cores = share(sorted(os.sched_getaffinity(0)), local_rank, local_size)
    torch = _torch()
    _parted = _Parted(before, torch.get_num_threads() if torch else 0, cores, dynamic)
    if cores is None:
        if local_rank == 0:
            print(
                f"paceline: --coordinator partitioned{':dynamic' if dynamic else ''}: with one core per rank there is "
                "nothing to partition; it works like negotiate",
                file=sys.stderr,
            )
        return None
    for thread in before:
        _confine(thread, cores.of_others(cores.framework, dynamic=dynamic))
    if torch and not dynamic:
        torch.set_num_threads(min(_parted.threads, len(cores.framework)))
    if not _watches_forks:
        os.register_at_fork(after_in_child=_forked)
        _watches_forks = True
    if verbose:
        print(
            f"paceline: rank {local_rank} of this node: core {cores.coordinator} coordinates, {_text(cores.framework)} "
            f"compute, {_text(cores.pipeline)} for forked processes"
            f"{'; all compute while there is nothing to coordinate' if dynamic else ''}",
            file=sys.stderr,
        )
    return cores


def restore() -> None:
    """Restore the previous affinities of all of this process's threads."""
    global _parted  # as above
    parted, _parted = _parted, None
    if parted is None or parted.cores is None:
        return
    usual = set[int]().union(*parted.before.values())
    for thread in _threads():
        _confine(thread, parted.before.get(thread, usual))
    torch = _torch()
    if torch and parted.threads:
        torch.set_num_threads(parted.threads)


def _torch() -> Any:  # noqa: ANN401 - a module
    """Return torch if the script uses it."""
    return sys.modules.get("torch")


def _forked() -> None:
    if _parted is not None and _parted.cores is not None:
        _confine(0, _parted.cores.of_others(_parted.cores.pipeline, dynamic=_parted.dynamic))


def _threads() -> list[int]:
    return [int(thread.name) for thread in Path("/proc/self/task").iterdir()]


def _confine(thread: int, cores: Iterable[int]) -> None:
    with contextlib.suppress(OSError):  # The thread has ended.
        os.sched_setaffinity(thread, cores)


def _text(cores: tuple[int, ...]) -> str:
    return ", ".join(map(str, cores))
