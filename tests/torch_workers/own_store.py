"""Groups that their callers make directly, with a store of their own, beside a default group or without one."""

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from torch_workers.handles import raises

LIMIT = timedelta(seconds=40)


def own(store, rank, size, name="weights"):
    """A group as trainers make it to send weights to processes outside their job (OpenRLHF's, for example)."""
    group, _ = distributed_c10d._new_process_group_helper(
        size, rank, [], dist.Backend("paceline"), dist.PrefixStore(name, store), group_name=name, timeout=LIMIT
    )
    distributed_c10d._world.pg_group_ranks[group] = {index: index for index in range(size)}
    return group


def beside_a_default(store, number, processes, path, secrets):
    """Processes but the first two are outside the job; they and as many of its ranks form a group."""
    size = 2
    if secrets[number] is not None:
        os.environ["PACELINE_SECRET"] = secrets[number]
    others = processes - size
    total = 2 * others
    if number >= size:
        group = own(dist.FileStore(path, total), number - size + others, total)
        got = torch.zeros(2)
        dist.broadcast(got, group=group, group_src=0)
        assert got.tolist() == [1.0, 2.0]
        dist.all_reduce(got, group=group)
        return
    rank = number
    dist.init_process_group("paceline", store=store, rank=rank, world_size=size, timeout=LIMIT)
    if rank < others:
        group = own(dist.FileStore(path, total), rank, total)
        assert (dist.get_rank(group), dist.get_world_size(group)) == (rank, total)
        values = torch.tensor([1.0, 2.0])
        dist.broadcast(values, group=group, group_src=0)
        dist.all_reduce(values, group=group)
        assert float(values[0]) == total
    # An ordinary group still belongs to the job.
    pair = dist.new_group([0, size - 1])
    one = torch.ones(1)
    if rank in (0, size - 1):
        dist.all_reduce(one, group=pair)
        assert float(one) == 2
    dist.all_reduce(one)
    if rank < others:
        dist.destroy_process_group(group)
    dist.barrier()


def before_the_default(store, rank, size, path):
    """A group of its own made before the default group survives that one's making and its end."""
    group = own(dist.FileStore(path, size), rank, size)
    dist.init_process_group("paceline", store=store, rank=rank, world_size=size, timeout=LIMIT)
    for each in (group, None):
        one = torch.ones(1)
        dist.all_reduce(one, group=each)
        assert float(one) == size


def with_another_order(rank, size, path):
    """The ranks of a group need not be in the order of the job's."""
    group = own(dist.FileStore(path, size), size - 1 - rank, size)
    got = torch.tensor([float(rank)])
    dist.broadcast(got, group=group, group_src=0)
    assert float(got) == size - 1


def one_is_missing(rank, size, path):
    """Who has not come is named, with the name of the group."""
    if rank == 0:
        os.environ["PACELINE_START_TIMEOUT"] = "1"
        own_missing = lambda: distributed_c10d._new_process_group_helper(  # noqa: E731
            2,
            0,
            [],
            dist.Backend("paceline"),
            dist.FileStore(path, 2),
            group_name="weights",
            timeout=timedelta(seconds=2),
        )
        raises(Exception, "rank 1 of 2 to make group weights with the same store", own_missing)
    dist.barrier()


def orders(rank, size):
    """Groups made in different orders: said at once, with their names."""
    groups = [[0, 1], [0, 2]] if rank else [[0, 2], [0, 1]]
    try:
        for ranks in groups:
            dist.new_group(ranks)
    except Exception as error:
        return str(error)
    finally:
        with contextlib.suppress(Exception):
            distributed_c10d._get_default_group().abort()
    return ""
