"""Batch normalization over all ranks equals that of one process with their joint batch."""

import copy
import itertools

import paceline.torch as hvd
import pytest
import torch
from torch import nn
from torch_workers.checks import run_all


def everything(rank, size):
    run_all([as_joined, evaluation, empty_batch, halves, of_some_ranks, trained, refusals], rank, size)


def _plain(dims, dtype, **options):
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[dims](3, **options).to(dtype)
    if norm.affine:
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, 1.0, -2.0]))
            norm.bias.copy_(torch.tensor([0.1, 0.0, 3.0]))
    return norm


def _sync(plain, **more):
    names = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    norm = hvd.SyncBatchNorm(*(getattr(plain, name) for name in names), **more)
    norm.load_state_dict(plain.state_dict())
    return norm.to(plain.running_mean.dtype if plain.track_running_stats else plain.weight.dtype)


def _joined(size, dtype, shape, seed=0):
    """The batches of all ranks, of different sizes and with a large mean."""
    draw = torch.Generator().manual_seed(30 + seed)
    rows = sum(2 + other for other in range(size))
    return (torch.randn(rows, *shape, generator=draw, dtype=torch.float64) * 2 + 50).to(dtype)


def _slice(rank):
    start = sum(2 + other for other in range(rank))
    return slice(start, start + 2 + rank)


def as_joined(rank, size):
    shapes = [(3,), (3, 4), (3, 2, 3), (3, 2, 1, 2)]
    for shape, dtype, momentum, affine, tracks in itertools.product(
        shapes, (torch.float32, torch.float64), (0.3, None), (True, False), (True, False)
    ):
        if not affine and not tracks:
            continue
        plain = _plain(len(shape) + 1, dtype, momentum=momentum, affine=affine, track_running_stats=tracks)
        norm = _sync(plain)
        tolerance = {"rtol": 2e-4, "atol": 2e-4} if dtype is torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
        for step in range(2):
            whole = _joined(size, dtype, shape, step).requires_grad_()
            own = whole.detach()[_slice(rank)].clone().requires_grad_()
            want, got = plain(whole), norm(own)
            torch.testing.assert_close(got, want[_slice(rank)], **tolerance)
            weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(step)).to(dtype)
            for module in (plain, norm):
                module.zero_grad()
            want.backward(weights)
            got.backward(weights[_slice(rank)])
            torch.testing.assert_close(own.grad, whole.grad[_slice(rank)], **tolerance)
            for name, parameter in norm.named_parameters():
                # Each rank has its own share; the optimizer sums them.
                torch.testing.assert_close(
                    hvd.allreduce(parameter.grad, op=hvd.Sum), plain.get_parameter(name).grad, rtol=1e-3, atol=1e-3
                )
            torch.testing.assert_close(dict(norm.named_buffers()), dict(plain.named_buffers()), **tolerance)


def evaluation(rank, size):
    plain = _plain(4, torch.float32)
    norm = _sync(plain)
    for step in range(3):
        whole = _joined(size, torch.float32, (3, 2, 2), step)
        plain(whole), norm(whole[_slice(rank)])
    x = torch.randn(rank + 1, 3, 2, 2)
    torch.testing.assert_close(norm.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-4)
    assert norm.num_batches_tracked == 3
    again = copy.deepcopy(norm).train()
    assert again.process_set.size() == size
    again(x)
    untracked = hvd.SyncBatchNorm(3, affine=False, track_running_stats=False).eval()
    whole = _joined(size, torch.float32, (3,))
    torch.testing.assert_close(
        untracked(whole[_slice(rank)]), nn.functional.batch_norm(whole, None, None, training=True)[_slice(rank)]
    )


def empty_batch(rank, size):
    if size == 1:
        return
    norm = hvd.SyncBatchNorm(2).double()
    whole = torch.arange(12.0, dtype=torch.float64).view(6, 2) ** 2
    # Rank 0 has none, rank 1 has all that the others do not have.
    own = (
        whole[:0] if rank == 0 else whole[: 6 - (size - 2)] if rank == 1 else whole[-(rank - 1) :][:1]
    ).requires_grad_()
    want = nn.BatchNorm1d(2).double()(whole)
    got = norm(own)
    got.sum().backward()
    assert got.shape == own.shape and own.grad.shape == own.shape
    if rank == 1:
        torch.testing.assert_close(got, want[: 6 - (size - 2)])


def halves(rank, size):
    whole = _joined(size, torch.bfloat16, (3, 5))
    norm = hvd.SyncBatchNorm(3)
    got = norm(whole[_slice(rank)].clone().requires_grad_())
    assert got.dtype is torch.bfloat16
    got.float().square().sum().backward()
    torch.testing.assert_close(got.float(), nn.BatchNorm1d(3)(whole.float())[_slice(rank)], rtol=3e-2, atol=3e-2)


def of_some_ranks(rank, size):
    if size < 3:
        return
    some = hvd.add_process_set([0, 2])
    x = torch.full((2, 3), float(rank)) + torch.arange(2.0).view(2, 1)
    if some.included():
        got = hvd.SyncBatchNorm(3, process_set=some)(x)
        want = nn.BatchNorm1d(3)(torch.cat([torch.arange(2.0), torch.arange(2.0) + 2]).view(4, 1).repeat(1, 3))
        torch.testing.assert_close(got, want[2 * (rank == 2) :][:2])
    assert hvd.remove_process_set(some)


def trained(rank, size):
    """A network that contains it, trained by the distributed optimizer."""

    def build(norm):
        torch.manual_seed(9)
        return nn.Sequential(nn.Linear(4, 3), norm, nn.Tanh(), nn.Linear(3, 1)).double()

    model, wanted = build(hvd.SyncBatchNorm(3)), build(nn.BatchNorm1d(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())
    plain = torch.optim.SGD(wanted.parameters(), lr=0.5)
    for step in range(10):
        x = torch.randn(4 * size, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        plain.zero_grad()
        model(x[4 * rank : 4 * rank + 4]).square().mean().backward()
        wanted(x).square().mean().backward()
        optimizer.step()
        plain.step()
    torch.testing.assert_close(model.state_dict(), wanted.state_dict(), rtol=1e-8, atol=1e-8)


def refusals(rank, size):
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        hvd.SyncBatchNorm(3)(torch.ones(3))
    alone = torch.ones(1 if rank == 0 else 0, 3)
    if size > 1 or rank == 0:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            hvd.SyncBatchNorm(3)(alone)
