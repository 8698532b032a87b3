"""Paceline: DDP over its backend, its DistributedOptimizer if a coordinator is named, or its tape for TensorFlow."""

from __future__ import annotations

import os
import sys
from typing import Any

from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError
from paceline.job.settings import Settings
from paceline.launch import variables
from paceline.settings.table import SETTINGS

from paceline_lab.bench.engines import mpirun
from paceline_lab.bench.engines.base import Engine, Options, environments, missing_device, rank_words, xla_variables
from paceline_lab.bench.engines.tensorflow import missing_tensorflow, tensorflow_python
from paceline_lab.bench.places import Places, job_of
from paceline_lab.bench.processes import Process
from paceline_lab.bench.ranks.rank_spec import RankSpec

DDP_BUCKET = 25 << 20
"""torch.nn.parallel.DistributedDataParallel's bucket_cap_mb; the first bucket has 1 MiB."""


class Paceline(Engine):
    """Paceline with one strategy, or with the one measured as fastest for each message size."""

    name = "paceline"
    family = "torch"
    module = "torch_rank"

    def __init__(self, options: Options, strategy: str | None) -> None:
        """Raises InvalidArgumentError for contradictory settings."""
        super().__init__(options)
        self._strategy = None if strategy is None else find_strategy(strategy).name
        given = {"strategy": self._strategy, "transport": options.transport, "coordinator": options.coordinator}
        if Settings.resolved(_without_own(), given, "flag").is_asynchronous:
            raise InvalidArgumentError(
                f"{strategy} does not end with the weights of other engines, which are compared",
                setting="strategy",
                remedy="{this=ps}, or paceline run --strategy async-ps",
            )
        self._settings = {SETTINGS[name].variable: value for name, value in given.items() if value is not None}
        self.own_launcher = "mpi" in (options.transport or "")

    def _python(self) -> str:
        """Return the Python of the ranks."""
        return self.options.python

    @property
    def label(self) -> str:
        """The name with the strategy."""
        return f"{self.name}{'' if self._strategy is None else f' {self._strategy}'}{self.xla_mark}"

    def missing(self) -> str | None:
        """Check whether mpirun is missing, for MPI, or GPUs."""
        return (mpirun.missing() if self.own_launcher else None) or missing_device(self.options)

    @property
    def servers(self) -> int:
        """Number of server processes; under mpirun, ranks also act as servers."""
        if self.own_launcher:
            return 0
        has = self._strategy is not None and "servers" in find_strategy(self._strategy).knobs
        return self.options.servers if has else 0

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """The strategy, with DDP's buckets under DDP; None if the ranks choose one; the run then reports it."""
        if self._strategy is None:
            return None
        by_tensor = self.options.coordinator is not None
        bucket: dict[str, Any] = {} if by_tensor else {"bucket_size": self.options.fusion_bytes or DDP_BUCKET}
        return self._strategy, {**bucket, **({"servers": self.servers} if self.servers else {})}

    def spec_fields(self) -> dict[str, Any]:
        """Return DDP, or the optimizer if a coordinator decides on the order; in DDP the order is fixed."""
        mode = "ddp" if self.options.coordinator is None else "optimizer"
        return {"mode": mode, "backend": "paceline", "device": self.options.device, "servers": self.servers}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return ranks and servers, as `paceline run` starts them."""
        settings = {**self._settings, **xla_variables(self.options)}
        if spec.mode == "optimizer" and spec.fusion_bytes is not None:
            settings["HOROVOD_FUSION_THRESHOLD"] = str(spec.fusion_bytes)
        if places.servers:
            settings |= {"PACELINE_SERVERS": str(len(places.servers)), "PACELINE_RUN_SERVERS": str(len(places.servers))}
        if self.own_launcher:
            return [mpirun.process(self.options.python, spec, places, self.secret, settings)]
        words = rank_words(self._python(), self.module, spec)
        processes = [
            Process(f"rank {slot.number}", words, environment)
            for slot, environment in environments(places, self.secret, settings)
        ]
        job, go = job_of(places)
        common = variables.base(os.environ, {**job, "secret": self.secret})
        for slot in places.own_servers:
            environment = variables.of_server(common, {**job, "all_servers": len(places.servers)}, go, slot.number)
            command = [sys.executable, "-m", "paceline.job.server"]
            processes.append(Process(f"server {slot.number}", command, {**environment, **settings}, serves=True))
        return processes


class PacelineTensorFlow(Paceline):
    """Paceline's distributed gradient tape, in TensorFlow."""

    name = "paceline-tensorflow"
    family = "tensorflow"
    module = "tensorflow_tape"

    def __init__(self, options: Options, strategy: str | None) -> None:
        """Raises InvalidArgumentError for contradictory settings, and for MPI."""
        super().__init__(options, strategy)
        if self.own_launcher:
            raise InvalidArgumentError(
                f"--transport {options.transport}: {self.name} is not measured over MPI", remedy="drop --transport"
            )

    def _python(self) -> str:
        return tensorflow_python() or sys.executable

    def missing(self) -> str | None:
        """Check whether TensorFlow is missing."""
        return missing_tensorflow()

    def spec_fields(self) -> dict[str, Any]:
        """Return the fields that its ranks need: a coordinator decides on the order of gradients, if one is named."""
        return {"mode": "optimizer", "servers": self.servers, "xla": self.options.xla}


def _without_own() -> dict[str, str]:
    """Return the environment without the variables of this process's own launcher."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_RUN_")}
