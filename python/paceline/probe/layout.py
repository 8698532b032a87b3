"""The hosts of a job, and the ranks on each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline._internal import units
from paceline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from paceline.job.job import Job

_SHOWN = 8


@dataclass(frozen=True)
class Host:
    """Ranks that share a machine."""

    name: str
    ranks: tuple[int, ...]

    @property
    def first(self) -> int:
        """The rank that represents it."""
        return self.ranks[0]


@dataclass(frozen=True)
class Layout:
    """The hosts of a job; all have the same number of ranks."""

    hosts: tuple[Host, ...]
    transports: tuple[str, ...]
    """The transports between rank 0 and other hosts, and inside its own."""
    servers: tuple[int, ...]
    """Hosts of parameter servers that are separate processes; numbers beyond those of `hosts` are other hosts."""

    @property
    def ranks_per_host(self) -> int:
        """Number of ranks on each host."""
        return len(self.hosts[0].ranks)

    @classmethod
    def of(cls, ranks: Job) -> Layout:
        """Return the layout as the runtime sees it.

        Raises InvalidArgumentError if hosts have different numbers of ranks.
        """
        status = ranks.status()
        by_host: dict[int, list[int]] = {}
        for rank in range(ranks.size):
            by_host.setdefault(status["hosts"][rank], []).append(rank)
        names = _names([status["peers"][members[0]]["host"] for members in by_host.values()])
        hosts = tuple(Host(name, tuple(members)) for name, members in zip(names, by_host.values(), strict=True))
        if len({len(host.ranks) for host in hosts}) > 1:
            raise InvalidArgumentError(
                f"hosts have different numbers of ranks ({_counted(hosts)}), and a cluster file has one for all",
                remedy="as many ranks on each host",
            )
        places = {host: number for number, host in enumerate(by_host)}
        servers = [peer["rank"] for peer in status["peers"] if peer["server"] is not None]
        on = [places.setdefault(status["hosts"][rank], len(places)) for rank in servers]
        transports = tuple(sorted({name for name in status["transports"][: ranks.size] if name not in (None, "self")}))
        return cls(hosts, transports, tuple(on))

    def describe(self) -> str:
        """Return `3 hosts (a, b and c), 2 ranks each`."""
        names = [host.name for host in self.hosts[:_SHOWN]] + ["…"] * (len(self.hosts) > _SHOWN)
        each = units.count(self.ranks_per_host, "rank") + (" each" if len(self.hosts) > 1 else "")
        return f"{units.count(len(self.hosts), 'host')} ({units.listed(names)}), {each}"


def _names(hosts: list[str]) -> list[str]:
    """Number hosts of the same name."""
    times, seen = Counter(hosts), Counter[str]()
    names = []
    for name in hosts:
        seen[name] += 1
        names.append(name if times[name] == 1 else f"{name} #{seen[name]}")
    return names


def _counted(hosts: tuple[Host, ...]) -> str:
    shown = [f"{host.name} {len(host.ranks)}" for host in hosts[:_SHOWN]]
    return ", ".join(shown) + (", …" if len(hosts) > _SHOWN else "")
