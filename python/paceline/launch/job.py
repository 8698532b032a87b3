"""The description of a job: its command, hosts and environment."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.launch import variables
from paceline.launch.elastic.discovery import Discovery
from paceline.launch.elastic.roster import Limits
from paceline.launch.hosts import Place


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """How the ranks of a job may change."""

    limits: Limits
    discovery: Discovery | None = None
    """Reports the current slots of each host; None: all given slots are always there."""
    port: int = 0
    """Port at which workers request their places; 0: any free port."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command, its hosts, and the environment of its ranks."""

    command: Sequence[str]
    places: Sequence[Place]
    rsh: Sequence[str]
    settings: Mapping[str, str]
    """PACELINE_* variables set by options."""
    named: Mapping[str, str]
    """Variables named by the user."""
    secret: str = field(repr=False)
    interface: str | None
    port: int | None
    grace_s: float
    verbose: bool
    switches: int = 0
    """How many of the server processes, the last ones, aggregate in the place of switches."""
    nodes_per_rack: int | None = None
    """Hosts under one switch; None: all."""
    agents: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Commands that start agents on hosts that are neither this one nor reachable by the remote shell."""
    realtime: int | None = None
    """SCHED_FIFO priority of ranks and servers, which their agents are allowed to set."""
    interface_source: str = "--interface"
    """The source of the interface, for messages."""
    limit_s: float = float("inf")
    """Time limit of the job."""
    record: Mapping[str, int] | None = None
    """`steps` and `warmup` of the trace that each rank records; None: no trace."""
    elastic: Elastic | None = None
    """Set for an elastic job: places have slots, and the launcher starts each rank separately."""
    number: str = field(default_factory=lambda: secrets.token_hex(8))
    """PACELINE_RUN_ID, which identifies this job."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(place.count for place in self.places)

    @property
    def servers(self) -> int:
        """Number of parameter servers with processes of their own; they are numbered after the ranks."""
        return sum(len(place.servers) for place in self.places) - self.switches

    @property
    def names(self) -> list[str]:
        """Names of all processes, by number: `rank 0`, …, `server 0`, …, `switch`; or `slot 0`, ….

        Several switches have numbers: `switch 0`, ….
        """
        if self.elastic is not None:
            return [f"slot {n}" for n in range(self.size)]
        ranks, servers = range(self.size), range(self.servers)
        switches = ["switch"] if self.switches == 1 else [f"switch {n}" for n in range(self.switches)]
        return [f"rank {n}" for n in ranks] + [f"server {n}" for n in servers] + switches

    def for_agent(self, node: int, *, remote: bool, mode: str) -> dict[str, Any]:
        """Return the job's description for a host's agent; `mode` is that of the output."""
        place = self.places[node]
        return {
            "id": self.number,
            "command": list(self.command),
            "folder": os.getcwd(),  # noqa: PTH109
            "inherited": variables.inherited(os.environ) if remote else {},
            "settings": dict(self.settings),
            "named": dict(self.named),
            "secret": self.secret,
            "interface": self.interface,
            "interface_source": self.interface_source,
            "port": self.port,
            "record": None if self.record is None else dict(self.record),
            "output": mode,
            "realtime": self.realtime,
            "node": node,
            "nodes": sum(place.count > 0 for place in self.places),
            "servers": list(place.servers),
            "all_servers": self.servers,
            "switches": self.switches,
            "nodes_per_rack": self.nodes_per_rack,
            "elastic": self.elastic is not None,
            "first": place.first,
            "count": place.count,
            "size": self.size,
        }
