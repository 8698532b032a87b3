"""What is measured, and how each system is launched: by its own launcher, with its own defaults."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from typing import Any

import click
from paceline._internal.ports import free_ports
from paceline._internal.system import cores
from paceline.errors import PacelineError
from paceline_lab.bench import environments
from paceline_lab.bench.host_group import Alone
from paceline_lab.bench.processes import Process, run

RANK = Path(__file__).resolve().with_name("rank.py")


class SkippedError(Exception):
    """A system cannot be measured here; the message says why."""


@dataclass(frozen=True)
class System:
    """One column of the tables."""

    name: str
    title: str
    transport: str  # shm, tcp, mpi or grpc
    way: tuple[str, str] = ("engine", "")  # of rank.py, and its option
    environment: str = ""  # of an MPI
    options: tuple[str, ...] = ()  # to its launcher
    variables: Mapping[str, str] = field(default_factory=dict)
    yields: bool = True  # to other ranks while it waits, so that jobs with more ranks than cores make progress

    @property
    def ours(self) -> bool:
        """Whether it is paceline."""
        return "paceline" in self.name


def _mpi(name: str, title: str, *options: str, transport: str = "shm", threads: str = "multiple") -> System:
    library = name.partition("-")[0]
    return System(name, title, transport, ("mpi", threads), library, options, yields=threads != "single")


def _torch(name: str, title: str, transport: str, backend: str = "paceline") -> System:
    variables = {"PACELINE_TRANSPORT": transport} if backend == "paceline" and transport != "shm" else {}
    return System(name, title, transport, ("torch", backend), variables=variables)


def _engine(name: str, title: str, transport: str, environment: str = "", **variables: str) -> System:
    variables = {"PACELINE_TRANSPORT": transport, **variables}
    return System(name, title, transport, environment=environment, variables=variables)


_UCX = ("--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any")
_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self")
_ALL = (
    _torch("gloo", "gloo", "tcp", "gloo"),
    _torch("torch-paceline", "paceline", "shm"),
    _mpi("openmpi", "Open MPI"),
    _engine("paceline", "paceline", "shm"),
    _mpi("mpich", "MPICH"),
    # Not the defaults, but faster at small sizes.
    _mpi("openmpi-ucx", "Open MPI, UCX", *_UCX),
    _mpi("mpich-single", "MPICH, one thread", threads="single"),
    _mpi("openmpi-tcp", "Open MPI, TCP", *_TCP, transport="tcp"),
    _engine("paceline-tcp", "paceline, TCP", "tcp"),
    _engine("paceline-grpc", "paceline, gRPC", "grpc"),
    _engine("paceline-tls", "paceline, gRPC, TLS", "grpc", PACELINE_TLS="1"),
    _torch("torch-paceline-tcp", "paceline, TCP", "tcp"),
    # Over an MPI: paceline's own strategy over messages, and that library's all-reduce.
    _engine("paceline-openmpi", "paceline, Open MPI", "mpi", "openmpi"),
    _engine("paceline-openmpi-native", "paceline, Open MPI's own", "mpi", "openmpi", PACELINE_STRATEGY="native"),
    _engine("paceline-mpich", "paceline, MPICH", "mpi", "mpich"),
    _engine("paceline-mpich-native", "paceline, MPICH's own", "mpi", "mpich", PACELINE_STRATEGY="native"),
)
SYSTEMS = {system.name: system for system in _ALL}
DEFAULT = [name for name, system in SYSTEMS.items() if system.transport != "mpi"]
"""What is measured by default."""


def prepare(system: System) -> None:
    """Install what the system needs; SkippedError says why it cannot be measured."""
    if system.environment and environments.python_of(system.environment) is None:
        try:
            environments.install(system.environment, lambda text: print(text, file=sys.stderr, flush=True))
        except (PacelineError, click.ClickException) as error:
            raise SkippedError(f"{system.name}: {error}") from error
    if system.way[0] == "torch" and importlib.util.find_spec("torch") is None:
        raise SkippedError(f"{system.name}: torch is not installed")


def launches(system: System, ranks: int, arguments: list[str]) -> list[Process]:
    """The processes to start: an MPI's launcher, or the ranks themselves."""
    words = [str(RANK), *system.way, *arguments]
    shared = {**os.environ, **system.variables, "OMP_NUM_THREADS": "1"}  # as torchrun sets it
    if system.environment:
        place = environments.folder_of(system.environment) / "bin"
        oversubscribe = ["--oversubscribe"] if system.environment == "openmpi" and ranks > cores() else []
        launcher = [str(place / "mpirun"), "-n", str(ranks), *oversubscribe, *system.options]
        shared |= {"PATH": f"{place}{os.pathsep}{shared.get('PATH', '')}"}
        # Open MPI refuses to run as root, as in a container, by default.
        shared |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            shared.pop(name, None)
        python = sys.executable if system.ours else str(place / "python")
        return [Process("mpirun", [*launcher, python, *words], shared)]
    (port,) = free_ports("127.0.0.1", 1)
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "PACELINE_SECRET": secrets.token_hex(16)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return [Process(f"rank {each['RANK']}", [sys.executable, *words], shared | each) for each in own]


def measure(system: System, ranks: int, arguments: list[str], limit_s: float) -> list[Any]:
    """What each rank wrote, in rank order. A job of its own, of which nothing is left. Raises EngineFailedError."""
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
        place = Path(folder)
        run(Alone(), launches(system, ranks, [*arguments, "--out", folder]), place, limit_s)
        return [loads((place / f"{rank}.json").read_text()) for rank in range(ranks)]


def busy(seconds: float = 0.5) -> float:
    """The share of all cores' time that other work uses while this process sleeps."""
    before = _idle()
    time.sleep(seconds)
    idle, total = (after - first for after, first in zip(_idle(), before, strict=True))
    return 1 - idle / total if total else 0.0


def _idle() -> tuple[int, int]:
    """Idle ticks and all ticks of the cores (user to steal; guest time is part of user time)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
