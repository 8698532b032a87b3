"""Tensors on a device of the stand-in: torch takes them for the CPU's, but no host may touch them."""

import ctypes
import os
import time
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from cuda_stand_in import Device
from paceline.torch.backend import on_device
from paceline.torch.backend.collectives import Collectives

from torch_workers.values import REDUCED, assert_reduced, tensor


class Tensors:
    """Makes tensors over the stand-in's memory, and says which are."""

    def __init__(self):
        self.device = Device(os.environ["PACELINE_CUDA_LIBRARY"])
        self.stream = self.device.stream()
        self.arrays = {}

    def put(self, values):
        """A tensor with these values on the device, once the stream has written them."""
        host = values.contiguous()
        array = self.device.array(host.view(torch.uint8).reshape(-1).numpy().copy(), self.stream)
        memory = (ctypes.c_char * max(array.nbytes, 1)).from_address(array.address)
        made = torch.frombuffer(memory, dtype=values.dtype, count=values.numel()).reshape(values.shape)
        self.arrays[made.data_ptr()] = array
        return made

    def get(self, of):
        """Its values on the host, once the stream has come here."""
        self.device.enter()  # callbacks run in threads of Paceline's
        self.device.synchronize(self.stream)
        values = np.empty(of.numel() * of.element_size(), "uint8")
        copied = self.device.driver.cuMemcpyDtoH_v2(values.ctypes.data, of.data_ptr(), values.nbytes)
        self.device.check(copied)
        return torch.from_numpy(values).view(of.dtype).reshape(of.shape)

    def place_of(self, tensors):
        known = [
            one for one in tensors if any(0 <= one.data_ptr() - at < array.nbytes for at, array in self.arrays.items())
        ]
        assert len(known) in (0, len(tensors)), "some lie on the device"
        return on_device.Place(torch.device("cpu"), self.stream) if known else None

    def patched(self):
        return (
            mock.patch.object(on_device, "place_of", self.place_of),
            mock.patch.object(on_device, "current_stream", lambda device: self.stream),
            mock.patch.object(on_device, "future_of", lambda place: torch.futures.Future()),
            # Of the CPU's small tensors, which these seem to be.
            mock.patch.object(Collectives, "_reduced", lambda *words: False),
        )


def everything(rank, size):
    """Collectives, handles, futures, sends, works that nobody waits for, and tensors of the CPU in between."""
    on = Tensors()
    patches = on.patched()
    for patch in patches:
        patch.start()
    try:
        _collectives(on, rank, size)
        _handles(on, rank, size)
    finally:
        for patch in patches:
            patch.stop()


def _collectives(on, rank, size):
    for dtype in REDUCED:
        parts = [tensor(dtype, (3, 7), source) for source in range(size)]
        own = on.put(parts[rank])
        dist.all_reduce(own)
        assert_reduced(on.get(own), "sum", parts, "all_reduce")
        # Between them, a tensor of the CPU.
        here = parts[rank].clone()
        dist.all_reduce(here)
        assert_reduced(here, "sum", parts, "all_reduce of the CPU")
        whole = on.put(torch.zeros(size, 3, 7, dtype=dtype))
        dist.all_gather_into_tensor(whole, on.put(parts[rank]))
        assert torch.equal(on.get(whole), torch.stack(parts))
        wide = [tensor(dtype, (size * 2, 5), source, 1) for source in range(size)]
        got = on.put(torch.zeros(2, 5, dtype=dtype))
        dist.reduce_scatter_tensor(got, on.put(wide[rank]))
        assert_reduced(on.get(got), "sum", [part[2 * rank : 2 * rank + 2] for part in wide], "reduce_scatter")
        sent = on.put(parts[rank] if rank == 0 else torch.zeros(3, 7, dtype=dtype))
        dist.broadcast(sent, 0)
        assert torch.equal(on.get(sent), parts[0])


def _handles(on, rank, size):
    # A bucket of several pieces; its future's callback sees the result.
    bucket = on.put(torch.full((1_500_000,), rank + 1.0))
    work = dist.all_reduce(bucket, async_op=True)
    seen = work.get_future().then(lambda future: on.get(bucket)[-1].item())
    assert seen.wait() == sum(range(1, size + 1))
    # Nobody waits: the result comes all the same.
    dropped = on.put(torch.full((10,), float(rank)))
    dist.all_reduce(dropped, async_op=True)
    until = time.monotonic() + 20
    while on.get(dropped)[0].item() != sum(range(size)):
        assert time.monotonic() < until, on.get(dropped)
        time.sleep(0.01)
    # Around a ring.
    message, box = on.put(torch.tensor([rank])), on.put(torch.tensor([-1]))
    works = [dist.isend(message, (rank + 1) % size), dist.irecv(box, (rank - 1) % size)]
    for work in works:
        work.wait()
    assert on.get(box).item() == (rank - 1) % size
    dist.barrier()
