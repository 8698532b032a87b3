"""The base class of engines, and the environment and command of their ranks, as under `paceline run`."""

from __future__ import annotations

import os
import secrets
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline._internal.netif import addresses
from paceline.launch import variables

from paceline_lab.bench.places import Places, Slot, job_of
from paceline_lab.bench.processes import Process
from paceline_lab.bench.ranks import start
from paceline_lab.bench.ranks.rank_spec import RankSpec


@dataclass(frozen=True, kw_only=True)
class Options:
    """The user's options for engines."""

    transport: str | None = None
    coordinator: str | None = None
    servers: int = 1
    inside: Literal["root", "ring"] = "root"
    """How engine ray-ps reduces inside a node."""
    fusion_bytes: int | None = None
    """Fusion size in bytes, for every engine that has such an option."""
    device: str = "cpu"
    """Where engines of torch compute: cpu or cuda."""
    xla: bool = False
    """Whether engines of TensorFlow cluster their graphs automatically, for XLA."""
    python: str = sys.executable
    secret: str = ""
    """Secret of Paceline's ranks; random if empty."""


class Engine(ABC):
    """A way to train the model on several ranks."""

    name: str
    family: str
    """The framework that computes: torch, tensorflow or ray."""
    own_launcher = False
    """Whether another program starts the ranks, on this host only."""
    one_host = "has its own launcher, which cannot reach the hosts of this job; run it on one machine"
    """Why it runs on one host only, then."""

    def __init__(self, options: Options) -> None:
        """Take the options."""
        self.options = options
        self.secret = options.secret or secrets.token_hex(32)

    @property
    def label(self) -> str:
        """The name in tables."""
        return f"{self.name}{self.xla_mark}"

    @property
    def xla_mark(self) -> str:
        """The end of its name, if it runs with XLA."""
        return " xla" if self.options.xla else ""

    @abstractmethod
    def missing(self) -> str | None:
        """Return what this machine lacks for the engine, and the remedy; None if nothing is missing."""

    @abstractmethod
    def spec_fields(self) -> dict[str, Any]:
        """Return this engine's own fields of `RankSpec`."""

    @property
    def servers(self) -> int:
        """Number of server processes."""
        return 0

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """The strategy and options of its forecast; None if the simulator has no such strategy."""
        return None

    @property
    def needs_graph(self) -> bool:
        """Whether it needs the model as a list of layers."""
        return self.family == "tensorflow"

    @abstractmethod
    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return the processes of this host."""


def missing_device(options: Options) -> str | None:
    """Return the remedy if the ranks are to compute on devices of CUDA and torch sees none."""
    import torch

    if options.device == "cpu" or torch.cuda.is_available():
        return None
    return "needs a GPU, and torch with CUDA: pip install torch (https://pytorch.org)"


def xla_variables(options: Options) -> dict[str, str]:
    """Return TensorFlow's variables that turn auto-clustering on, on CPUs too.

    tf_cnn_benchmarks' `--xla` sets the same level for GPUs (https://www.tensorflow.org/xla#auto-clustering).
    """
    return {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"} if options.xla else {}


def rank_words(python: str, module: str, spec: RankSpec) -> list[str]:
    """Return the command of a rank."""
    return [python, start.__file__, module, str(Path(spec.folder) / "spec.json")]


def launcher_words(*words: str) -> list[str]:
    """Return the command of a launcher that starts ranks itself."""
    return [sys.executable, start.__file__, "exec", *words]


def environments(places: Places, secret: str, more: dict[str, str] | None = None) -> list[tuple[Slot, dict[str, str]]]:
    """Return this host's ranks and their environments: `paceline run`'s variables, those for the NIC, and `more`."""
    job, go = job_of(places)
    common = variables.base({**os.environ, **card(places)}, {**job, "secret": secret})
    return [(slot, {**variables.of_rank(common, job, go, slot.local), **(more or {})}) for slot in places.own]


def card(places: Places) -> dict[str, str]:
    """Return variables that name this host's NIC, for NCCL and gloo, which would otherwise look up the host name."""
    name = next((name for name, own in addresses().items() if _address(places) in own), None)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def _address(places: Places) -> str:
    return places.own[0].address if places.own else places.interface
