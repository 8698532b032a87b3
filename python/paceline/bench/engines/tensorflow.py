"""TensorFlow: MultiWorkerMirroredStrategy, and parameter servers with synchronous replicas."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

from paceline.bench.engines.base import Engine, environments, rank_words
from paceline.bench.environments import TENSORFLOW, install_line, python_of
from paceline.bench.places import Places, Slot
from paceline.bench.processes import Process
from paceline.bench.ranks.rank_spec import RankSpec


class _TensorFlow(Engine):
    """In this environment if it has TensorFlow, else in one that `--install` has made."""

    family = "tensorflow"
    module = ""

    def _python(self) -> str | None:
        return sys.executable if importlib.util.find_spec("tensorflow") else python_of(TENSORFLOW)

    def missing(self) -> str | None:
        """TensorFlow."""
        return None if self._python() else f"TensorFlow is not installed: {install_line(TENSORFLOW)}"

    def asks(self) -> dict[str, Any]:
        """What its ranks need."""
        return {"way": self.name, "servers": self.servers}

    def cluster(self, places: Places) -> dict[str, list[str]]:
        """As TF_CONFIG has it."""
        servers = {"ps": [slot.endpoint for slot in places.servers]} if places.servers else {}
        return {"worker": [slot.endpoint for slot in places.ranks], **servers}

    def processes(self, spec: RankSpec, places: Places) -> list[Process]:
        """A worker for each rank, and servers."""
        python = self._python()
        assert python is not None
        words = rank_words(python, self.module, spec)
        cluster = self.cluster(places)
        base = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "GRPC_ENABLE_FORK_SUPPORT": "0"}
        ready = environments(places, self.secret, base)

        def told(environment: dict[str, str], kind: str, slot: Slot) -> dict[str, str]:
            task = {"cluster": cluster, "task": {"type": kind, "index": slot.number}}
            return {**environment, "TF_CONFIG": json.dumps(task)}

        found = [
            Process(f"rank {slot.number}", words, told(environment, "worker", slot)) for slot, environment in ready
        ]
        for slot in places.own_servers:
            environment = told(ready[0][1], "ps", slot)
            found.append(Process(f"server {slot.number}", words, environment, serves=True))
        return found


class Mirrored(_TensorFlow):
    """Collectives over gRPC, in rings."""

    name = "tensorflow-mwm"
    module = "tensorflow_mirrored"

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """All gradients in one pack, unless told otherwise (bytes_per_pack=0): nothing begins before the last."""
        return "ring", {"bucket_size": self.options.fusion_bytes or (1 << 40)}


class Servers(_TensorFlow):
    """Distributed TensorFlow: variables on parameter servers, SyncReplicasOptimizer."""

    name = "tensorflow-ps"
    module = "tensorflow_servers"

    @property
    def servers(self) -> int:
        """Parameter servers."""
        return self.options.servers

    @property
    def strategy(self) -> tuple[str, dict[str, Any]] | None:
        """Every tensor by itself, round-robin over the servers."""
        return "ps", {"servers": self.servers}
