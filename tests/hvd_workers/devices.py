"""Horovod's calls with tensors on a device of the stand-in."""

import json

import paceline.torch as hvd
import torch
from paceline.errors import JobError
from paceline.hvd.world import current
from torch_workers import values
from torch_workers.on_device import Tensors

COUNT = 12


def patched(function):
    def on_a_device(rank, size, *words):
        on = Tensors()
        patches = on.patched()
        for patch in patches:
            patch.start()
        try:
            return function(on, rank, size, *words)
        finally:
            for patch in patches:
                patch.stop()

    return on_a_device


def everything(rank, size, by):
    return patched(_everything)(rank, size, by)


def _everything(on, rank, size, by):
    for dtype in (torch.float32, torch.float16, torch.int64):
        parts = [values.tensor(dtype, (3, 5), source) for source in range(size)]
        own = on.put(parts[rank])
        assert hvd.allreduce_(own, op=hvd.Sum, name=f"sum.{dtype}") is own
        values.assert_reduced(on.get(own), "sum", parts, "in place")
        sent = on.put(parts[rank])
        hvd.broadcast_(sent, size - 1, name=f"sent.{dtype}")
        assert torch.equal(on.get(sent), parts[size - 1])
    # Many in flight, of which some are reduced together; and some of the host in between.
    parts = [[values.tensor(torch.float32, (7 + at,), source, at) for source in range(size)] for at in range(COUNT)]
    for turn in range(3):
        tensors = [on.put(part[rank]) if at % 4 else part[rank].clone() for at, part in enumerate(parts)]
        order = range(COUNT) if rank % 2 else reversed(range(COUNT))  # the ranks agree on one
        handles = {at: hvd.allreduce_async_(tensors[at], name=f"many.{at}", op=hvd.Average) for at in order}
        for at, handle in handles.items():
            hvd.synchronize(handle)
            got = on.get(tensors[at]) if at % 4 else tensors[at]
            values.assert_reduced(got, "avg", parts[at], f"tensor {at} of turn {turn}")
    group = [on.put(part[rank]) for part in parts[:3]]
    hvd.grouped_allreduce_(group, op=hvd.Sum, name="group")
    for at, tensor in enumerate(group):
        values.assert_reduced(on.get(tensor), "sum", parts[at], "of a group")
    # The input of the next is the output of the one before, in the order of the stream.
    chained = on.put(torch.full((1000,), 1.0))
    for turn in range(4):
        hvd.allreduce_(chained, op=hvd.Sum, name=f"chained.{turn}", prescale_factor=0.5)
    assert torch.equal(on.get(chained), torch.full((1000,), (size / 2) ** 4))
    status = current().job.status()
    if by == "nccl":
        assert status["cuda_nccl"]["operations"] > 0, status
    elif by == "ipc":
        assert status["cuda_ipc"]["operations"] > 0, status
    elif by == "host":
        assert status["cuda"][0]["bytes_to_host"] > 0, status
    return json.dumps(status.get("cuda"))


def one_on_the_host(rank, size):
    """One rank's tensor is not on a device: all ranks are told."""
    return patched(_one_on_the_host)(rank, size)


def _one_on_the_host(on, rank, size):
    tensor = torch.ones(5)
    try:
        hvd.allreduce_(on.put(tensor) if rank else tensor, op=hvd.Sum, name="mixed")
    except JobError as error:
        return str(error)
    return "no error"


def joined(rank, size):
    """A rank without data contributes zeros, from memory of the host."""
    return patched(_joined)(rank, size)


def _joined(on, rank, size):
    for turn in range(2 + rank):
        own = on.put(torch.full((2000,), float(rank + 1)))
        hvd.allreduce_(own, op=hvd.Sum, name=f"turn.{turn}")
        left = range(size) if turn < 2 else range(turn - 1, size)
        want = float(sum(other + 1 for other in left))
        assert torch.equal(on.get(own), torch.full((2000,), want)), (turn, on.get(own)[:3], want)
    assert hvd.join() == size - 1
    own = on.put(torch.ones(3))
    hvd.allreduce_(own, op=hvd.Sum, name="together again")
    assert torch.equal(on.get(own), torch.full((3,), float(size)))
