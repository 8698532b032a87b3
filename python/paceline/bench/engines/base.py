"""What an engine is, and the processes that most have: a rank for each worker, as `paceline run` starts ranks."""

from __future__ import annotations

import os
import secrets
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal.netif import addresses
from paceline.bench.places import Places, Slot, job_of
from paceline.bench.processes import Process
from paceline.bench.ranks import start
from paceline.bench.ranks.rank_spec import RankSpec
from paceline.launch import variables


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user says of engines."""

    transport: str | None = None
    coordinator: str | None = None
    servers: int = 1
    fusion_bytes: int | None = None
    """Gradients of so many bytes travel together, in every engine that has such a knob."""
    python: str = sys.executable
    secret: str = ""
    """Of the ranks of paceline; drawn if there is none."""


class Engine(ABC):
    """A way to train the model on several ranks."""

    name: str
    family: str
    """torch, tensorflow or ray: whose computing it is."""
    own_launcher = False
    """Ranks are started by another program, which knows this host alone."""

    def __init__(self, options: Options) -> None:
        """For all runs."""
        self.options = options
        self.secret = options.secret or secrets.token_hex(32)

    @property
    def label(self) -> str:
        """In tables."""
        return self.name

    @abstractmethod
    def missing(self) -> str | None:
        """What this machine lacks for it, and what to do about that."""

    @abstractmethod
    def asks(self) -> dict[str, Any]:
        """Fields of `RankSpec` that are this engine's own."""

    @property
    def servers(self) -> int:
        """Processes besides the ranks."""
        return 0

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """By which the simulator forecasts it, with the simulator's options; None if it has no such strategy."""
        return None

    @property
    def needs_graph(self) -> bool:
        """Whether it builds the model from a list of layers."""
        return self.family == "tensorflow"

    @abstractmethod
    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Of this host."""


def rank_words(python: str, module: str, spec: RankSpec) -> list[str]:
    """The command of a rank."""
    return [python, start.__file__, module, str(Path(spec.folder) / "spec.json")]


def launcher_words(*words: str) -> list[str]:
    """The command of a launcher that starts ranks itself."""
    return [sys.executable, start.__file__, "exec", *words]


def environments(places: Places, secret: str, more: dict[str, str] | None = None) -> list[tuple[Slot, dict[str, str]]]:
    """Of every rank of this host: what `paceline run` would give it, the network's card, and `more`."""
    job, go = job_of(places)
    common = variables.base({**os.environ, **card(places)}, {**job, "secret": secret})
    return [(slot, {**variables.of_rank(common, job, go, slot.local), **(more or {})}) for slot in places.own]


def card(places: Places) -> dict[str, str]:
    """The network card for gloo and NCCL: that of this host's address. By itself, gloo looks the host's name up."""
    name = next((name for name, address in addresses().items() if address == _address(places)), None)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def _address(places: Places) -> str:
    return places.own[0].address if places.own else places.interface
