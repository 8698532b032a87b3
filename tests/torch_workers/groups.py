"""Groups within groups, meshes, functional collectives, other backends beside this one, and the life of a job."""

import gc
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from paceline.catalog.builtin import load_cluster
from paceline.errors import InvalidArgumentError, JobError
from paceline.forecast.nccl import Group, Machine, collective_time
from paceline.torch.backend.hook import operations_of
from torch.distributed.device_mesh import init_device_mesh

from torch_workers.checks import BACKENDS, run_all
from torch_workers.handles import raises
from torch_workers.values import assert_same_everywhere
from torch_workers.versions import Replicate, Shard, distribute_tensor


def _sum(group, value):
    own = torch.full((5,), float(value))
    dist.all_reduce(own, group=group)
    return float(own[0])


def overlapping_groups(rank, size):
    """Each rank has a group with each neighbor; no two ranks have created the same groups before."""
    pairs = [dist.new_group([first, (first + 1) % size]) for first in range(size)]
    for first, pair in enumerate(pairs):
        members = {first, (first + 1) % size}
        if rank in members:
            assert _sum(pair, rank) == sum(members)
            assert dist.get_world_size(pair) == len(members)


def new_groups(rank, size):
    """Groups of one rank, of all, of some; their collectives, roots, sends and names."""
    alone = dist.new_group([rank], use_local_synchronization=True)
    assert _sum(alone, rank) == rank
    every = dist.new_group()
    assert _sum(every, rank) == sum(range(size))
    odd = dist.new_group(list(range(1, size)), group_desc="all but the first", timeout=timedelta(seconds=20))
    if rank > 0:
        assert odd.group_desc == "all but the first"
        got = torch.full((3,), float(rank))
        dist.broadcast(got, size - 1, group=odd)
        assert float(got[0]) == size - 1
        everything = [None] * (size - 1)
        dist.all_gather_object(everything, rank, group=odd)
        assert everything == list(range(1, size))
        if rank == 1:
            dist.send(torch.ones(1), size - 1, group=odd)
        if rank == size - 1:
            got = torch.empty(1)
            assert dist.recv(got, group=odd) == 1
        dist.destroy_process_group(odd)
    assert _sum(None, 1) == size


def many_in_flight(rank, size):
    """Operations on several groups at a time, waited for in another order."""
    groups = [dist.new_group() for _ in range(3)]
    owns = [[torch.full((100,), float(n)) for n in range(10)] for _ in groups]
    works = [
        dist.all_reduce(owns[g][n], group=group, async_op=True) for n in range(10) for g, group in enumerate(groups)
    ]
    for work in reversed(works):
        work.wait()
    assert all(float(owns[g][n][0]) == n * size for g in range(3) for n in range(10))


def splits(rank, size):
    """split_group, where torch has it for us, and a group of a group."""
    if not BACKENDS:
        return
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    part = dist.split_group(split_ranks=halves)
    mine = halves[rank >= size // 2]
    assert _sum(part, rank) == sum(mine)
    assert dist.get_rank(part) == mine.index(rank)
    again = dist.split_group(part, split_ranks=[[index] for index in range(len(mine))])
    assert _sum(again, rank) == rank


def meshes(rank, size):
    """A 2 x n mesh: collectives along each dimension; sharded tensors; redistribution."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
    column = rank % (size // 2)
    assert _sum(mesh.get_group("rows"), rank) == column + column + size // 2
    row = rank // (size // 2)
    assert _sum(mesh["columns"].get_group(), rank) == sum(range(row * size // 2, (row + 1) * size // 2))
    torch.manual_seed(3)
    whole = torch.randn(8, 6)
    flat = init_device_mesh("cpu", (size,))
    sharded = distribute_tensor(whole, flat, [Shard(0)])
    assert torch.equal(sharded.to_local(), whole.chunk(size)[rank])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(placements=[Shard(1)]).full_tensor(), whole)
    product = sharded @ distribute_tensor(whole.t().contiguous(), flat, [Replicate()])
    torch.testing.assert_close(product.full_tensor(), whole @ whole.t())
    two = distribute_tensor(whole, mesh, [Shard(0), Replicate()])
    torch.testing.assert_close(two.sum().full_tensor(), whole.sum())


def functional_collectives(rank, size):
    """What the compiler and sharded tensors call."""
    own, world = torch.full((size * 2, 3), float(rank)), dist.group.WORLD
    assert float(functional.all_reduce(own, "sum", world)[0, 0]) == sum(range(size))
    assert torch.equal(own, torch.full((size * 2, 3), float(rank)))
    gathered = functional.all_gather_tensor(own, 0, world)
    assert gathered.shape == (size * size * 2, 3)
    assert torch.equal(gathered[:: size * 2, 0], torch.arange(size).float())
    scattered = functional.reduce_scatter_tensor(own, "sum", 0, world)
    assert scattered.shape == (2, 3)
    assert float(scattered[0, 0]) == sum(range(size))
    swapped = functional.all_to_all_single(own, None, None, world)
    assert torch.equal(swapped[::2, 0], torch.arange(size).float())
    assert float(functional.broadcast(own, 1, world)[0, 0]) == 1
    several = functional.all_reduce_coalesced([own, own * 2], "sum", world)
    assert float(several[1][0, 0]) == 2 * sum(range(size))
    parts = functional.all_gather_into_tensor_coalesced([own, own.double()], world)
    assert parts[1].dtype is torch.float64
    assert_same_everywhere(gathered)


ALL = [new_groups, many_in_flight, splits, meshes, functional_collectives]


def everything(rank, size):
    """All of the above in one launch."""
    run_all(ALL, rank, size)


def estimates(rank, size):
    """Torch's time estimator adds up NCCL's times, on the ranks of each group, and runs nothing."""
    own, parts = torch.full((1 << 20,), float(rank)), torch.zeros(size << 20)
    pair = dist.new_group([0, size - 1])
    with dist._time_estimator() as whole:
        dist.all_reduce(own)
        dist.all_gather_into_tensor(parts, own, async_op=True).wait()
        dist.reduce_scatter_tensor(own, parts)
    assert float(own[0]) == rank and not parts.any()
    machine = Machine.of(load_cluster("dgx-h100"))
    calls = (("allreduce", 4 << 20), ("allgather", size << 22), ("reducescatter", size << 22))
    forecast = sum(collective_time(kind, nbytes, Group(size, 8), machine).seconds for kind, nbytes in calls)
    assert abs(whole.estimated_time / (1e6 * forecast) - 1) < 1e-9
    if rank in (0, size - 1):
        with dist._time_estimator(pair) as between:
            dist.all_reduce(own, group=pair)
        assert between.estimated_time == 1e6 * collective_time("allreduce", 4 << 20, Group(2, 8), machine).seconds

    def a_barrier():
        with dist._time_estimator():
            dist.barrier()

    raises(InvalidArgumentError, "barrier has no estimate, only all_reduce", a_barrier)
    assert _sum(None, 1) == size


def beside_gloo(rank, size):
    """The default group is Gloo's; a group of some ranks is Paceline's, with connections of its own."""
    ranks = list(range(1, size))
    ours = dist.new_group(ranks, backend="paceline")
    if rank in ranks:
        assert dist.get_backend(ours) == "paceline"
        assert _sum(ours, rank) == sum(ranks)
        dist.destroy_process_group(ours)
    again = dist.new_group(backend="paceline")
    assert _sum(again, 1) == size
    assert _sum(None, 1) == size


def beside_another_device(rank, size):
    """The CPU's backend in a group that has one for CUDA too."""
    own = torch.full((6,), float(rank))
    dist.all_reduce(own)
    assert float(own[0]) == sum(range(size))
    work = dist.all_reduce(own, async_op=True)
    work.wait()
    outs = [torch.empty(6) for _ in range(size)]
    dist.all_gather(outs, own)
    future = dist.all_reduce(own, async_op=True).get_future()
    assert float(future.wait()[0][0]) == sum(range(size)) * size**2
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.full((1, 2), float(rank))).sum().backward()
    torch.testing.assert_close(model.module.weight.grad, torch.full((1, 2), sum(range(size)) / size))
    pair = dist.new_group([0, 1])
    if rank < 2:
        assert _sum(pair, rank) == 1
    if BACKENDS:
        part = dist.split_group(split_ranks=[[source] for source in range(size)])
        assert _sum(part, rank) == rank


def for_devices(rank, size):
    """The strategies' hook finds the backend for CUDA beside gloo's."""
    if BACKENDS:
        assert operations_of(dist.group.WORLD).backend_name == "paceline"


def lives(store, rank, size):
    """Init, destroy and init again on one store, as under torchrun; a second init; the use of a dead group."""
    for life in range(3):
        dist.init_process_group("paceline", store=store, rank=rank, world_size=size)
        assert _sum(None, life) == life * size
        raises(ValueError, "twice", dist.init_process_group, "paceline")
        group = dist.group.WORLD
        dist.destroy_process_group()
        assert not dist.is_initialized()
        raises(JobError, "destroyed", group.allreduce, [torch.ones(1)])
        job = weakref.ref(group._job)
        del group
        gc.collect()
        assert job() is None, f"the job is still held by {gc.get_referrers(job())}"


def one_is_late(store, rank, size):
    """All other ranks get an error in time that names a rank that never comes."""
    if rank == 1:
        time.sleep(4)
        return
    limit = timedelta(seconds=2)
    raises(
        JobError,
        r"waited 2 s for rank 1 of",
        lambda: dist.init_process_group("paceline", store=store, rank=rank, world_size=size, timeout=limit),
    )
