"""Horovod's API for TensorFlow, with the same semantics: Horovod scripts change one line.

    import paceline.tensorflow as hvd  # instead of: import horovod.tensorflow as hvd

It works in eager execution, in `tf.function` and with Keras 3, also where XLA clusters the rest of a graph; not inside
of functions that XLA compiles as a whole (`jit_compile=True`), which cannot call Python. Tensors on a GPU go through
the memory of the host.

| module | contents |
| --- | --- |
| paceline.hvd | what other frameworks share: init, process sets, handles, objects, timeline, the elastic loop |
| execution | operations on eager tensors, and in graphs |
| operations, reducing | allreduce, allgather, broadcast, alltoall, reducescatter, grouped ones, join |
| compression | fp16 and bf16 |
| gradients, tape, optimizer | DistributedGradientTape, DistributedOptimizer |
| lifecycle | init |
| functions | variables and Python objects |
| marks | steps in the timeline |
| queries | rank and size as tensors |
| sync_batch_norm | SyncBatchNormalization |
| elastic | elastic jobs (`paceline run --elastic`) |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline._internal.extras import cannot_import
from paceline._internal.lazy import also_as, public_names

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    cannot_import("paceline.tensorflow", "TensorFlow", "tensorflow", error)

from paceline.hvd import api
from paceline.hvd.api import *  # noqa: F403 - the names of `api.__all__`
from paceline.hvd.timeline import mark_with
from paceline.tensorflow import elastic
from paceline.tensorflow.compression import Compression
from paceline.tensorflow.functions import (
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from paceline.tensorflow.lifecycle import init  # noqa: F401 - one of the names of `api.__all__`
from paceline.tensorflow.marks import StepMarks
from paceline.tensorflow.operations import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from paceline.tensorflow.optimizer import DistributedOptimizer
from paceline.tensorflow.queries import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from paceline.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

if TYPE_CHECKING:
    from paceline.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
__all__ += api.__all__

mark_with(StepMarks)
also_as({"paceline.tensorflow.mpi_ops": __name__})  # where Horovod's users import from


if not TYPE_CHECKING:  # type checkers would take it for a definition of every name

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
        if name == "SyncBatchNormalization":  # It needs Keras, which takes seconds to load.
            return importlib.import_module("paceline.tensorflow.sync_batch_norm").SyncBatchNormalization
        if name == "BroadcastGlobalVariablesHook":
            raise AttributeError(
                "paceline.tensorflow has no BroadcastGlobalVariablesHook: TensorFlow's estimators are gone; call "
                "hvd.broadcast_variables(variables, root_rank=0) after the first step"
            )
        raise AttributeError(f"module 'paceline.tensorflow' has no attribute {name!r}")


__dir__ = public_names(__name__)
