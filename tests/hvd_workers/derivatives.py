"""Gradients of the differentiable calls, compared with Horovod's."""

import paceline.torch as hvd
import torch
from torch_workers.checks import run_all


def everything(rank, size):
    run_all([of_reductions, of_gathers, of_broadcasts, of_exchanges, of_scatters], rank, size)


def _leaf(*shape):
    return torch.ones(*shape, requires_grad=True)


def _weights(rank, *shape):
    """The gradient with which this rank weighs the outputs."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape) * (rank + 1)


def _all(size, *shape):
    return torch.stack([_weights(rank, *shape) for rank in range(size)])


def of_reductions(rank, size):
    for op, want in ((hvd.Sum, _all(size, 2, 3).sum(0)), (hvd.Average, _all(size, 2, 3).mean(0))):
        x = _leaf(2, 3)
        hvd.allreduce(x, op=op, prescale_factor=0.5).backward(_weights(rank, 2, 3))
        torch.testing.assert_close(x.grad, want * 0.5)
        x, y = _leaf(2, 3), _leaf(4)
        one, two = hvd.grouped_allreduce([x, y], op=op)
        torch.autograd.backward([one, two], [_weights(rank, 2, 3), torch.ones(4)])
        torch.testing.assert_close(x.grad, want)
        torch.testing.assert_close(y.grad, torch.full((4,), float(size if op is hvd.Sum else 1)))
    x = _leaf(3)
    hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.bf16).sum().backward()
    assert x.grad.tolist() == [size] * 3, "an expanded gradient"


def of_gathers(rank, size):
    total = size * (size + 1) // 2
    start = rank * (rank + 1) // 2
    want = _all(size, total, 2).mean(0)[start : start + rank + 1]
    x = _leaf(rank + 1, 2)
    hvd.allgather(x).backward(_weights(rank, total, 2))
    torch.testing.assert_close(x.grad, want)
    x, y = _leaf(rank + 1, 2), torch.tensor(1.0, requires_grad=True)
    one, two = hvd.grouped_allgather([x, y])
    torch.autograd.backward([one, two], [_weights(rank, total, 2), _weights(rank, size)])
    torch.testing.assert_close(x.grad, want)
    torch.testing.assert_close(y.grad, _all(size, size).mean(0)[rank])


def of_broadcasts(rank, size):
    x = _leaf(3)
    hvd.broadcast(x, size - 1).backward(_weights(rank, 3))
    torch.testing.assert_close(x.grad, _all(size, 3).mean(0) * (rank == size - 1))


def of_exchanges(rank, size):
    x = _leaf(2 * size)
    hvd.alltoall(x).backward(_weights(rank, 2 * size))
    want = torch.cat([_weights(other, 2 * size)[2 * rank : 2 * rank + 2] for other in range(size)])
    torch.testing.assert_close(x.grad, want)
    x = _leaf(2 * size + 1, 2)
    got, _ = hvd.alltoall(x, splits=[2] * size)
    got.backward(torch.full_like(got, rank + 1.0))
    want = [other + 1.0 for other in range(size) for _ in range(2)]
    assert x.grad[:, 0].tolist() == [*want, 0.0], "a row that was sent to nobody has no gradient"


def of_scatters(rank, size):
    rows = [size // size + (other < 1) for other in range(size)]
    want = torch.cat([_weights(other, rows[other], 2) for other in range(size)])
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        x = _leaf(size + 1, 2)
        hvd.reducescatter(x, op=op, postscale_factor=0.5).backward(_weights(rank, rows[rank], 2))
        torch.testing.assert_close(x.grad, want * factor * 0.5)
        x = _leaf(size + 1, 2)
        (got,) = hvd.grouped_reducescatter([x], op=op)
        got.backward(_weights(rank, rows[rank], 2))
        torch.testing.assert_close(x.grad, want * factor)
