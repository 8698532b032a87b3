"""The names that all fronts of Horovod's API have: no tensor is among their arguments."""

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
from paceline.hvd.process_sets import ProcessSet, add_process_set, barrier, global_process_set, remove_process_set
from paceline.hvd.timeline import start_timeline, stop_timeline
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

# fmt: off
__all__ = [
    "Adasum", "Average", "HorovodInternalError", "Max", "Min", "NotInitializedError", "ProcessSet", "Product", "Sum",
    "add_process_set", "barrier", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank",
    "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "remove_process_set",
    "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]
# fmt: on
