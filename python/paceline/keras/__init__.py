"""Horovod's API for Keras 3 with TensorFlow, with the same semantics: Horovod scripts change one line.

    import paceline.keras as hvd  # instead of: import horovod.keras as hvd, or horovod.tensorflow.keras

| module | contents |
| --- | --- |
| paceline.hvd, paceline.tensorflow | init, process sets, operations on tensors |
| optimizer | DistributedOptimizer, load_model |
| callbacks | broadcast of variables, averages of metrics, warm-up of the learning rate |
| elastic | elastic jobs (`paceline run --elastic`) |
| values | operations on values |
"""

from __future__ import annotations

from paceline._internal.extras import cannot_import
from paceline._internal.lazy import public_names
from paceline.errors import InvalidArgumentError

try:
    import keras
except ImportError as error:
    cannot_import("paceline.keras", "Keras 3", "tensorflow", error)

if not keras.__version__.startswith("3."):
    raise ImportError(f"paceline.keras needs Keras 3, and this is {keras.__version__}; pip install 'keras>=3'")
if keras.backend.backend() != "tensorflow":
    raise InvalidArgumentError(
        f"paceline.keras needs Keras's backend tensorflow, and this is {keras.backend.backend()}; set "
        "KERAS_BACKEND=tensorflow before Keras is imported (with the backend torch, train by paceline.torch)"
    )

from paceline.hvd.operators import Adasum, Average, Max, Min, Product, Sum
from paceline.hvd.process_sets import global_process_set
from paceline.keras import callbacks, elastic
from paceline.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model
from paceline.keras.values import allgather, allreduce, broadcast, reducescatter
from paceline.tensorflow import (
    Compression,
    HorovodInternalError,
    NotInitializedError,
    ProcessSet,
    SyncBatchNormalization,
    add_process_set,
    allgather_object,
    barrier,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "NotInitializedError",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

__dir__ = public_names(__name__)
