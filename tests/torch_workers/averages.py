"""Averages of float16 whose sum leaves the range, and results that overlap themselves."""

import numpy as np
import torch
import torch.distributed as dist

from torch_workers.handles import raises

LARGEST = 65504.0


def contributions(size, count, seed):
    """Values of every magnitude, the largest included; those of all ranks, in float64."""
    draw = np.random.default_rng(seed)
    values = draw.standard_normal((size, count)) * 2.0 ** draw.integers(-20, 16, count)
    values[:, :3] = LARGEST, -LARGEST, 60000.0
    return np.clip(values, -LARGEST, LARGEST).astype(np.float16)


def calls(given, size):
    """Each call's average of this rank's contribution, and which part of the whole it is."""
    whole, count = slice(None), given.numel()
    reduced = given.clone()
    dist.all_reduce(reduced, op=dist.ReduceOp.AVG)
    yield "all_reduce", reduced, whole
    reduced = given.clone()
    dist.reduce(reduced, 0, op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        yield "reduce", reduced, whole
    part = slice(dist.get_rank() * (count // size), (dist.get_rank() + 1) * (count // size))
    scattered = torch.empty(count // size, dtype=given.dtype)
    dist.reduce_scatter_tensor(scattered, given.clone(), op=dist.ReduceOp.AVG)
    yield "reduce_scatter_tensor", scattered, part


def average(rank, size, counts):
    """float16 averages are those of float64, up to a rounding for each addition."""
    for seed, count in enumerate(counts):
        given = contributions(size, count * size, seed)
        exact = given.astype(np.float64).mean(axis=0)
        # A rounding of a contribution, of each partial sum and of the result.
        most = np.abs(given.astype(np.float64)).max(axis=0)
        bound = (size + 1) * np.maximum(most * 2.0**-11, 2.0**-24)
        for call, result, part in calls(torch.from_numpy(given[rank].copy()), size):
            error = np.abs(result.numpy().astype(np.float64) - exact[part])
            assert np.all(error <= bound[part]), (call, count, error.max(), result[~np.isfinite(result.numpy())])


def exact(rank, size):
    """What needed no rounding needs none now: whole numbers, and halves of them."""
    values = torch.arange(-100, 100, dtype=torch.float16) * size
    result = values.clone()
    dist.all_reduce(result, op=dist.ReduceOp.AVG)
    assert torch.equal(result, values)
    whole = torch.full((5,), rank, dtype=torch.int32)
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    assert whole.tolist() == [sum(range(size)) // size] * 5


def overlapping(rank, size):
    """Every call refuses a result of which several elements are in the same memory, before it sends anything."""
    own = torch.ones(4)
    twice = torch.zeros(8).as_strided((2, 4), (2, 1))
    views = {
        "expanded": torch.zeros(1).expand(4),
        "overlapping rows": twice[:, :2].as_strided((2, 2), (1, 1)),
        "interleaved": torch.zeros(16).as_strided((2, 2), (2, 2)),
    }
    for view in views.values():
        same = torch.ones(view.shape)
        whole = torch.ones(size * view.numel())
        for call in (
            lambda view=view: dist.all_reduce(view),
            lambda view=view: dist.broadcast(view, 0) if rank else dist.all_reduce(view),
            lambda view=view, same=same: dist.all_gather([view] * size, same),
            lambda view=view, whole=whole: dist.reduce_scatter_tensor(view, whole),
            lambda view=view, same=same: dist.all_to_all([view] * size, [same] * size),
            lambda view=view: dist.recv(view, 1 - rank),
        ):
            raises(ValueError, "several elements are in the same memory", call)
    dist.all_reduce(own)
    assert own.tolist() == [size] * 4
    # Views without overlaps, however they are interleaved.
    view = torch.zeros(12).as_strided((2, 2, 3), (3, 6, 1))
    view += 1
    dist.all_reduce(view)
    assert view.eq(size).all()
