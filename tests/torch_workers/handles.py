"""Work handles, futures, sends and receives, time limits, and what is refused."""

import gc
import os
import re
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from paceline.errors import JobError

from torch_workers.checks import run_all


def works(rank, size):
    """wait, is_completed, is_success, exception, result, and handles that nobody waits for."""
    own = torch.full((1000,), float(rank))
    total = torch.full((1000,), float(sum(range(size))))
    work = dist.all_reduce(own, async_op=True)
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is own
    assert torch.equal(own, total)
    strided = torch.full((10, 10), float(rank))
    work = dist.all_reduce(strided[:, ::2], async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    assert torch.equal(strided[:, ::2], total[:50].view(10, 5)), "is_completed is true before the result is there"
    many = [torch.full((n,), float(rank)) for n in range(1, 200)]
    handles = [dist.all_reduce(each, async_op=True) for each in many]
    for handle in reversed(handles):
        handle.wait()
    assert all(torch.equal(each, total[: len(each)]) for each in many)
    work = dist.all_reduce(torch.full((5000,), 1.0), async_op=True)  # nobody holds this tensor
    gc.collect()
    work.wait()
    assert torch.equal(work.result()[0], torch.full((5000,), float(size)))
    forgotten = torch.full((1000,), float(rank))
    dist.all_reduce(forgotten, async_op=True)  # nobody holds this handle
    gc.collect()
    deadline = time.monotonic() + 10
    while not torch.equal(forgotten, total) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert torch.equal(forgotten, total)


def nothing_leaks(rank, size):
    """Tensors and handles are freed once an operation is over and dropped."""
    for asynchronous in (False, True):
        watched = []
        for _ in range(20):
            own = torch.ones(1000)
            watched.append(weakref.ref(own))
            work = dist.all_reduce(own, async_op=asynchronous)
            if work is not None:
                watched.append(weakref.ref(work))
                work.get_future().wait()
                work.wait()
        del own, work
        dist.barrier()
        deadline = time.monotonic() + 5
        while any(ref() is not None for ref in watched) and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        left = sum(ref() is not None for ref in watched)
        assert left == 0, f"{left} of {len(watched)} are left"


def futures(rank, size):
    """Futures complete by themselves, chain, and are complete when asked for late."""
    for _ in range(3):
        own = torch.full((100,), float(rank))
        future = dist.all_reduce(own, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        assert torch.equal(doubled.wait(), torch.full((100,), 2.0 * sum(range(size))))
    late = dist.all_reduce(own, async_op=True)
    late.wait()
    assert late.get_future().done()
    assert late.get_future().value()[0] is own
    several = [dist.all_reduce(torch.full((10,), float(n)), async_op=True).get_future() for n in range(50)]
    values = torch.futures.collect_all(several).wait()
    assert [float(each.value()[0][0]) for each in values] == [float(n * size) for n in range(50)]
    outs = [torch.empty(3) for _ in range(size)]
    gathered = dist.all_gather(outs, torch.full((3,), float(rank)), async_op=True).get_future().wait()
    assert torch.equal(torch.stack(gathered)[:, 0], torch.arange(size).float())
    assert dist.barrier(async_op=True).get_future().wait() == []
    with dist._coalescing_manager(async_ops=True) as manager:
        pair = [torch.full((4,), 1.0), torch.full((4,), 2.0, dtype=torch.float64)]
        for each in pair:
            dist.all_reduce(each)
    assert len(manager.works[0].get_future().wait()) == 2


def point_to_point(rank, size):
    """Sends and receives: blocking, non-blocking, tagged, from any rank, in a batch, to a ring's neighbors."""
    right, left = (rank + 1) % size, (rank - 1) % size
    own, got = torch.full((500,), float(rank)), torch.empty(500)
    receive = dist.irecv(got, left)
    dist.isend(own, right).wait()
    receive.wait()
    assert torch.equal(got, torch.full((500,), float(left)))
    if rank == 0:
        dist.send(torch.arange(6).view(2, 3).t(), 1)
        dist.send(torch.tensor([True, False]), 1, tag=7)
        dist.send(torch.tensor([1 + 2j]), 1, tag=8)
    elif rank == 1:
        tagged, number, matrix = (
            torch.empty(2, dtype=torch.bool),
            torch.empty(1, dtype=torch.complex64),
            torch.empty(3, 2),
        )
        dist.recv(number, 0, tag=8)
        dist.recv(tagged, 0, tag=7)
        matrix = torch.empty(3, 2, dtype=torch.int64)
        assert dist.recv(matrix, 0) == 0
        assert torch.equal(matrix, torch.arange(6).view(2, 3).t())
        assert tagged.tolist() == [True, False]
        assert number.tolist() == [1 + 2j]
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            sender = torch.empty(1)
            source = dist.recv(sender)
            assert source == int(sender)
            sources.add(source)
        assert sources == set(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()  # what follows is not for the receives from anybody
    gots = [torch.empty(8) for _ in range(3)]
    batch = [dist.P2POp(dist.irecv, each, left, tag=n) for n, each in enumerate(gots)]
    batch += [dist.P2POp(dist.isend, torch.full((8,), rank * 10.0 + n), right, tag=n) for n in range(3)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert [float(each[0]) for each in gots] == [left * 10.0 + n for n in range(3)]
    if rank == 0:
        dist.send_object_list([{"a": 1}, "b"], 1)
    elif rank == 1:
        given = [None, None]
        dist.recv_object_list(given, 0)
        assert given == [{"a": 1}, "b"]


def timeouts(rank, size):
    """wait(timeout) raises, and the operation goes on; a limit of an operation, and one of the group."""
    if rank == 0:
        work = dist.irecv(torch.empty(1), 1)
        started = time.monotonic()
        raises(JobError, r"recv float32\[1\].*0.2 s", work.wait, timedelta(seconds=0.2))
        assert time.monotonic() - started < 5
        assert not work.is_completed()
        assert not work.is_success()
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1), 0)
    dist.barrier()


def refusals(rank, size):
    """Mistakes that a rank can see by itself are found before anything is sent, and name tensor and remedy."""
    x, n = torch.ones(4), size
    raises(
        ValueError,
        r"tensor 0 \(float32, shape \[4\]\) is on meta; paceline moves tensors on CPUs and CUDA devices",
        dist.all_reduce,
        x.to("meta"),
    )
    raises(ValueError, r"2 tensors; it takes one", _pg().allreduce, [x, x])
    raises(ValueError, rf"{n + 1} outputs for {n} ranks", dist.all_gather, [x] * (n + 1), x)
    outs = [torch.empty(4) for _ in range(n)]
    outs[rank] = torch.empty(5)
    raises(ValueError, rf"output {rank} \(float32, shape \[5\]\).*4 elements", dist.all_gather, outs, x)
    raises(ValueError, r"has 5 elements; it needs", dist.all_gather_into_tensor, torch.empty(5), x)
    raises(TypeError, r"output 0 \(float64.*should be float32", _pg().allgather, [[x.double()] * n], [x])
    tiny, twice = x.to(torch.float8_e5m2), dist._make_nccl_premul_sum(2.0)
    raises(TypeError, r"PREMUL_SUM of bool.*convert to int32", dist.all_reduce, x.bool(), twice)
    raises(TypeError, r"SUM of float8_e5m2 is not defined; convert to bfloat16", dist.all_reduce, tiny)
    raises(TypeError, r"AVG of bool.*convert to int32", dist.all_reduce, x.bool(), dist.ReduceOp.AVG)
    raises(TypeError, r"BXOR of int32.*all-gather", dist.all_reduce, x.int(), dist.ReduceOp.BXOR)
    raises(ValueError, r"not divisible", dist.all_to_all_single, torch.ones(n + 1), torch.ones(n + 1))
    splits = [1] * (n - 1) + [3]
    raises(ValueError, r"add up to the 4 rows", dist.all_to_all_single, x, x, splits, splits)
    raises(ValueError, r"no rank", _pg().send, [x], n, 0)
    raises(TypeError, r"input 0 is a list", _pg().allgather, [[x] * n], [[1.0]])
    own = torch.ones(3)
    dist.all_reduce(own)
    assert float(own[0]) == size


def mismatches(rank, size):
    """Ranks that call different operations all get an error that says so. The last call of a job."""
    own = torch.ones(4 + (rank == 1))
    raises(JobError, r"all_reduce", dist.all_reduce, own)


def forked(rank, size):
    """A forked child is told why it cannot communicate, and its end does the parent no harm."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
            said = "nothing was raised"
        except JobError as error:
            said = str(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 4096).decode()
    os.waitpid(child, 0)
    assert f"forked from rank {rank}" in said, said
    assert "spawn" in said
    own = torch.ones(3)
    dist.all_reduce(own)
    assert float(own[0]) == size


def _pg():
    return dist.group.WORLD


def raises(kind, pattern, function, *args):
    """`function(*args)` raises this; the message has a match of `pattern`."""
    try:
        function(*args)
    except kind as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", [])])
        assert re.search(pattern, said), f"{said} does not have {pattern}"
    else:
        raise AssertionError(f"{pattern}: nothing was raised")


ALL = [works, nothing_leaks, futures, point_to_point, timeouts, refusals, forked]


def everything(rank, size):
    """All of the above checks that leave the job usable."""
    run_all(ALL, rank, size)
