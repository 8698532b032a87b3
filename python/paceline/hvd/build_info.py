"""Horovod's queries about its build: all return false, because Paceline moves tensors with its own runtime."""

from __future__ import annotations


def mpi_threads_supported() -> bool:
    """Return False: there is no MPI. Horovod raises ValueError in that case."""
    return False


def mpi_enabled() -> bool:
    """Return False, also under mpirun, which only starts the ranks."""
    return False


def mpi_built() -> bool:
    """Return False."""
    return False


def gloo_enabled() -> bool:
    """Return False."""
    return False


def gloo_built() -> bool:
    """Return False."""
    return False


def nccl_built() -> int:
    """Return 0: tensors on a GPU go through host memory. Horovod returns the version of NCCL."""
    return 0


def ddl_built() -> bool:
    """Return False."""
    return False


def ccl_built() -> bool:
    """Return False."""
    return False


def cuda_built() -> bool:
    """Return False."""
    return False


def rocm_built() -> bool:
    """Return False."""
    return False
