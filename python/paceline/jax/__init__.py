"""All-reduces of JAX's arrays between the ranks of a job, by DLPack.

    import paceline.jax

    with paceline.job.join() as job:
        grads = paceline.jax.all_reduce(job, jax.grad(loss)(weights))

It is called between compiled functions, not in them: a function that `jax.jit` traces has no values to send.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, cast

from paceline._internal.extras import cannot_import

try:
    import jax
except ImportError as error:
    cannot_import("paceline.jax", "JAX", "jax", error)
import numpy as np

from paceline._internal.lazy import public_names
from paceline.errors import InvalidArgumentError
from paceline.job.arrays import DTYPES
from paceline.job.job import Group

__all__ = ["all_reduce"]

T = TypeVar("T")
"""An array of JAX, or a list of them."""
Op = Literal["sum", "average", "min", "max", "product"]
_ALIGNMENT = 64
"""Bytes: JAX takes memory as an array without copying if it is aligned to this."""


def all_reduce(group: Group, array: T, op: Op = "sum") -> T:
    """Reduce the arrays of all ranks. The ranks of a group call this in the same order.

    Arrays on the CPU are read in place through DLPack; their sum is computed in one new buffer, which becomes the
    result. Arrays on a GPU go through the memory of the host.

    Args:
        group: The job (`paceline.job.join()`), or a group of its ranks.
        array: An array, or a list of arrays of any shapes and one dtype, which are reduced as one operation; dtypes
            float32, float64, float16, bfloat16, int32, int64 and uint8. Shapes and dtypes are the same on all ranks.
        op: sum, average, min, max or product.

    Returns:
        New arrays of the same shapes and dtypes, on the device of each, equal on all ranks.

    Raises:
        InvalidArgumentError: A value is traced by `jax.jit` or `jax.grad`, is no array of JAX, or has another dtype.
        JobError: A rank is gone, or the ranks disagree about the arrays; the message names both.

    Example:
        >>> with paceline.job.join() as example:
        ...     paceline.jax.all_reduce(example, jnp.ones(2))
        Array([1., 1.], dtype=float32)
    """
    if not isinstance(array, list):
        return cast(T, _reduced(group, [array], op)[0])
    return cast(T, _reduced(group, array, op) if array else [])


def _reduced(group: Group, arrays: list[jax.Array], op: Op) -> list[jax.Array]:
    hosts = [_host(array, place) for place, array in enumerate(arrays)]
    dtype = hosts[0].dtype
    if any(host.dtype != dtype for host in hosts):
        raise InvalidArgumentError(
            f"all_reduce: arrays of one call have {', '.join(sorted({host.dtype.name for host in hosts}))}",
            remedy="a call for each dtype",
        )
    buffers = [_aligned(host) for host in hosts]
    group.all_reduce(buffers, op)
    return [_back(buffer, array) for buffer, array in zip(buffers, arrays, strict=True)]


def _host(array: jax.Array, place: int) -> Any:  # noqa: ANN401 - of numpy
    if isinstance(array, jax.core.Tracer):
        raise InvalidArgumentError(
            "all_reduce: the array is being traced and has no values",
            remedy="all_reduce outside of jax.jit, jax.grad and jax.vmap",
        )
    if not isinstance(array, jax.Array):
        raise InvalidArgumentError(
            f"all_reduce: array {place} is a {type(array).__name__}, not an array of JAX",
            remedy="jax.numpy.asarray(...)",
        )
    if array.dtype.name not in DTYPES:
        raise InvalidArgumentError(
            f"all_reduce: array {place} is {array.dtype.name}",
            remedy=f"array.astype(...) to one of {', '.join(DTYPES)}",
        )
    on_cpu = array.is_fully_addressable and next(iter(array.devices())).platform == "cpu"
    if array.dtype.name == "bfloat16" or not on_cpu:
        return np.asarray(array)  # numpy's DLPack has no bfloat16, and no GPUs.
    return np.from_dlpack(array)


def _aligned(host: Any) -> Any:  # noqa: ANN401
    raw = np.empty(host.nbytes + _ALIGNMENT, np.uint8)
    offset = -raw.__array_interface__["data"][0] % _ALIGNMENT
    buffer = raw[offset : offset + host.nbytes].view(host.dtype).reshape(host.shape)
    np.copyto(buffer, host)
    return buffer


def _back(buffer: Any, like: jax.Array) -> jax.Array:  # noqa: ANN401
    device = next(iter(like.devices()))
    if buffer.dtype.name == "bfloat16" or device.platform != "cpu" or buffer.size == 0:
        return cast(jax.Array, jax.device_put(buffer, device))
    return cast(jax.Array, jax.dlpack.from_dlpack(buffer))


__dir__ = public_names(__name__)
