"""Random collectives on random groups: every rank runs the same program and checks its own results."""

import random

import torch
import torch.distributed as dist

from torch_workers.values import OPS, assert_reduced, assert_same_everywhere, same, tensor

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]
CALLS = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier", "ring"]


def program(seed, size, calls):
    """Groups, and for each call its group, whether to wait late, and kind, dtype, elements, root and operator."""
    draw = random.Random(seed)
    groups = [sorted(draw.sample(range(size), draw.randint(1, size))) for _ in range(draw.randint(1, 4))]
    steps = []
    for _ in range(calls):
        group = draw.randrange(len(groups))
        count = draw.choice([0, 1, 2, 7, 64, 1000, 20_000])
        root, op = draw.randrange(len(groups[group])), draw.choice(["sum", "min", "max"])
        steps.append((group, draw.random() < 0.5, (draw.choice(CALLS), draw.choice(DTYPES), count, root, op)))
    return groups, steps


def play(rank, size, seed, calls):
    """Run the program; calls that are waited for late are checked at the end, in another order."""
    groups, steps = program(seed, size, calls)
    handles = [dist.new_group(ranks) for ranks in groups]
    late = []
    for number, (which, is_late, step) in enumerate(steps):
        ranks = groups[which]
        if rank not in ranks:
            continue
        work, check = begin(handles[which], ranks, rank, number, step)
        if is_late:
            late.append((work, check))
        else:
            work.wait()
            check()
    random.Random(rank).shuffle(late)
    for work, check in late:
        work.wait()
        check()


def begin(group, ranks, rank, number, step):
    """Begin a call; its handle, and what checks the result."""
    call, dtype, count, root, op = step
    parts = [tensor(dtype, (count,), source, number) for source in ranks]
    me, n = ranks.index(rank), len(ranks)
    own = parts[me].clone()
    if call == "all_reduce":
        work = dist.all_reduce(own, OPS[op], group=group, async_op=True)
        return work, lambda: assert_reduced(own, op, parts, f"call {number}")
    if call == "broadcast":
        work = dist.broadcast(own, group_src=root, group=group, async_op=True)
        return work, lambda: _same(own, parts[root], number)
    if call == "all_gather":
        outs = [torch.empty_like(own) for _ in ranks]
        work = dist.all_gather(outs, own, group=group, async_op=True)
        return work, lambda: [_same(out, part, number) for out, part in zip(outs, parts, strict=True)]
    wholes = [tensor(dtype, (n * count,), source, number) for source in ranks]
    if call == "reduce_scatter":
        work = dist.reduce_scatter_tensor(own, wholes[me].clone(), OPS[op], group=group, async_op=True)
        mine = [whole[me * count : (me + 1) * count] for whole in wholes]
        return work, lambda: assert_reduced(own, op, mine, f"call {number}")
    if call == "all_to_all":
        got = torch.empty_like(wholes[0])
        work = dist.all_to_all_single(got, wholes[me].clone(), group=group, async_op=True)
        return work, lambda: _same(got, torch.cat([w[me * count : (me + 1) * count] for w in wholes]), number)
    if call == "ring" and n > 1:
        got = torch.empty_like(own)
        receive = dist.irecv(got, group_src=(me - 1) % n, group=group, tag=number)
        send = dist.isend(own, group_dst=(me + 1) % n, group=group, tag=number)
        return receive, lambda: (send.wait(), _same(got, parts[(me - 1) % n], number))
    return dist.barrier(group=group, async_op=True), lambda: None


def _same(got, want, number):
    assert same(got, want), f"call {number}: {got} instead of {want}"


def all_agree(rank, size, seed):
    """A sum whose rounding depends on its order has the same bits everywhere, and in the next job of the same size."""
    own = tensor(torch.float32, (10_001,), rank, seed) * 10.0 ** (rank * 3)
    dist.all_reduce(own)
    assert_same_everywhere(own)
    return own.numpy().tobytes()
