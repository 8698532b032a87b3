"""Tensors of torch as arguments of named operations, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from paceline._core import NamedOperation
from paceline.torch.backend import on_device
from paceline.torch.backend.buffers import REDUCIBLE, name_of


def checked(what: str, tensor: object) -> Tensor:
    """Return the tensor if it is dense. `what` names it in a message.

    Raises TypeError if it is not a tensor, ValueError if it is sparse.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what}: is a {type(tensor).__name__}, not a tensor")
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise ValueError(
            f"{what}: has the layout {layout}; convert it with .to_dense(), or pass its indices and values separately"
        )
    return tensor


class Requested(TypedDict, total=False):
    """How a request says that a tensor is on a device."""

    device: str
    stream: int


def where(place: on_device.Place | None) -> Requested:
    """Return the arguments of a request for a tensor at this place."""
    return {} if place is None else {"device": "cuda", "stream": place.stream}


def take(operation: NamedOperation, place: on_device.Place | None) -> None:
    """Make the current stream of a device wait for the result of a finished operation."""
    if place is not None:
        operation.hold(on_device.current_stream(place.device))


def on_host(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy of it in host memory."""
    return tensor if tensor.is_cpu else tensor.detach().cpu()


def reachable(tensor: Tensor) -> Tensor:
    """Return the tensor if it is on the host or a CUDA device, otherwise a copy of it in host memory."""
    return tensor if tensor.is_cuda else on_host(tensor)


def moved(dtype: torch.dtype) -> tuple[str, list[int], int]:
    """Return how a tensor is moved without being reduced: dtype's name, further dimensions, and units per element.

    Dtypes that the runtime does not know move as bytes.
    """
    known = REDUCIBLE.get(dtype)
    if known is not None:
        return known, [], 1
    return name_of(dtype), [dtype.itemsize] if dtype.itemsize > 1 else [], dtype.itemsize


def tensor_of(data: bytearray, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a tensor over the memory of a result. `data` has the buffer protocol."""
    if len(data) == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).view(tuple(shape))
