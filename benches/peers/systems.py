"""What is measured, and how each system is launched: by its own launcher, with its own defaults."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import environments
from environments import SkippedError

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class System:
    """One column of the tables."""

    name: str
    title: str
    job: str  # the script that every rank runs
    transport: str  # shm, tcp, mpi or grpc
    environment: str = ""  # of an MPI
    options: tuple[str, ...] = ()  # to its launcher
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # to the job
    yields: bool = True  # to other ranks while it waits, so that jobs with more ranks than cores make progress

    @property
    def ours(self) -> bool:
        """Whether it is paceline."""
        return "paceline" in self.name


_UCX = ("--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any")
_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self")


def _over(environment: str, title: str) -> tuple[System, System]:
    """Paceline over an MPI: its own strategy over messages, and that library's all-reduce."""
    variables = {"PACELINE_TRANSPORT": "mpi"}
    native = variables | {"PACELINE_STRATEGY": "native"}
    return (
        System(f"paceline-{environment}", f"paceline, {title}", "job_native.py", "mpi", environment, (), variables),
        System(
            f"paceline-{environment}-native",
            f"paceline, {title}'s own",
            "job_native.py",
            "mpi",
            environment,
            variables=native,
        ),
    )


SYSTEMS = {
    system.name: system
    for system in (
        System("gloo", "gloo", "job_torch.py", "tcp", arguments=("gloo",)),
        System("torch-paceline", "paceline", "job_torch.py", "shm", arguments=("paceline",)),
        System("openmpi", "Open MPI", "job_mpi.py", "shm", "openmpi"),
        System("paceline", "paceline", "job_native.py", "shm", variables={"PACELINE_TRANSPORT": "shm"}),
        System("mpich", "MPICH", "job_mpi.py", "shm", "mpich"),
        # Not the defaults, but faster at small sizes.
        System("openmpi-ucx", "Open MPI, UCX", "job_mpi.py", "shm", "openmpi", _UCX),
        System(
            "mpich-single", "MPICH, one thread", "job_mpi.py", "shm", "mpich", (), {}, ("--threads", "single"), False
        ),
        System("openmpi-tcp", "Open MPI, TCP", "job_mpi.py", "tcp", "openmpi", _TCP),
        System("paceline-tcp", "paceline, TCP", "job_native.py", "tcp", variables={"PACELINE_TRANSPORT": "tcp"}),
        System("paceline-grpc", "paceline, gRPC", "job_native.py", "grpc", variables={"PACELINE_TRANSPORT": "grpc"}),
        System(
            "paceline-tls",
            "paceline, gRPC, TLS",
            "job_native.py",
            "grpc",
            variables={"PACELINE_TRANSPORT": "grpc", "PACELINE_TLS": "1"},
        ),
        System(
            "torch-paceline-tcp",
            "paceline, TCP",
            "job_torch.py",
            "tcp",
            variables={"PACELINE_TRANSPORT": "tcp"},
            arguments=("paceline",),
        ),
        *_over("openmpi", "Open MPI"),
        *_over("mpich", "MPICH"),
    )
}
DEFAULT = [name for name, system in SYSTEMS.items() if system.transport != "mpi"]
"""What is measured by default."""


def prepare(system: System) -> None:
    """Install what the system needs; SkippedError says why it cannot be measured."""
    if system.environment:
        environments.ensure(system.environment)
    elif system.job == "job_torch.py" and importlib.util.find_spec("torch") is None:
        raise SkippedError(f"{system.name}: torch is not installed")
    if not system.ours:
        return
    wanted = "import paceline.torch, torch.distributed as d; d.Backend.PACELINE"
    code = "from paceline._core import Engine" if system.job == "job_native.py" else wanted
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SkippedError(f"{system.name}: {(done.stderr.strip().splitlines() or ['does not start'])[-1]}")


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def launches(system: System, ranks: int, arguments: list[str]) -> list[tuple[list[str], dict[str, str]]]:
    """The processes to start, each with its environment: an MPI's launcher, or the ranks themselves."""
    words = [str(HERE / system.job), *system.arguments, *arguments]
    if system.environment:
        place = environments.binaries(system.environment)
        oversubscribe = ["--oversubscribe"] if system.environment == "openmpi" and ranks > cores() else []
        launcher = [str(place / "mpirun"), "-n", str(ranks), *oversubscribe, *system.options]
        variables = environments.variables(system.environment) | dict(system.variables)
        python = sys.executable if system.ours else str(place / "python")
        return [([*launcher, python, *words], variables | {"OMP_NUM_THREADS": "1"})]
    shared = {
        **os.environ,
        **system.variables,
        "OMP_NUM_THREADS": "1",  # as torchrun sets it
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_port()),
        "PACELINE_SECRET": secrets.token_hex(16),
    }
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)} for rank in range(ranks)]
    return [([sys.executable, *words], shared | each) for each in own]


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


def cores() -> int:
    """Cores available to this process."""
    return len(os.sched_getaffinity(0))
