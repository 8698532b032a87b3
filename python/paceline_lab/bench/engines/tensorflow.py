"""TensorFlow: mirrored variables in many processes or in one, and parameter servers with synchronous replicas."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

from paceline_lab.bench.engines.base import Engine, environments, missing_device, rank_words, xla_variables
from paceline_lab.bench.environments import TENSORFLOW, install_line, python_of
from paceline_lab.bench.places import Places, Slot
from paceline_lab.bench.processes import Process
from paceline_lab.bench.ranks.rank_spec import RankSpec


def tensorflow_python() -> str | None:
    """Return the Python that has TensorFlow: this one, or that of the environment created by `--install`."""
    return sys.executable if importlib.util.find_spec("tensorflow") else python_of(TENSORFLOW)


def missing_tensorflow() -> str | None:
    """Return how to install TensorFlow, if it is missing."""
    return None if tensorflow_python() else f"TensorFlow is not installed: {install_line(TENSORFLOW)}"


class _TensorFlow(Engine):
    """TensorFlow in this environment if installed, otherwise in the environment created by `--install`."""

    family = "tensorflow"
    module = ""

    def missing(self) -> str | None:
        """Check whether TensorFlow is missing."""
        return missing_tensorflow()

    def spec_fields(self) -> dict[str, Any]:
        """Return the fields that its ranks need."""
        return {"mode": self.name, "servers": self.servers, "xla": self.options.xla}

    def cluster(self, places: Places) -> dict[str, list[str]]:
        """Return the cluster in the form of TF_CONFIG."""
        servers = {"ps": [slot.endpoint for slot in places.servers]} if places.servers else {}
        return {"worker": [slot.endpoint for slot in places.ranks], **servers}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return a worker per rank, and servers."""
        python = tensorflow_python()
        assert python is not None
        words = rank_words(python, self.module, spec)
        cluster = self.cluster(places)
        base = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "GRPC_ENABLE_FORK_SUPPORT": "0"}
        ready = environments(places, self.secret, {**base, **xla_variables(self.options)})

        def with_task(environment: dict[str, str], kind: str, slot: Slot) -> dict[str, str]:
            task = {"cluster": cluster, "task": {"type": kind, "index": slot.number}}
            return {**environment, "TF_CONFIG": json.dumps(task)}

        processes = [
            Process(f"rank {slot.number}", words, with_task(environment, "worker", slot)) for slot, environment in ready
        ]
        for slot in places.own_servers:
            environment = with_task(ready[0][1], "ps", slot)
            processes.append(Process(f"server {slot.number}", words, environment, serves=True))
        return processes


class Mirrored(_TensorFlow):
    """Ring collectives over gRPC."""

    name = "tensorflow-mwm"
    module = "tensorflow_mirrored"

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """A ring; by default (bytes_per_pack=0) all gradients are in one pack, which waits for the last one."""
        return "ring", {"bucket_size": self.options.fusion_bytes or (1 << 40)}


class Replicas(_TensorFlow):
    """One process with a replica on each of its devices: MirroredStrategy, as tf_cnn_benchmarks' `--num_gpus`.

    Its devices are logical CPUs, or GPUs 0 to n-1.
    """

    name = "tensorflow-mirrored"
    module = "tensorflow_replicas"
    own_launcher = True
    one_host = "is one process, whose devices are on one host; run it on one machine"

    def missing(self) -> str | None:
        """Check whether TensorFlow is missing, or GPUs."""
        return missing_tensorflow() or missing_device(self.options)

    def spec_fields(self) -> dict[str, Any]:
        """Return the fields that it needs."""
        return {**super().spec_fields(), "device": self.options.device}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """Return the one process, with the threads of all ranks."""
        python = tensorflow_python()
        assert python is not None
        on_cpus = {"CUDA_VISIBLE_DEVICES": ""} if spec.device == "cpu" else {}
        base = {"TF_CPP_MIN_LOG_LEVEL": "2", **on_cpus, **xla_variables(self.options)}
        (_, environment), *_ = environments(places, self.secret, base)
        return [Process("the process", rank_words(python, self.module, spec), environment)]


class Servers(_TensorFlow):
    """Distributed TensorFlow: variables on parameter servers, SyncReplicasOptimizer."""

    name = "tensorflow-ps"
    module = "tensorflow_servers"

    @property
    def servers(self) -> int:
        """Number of parameter servers."""
        return self.options.servers

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """Unfused tensors, round-robin over the servers."""
        return "ps", {"servers": self.servers}
