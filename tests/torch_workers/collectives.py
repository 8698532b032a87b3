"""Every collective operation on every dtype, against numpy and torch."""

import copy
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from paceline.torch import strategy_hook

from torch_workers.checks import BACKENDS, run_all
from torch_workers.handles import raises
from torch_workers.values import MOVED, OPS, REDUCED, WIDENED, assert_reduced, assert_same_everywhere, same, tensor

SHAPE = (3, 7)


def reductions(rank, size):
    """all_reduce, reduce and reduce_scatter of every operator and dtype that has them."""
    for dtype in [*REDUCED, *WIDENED, torch.bool]:
        for number, (name, op) in enumerate(OPS.items()):
            if name == "avg" and dtype is torch.bool:
                continue
            parts = [tensor(dtype, SHAPE, source, number) for source in range(size)]
            own = parts[rank].clone()
            dist.all_reduce(own, op)
            assert_reduced(own, name, parts, "all_reduce")
            assert_same_everywhere(own)
            own = parts[rank].clone()
            dist.reduce(own, size - 1, op)
            if rank == size - 1:
                assert_reduced(own, name, parts, "reduce")
            whole = [tensor(dtype, (size * 2, 5), source, number, 1) for source in range(size)]
            mine = [part[2 * rank : 2 * rank + 2] for part in whole]
            got = torch.empty(2, 5, dtype=dtype)
            dist.reduce_scatter_tensor(got, whole[rank], op)
            assert_reduced(got, name, mine, "reduce_scatter_tensor")
            got = torch.empty(2, 5, dtype=dtype)
            dist.reduce_scatter(got, list(whole[rank].chunk(size)), op)
            assert_reduced(got, name, mine, "reduce_scatter")
    for size_of_part in (1, 1000, 100_003):
        parts = [tensor(torch.float32, (size_of_part,), source, 5) for source in range(size)]
        own = parts[rank].clone()
        dist.all_reduce(own)
        assert_reduced(own, "sum", parts)
        assert_same_everywhere(own)


def special_reductions(rank, size):
    """Complex sums, scaled sums, bitwise operators of bool, and the operators that a dtype does not have."""
    parts = [tensor(torch.complex64, SHAPE, source) for source in range(size)]
    own = parts[rank].clone()
    dist.all_reduce(own)
    torch.testing.assert_close(own, torch.stack(parts).sum(0))
    parts = [tensor(torch.float32, SHAPE, source) for source in range(size)]
    own = parts[rank].clone()
    dist.all_reduce(own, dist._make_nccl_premul_sum(0.25))
    torch.testing.assert_close(own, torch.stack(parts).sum(0) * 0.25)
    for dtype in (torch.int32, torch.int64, torch.int8):
        parts = [tensor(dtype, SHAPE, source) for source in range(size)]
        own = parts[rank].clone()
        dist.all_reduce(own, dist._make_nccl_premul_sum(0.3))
        assert torch.equal(own, sum((part.double() * 0.3).trunc().to(dtype) for part in parts)), dtype
    flags = [tensor(torch.bool, (64,), source) for source in range(size)]
    for op, want in ((dist.ReduceOp.BAND, torch.stack(flags).all(0)), (dist.ReduceOp.BOR, torch.stack(flags).any(0))):
        own = flags[rank].clone()
        dist.all_reduce(own, op)
        assert torch.equal(own, want)


def integer_averages(rank, size):
    """Toward zero and exact, in every call that has AVG: Lightning averages its batch counter."""
    negative = torch.tensor([-3, -7, 5, -37, 1 << 60, -(1 << 60) + 1]) - 2 * rank
    whole = sum(negative + 2 * rank - 2 * source for source in range(size))
    want = whole.div(size, rounding_mode="trunc")
    own = negative.clone()
    dist.all_reduce(own, dist.ReduceOp.AVG)
    assert torch.equal(own, want), (own, want)
    assert torch.equal(functional.all_reduce(negative, "avg", dist.group.WORLD), want)
    rows = functional.reduce_scatter_tensor(negative.repeat(size), "avg", 0, dist.group.WORLD)
    assert torch.equal(rows, want)
    own = negative.clone()
    with dist._coalescing_manager(async_ops=True) as handles:
        dist.all_reduce(own, dist.ReduceOp.AVG)
    handles.wait()
    assert torch.equal(own, want), own
    # 49 / 49 is 1, although 49 * (1 / 49) is less in binary; so it is for any number of ranks that a test can have.
    for dtype in (torch.uint8, torch.int8):
        largest = torch.full((3,), torch.iinfo(dtype).max, dtype=dtype)
        dist.all_reduce(largest, dist.ReduceOp.AVG)
        assert largest.tolist() == [torch.iinfo(dtype).max] * 3


def moves(rank, size):
    """All operations that move tensors, on all dtypes."""
    for number, dtype in enumerate(MOVED):
        parts = [tensor(dtype, SHAPE, source, number) for source in range(size)]
        own, root = parts[rank], number % size
        got = own.clone() if rank == root else torch.empty_like(own)
        dist.broadcast(got, root)
        assert same(got, parts[root]), ("broadcast", dtype)
        outs = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(outs, own)
        assert all(map(same, outs, parts)), ("all_gather", dtype)
        whole = torch.empty((size * 3, 7), dtype=dtype)
        dist.all_gather_into_tensor(whole, own)
        assert all(map(same, whole.chunk(size), parts)), ("all_gather_into_tensor", dtype)
        outs = [torch.empty_like(own) for _ in range(size)] if rank == root else None
        dist.gather(own, outs, root)
        assert outs is None or all(map(same, outs, parts)), ("gather", dtype)
        rows = [tensor(dtype, SHAPE, target, number, 2) for target in range(size)]
        got = torch.empty_like(own)
        dist.scatter(got, rows if rank == root else None, root)
        assert same(got, rows[rank]), ("scatter", dtype)


def single_gather(rank, size):
    """gather_single, the newest of c10d's forms."""
    if not hasattr(dist, "gather_single"):
        return
    own = torch.full((2, 3), float(rank))
    whole = torch.empty(size * 2, 3) if rank == size - 1 else None
    dist.gather_single(own, whole, size - 1)
    assert whole is None or torch.equal(whole[:, 0], torch.arange(size).repeat_interleave(2).float())


def all_to_all(rank, size):
    """Lists and single tensors, in equal and in unequal parts, some of them empty."""
    for dtype in (torch.float32, torch.int16, torch.bool):
        sent = [[tensor(dtype, (a + 2 * b, 3), a, b) for b in range(size)] for a in range(size)]
        outs = [torch.empty_like(sent[source][rank]) for source in range(size)]
        dist.all_to_all(outs, list(sent[rank]))
        assert all(same(out, sent[source][rank]) for source, out in enumerate(outs)), ("all_to_all", dtype)
        splits = [rank + 2 * b for b in range(size)]
        out_splits = [a + 2 * rank for a in range(size)]
        got = torch.empty(sum(out_splits), 3, dtype=dtype)
        dist.all_to_all_single(got, torch.cat(sent[rank]), out_splits, splits)
        assert same(got, torch.cat(outs)), ("all_to_all_single, uneven", dtype)
        rows = [tensor(dtype, (size * 2, 3), source) for source in range(size)]
        got = torch.empty(size * 2, 3, dtype=dtype)
        dist.all_to_all_single(got, rows[rank])
        assert same(got, torch.cat([row[2 * rank : 2 * rank + 2] for row in rows])), ("all_to_all_single", dtype)


def uneven_lists(rank, size):
    """all_gather and reduce_scatter whose parts differ in size by rank."""
    parts = [tensor(torch.float32, (source + 1, 2), source) for source in range(size)]
    outs = [torch.empty_like(part) for part in parts]
    dist.all_gather(outs, parts[rank])
    assert all(map(torch.equal, outs, parts))
    sent = [[tensor(torch.int32, (target + 1,), source, target) for target in range(size)] for source in range(size)]
    got = torch.empty(rank + 1, dtype=torch.int32)
    dist.reduce_scatter(got, sent[rank])
    assert_reduced(got, "sum", [sent[source][rank] for source in range(size)])


def layouts(rank, size):
    """Transposed, strided, empty, zero-dimensional, lazily negated and gradient-requiring tensors."""
    parts = [tensor(torch.float32, (4, 6), source) for source in range(size)]
    total = torch.stack(parts).sum(0)
    for view in (lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:3, 2:5], lambda t: t[0, 0]):
        own = parts[rank].clone()
        dist.all_reduce(view(own))
        want = parts[rank].clone()
        view(want).copy_(view(total))
        torch.testing.assert_close(own, want)
        got = torch.zeros(4, 6)
        if rank == 0:
            got.copy_(parts[0])
        dist.broadcast(view(got), 0)
        assert torch.equal(view(got), view(parts[0]))
        outs = [view(torch.empty(4, 6)) for _ in range(size)]
        dist.all_gather(outs, view(parts[rank]))
        assert all(torch.equal(out, view(part)) for out, part in zip(outs, parts, strict=True))
    images = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    dist.all_reduce(images)
    assert torch.equal(images, torch.full((2, 3, 4, 4), float(sum(range(size)))))
    assert images.is_contiguous(memory_format=torch.channels_last)
    negated = torch.view_as_complex(parts[rank].clone().view(4, 3, 2)).conj().imag
    assert negated.is_neg()
    want = -torch.stack([part.view(4, 3, 2)[..., 1] for part in parts]).sum(0)
    dist.all_reduce(negated)
    torch.testing.assert_close(negated.resolve_neg(), want)
    for shape in ((0,), (3, 0, 2)):
        nothing = torch.empty(shape)
        dist.all_reduce(nothing)
        dist.broadcast(nothing, 0)
        dist.all_gather([torch.empty(shape) for _ in range(size)], nothing)
        dist.all_gather_into_tensor(torch.empty((size * shape[0], *shape[1:])), nothing)
    weight = torch.nn.Parameter(torch.full((3,), float(rank)))
    dist.broadcast(weight, size - 1)
    assert torch.equal(weight, torch.full((3,), size - 1.0))
    assert weight.requires_grad
    assert weight.grad_fn is None


def coalesced(rank, size):
    """Several tensors in one call, of one dtype and of several."""
    dtypes = [torch.float32, torch.float64, torch.float32, torch.int64]
    parts = [[tensor(dtype, (n + 1, 2), source, n) for n, dtype in enumerate(dtypes)] for source in range(size)]
    own = [part.clone() for part in parts[rank]]
    dist.all_reduce_coalesced(own[::2])  # torch itself refuses several dtypes here, but accepts them below
    for n in (0, 2):
        assert_reduced(own[n], "sum", [part[n] for part in parts])
    own = [part.clone() for part in parts[rank]]
    with dist._coalescing_manager():
        for got in own:
            dist.all_reduce(got)
    for n, got in enumerate(own):
        assert_reduced(got, "sum", [part[n] for part in parts])
    outs = [torch.empty((size * (n + 1), 2), dtype=dtype) for n, dtype in enumerate(dtypes)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, part in zip(outs, parts[rank], strict=True):
            dist.all_gather_into_tensor(out, part)
    manager.wait()
    for n, out in enumerate(outs):
        assert torch.equal(out, torch.cat([part[n] for part in parts])), n
    wholes = [[tensor(dtype, (size * 2, n + 1), a, n, 3) for n, dtype in enumerate(dtypes)] for a in range(size)]
    outs = [torch.empty((2, n + 1), dtype=dtype) for n, dtype in enumerate(dtypes)]
    with dist._coalescing_manager():
        for out, whole in zip(outs, wholes[rank], strict=True):
            dist.reduce_scatter_tensor(out, whole)
    for n, out in enumerate(outs):
        assert_reduced(out, "sum", [whole[n][2 * rank : 2 * rank + 2] for whole in wholes])
    lists = [[torch.empty_like(part[n]) for n in (0, 2)] for part in parts]
    dist.all_gather_coalesced(lists, parts[rank][::2])
    assert all(torch.equal(lists[a][n // 2], parts[a][n]) for a in range(size) for n in (0, 2))


def objects(rank, size):
    """Pickled objects, through all the calls for them."""
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert [thing["rank"] for thing in everything] == list(range(size))
    given = [("a", 1), {2: 3}] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(given, size - 1)
    assert given == [("a", 1), {2: 3}]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * 10, gathered, 0)
    assert gathered is None or gathered == [source * 10 for source in range(size)]
    one = [None]
    dist.scatter_object_list(one, [f"for {target}" for target in range(size)] if rank == 0 else None, 0)
    assert one == [f"for {rank}"]
    dist.barrier()
    if BACKENDS:
        dist.monitored_barrier()


def sparse(rank, size):
    """Sums and averages of sparse tensors, with ranks that have nothing, dense dimensions, and repeated indices."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64):
        for shape, dims in (((5,), 1), ((4, 3), 1), ((4, 3), 2), ((3, 2, 2), 2)):
            parts = [sparse_part(dtype, shape, dims, source) for source in range(size)]
            dense = torch.stack([part.to_dense() for part in parts])
            for op, want in ((dist.ReduceOp.SUM, dense.sum(0)), (dist.ReduceOp.AVG, mean(dense))):
                own = parts[rank].clone()
                dist.all_reduce(own, op)
                assert own.is_sparse and own.is_coalesced() and own.dtype is dtype
                torch.testing.assert_close(own.to_dense(), want.to(dtype))
                later = parts[rank].clone()
                work = dist.all_reduce(later, op, async_op=True)
                [got] = work.get_future().wait()
                assert got is later and torch.equal(got.to_dense(), own.to_dense())
                assert work.is_completed() and work.is_success() and work.result() == [later]
    if size > 1:
        shape = (4, 2 + (rank == 1))
        raises(ValueError, r"rank \d.* same shape, dtype", dist.all_reduce, sparse_part(torch.float32, shape, 1, rank))
    own = sparse_part(torch.float32, (5,), 1, rank)
    raises(TypeError, r"MAX of sparse tensors is not defined.*sum and average", dist.all_reduce, own, dist.ReduceOp.MAX)
    raises(ValueError, "layout sparse_csr.*to_dense", dist.all_reduce, torch.eye(3).to_sparse_csr())
    raises(ValueError, "on meta.*CPU alone.*sparse=False", dist.all_reduce, torch.eye(3).to_sparse().to("meta"))
    dist.barrier()


def sparse_part(dtype, shape, dims, source):
    """A sparse tensor of which the first rank has nothing, and others the same index twice."""
    entries = 0 if source == 0 else source + 2
    indices = torch.stack([torch.arange(entries) * (source + dim) % shape[dim] for dim in range(dims)])
    return torch.sparse_coo_tensor(indices, tensor(dtype, (entries, *shape[dims:]), source), shape)


def mean(dense):
    """The average over ranks, of integers toward zero."""
    whole = not dense.dtype.is_floating_point
    return torch.div(dense.sum(0), len(dense), rounding_mode="trunc" if whole else None)


def sparse_gradients(rank, size):
    """DDP averages the sparse gradients of embeddings, with its own hook and with ours."""
    for hooked in (False, True):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Embedding(6, 4, sparse=True), torch.nn.Linear(4, 2))
        alone = [copy.deepcopy(model) for _ in range(size)]
        words = [torch.tensor([0, source + 1, source + 1]) for source in range(size)]
        ours = torch.nn.parallel.DistributedDataParallel(model)
        if hooked:
            ours.register_comm_hook(None, strategy_hook(None, "ring"))
        for _ in range(2):
            ours.zero_grad()
            ours(words[rank]).sum().backward()
        for source, one in enumerate(alone):
            one(words[source]).sum().backward()
        for number, own in enumerate(model.parameters()):
            each = [list(one.parameters())[number].grad.to_dense() for one in alone]
            torch.testing.assert_close(own.grad.to_dense(), torch.stack(each).mean(0))
        assert model[0].weight.grad.is_sparse


def monitored(rank, size):
    """A barrier that says who is missing, after which the group is as it was."""
    if not BACKENDS or size == 1:
        return
    for every in (False, True):
        missing = list(range(1, size))
        who = f"Ranks {', '.join(map(str, missing))}" if every else "Rank 1"
        if rank == 0:
            begin = time.monotonic()
            words = rf"^\[Rank 0\]: {who} failed to pass monitoredBarrier in 250 ms$"
            raises(RuntimeError, words, dist.monitored_barrier, None, timedelta(milliseconds=250), every)
            assert 0.2 < time.monotonic() - begin < 5
        dist.all_reduce(torch.ones(3))
        if rank != 0:  # Late, which rank 0 has said.
            words = rf"^Rank {rank} successfully reached monitoredBarrier, but received errors.*rank 0"
            raises(RuntimeError, words, dist.monitored_barrier, None, timedelta(seconds=1))
        dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=every)
    if rank == 0:
        raises(RuntimeError, "Rank 0 timed out in monitoredBarrier", dist.group.WORLD.monitored_barrier, timedelta(0))
    dist.barrier()


ALL = [reductions, special_reductions, integer_averages, moves, single_gather, all_to_all, uneven_lists, layouts]
ALL += [coalesced, objects, sparse, sparse_gradients, monitored]


def everything(rank, size):
    """All of the above in one launch; reports which one failed."""
    run_all(ALL, rank, size)
