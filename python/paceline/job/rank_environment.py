"""Which rank this process is, according to the environment set by its launcher.

The first of these that is present counts; later ones are stale, and ignored:

1. `RANK`, `WORLD_SIZE` and `LOCAL_RANK` together: `paceline run`, torchrun, and launchers that follow it. They set the
   variables for each process anew, so they are the innermost launcher.
2. `OMPI_COMM_WORLD_*`: Open MPI's mpirun. Inside an salloc, SLURM_* variables describe the allocation, not the rank.
3. `PMI_RANK` and `PMI_SIZE`: mpiexec of MPICH and Intel MPI (Hydra), or Slurm's own PMI.
4. `SLURM_PROCID` in a step, as started by srun. A batch script also has SLURM_PROCID=0, but is not a step (SLURM_STEP_*
   is missing): there, a process is alone. Where SLURM_JOB_ID is missing too, which Slurm sets in both, only some
   variables were handed on, to a container for example, and they are a step's.
5. `RANK` and `WORLD_SIZE` alone, set by hand or for a pod in which one of the above runs.
6. Nothing: rank 0 of 1.

`MASTER_ADDR` and `MASTER_PORT` are read in all cases; under Slurm the step's first host and a port derived from the
step's number replace them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from paceline._internal.netif import endpoint
from paceline.errors import InvalidArgumentError
from paceline.job.slurm import nodes, tasks_per_node
from paceline.settings.table import SETTINGS

_MOST = 1 << 20
# Slurm steps use two ports from here on: one for torch's store, one for Paceline's rendezvous. They are below the ports
# for outgoing connections on Linux (from 32768).
_FIRST_PORT, _PORT_PAIRS = 15_000, 8_000


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """This process's place in its job."""

    rank: int
    size: int
    local_rank: int | None
    """Among the ranks of this node; None if the launcher does not say."""
    local_size: int | None
    launcher: str
    """paceline, torchrun, openmpi, pmi, slurm, environment (RANK and WORLD_SIZE, from any source) or none."""
    rendezvous: str | None
    """host:port for ranks without torch: PACELINE_RENDEZVOUS, or Slurm's; None if there is none."""
    master_address: str | None
    """Where rank 0 runs, for torch's store."""
    master_port: int | None


def rank_environment(environ: Mapping[str, str] | None = None) -> RankEnvironment:
    """Read the variables (of this process, if none are given).

    Raises InvalidArgumentError for malformed or contradictory values; it names variable, value and remedy.
    """
    return _Reader(os.environ if environ is None else environ).read()


@dataclass(frozen=True)
class _Reader:
    environ: Mapping[str, str]

    def read(self) -> RankEnvironment:
        has = self._has
        if has("RANK") and has("WORLD_SIZE") and has("LOCAL_RANK"):
            launcher = (
                "torchrun" if has("TORCHELASTIC_RUN_ID") else "paceline" if has("PACELINE_RUN_ID") else "environment"
            )
            return self._from(launcher, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if has("OMPI_COMM_WORLD_RANK") or has("OMPI_COMM_WORLD_SIZE"):
            names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
            return self._from("openmpi", *names)
        if has("PMI_RANK") or has("PMI_SIZE"):
            return self._pmi()
        if has("SLURM_PROCID") and self._in_step():
            return self._slurm()
        if has("RANK") or has("WORLD_SIZE"):
            return self._from("environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if has("LOCAL_RANK"):
            raise self._missing("RANK", "LOCAL_RANK")
        return self._made("none", 0, 1, 0, 1)

    def _from(self, launcher: str, rank: str, size: str, local_rank: str, local_size: str) -> RankEnvironment:
        for name, other in ((rank, size), (size, rank)):
            if not self._has(name):
                raise self._missing(name, other)
        if self._has(local_size) and not self._has(local_rank):
            raise self._missing(local_rank, local_size)
        total = self._whole(size, least=1)
        own = self._below(rank, size, total)
        here = self._whole(local_size, least=1) if self._has(local_size) else None
        if here is not None and here > total:
            raise InvalidArgumentError(
                f"{local_size}={here} of {size}={total}: a node cannot hold more ranks than there are",
                remedy=f"{local_size}={total}",
            )
        if not self._has(local_rank):
            place = None
        elif here is None:
            place = self._below(local_rank, size, total)
        else:
            place = self._below(local_rank, local_size, here)
        return self._made(launcher, own, total, place, here)

    def _pmi(self) -> RankEnvironment:
        """Read PMI's variables. Hydra sets the local rank; Slurm's PMI does not, but Slurm itself does."""
        rank = self._from("pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
        if rank.local_rank is None and self.environ.get("SLURM_PROCID") == str(rank.rank) and self._in_step():
            step = self._slurm()
            if step.size == rank.size:
                return self._made("pmi", rank.rank, rank.size, step.local_rank, step.local_size)
        return rank

    def _in_step(self) -> bool:
        names = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")
        is_handed_on = not (self._has("SLURM_JOB_ID") or self._has("SLURM_JOBID"))
        return is_handed_on or any(map(self._has, names))

    def _slurm(self) -> RankEnvironment:
        size = "SLURM_STEP_NUM_TASKS" if self._has("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        rank = self._from("slurm", "SLURM_PROCID", size, "SLURM_LOCALID", "")
        local_size, source = None, "SLURM_STEP_TASKS_PER_NODE"
        if self._has(source):
            counts = tasks_per_node(self.environ[source], source)
            node = self._whole("SLURM_NODEID", least=0) if self._has("SLURM_NODEID") else 0
            if node >= len(counts):
                raise InvalidArgumentError(
                    f"SLURM_NODEID={node}, and {source}={self.environ[source][:80]}", remedy="srun python train.py"
                )
            if len(counts) == 1 or self._has("SLURM_NODEID"):
                local_size = counts[node]
        if local_size is not None and rank.local_rank is not None and rank.local_rank >= local_size:
            raise InvalidArgumentError(
                f"SLURM_LOCALID={rank.local_rank} of {local_size} tasks on this node", remedy="srun python train.py"
            )
        return self._made("slurm", rank.rank, rank.size, rank.local_rank, local_size)

    def _made(
        self, launcher: str, rank: int, size: int, local_rank: int | None, local_size: int | None
    ) -> RankEnvironment:
        address = self.environ.get("MASTER_ADDR") or None
        port = self._port() if self._has("MASTER_PORT") else None
        rendezvous = self.environ.get("PACELINE_RENDEZVOUS") or None
        if rendezvous is not None:
            SETTINGS["rendezvous"].check(rendezvous, SETTINGS["rendezvous"].source("variable"))
        if launcher == "slurm":
            first = self._first_host() if address is None or rendezvous is None else None
            address = address or first
            pair = _FIRST_PORT + 2 * (self._step_number() % _PORT_PAIRS)
            if rendezvous is None and first is not None:
                rendezvous = endpoint(first, pair + 1)
            port = pair if port is None and address is not None else port
        elif (address is None) != (port is None) and launcher != "none":
            there, missing = ("MASTER_PORT", "MASTER_ADDR") if address is None else ("MASTER_ADDR", "MASTER_PORT")
            raise self._missing(missing, there)
        return RankEnvironment(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            launcher=launcher,
            rendezvous=rendezvous,
            master_address=address,
            master_port=port,
        )

    def _first_host(self) -> str | None:
        for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
            if self._has(name):
                return nodes(self.environ[name], name)[0]
        return None

    def _step_number(self) -> int:
        """Return a number that is the same on all ranks of a step, and most likely different in other steps."""
        job = self._whole("SLURM_JOB_ID", least=0, most=1 << 62) if self._has("SLURM_JOB_ID") else 0
        name = "SLURM_STEP_ID" if self._has("SLURM_STEP_ID") else "SLURM_STEPID"
        step = self._whole(name, least=0, most=1 << 62) if self._has(name) else 0
        return job * 31 + step

    def _port(self) -> int:
        return self._whole("MASTER_PORT", least=1, most=65_535)

    def _has(self, name: str) -> bool:
        """Return whether a variable is set; an empty one counts as unset."""
        return bool(self.environ.get(name))

    def _whole(self, name: str, *, least: int, most: int = _MOST) -> int:
        text = self.environ[name].strip()
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise InvalidArgumentError(
                f"{name}={text[:80]}: must be {least}-{most}",
                remedy=f"unset {name}, or start ranks with paceline run, torchrun, mpirun or srun",
            )
        return int(text)

    def _below(self, name: str, limit: str, size: int) -> int:
        value = self._whole(name, least=0)
        if value >= size:
            raise InvalidArgumentError(
                f"{name}={value} of {limit}={size}: ranks are 0-{size - 1}", remedy=f"{name}={size - 1}, or unset both"
            )
        return value

    def _missing(self, name: str, there: str) -> InvalidArgumentError:
        value = self.environ[there][:80]
        return InvalidArgumentError(f"{there}={value} is set, and {name} is not", remedy=f"unset {there}, or {name}=…")
