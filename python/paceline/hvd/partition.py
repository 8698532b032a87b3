"""Separate cores for coordinator, framework and input pipeline: the policy `partitioned`.

S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", the variant SCP: threads
that do not share a core cannot preempt each other. A rank's share of its node's cores is divided in three: the
coordinator and the thread that moves tensors get one core, processes that it forks (a DataLoader's workers) some, and
the framework the rest.
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


_parted: _Parted | None = None
_watches_forks = False


def partition(local_rank: int, local_size: int, *, verbose: bool) -> int | None:
    """Confine this process's threads, and processes that it forks, to separate cores until `restore`.

    Returns the coordinator's core, None if there is none. Raises InvalidArgumentError if the system has no affinities.
    """
    global _parted, _watches_forks  # noqa: PLW0603 - a process has its cores once
    if not hasattr(os, "sched_setaffinity"):
        raise InvalidArgumentError(
            "--coordinator partitioned: this system does not let processes choose their cores",
            remedy="--coordinator graph",
        )
    if _parted is not None:
        return None if _parted.cores is None else _parted.cores.coordinator
    before = {thread: os.sched_getaffinity(thread) for thread in _threads()}
    cores = share(sorted(os.sched_getaffinity(0)), local_rank, local_size)
    torch = _torch()
    _parted = _Parted(before, torch.get_num_threads() if torch else 0, cores)
    if cores is None:
        if local_rank == 0:
            print(
                "paceline: --coordinator partitioned: with one core per rank there is nothing to partition; it works "
                "like negotiate",
                file=sys.stderr,
            )
        return None
    for thread in before:
        _confine(thread, cores.framework)
    if torch:
        torch.set_num_threads(min(_parted.threads, len(cores.framework)))
    if not _watches_forks:
        os.register_at_fork(after_in_child=_forked)
        _watches_forks = True
    if verbose:
        print(
            f"paceline: rank {local_rank} of this node: core {cores.coordinator} coordinates, {_text(cores.framework)} "
            f"compute, {_text(cores.pipeline)} for forked processes",
            file=sys.stderr,
        )
    return cores.coordinator


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
        _confine(0, _parted.cores.pipeline)


def _threads() -> list[int]:
    return [int(thread.name) for thread in Path("/proc/self/task").iterdir()]


def _confine(thread: int, cores: Iterable[int]) -> None:
    with contextlib.suppress(OSError):  # The thread has ended.
        os.sched_setaffinity(thread, cores)


def _text(cores: tuple[int, ...]) -> str:
    return ", ".join(map(str, cores))
