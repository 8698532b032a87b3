"""Horovod, for torch and for TensorFlow, if it is built in this environment or in one of its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from paceline_lab.bench.engines import mpirun
from paceline_lab.bench.engines.base import (
    Engine,
    environments,
    launcher_words,
    missing_device,
    rank_words,
    xla_variables,
)
from paceline_lab.bench.environments import HOROVOD, HOROVOD_TENSORFLOW, folder_of, install_line
from paceline_lab.bench.places import Places
from paceline_lab.bench.processes import Process
from paceline_lab.bench.ranks.rank_spec import RankSpec

FUSION = 128 << 20
"""HOROVOD_FUSION_THRESHOLD's default (horovod/common/common.h)."""


class Horovod(Engine):
    """Horovod's DistributedOptimizer over gloo, started by horovodrun."""

    name = "horovod"
    environment = HOROVOD
    family = "torch"
    module = "torch_rank"
    own_launcher = True
    variables: ClassVar[Mapping[str, str]] = {}
    """Of its ranks."""

    def _bin(self) -> Path | None:
        """Return the folder of horovodrun."""
        if _built_here(self.family):
            return Path(sys.executable).parent
        own = folder_of(self.environment) / "bin"
        return own if (own / "horovodrun").exists() else None

    def missing(self) -> str | None:
        """Check whether Horovod is missing; it has no wheels."""
        if self._bin() is None:
            return f"is not installed: {install_line(self.environment)} (compiles it, 5 to 20 minutes)"
        return missing_device(self.options) if self.family == "torch" else None

    def spec_fields(self) -> dict[str, Any]:
        """Return Horovod's interface."""
        device = self.options.device if self.family == "torch" else "cpu"
        return {"mode": "horovod", "device": device, "xla": self.options.xla}

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """Gloo's ring, with fused buffers."""
        return "ring", {"bucket_size": self.options.fusion_bytes or FUSION}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return one horovodrun that starts all ranks."""
        binaries = self._bin()
        assert binaries is not None
        size = len(places.ranks)
        (_, environment), *_ = environments(places, self.secret, {**self.variables, **xla_variables(self.options)})
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            environment.pop(name, None)
        environment["PATH"] = f"{binaries}{os.pathsep}{environment.get('PATH', os.defpath)}"
        if spec.fusion_bytes is not None:
            environment["HOROVOD_FUSION_THRESHOLD"] = str(spec.fusion_bytes)
        words = [str(binaries / "horovodrun"), "-np", str(size), "--gloo", "-H", f"localhost:{size}"]
        words += rank_words(str(binaries / "python"), self.module, spec)
        return [Process("horovodrun", launcher_words(*words), environment)]


class HorovodTensorFlow(Horovod):
    """Horovod's DistributedGradientTape over gloo."""

    name = "horovod-tensorflow"
    environment = HOROVOD_TENSORFLOW
    family = "tensorflow"
    module = "tensorflow_tape"
    variables: ClassVar[Mapping[str, str]] = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


class HorovodMpi(Horovod):
    """The same over MPI, started by mpirun: negotiation and all-reduces are MPI's."""

    name = "horovod-mpi"

    def missing(self) -> str | None:
        """Check whether Horovod, MPI in it, or mpirun is missing."""
        reason = super().missing()
        if reason is not None:
            return reason
        binaries = self._bin()
        assert binaries is not None
        return (
            None
            if (binaries / "mpirun").exists()
            else (f"its Horovod was built without MPI: rm -r {binaries.parent}, then {install_line(self.environment)}")
        )

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return one mpirun that starts all ranks."""
        binaries = self._bin()
        assert binaries is not None
        settings = {"HOROVOD_CPU_OPERATIONS": "MPI", "HOROVOD_CONTROLLER": "mpi"}
        settings |= {**self.variables, **xla_variables(self.options)}
        if spec.fusion_bytes is not None:
            settings["HOROVOD_FUSION_THRESHOLD"] = str(spec.fusion_bytes)
        python, starter = str(binaries / "python"), str(binaries / "mpirun")
        return [mpirun.process(python, spec, places, self.secret, settings, self.module, starter)]


class HorovodTensorFlowMpi(HorovodMpi, HorovodTensorFlow):
    """Horovod's DistributedGradientTape over MPI."""

    name = "horovod-tensorflow-mpi"


def _built_here(framework: str) -> bool:
    """Return whether this environment has Horovod with its library for a framework."""
    spec = importlib.util.find_spec("horovod")
    folders = (spec and spec.submodule_search_locations) or []
    return any(any(Path(folder, framework).glob("mpi_lib*")) for folder in folders)
