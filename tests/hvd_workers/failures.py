"""The errors that ranks get when something goes wrong."""

import os
import signal
import subprocess
import tempfile
import threading
import time

import paceline.torch as hvd
import pytest
import torch
from torch import nn
from torch_workers.checks import run_all


def mismatches(rank, size):
    run_all([differing, only_here, twice, in_groups, after_join], rank, size)


def as_horovod_refuses(rank, size):
    run_all([twice, after_join], rank, size)


def _refuses(call, *words):
    with pytest.raises(hvd.HorovodInternalError) as result:
        call()
    for word in words:
        assert word in str(result.value), f"'{word}' is missing in: {result.value}"


def differing(rank, size):
    """Something differs on rank 1; all ranks get an error and can continue."""
    one, last = rank == 1, size - 1
    for call, *words in (
        (lambda: hvd.allreduce(torch.ones(2 + one), name="t"), "'allreduce.t'", "shape", "[2]", "[3]"),
        (
            lambda: hvd.allreduce(torch.ones(2).to(torch.float64 if one else torch.float32), name="t"),
            "dtype",
            "float64",
        ),
        (lambda: hvd.allreduce(torch.ones(2), op=hvd.Max if one else hvd.Sum, name="t"), "reduction", "max"),
        (lambda: hvd.allreduce(torch.ones(2), prescale_factor=1.0 + one, name="t"), "prescale", "'allreduce.t'"),
        (lambda: hvd.allgather(torch.ones(2, 2 + one), name="t"), "'allgather.t'", "shape"),
        (lambda: hvd.allgather(torch.ones(2).to(torch.int8 if one else torch.bool), name="t"), "int8", "bool"),
        (lambda: hvd.broadcast(torch.ones(2), int(one), name="t"), "'broadcast.t'", "root"),
        (lambda: hvd.alltoall(torch.ones(size, 1 + one), name="t"), "'alltoall.t'", "shape"),
        (lambda: hvd.reducescatter(torch.ones(2, 1 + one), name="t"), "'reducescatter.t'", "shape"),
        (lambda: hvd.allreduce_(torch.ones(2 + one)), "'allreduce.noname."),
    ):
        _refuses(call, "rank 0", "rank 1", *words)
        assert hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, name="t").item() == size
        assert hvd.broadcast(torch.tensor([rank]), last, name="t").item() == last


def only_here(rank, size):
    """A call without a name that raises on one rank only is not counted."""
    if rank == 1:
        for wrong in (
            lambda: hvd.allreduce(torch.ones(2).bool()),
            lambda: hvd.alltoall(torch.tensor(1.0)),
            lambda: hvd.sparse_allreduce_async(torch.ones(2)),
            lambda: hvd.grouped_allreduce([torch.ones(2), torch.ones(2).bool()]),
        ):
            with pytest.raises((TypeError, ValueError)):
                wrong()
        with pytest.raises(TypeError, match="pickle"):
            hvd.allgather_object(threading.Lock())
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    assert hvd.alltoall(torch.ones(size)).sum() == size
    assert hvd.grouped_allreduce([torch.ones(1)], op=hvd.Sum)[0].item() == size
    assert hvd.allreduce(torch.ones(2).to_sparse(), op=hvd.Sum).to_dense().tolist() == [size] * 2
    assert hvd.allgather_object(1) == [1] * size


def twice(rank, size):
    """The same name twice in flight on a rank is refused where it is submitted. The other ranks arrive later."""
    tensor = torch.arange(size, dtype=torch.float32)
    calls = {
        "allreduce": hvd.allreduce_async,
        "allgather": hvd.allgather_async,
        "broadcast": lambda tensor, name: hvd.broadcast_async(tensor, 0, name=name),
        "alltoall": lambda tensor, name: hvd.alltoall_async(tensor, name=name),
        "reducescatter": hvd.reducescatter_async,
    }
    for first in range(2):  # The second time the names are in the cache.
        if rank != first:
            hvd.barrier()
        handles = {name: call(tensor, name="same") for name, call in calls.items()}
        grouped = hvd.grouped_allreduce_async([tensor, tensor], name="group")
        if rank == first:
            for name, call in calls.items():
                with pytest.raises(ValueError, match=f"^Duplicate tensor name '{name}.same': it is in flight"):
                    call(tensor, name="same")
            with pytest.raises(ValueError, match=r"^Duplicate tensor name 'grouped_allreduce\.group_1of2'"):
                hvd.grouped_allreduce_async([tensor, tensor], name="group")
            hvd.barrier()
        values = {name: hvd.synchronize(handle) for name, handle in handles.items()}
        assert values["allreduce"].tolist() == tensor.tolist()
        assert values["allgather"].tolist() == tensor.tolist() * size
        assert values["broadcast"].tolist() == tensor.tolist()
        assert values["alltoall"][0].tolist() == [rank] * size
        assert values["reducescatter"].tolist() == [rank]
        assert [each.tolist() for each in hvd.synchronize(grouped)] == [tensor.tolist()] * 2


def in_groups(rank, size):
    tensors = [torch.ones(2), torch.ones(3 + (rank == 1))]
    _refuses(lambda: hvd.grouped_allreduce(tensors, name="g"), "grouped_allreduce.g_2of2", "shape")
    model = nn.Linear(2, 1 + (rank == 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    _refuses(optimizer.step, "'allreduce.", "rank 0", "rank 1")
    optimizer.zero_grad()
    hvd.barrier()


def after_join(rank, size):
    """Sums and averages go on with zeros; anything else is an error on every rank that calls it, as in Horovod."""
    if rank == 1:
        assert hvd.join() == 0
        return
    one = torch.ones(1)
    _refuses(
        lambda: hvd.allreduce(one, op=hvd.Max, name="m"), "Allreduce max is not", "rank 1 has joined", "'allreduce.m'"
    )
    for call, wrong in {
        "Allgather": lambda: hvd.allgather(one, name="r"),
        "Broadcast": lambda: hvd.broadcast(one, root_rank=0, name="b"),
        "Reducescatter sum": lambda: hvd.reducescatter(torch.ones(size), op=hvd.Sum, name="rs"),
        "Alltoall": lambda: hvd.alltoall(torch.ones(size), name="a"),
    }.items():
        _refuses(wrong, f"{call} is not supported with Join at this time", "rank 1 has joined")
    _refuses(
        lambda: hvd.broadcast(one, root_rank=1, name="from it"), "Broadcast is not supported with Join at this time"
    )
    _refuses(lambda: hvd.allgather_object(rank), "Allgather is not supported with Join at this time")
    assert hvd.allreduce(one, op=hvd.Sum, name="s").item() == size - 1
    assert hvd.allreduce(one, name="mean").item() == pytest.approx((size - 1) / size)
    assert [sum_.item() for sum_ in hvd.grouped_allreduce([one, one], op=hvd.Sum)] == [size - 1] * 2
    hvd.barrier()
    if rank == 0:
        time.sleep(0.3)
    assert hvd.join() == 0


def one_dies(rank, size, how):
    """The last rank dies while others wait for it; returns how long they waited and their errors."""
    model = nn.Linear(4, 4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    hvd.barrier()
    if rank == size - 1:
        if how == "leaves":
            hvd.shutdown()
            return None
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(hvd.HorovodInternalError) as result:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(1))
    return time.monotonic() - start, str(result.value)


def one_is_missing(rank, size):
    """The last rank does not request a tensor, which fails; then all continue. Returns rank 0's warnings."""
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        if rank < size - 1:
            start = time.monotonic()
            _refuses(lambda: hvd.allreduce(torch.ones(1), name="lonely"), "'allreduce.lonely'", f"for rank {size - 1}")
            assert time.monotonic() - start < 10
        else:
            time.sleep(2)  # otherwise its barrier would exceed the limit, too
        hvd.barrier()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
        said.seek(0)
        return said.read().decode()


def one_stops(rank, size, seconds):
    """Rank 1 stops for a while, in which the others ask for something."""
    hvd.allreduce(torch.ones(3), name="before")
    if rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    assert hvd.allreduce(torch.ones(3), name="after", op=hvd.Sum).tolist() == [size] * 3
