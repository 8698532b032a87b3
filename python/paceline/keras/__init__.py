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
        f"paceline.keras needs Keras's backend tensorflow, and this is {keras.backend.backend()}",
        remedy="KERAS_BACKEND=tensorflow (with the backend torch: paceline.torch)",
    )

from paceline.hvd import api
from paceline.hvd.api import *  # noqa: F403 - the names of `api.__all__`
from paceline.keras import callbacks, elastic
from paceline.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model
from paceline.keras.values import allgather, allreduce, broadcast, reducescatter
from paceline.tensorflow import (
    Compression,
    SyncBatchNormalization,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
    init,  # noqa: F401 - one of the names of `api.__all__`
)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += api.__all__

__dir__ = public_names(__name__)
