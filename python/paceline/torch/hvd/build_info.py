"""What Horovod was built with and runs on: nothing of that is here, Paceline moves tensors by its own runtime."""

from __future__ import annotations


def mpi_threads_supported() -> bool:
    """False: there is no MPI (Horovod raises ValueError then)."""
    return False


def mpi_enabled() -> bool:
    """False, also under mpirun, which only starts the ranks."""
    return False


def mpi_built() -> bool:
    """False."""
    return False


def gloo_enabled() -> bool:
    """False."""
    return False


def gloo_built() -> bool:
    """False."""
    return False


def nccl_built() -> int:
    """0: tensors on a GPU go through memory of the host. Horovod gives NCCL's version."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False."""
    return False


def rocm_built() -> bool:
    """False."""
    return False
