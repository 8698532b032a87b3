"""Tensors on a device of the stand-in: torch takes them for the CPU's, but no host may touch them.

So torch cannot compute with them, and nothing is trained: the ranks call the collectives, as DDP and FSDP2 do.
"""

import contextlib
import ctypes
import json
import mmap
import os
import random
import threading
import time
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from cuda_stand_in import Device
from paceline.torch.backend import buffers, on_device
from paceline.torch.backend.collectives import Collectives
from paceline.torch.backend.work import Work

from torch_workers import layouts
from torch_workers.values import REDUCED, assert_reduced, tensor


class Tensors:
    """Makes tensors over the stand-in's memory, and says which are."""

    def __init__(self):
        self.device = Device(os.environ["PACELINE_CUDA_LIBRARY"])
        self.arrays = {}
        self._default, self._current = self.device.stream(), threading.local()

    @property
    def stream(self):
        """The stream that is current in this thread."""
        return getattr(self._current, "stream", self._default)

    @contextlib.contextmanager
    def using(self, stream):
        """Make it the current one, as torch.cuda.stream does."""
        before, self._current.stream = self.stream, stream
        try:
            yield
        finally:
            self._current.stream = before

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

    def _beside(self, place, streams):
        stream = streams.get(place.device) or streams.setdefault(place.device, self.device.stream())
        self.device.wait_event(stream, self.device.event(self.stream))
        return on_device.Place(place.device, stream)

    def patched(self):
        return (
            mock.patch.object(on_device, "place_of", self.place_of),
            mock.patch.object(on_device, "current_stream", lambda device: self.stream),
            mock.patch.object(on_device, "beside", self._beside, create=True),
            mock.patch.object(on_device, "future_of", lambda place: Future(self) if place else torch.futures.Future()),
            # Of the CPU's small tensors, which these seem to be.
            mock.patch.object(Collectives, "_reduced", lambda *words: False),
        )


class Future(torch.futures.Future):
    """torch's future with devices, as ATen/core/ivalue_inl.h has it.

    Callbacks run in a stream of their own. It waits for what the current stream had been told when the future was
    completed with tensors; one that was completed without tensors makes no stream wait.
    """

    def __init__(self, on):
        super().__init__()
        self._on, self._done, self._lock, self._callbacks = on, threading.Event(), threading.Lock(), []
        self._value, self._error, self._event = None, None, None

    def set_result(self, value):
        self._complete(value, None)

    def then(self, callback):
        child = Future(self._on)

        def run():
            self._on.device.enter()
            with self._on.using(self._on.device.stream()):
                self._hold()
                try:
                    value, error = callback(self), None
                except Exception as caught:
                    value, error = None, caught
                child._complete(value, error)

        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(run)
                return child
        run()
        return child

    def wait(self):
        assert self._done.wait(60), "the future is not completed"
        self._hold()
        return self.value()

    def value(self):
        if self._error is not None:
            raise self._error
        return self._value

    def _complete(self, value, error):
        tensors = value if isinstance(value, list) else [value]
        if any(isinstance(tensor, torch.Tensor) for tensor in tensors):
            self._event = self._on.device.event(self._on.stream)
        with self._lock:
            self._value, self._error = value, error
            self._done.set()
        for callback in self._callbacks:
            callback()
        super().set_result(None)  # for those that wait for several

    def _hold(self):
        if self._event is not None:
            self._on.device.wait_event(self._on.stream, self._event)


def everything(rank, size):
    """Collectives, handles, futures, sends, works that nobody waits for, and tensors of the CPU in between."""
    on = Tensors()
    with contextlib.ExitStack() as patched:
        for patch in on.patched():
            patched.enter_context(patch)
        _collectives(on, rank, size)
        _handles(on, rank, size)
        _streams(on, rank, size)


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


def _streams(on, rank, size):
    """Callbacks have streams of their own, and whoever waits may use another than the caller."""
    for turn in range(10):
        op, want = ((dist.ReduceOp.SUM, size * (size + 1) / 2), (dist.ReduceOp.AVG, (size + 1) / 2))[turn % 2]
        bucket, other = (on.put(torch.full((100_000,), rank + 1.0)) for _ in range(2))
        work = dist.all_reduce(bucket, op, async_op=True)
        seen = work.get_future().then(lambda future, bucket=bucket: on.get(bucket))
        assert torch.equal(seen.wait(), torch.full((100_000,), want)), f"turn {turn}: in a callback"
        work = dist.all_reduce(other, op, async_op=True)
        with on.using(on.device.stream()):
            work.wait()
            assert torch.equal(on.get(other), torch.full((100_000,), want)), f"turn {turn}: in another stream"
        both = [on.put(torch.full((100_000,), rank + 1.0)) for _ in range(2)]
        dist.group.WORLD.start_coalescing()
        for bucket in both:
            dist.all_reduce(bucket, op)
        future = dist.group.WORLD.end_coalescing().get_future()
        with on.using(on.device.stream()):
            for bucket in future.wait():
                assert torch.equal(on.get(bucket), torch.full((100_000,), want)), f"turn {turn}: of several"


def overlapping(rank, size):
    """What a stream is told after it has called an operation does not wait for the other ranks' streams."""
    on, number = Tensors(), np.zeros(1, "uint32")
    with contextlib.ExitStack() as patched:
        for patch in on.patched():
            patched.enter_context(patch)
        for bucket in [on.put(torch.ones(1000)) for _ in range(2)]:
            dist.all_reduce(bucket)
        if rank == 1:
            on.device.wait_number(on.stream, number)
        bucket, same = on.put(torch.full((1000,), rank + 1.0)), on.put(torch.ones(3))
        future = dist.all_reduce(bucket, async_op=True).get_future()
        dist.all_reduce(same, async_op=True)
        time.sleep(0.3)
        began = time.monotonic()
        if rank == 1:
            time.sleep(3)
            number[0] = 1
        else:
            on.get(on.put(torch.ones(1)))
        took_s = time.monotonic() - began
        assert rank == 1 or took_s < 2, f"a stream waited {took_s:.1f} s for operations that nobody waits for"
        # Without a wait in between, one that is waited for at once sees the result of the one before.
        dist.all_reduce(same)
        assert torch.equal(on.get(same), torch.full((3,), float(size) ** 2))
        [got] = future.wait()
        assert torch.equal(on.get(got), torch.full((1000,), size * (size + 1) / 2))


def layouts_of_tensors(rank, size, seed):
    """Calls on tensors of the device in every layout: copies of them are on the device, too."""
    on, draw = Tensors(), random.Random(seed)

    def empty(shape, *, dtype=torch.float32, device=None):
        made = on.put(torch.zeros(shape, dtype=dtype))
        on.device.synchronize(on.stream)
        # The copies of these tests are made by the CPU, which may not touch memory of the device.
        begin = made.data_ptr() & -mmap.PAGESIZE
        size = made.data_ptr() + made.nbytes - begin
        both = mmap.PROT_READ | mmap.PROT_WRITE
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(size), both) == 0
        return made

    def settled(call):
        """Also for the host, which looks into the memory of the device, and copies there at once."""

        def run(*words):
            on.device.enter()
            on.device.synchronize(on.stream)
            call(*words)
            on.device.synchronize(on.stream)

        return run

    more = [
        mock.patch.object(torch, "empty", empty),
        mock.patch.object(buffers, "assign", settled(buffers.assign)),
        mock.patch.object(Work, "_hold", settled(Work._hold)),
        mock.patch.object(on_device, "mark", lambda place: None),
    ]
    # The last of both are torch's functional calls, which make copies in the memory of the host.
    calls = [(act, dtype, "sum", dist.ReduceOp.SUM) for act in layouts.REDUCTIONS[:-1] for dtype in layouts.REDUCIBLE]
    calls += [(act, dtype) for act in layouts.MOVES[:-1] for dtype in (torch.float32, torch.int8, torch.complex64)]
    with contextlib.ExitStack() as patched:
        for patch in (*on.patched(), *more):
            patched.enter_context(patch)
        for act, dtype, *operator in calls:
            layouts.call(draw, rank, size, None, act, dtype, draw.choice(layouts.SHAPES[:4]), *operator)
            on.arrays.clear()
        dist.barrier()


def main():
    """A rank that a launcher has started: says how many operations were given to MPI."""
    dist.init_process_group("paceline")
    everything(dist.get_rank(), dist.get_world_size())
    status = json.loads(dist.group.WORLD._job.engine.status())
    dist.destroy_process_group()
    print(json.dumps({"given": status["cuda_mpi"]["operations"]}))


if __name__ == "__main__":
    main()
