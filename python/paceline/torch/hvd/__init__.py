"""Horovod's API for PyTorch, with the same semantics: Horovod scripts change one line.

    import paceline.torch as hvd  # instead of: import horovod.torch as hvd

Ranks submit named tensors in any order. Tensors that all ranks have submitted are reduced, small ones fused into one
operation.

| module | contents |
| --- | --- |
| paceline.hvd | what other frameworks share: init, process sets, handles, objects, timeline, the elastic loop |
| tensors | tensors as arguments |
| operators, compression | how tensors are reduced; fp16 and bf16 |
| all_reduce, all_gather, broadcasting, all_to_all, reduce_scatter, sparse | operations |
| reducing, gathering | their shared code |
| parameters | parameters and optimizer state |
| optimizer, distributed, gradients, grouping, pull | DistributedOptimizer |
| sync_batch_norm | SyncBatchNorm |
| elastic | elastic jobs (`paceline run --elastic`) |
"""

from paceline._internal.lazy import public_names
from paceline.hvd import api
from paceline.hvd.api import *  # noqa: F403 - the names of `api.__all__`
from paceline.hvd.elastic.runner import on_world_change
from paceline.hvd.handles import poll, synchronize
from paceline.hvd.objects import allgather_object, broadcast_object
from paceline.hvd.process_sets import join
from paceline.hvd.timeline import mark_with
from paceline.torch.hvd import elastic
from paceline.torch.hvd.all_gather import allgather, allgather_async, grouped_allgather, grouped_allgather_async
from paceline.torch.hvd.all_reduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from paceline.torch.hvd.all_to_all import alltoall, alltoall_async
from paceline.torch.hvd.broadcasting import broadcast, broadcast_, broadcast_async, broadcast_async_
from paceline.torch.hvd.compression import Compression
from paceline.torch.hvd.distributed import enter_world, leave_world
from paceline.torch.hvd.optimizer import DistributedOptimizer
from paceline.torch.hvd.parameters import broadcast_optimizer_state, broadcast_parameters
from paceline.torch.hvd.reduce_scatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from paceline.torch.hvd.sparse import sparse_allreduce_async
from paceline.torch.hvd.sync_batch_norm import SyncBatchNorm
from paceline.torch.recorder.marks import Marks

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += api.__all__

mark_with(Marks)
on_world_change(enter_world, leave_world)

__dir__ = public_names(__name__)
