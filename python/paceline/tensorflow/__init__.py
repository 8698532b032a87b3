"""Horovod's API for TensorFlow, with the same semantics: Horovod scripts change one line.

    import paceline.tensorflow as hvd  # instead of: import horovod.tensorflow as hvd

It works in eager execution, in `tf.function` and with Keras 3; without XLA, whose graphs cannot call
Python (`jit_compile=False`). Tensors on a GPU go through the memory of the host.

| module | contents |
| --- | --- |
| paceline.hvd | what other frameworks share: init, process sets, handles, objects, timeline, the elastic loop |
| execution | operations on eager tensors, and in graphs |
| operations, reducing | allreduce, allgather, broadcast, alltoall, reducescatter, grouped ones, join |
| compression | fp16 and bf16 |
| gradients, tape, optimizer | DistributedGradientTape, DistributedOptimizer |
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

from paceline.hvd.build_info import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from paceline.hvd.lifecycle import init, shutdown
from paceline.hvd.operators import Adasum, Average, Max, Min, Product, Sum
from paceline.hvd.process_sets import (
    ProcessSet,
    add_process_set,
    barrier,
    global_process_set,
    remove_process_set,
)
from paceline.hvd.timeline import mark_with, start_timeline, stop_timeline
from paceline.hvd.world import (
    HorovodInternalError,
    NotInitializedError,
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
)
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
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "NotInitializedError",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

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
