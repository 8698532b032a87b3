"""Init, shutdown, places and process sets."""

import os
import subprocess
import sys

import paceline
import paceline.torch as hvd
import pytest
import torch
from torch_workers.checks import run_all


def before_and_after(rank, size):
    """Uninitialized, initialized, shut down, and again."""
    for _ in range(2):
        assert not hvd.is_initialized()
        for call in (
            hvd.rank,
            hvd.size,
            hvd.local_rank,
            hvd.local_size,
            hvd.cross_rank,
            hvd.cross_size,
            hvd.is_homogeneous,
            hvd.join,
            hvd.barrier,
            hvd.global_process_set.included,
            lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)),
            lambda: hvd.allreduce(torch.ones(1)),
            lambda: hvd.allreduce(torch.ones(1).to_sparse()),
            lambda: hvd.add_process_set([0]),
            lambda: hvd.broadcast_object(1),
        ):
            with pytest.raises(ValueError, match=r"has not been initialized; use hvd\.init\(\)") as result:
                call()
            assert isinstance(result.value, hvd.NotInitializedError)
        hvd.init()
        hvd.init()
        assert hvd.is_initialized() and (hvd.rank(), hvd.size()) == (rank, size)
        assert hvd.allreduce(torch.tensor(1.0), op=hvd.Sum, name="x").item() == size
        assert hvd.add_process_set([0]).process_set_id == 1 if size > 1 else True
        handle = hvd.allreduce_async(torch.ones(1), name=f"only {rank}")
        hvd.barrier()
        hvd.shutdown()
        hvd.shutdown()
        if size > 1:
            with pytest.raises(hvd.HorovodInternalError):
                hvd.synchronize(handle)


def answers(rank, size):
    assert hvd.nccl_built() == 0 and type(hvd.nccl_built()) is int
    for answer in (
        hvd.mpi_threads_supported,
        hvd.mpi_enabled,
        hvd.mpi_built,
        hvd.gloo_enabled,
        hvd.gloo_built,
        hvd.ddl_built,
        hvd.ccl_built,
        hvd.cuda_built,
        hvd.rocm_built,
    ):
        assert answer() is False
    assert issubclass(hvd.HorovodInternalError, paceline.JobError)


def places(rank, size):
    return [hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()]


def sets(rank, size):
    run_all([sets_of_all_kinds, wrong_sets, disagreements], rank, size)


def sets_of_all_kinds(rank, size):
    assert hvd.global_process_set.ranks == list(range(size)) and hvd.global_process_set.included()
    evens = hvd.add_process_set(hvd.ProcessSet([2, 0]))
    rest = hvd.add_process_set([1])
    some = hvd.add_process_set(range(1, size))
    assert [each.process_set_id for each in (evens, rest, some)] == [1, 2, 3]
    assert evens.ranks == [0, 2] and evens.size() == 2 and some.size() == size - 1
    for each in (evens, rest, some):
        assert each.included() == (rank in each.ranks)
        if not each.included():
            for call in (
                lambda each=each: hvd.allreduce(torch.ones(1), process_set=each),
                lambda each=each: hvd.barrier(process_set=each),
                each.rank,
            ):
                with pytest.raises(ValueError, match=rf"rank {rank} is not in ProcessSet\(process_set_id="):
                    call()
            continue
        assert each.rank() == each.ranks.index(rank)
        for name in (None, "x"):
            how = {"process_set": each, "name": name}
            assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, **how).item() == sum(each.ranks)
            assert hvd.allreduce(torch.tensor([float(rank)]), **how).item() == sum(each.ranks) / len(each.ranks)
            assert hvd.allgather(torch.tensor([rank]), **how).tolist() == each.ranks
            root = each.ranks[-1]
            assert hvd.broadcast(torch.tensor([rank]), root, **how).item() == root
            own = torch.arange(len(each.ranks)) + 10 * rank
            got = hvd.alltoall(own, process_set=each)
            assert got.tolist() == [10 * other + each.rank() for other in each.ranks]
            own = torch.arange(len(each.ranks))
            assert hvd.reducescatter(own, op=hvd.Sum, **how).tolist() == [each.rank() * len(each.ranks)]
            assert hvd.broadcast_object(rank, root, **how) == root
            assert hvd.allgather_object(rank, **how) == each.ranks
        with pytest.raises(ValueError, match="root_rank 9 is not in"):
            hvd.broadcast(torch.ones(1), 9, process_set=each)
        hvd.barrier(process_set=each)
    assert hvd.remove_process_set(evens) and evens.process_set_id is None and not hvd.remove_process_set(evens)
    with pytest.raises(ValueError, match="has not been added, or was removed"):
        hvd.allreduce(torch.ones(1), process_set=evens)
    assert hvd.add_process_set(evens).process_set_id == 4, "numbers are not used again"
    assert not hvd.remove_process_set(hvd.global_process_set)


def wrong_sets(rank, size):
    for wrong, why in (
        ([], "no ranks"),
        ([0, size], f"ranks count from 0 to {size - 1}"),
        ([-1], "ranks count from 0"),
        ([1, 1], "named once"),
        (range(size), "process set 0 already"),
        ([1], "process set 2 already"),
        (["0"], "list of ranks"),
        (7, "list of ranks"),
        (hvd.global_process_set, "already been added"),
    ):
        with pytest.raises(ValueError, match=why):
            hvd.add_process_set(wrong)
    for each in (hvd.ProcessSet([0]), hvd.ProcessSet([])):
        assert each.size() is None and each.rank() is None and not hvd.remove_process_set(each)
        with pytest.raises(ValueError, match="is unknown"):
            hvd.barrier(process_set=each)


def disagreements(rank, size):
    with pytest.raises(ValueError, match="all ranks add the same sets in the same order"):
        hvd.add_process_set([0] if rank == 0 else [2])
    one, two = hvd.add_process_set([0]), hvd.add_process_set([2])
    with pytest.raises(ValueError, match="all ranks must remove one set"):
        hvd.remove_process_set(one if rank == 0 else two)
    hvd.barrier()


def from_the_start(rank, size):
    given = [hvd.ProcessSet([0]), hvd.ProcessSet([1, 2])]
    hvd.init(process_sets=given)
    assert [each.process_set_id for each in given] == [1, 2]
    hvd.shutdown()
    assert [each.process_set_id for each in given] == [None, None]
    hvd.init(process_sets=given)
    assert given[1].included() == (rank > 0)
    hvd.shutdown()
    with pytest.raises(ValueError, match="something other than ProcessSet"):
        hvd.init(process_sets=[[0]])
    with pytest.raises(ValueError, match="or 'dynamic'"):
        hvd.init(process_sets="static")
    hvd.init(process_sets="dynamic")
    hvd.shutdown()


def two_worlds(rank, size):
    """Ranks 0 and 2 form one world, the others another."""
    mine = [2, 0] if rank in (0, 2) else [1, 3]
    hvd.init(comm=mine)
    assert (hvd.rank(), hvd.size()) == (mine.index(rank), 2)
    assert (hvd.local_rank(), hvd.local_size()) == ([0, 2].index(rank) if rank in (0, 2) else [1, 3].index(rank), 2)
    assert hvd.allgather(torch.tensor([rank])).tolist() == mine
    assert hvd.allreduce(torch.tensor(rank), op=hvd.Sum).item() == sum(mine)
    first = hvd.add_process_set([1])
    if first.included():
        assert hvd.allgather(torch.tensor([rank]), process_set=first).tolist() == mine[1:]
    hvd.shutdown()
    for wrong in ([rank + 1], [rank, rank], [rank, 9]):
        with pytest.raises(ValueError, match="comm="):
            hvd.init(comm=wrong)
    with pytest.raises(ValueError, match="there is no MPI"):
        hvd.init(comm=object())
    assert not hvd.is_initialized()


def forked(rank, size):
    """A child knows its place but cannot take part; the parent continues."""
    assert hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item() == size
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = f"{hvd.rank()} "
        for call in (lambda: hvd.allreduce(torch.ones(1)), hvd.barrier, hvd.join):
            try:
                call()
            except hvd.HorovodInternalError as error:
                said += str(error)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    said = b""
    while more := os.read(read, 4096):
        said += more
    os.waitpid(child, 0)
    assert said.decode().count(f"forked from rank {rank}") == 3 and said.decode().startswith(f"{rank} ")
    assert hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item() == size


FORKED = """
import os, sys, torch
import paceline.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1))
handle = hvd.allreduce_async(torch.ones(3_000_000), op=hvd.Sum)
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: hvd.poll(handle), lambda: hvd.synchronize(handle)):
        try:
            call()
        except Exception as error:
            refused += "forked from one that had joined the job" in str(error)
    if hvd.rank():
        hvd.shutdown()
    sys.exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
print(hvd.synchronize(handle)[0].item())
"""
NOT_AWAITED = """
import torch
import paceline.torch as hvd
hvd.init()
handles = [hvd.allreduce_async(torch.ones(1_000_000), name=f"q{i}", op=hvd.Sum) for i in range(10)]
print(float(hvd.size()))
"""


def scripts(rank, size):
    """A child that waits for what its parent has begun, and ends; and a script that ends with operations in flight."""
    for text in (FORKED, NOT_AWAITED):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout.split(), done.stderr) == (0, [str(float(size))], ""), done.stderr


def without_shutdown(rank, size):
    """A script that just ends."""
    text = "import paceline.torch as hvd, torch; hvd.init(); print(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [str(float(size))], "")
