"""Seeded tensors of every dtype, and the expected results of collectives, computed by each rank for itself."""

import numpy as np
import torch
import torch.distributed as dist

REDUCED = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]
WIDENED = [torch.int8, torch.int16]
MOVED = [*REDUCED, *WIDENED, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64]
MOVED += [torch.float8_e4m3fn, torch.float8_e5m2]
OPS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
    "avg": dist.ReduceOp.AVG,
}


def tensor(dtype, shape, *seed):
    """The tensor that rank `seed[0]` contributes to call `seed[1]`, or whatever the numbers mean."""
    draw = np.random.default_rng([977, *seed])
    if dtype.is_complex:
        parts = torch.from_numpy(draw.uniform(-2, 2, (*shape, 2)))
        return torch.complex(parts[..., 0], parts[..., 1]).to(dtype)
    if dtype.is_floating_point:
        return torch.from_numpy(draw.uniform(0.5, 2, shape)).to(dtype)
    least = -100 if dtype.is_signed else 0
    return torch.from_numpy(draw.integers(least, 2 if dtype is torch.bool else 100, shape)).to(dtype)


def reduced(op, tensors):
    """The reduction in numpy: floating-point numbers in float64; integers wrap as they do in the dtype.

    Their averages do not, and are rounded toward zero.
    """
    dtype = tensors[0].dtype
    if dtype is torch.bool:
        every = np.stack([part.numpy() for part in tensors])
        return torch.from_numpy(np.asarray(every.all(0) if op in ("product", "min") else every.any(0)))
    wide = np.float64 if dtype.is_floating_point else np.dtype(str(dtype).removeprefix("torch."))
    if op == "avg" and not dtype.is_floating_point:
        whole = torch.stack([part.long() for part in tensors]).sum(0)
        return whole.div(len(tensors), rounding_mode="trunc").to(dtype)
    every = np.stack([part.to(torch.float64).numpy() if dtype.is_floating_point else part.numpy() for part in tensors])
    with np.errstate(over="ignore"):
        function = {"sum": np.sum, "avg": np.sum, "min": np.min, "max": np.max, "product": np.prod}[op]
        whole = function(every, axis=0) if op in ("min", "max") else function(every, axis=0, dtype=wide)
        if op == "avg":
            whole = whole / len(tensors)
    return torch.from_numpy(np.asarray(whole)).to(dtype)


def assert_reduced(got, op, tensors, what=""):
    """`got` is the reduction of `tensors`, exactly for integers, minimum and maximum, else to a few roundings."""
    want = reduced(op, tensors)
    if not got.dtype.is_floating_point or op in ("min", "max"):
        assert torch.equal(got, want), f"{what} {op} {got.dtype}: {got} instead of {want}"
    else:
        roundings = 2 * len(tensors) * torch.finfo(got.dtype).eps
        torch.testing.assert_close(got, want, rtol=roundings, atol=roundings, msg=lambda text: f"{what} {op}: {text}")


def assert_same_everywhere(given, group=None):
    """All ranks of the group hold the same bits."""
    size = dist.get_world_size(group)
    parts = [None] * size
    dist.all_gather_object(parts, given.contiguous().view(-1).view(torch.uint8).numpy().tobytes(), group=group)
    assert all(part == parts[0] for part in parts), f"the ranks of {group} differ"


def same(left, right):
    """Equal bits, dtype and shape (also for dtypes that torch cannot compare)."""
    bits = [
        part.contiguous().view(-1).view(torch.uint8) if part.numel() else part.new_empty(0) for part in (left, right)
    ]
    return left.dtype is right.dtype and left.shape == right.shape and torch.equal(bits[0].cpu(), bits[1].cpu())
