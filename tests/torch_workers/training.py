"""Training under DDP and FSDP2 gives what one process gives on the joined batch."""

import torch
import torch.distributed as dist
from paceline.errors import InvalidArgumentError
from paceline.torch import strategy_hook
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from torch_workers.checks import run_all
from torch_workers.handles import raises
from torch_workers.values import assert_same_everywhere
from torch_workers.versions import fully_shard

BATCH = 4


def model(dtype=torch.float64, seed=5):
    """A small net with parameters of many shapes."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 50), nn.Tanh(), nn.Linear(50, 3, bias=False)
    ).to(dtype)


def batch(step, rank, dtype=torch.float64):
    """The images and targets of a rank in a step."""
    made = torch.Generator().manual_seed(step * 1000 + rank)
    return (
        torch.randn(BATCH, 1, 8, 8, generator=made, dtype=dtype),
        torch.randn(BATCH, 3, generator=made, dtype=dtype),
    )


def joined(step, size, dtype=torch.float64):
    """The batches of all ranks as one."""
    parts = [batch(step, rank, dtype) for rank in range(size)]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def step_of(net, optimizer, inputs, targets, scale=1.0):
    """One step; the loss."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(inputs), targets) * scale
    loss.backward()
    optimizer.step()
    return loss.detach()


def alone(size, steps, dtype=torch.float64):
    """The weights after so many steps in one process on the joined batch."""
    net = model(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        step_of(net, optimizer, *joined(step, size, dtype))
    return net


def compare(net, want, **tolerance):
    """All weights agree, and are the same bits on all ranks."""
    for got, wanted in zip(net.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, **tolerance)
        assert_same_everywhere(got.detach())


def trained(rank, steps, dtype=torch.float64, prepare=None, **options):
    """A DDP model after so many steps."""
    net = DistributedDataParallel(model(dtype, seed=5 + rank), bucket_cap_mb=0.02, **options)
    if prepare is not None:
        prepare(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        step_of(net, optimizer, *batch(step, rank, dtype))
    return net


def ddp(rank, size):
    """Gradients of a step and weights after twenty equal one process's, although ranks begin with different weights."""
    want = alone(size, 20)
    compare(trained(rank, 20), want)
    compare(trained(rank, 20, static_graph=True, gradient_as_bucket_view=True), want)
    compare(trained(rank, 20, find_unused_parameters=True), want)
    net = DistributedDataParallel(model())
    nn.functional.mse_loss(net(batch(0, rank)[0]), batch(0, rank)[1]).backward()
    single = model()
    inputs, targets = joined(0, size)
    nn.functional.mse_loss(single(inputs), targets).backward()
    for got, wanted in zip(net.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)
        assert_same_everywhere(got.grad)


class Branches(nn.Module):
    """Each rank may use a different part, and one part is never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.left, self.right, self.never = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, inputs, way):
        return (self.left if way % 2 else self.right)(inputs)


def unused(rank, size):
    """Parameters that no rank uses, and some that only some ranks use."""
    net = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for _ in range(3):
        net(torch.full((2, 4), rank + 1.0), rank).sum().backward()
    assert net.module.never.weight.grad is None
    lefts = sum(2 * (source + 1) for source in range(size) if source % 2) / size * 3
    torch.testing.assert_close(net.module.left.weight.grad, torch.full((2, 4), lefts))
    assert_same_everywhere(net.module.right.weight.grad)


def no_sync(rank, size):
    """Gradients of two batches, the first without synchronization, equal those of the joint batch."""
    net = DistributedDataParallel(model())
    with net.no_sync():
        net(batch(0, rank)[0]).square().mean().backward()
    net(batch(1, rank)[0]).square().mean().backward()
    single = model()
    for step in (0, 1):
        for source in range(size):
            (single(batch(step, source)[0]).square().mean() / size).backward()
    for got, wanted in zip(net.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)


def uneven(rank, size):
    """Ranks with different numbers of batches, under `join`."""
    net = DistributedDataParallel(model())
    with net.join():
        for step in range(rank + 1):
            net(batch(step, rank)[0]).sum().backward()
    dist.barrier()


def mixed_precision(rank, size):
    """Under autocast to bfloat16: close to one process under autocast, and the same bits on all ranks."""
    net = DistributedDataParallel(model(torch.float32, seed=5 + rank))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        inputs, targets = batch(step, rank, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(net(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    single = model(torch.float32)
    optimizer = torch.optim.SGD(single.parameters(), lr=0.1)
    for step in range(3):
        inputs, targets = joined(step, size, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(single(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    compare(net, single, rtol=0.05, atol=0.01)
    compare(trained(rank, 2, torch.bfloat16), alone(size, 2, torch.bfloat16), rtol=0.1, atol=0.05)


def hooks(rank, size):
    """A strategy by bucket, by name, by size and by function; torch's hooks, and torch's compression around ours."""
    want = alone(size, 5, torch.float32)
    by_size = {"1KB": "recursive-doubling", "30KB": "tree", "inf": "ring"}
    seen = []

    def by_bucket(bucket):
        seen.append(bucket.buffer().nbytes)
        return "ring"

    for strategy in ("ring", by_size, by_bucket, None):
        compare(trained(rank, 5, torch.float32, lambda net, s=strategy: strategy_hook(net, s)), want)
    assert len(set(seen)) > 1
    hook = default_hooks.allreduce_hook
    compare(trained(rank, 5, torch.float32, lambda net: net.register_comm_hook(None, hook)), want)
    for wrapper in (default_hooks.fp16_compress_wrapper, default_hooks.bf16_compress_wrapper):
        hook = wrapper(strategy_hook(None, "ring"))
        net = trained(rank, 5, torch.float32, lambda net, hook=hook: net.register_comm_hook(None, hook))
        compare(net, want, rtol=0.05, atol=0.01)
    raises(InvalidArgumentError, "unknown strategy .rong", strategy_hook, None, "rong")
    raises(InvalidArgumentError, "inf", strategy_hook, None, {"1KB": "ring"})


def sharded_optimizer(rank, size):
    """ZeroRedundancyOptimizer, which broadcasts the weights that each rank updates."""
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(5):
        step_of(net, optimizer, *batch(step, rank))
    compare(net, alone(size, 5))


def fsdp(rank, size):
    """FSDP2 on CPU, every layer sharded, against one process; and its gradients in bfloat16."""
    net = model(seed=5)
    for layer in net:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        step_of(net, optimizer, *batch(step, rank))
    want = alone(size, 20)
    for got, wanted in zip(net.parameters(), want.parameters(), strict=True):
        whole = got.full_tensor().detach()
        torch.testing.assert_close(whole, wanted.detach())
        assert_same_everywhere(whole)


def compiled(rank, size):
    """torch.compile of a DDP model, by the compiler's front alone (aot_eager: no C++ compiler needed)."""
    net = DistributedDataParallel(model(seed=5 + rank))
    fast = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        step_of(fast, optimizer, *batch(step, rank))
    compare(net, alone(size, 5))


ALL = [ddp, unused, no_sync, uneven, mixed_precision, hooks, sharded_optimizer, fsdp]


def everything(rank, size):
    """All of the above but the compiler, in one launch."""
    run_all(ALL, rank, size)
