"""Tensors on CUDA devices: in the order of which stream they are used, and futures that know their device.

An operation reads its tensors once the stream that is current at the call has come there. `Work.wait()` returns when
the result has been exchanged between the hosts, and makes the current stream wait for the copy to the device. Unlike
with NCCL, the host waits for the exchange: docs/how-to/cuda.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future


@dataclass(frozen=True, slots=True)
class Place:
    """A device, and the stream in whose order an operation uses its memory."""

    device: torch.device
    stream: int


def place_of(tensors: Sequence[Tensor]) -> Place | None:
    """Return where tensors lie, with the current stream there; None: in the host's memory.

    Raises ValueError if they lie in different places, or if the current stream is being captured.
    """
    first = tensors[0].device if tensors else None
    for tensor in tensors:
        if tensor.device != first:
            raise ValueError(
                f"the tensors of one call lie on {first} and on {tensor.device}; move them to one device with .to()"
            )
    if first is None or first.type != "cuda":
        return None
    if torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "a CUDA graph is being captured, and exchanges with other ranks cannot be part of one; capture what is "
            "before and after the call, or leave out mode='reduce-overhead' of torch.compile"
        )
    return Place(first, current_stream(first))


def beside(place: Place, streams: dict[torch.device, torch.cuda.Stream]) -> Place:
    """Return the place with a stream of `streams`, which begins where the current one is.

    The stream of a call waits for the result as soon as it is known to come. If that were the current one, what a
    backward pass computes would wait for the exchange of what it has computed.
    """
    if place.device not in streams:
        streams[place.device] = torch.cuda.Stream(place.device)  # type: ignore[no-untyped-call]
    stream = streams[place.device]
    stream.wait_stream(torch.cuda.current_stream(place.device))
    return Place(place.device, int(stream.cuda_stream))


def current_stream(device: torch.device) -> int:
    """Return the stream to which this thread submits work for a device."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def future_of(place: Place | None) -> Future[Any]:
    """Return a future that makes the streams of its callbacks wait for the result."""
    return torch.futures.Future() if place is None else torch.futures.Future(devices=[place.device])


def mark(place: Place) -> torch.cuda.Event:
    """Return the event that the current stream has come here."""
    event: torch.cuda.Event = torch.cuda.current_stream(place.device).record_event()
    return event


def wait_for(event: torch.cuda.Event, place: Place) -> None:
    """Make the current stream wait for an event."""
    torch.cuda.current_stream(place.device).wait_event(event)


def used_here(tensor: Tensor) -> None:
    """Keep a tensor's memory from other use until the current stream, perhaps not that of its allocation, is done."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
