"""Numbers of workers and servers, their resources, and their placement by Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidArgumentError
from paceline.launch.hosts import MOST_RANKS
from paceline.ray.bundles import Room

_MOST_CPUS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a RayExecutor. Raises InvalidArgumentError for invalid arguments."""

    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int | None = None
    cpus_per_worker: float = 1
    use_gpu: bool = False
    gpus_per_worker: float | None = None
    cpus_per_server: float = 1

    def __post_init__(self) -> None:
        """Check the arguments."""
        if (self.num_workers is None) == (self.num_hosts is None):
            raise InvalidArgumentError(
                "num_workers, num_hosts: must be one of them", remedy="num_workers=4, or num_hosts=2"
            )
        if self.num_workers_per_host is not None and self.num_hosts is None:
            raise InvalidArgumentError(
                "num_workers_per_host: needs num_hosts", remedy="num_hosts=2, or drop num_workers_per_host"
            )
        for name in ("num_workers", "num_hosts", "num_workers_per_host"):
            check_count(name, getattr(self, name))
        for name in ("cpus_per_worker", "cpus_per_server"):
            _check(name, getattr(self, name), _in_ten_thousandths, "a number of CPUs above 0, in steps of 0.0001")
        if self.gpus_per_worker is not None and not self.use_gpu:
            raise InvalidArgumentError(
                "gpus_per_worker: needs use_gpu=True", remedy="use_gpu=True, or drop gpus_per_worker"
            )
        _check("gpus_per_worker", self.gpus_per_worker, lambda value: value > 0, "a number of GPUs above 0")

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.num_workers or (self.num_hosts or 0) * self.per_bundle

    @property
    def per_bundle(self) -> int:
        """Workers that share a bundle and thus a node."""
        return 1 if self.num_hosts is None else self.num_workers_per_host or 1

    @property
    def gpus(self) -> float:
        """GPUs of a worker."""
        return (self.gpus_per_worker or 1) if self.use_gpu else 0

    @property
    def room(self) -> Room:
        """Room for the workers: on as few nodes as possible, or a number on each of several nodes."""
        each = {"CPU": float(self.cpus_per_worker * self.per_bundle)}
        if self.use_gpu:
            each["GPU"] = float(self.gpus * self.per_bundle)
        what = f"{self.workers} worker{'s'[: self.workers != 1]}"
        count = self.workers // self.per_bundle
        return Room(what, [each] * count, "PACK" if self.num_hosts is None else "STRICT_SPREAD")

    def servers_room(self, servers: int) -> Room:
        """Return room for parameter servers: spread over the nodes, because each receives data from all workers."""
        what = f"{servers} parameter server{'s'[: servers != 1]}"
        return Room(what, [{"CPU": float(self.cpus_per_server)}] * servers, "SPREAD")


def _in_ten_thousandths(value: float) -> bool:
    """Return a share of a node's resource in units that Ray can count."""
    return 0 < value <= _MOST_CPUS and round(value, 4) == value


def check_count(name: str, value: object) -> None:
    """Raise InvalidArgumentError if it is neither None nor a number of ranks."""
    _check(
        name,
        value,
        lambda number: isinstance(number, int) and 1 <= number <= MOST_RANKS,
        f"a number from 1 to {MOST_RANKS}",
    )


def _check(name: str, value: object, good: Callable[[Any], bool], what: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not good(value):
        raise InvalidArgumentError(f"{name}: must be {what}, not {value!r:.80}", remedy=f"{name}=1")
