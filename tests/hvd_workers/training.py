"""Training with the distributed optimizer gives the parameters of one process that has the batches of all ranks."""

import paceline.torch as hvd
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch_workers.checks import run_all

STEPS = 20
ROWS = 4
"""Of each rank's batch."""


class Net(nn.Module):
    """Has one frozen and one unused part; `flip` reverses the order of gradients."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, flip=False):
        hidden = self.frozen(torch.tanh(self.norm(self.first(x))))
        one, two = (self.left, self.right) if flip else (self.right, self.left)
        return one(hidden).sin() + two(hidden).sin() if flip else two(hidden).sin() + one(hidden).sin()


def net(dtype=torch.float64):
    torch.manual_seed(5)
    return Net().to(dtype)


def batch(step, size, dtype=torch.float64):
    """Inputs and targets of all ranks."""
    draw = torch.Generator().manual_seed(100 + step)
    return torch.randn(ROWS * size, 6, generator=draw).to(dtype), torch.randn(ROWS * size, 4, generator=draw).to(dtype)


def part(tensors, rank):
    return [tensor[ROWS * rank : ROWS * (rank + 1)] for tensor in tensors]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def two_groups(model):
    groups = [{"params": model.first.parameters(), "lr": 0.2}, {"params": [*model.left.parameters()], "momentum": 0.5}]
    rest = [*model.norm.parameters(), *model.frozen.parameters(), *model.right.parameters(), *model.unused.parameters()]
    return torch.optim.SGD([*groups, {"params": rest, "weight_decay": 0.0}], lr=0.1, momentum=0.9)


def alone(build, size, steps=STEPS, dtype=torch.float64):
    """The model that one process trains on all batches."""
    model = net(dtype)
    optimizer = build(model)
    for step in range(steps):
        x, y = batch(step, size, dtype)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def wrapped(rank, build, dtype=torch.float64, named=True, **options):
    """A model that differs from rank 0's until it is broadcast, and its distributed optimizer."""
    model = net(dtype)
    if rank:
        for parameter in model.parameters():
            nn.init.ones_(parameter)
    names = model.named_parameters() if named else None
    optimizer = hvd.DistributedOptimizer(build(model), named_parameters=names, **options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return model, optimizer


def train(rank, size, build, *, steps=STEPS, dtype=torch.float64, divisor=1, **options):
    model, optimizer = wrapped(rank, build, dtype, **options)
    for step in range(steps):
        x, y = part(batch(step, size, dtype), rank)
        optimizer.zero_grad()
        (mse_loss(model(x, flip=bool(rank % 2)), y) / divisor).backward()
        optimizer.step()
    return model


def assert_like(model, wanted, tolerance=1e-9):
    for (name, one), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: name + text)


def everything(rank, size):
    run_all([plain, options, in_groups, less_precise, accumulated, clipped, scaled, closures, schedules], rank, size)


def plain(rank, size):
    for build in (sgd, adam, two_groups):
        model = train(rank, size, build)
        assert_like(model, alone(build, size))
        assert len({bytes(text) for text in hvd.allgather_object(_bits(model))}) == 1, "the same bits on all ranks"
    assert_like(train(rank, size, sgd, named=False), alone(sgd, size))


def _bits(model):
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def options(rank, size):
    assert_like(train(rank, size, sgd, op=hvd.Sum, divisor=size), alone(sgd, size))
    assert_like(train(rank, size, sgd, gradient_predivide_factor=3.0), alone(sgd, size))
    assert_like(train(rank, size, adam, gradient_predivide_factor=0.5, groups=2), alone(adam, size))


def in_groups(rank, size):
    wanted = alone(sgd, size)
    for groups in (1, 3, 50):
        assert_like(train(rank, size, sgd, groups=groups), wanted)
    assert_like(train(rank, size, sgd, groups=2, named=False), wanted)
    model, optimizer = net(), None
    lists = [[*model.first.parameters(), model.frozen.weight], [model.left.weight, model.right.weight]]
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters(), groups=lists)
    for step in range(STEPS):
        x, y = part(batch(step, size), rank)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    assert_like(model, wanted)


def less_precise(rank, size):
    wanted = alone(sgd, size, steps=5, dtype=torch.float32)
    for compression, tolerance in ((hvd.Compression.fp16, 3e-3), (hvd.Compression.bf16, 3e-2)):
        for groups in (None, 2):
            model = train(rank, size, sgd, steps=5, dtype=torch.float32, compression=compression, groups=groups)
            assert_like(model, wanted, tolerance)


def accumulated(rank, size):
    """Two halves of the batch, one after the other."""
    for grouping in (None, 2):
        model, optimizer = wrapped(rank, sgd, backward_passes_per_step=2, groups=grouping)
        for step in range(STEPS):
            x, y = part(batch(step, size), rank)
            optimizer.zero_grad()
            for half in (slice(0, ROWS // 2), slice(ROWS // 2, ROWS)):
                (mse_loss(model(x[half]), y[half]) / 2).backward()
            optimizer.step()
        assert_like(model, alone(sgd, size))
    # One pass only, as at the end of an epoch; then a different number of passes.
    for passes in (2, 1):
        x, y = part(batch(STEPS, size), rank)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.set_backward_passes_per_step(passes - 1 or 1)
    assert len({bytes(text) for text in hvd.allgather_object(_bits(model))}) == 1


def clipped(rank, size):
    wanted = net()
    optimizer = sgd(wanted)
    for step in range(STEPS):
        x, y = batch(step, size)
        optimizer.zero_grad()
        mse_loss(wanted(x), y).backward()
        nn.utils.clip_grad_norm_(wanted.parameters(), 0.1)
        optimizer.step()
    model, optimizer = wrapped(rank, sgd)
    for step in range(STEPS):
        x, y = part(batch(step, size), rank)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_like(model, wanted)


def scaled(rank, size):
    """With loss scaling, as in mixed precision; a step whose gradients overflow on one rank is skipped."""
    wanted = alone(sgd, size, dtype=torch.float32)
    model, optimizer = wrapped(rank, sgd, torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(-1, STEPS):
        x, y = part(batch(step, size, torch.float32), rank)
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        scaler.scale(loss * (float("inf") if step == -1 and rank == size - 1 else 1.0)).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512
    assert_like(model, wanted, 1e-4)


def closures(rank, size):
    for build in (sgd, lambda model: torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")):
        models = []
        for distributed in (False, True):
            model = net()
            optimizer = build(model)
            if distributed:
                optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
            for step in range(4):
                x, y = batch(step, size)
                x, y = part((x, y), rank) if distributed else (x, y)

                def closure(optimizer=optimizer, model=model, x=x, y=y, distributed=distributed):
                    optimizer.zero_grad()
                    loss = mse_loss(model(x), y, reduction="sum")
                    loss.backward()
                    return hvd.allreduce(loss.detach(), op=hvd.Sum) if distributed else loss

                optimizer.step(closure)
            models.append(model)
        assert_like(models[1], models[0], 1e-7)


def schedules(rank, size):
    """Schedulers created before and after wrapping."""
    models = []
    for when in ("alone", "before", "after"):
        model = net()
        optimizer = sgd(model)
        if when != "after":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        if when != "alone":
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        if when == "after":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(6):
            x, y = batch(step, size) if when == "alone" else part(batch(step, size), rank)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()
        models.append(model)
        assert optimizer.param_groups[0]["lr"] == 0.1 / 8
    for model in models[1:]:
        assert_like(model, models[0])


def uneven(rank, size):
    """Ranks with different numbers of batches: a rank that has finished joins and contributes zeros."""
    model, optimizer = wrapped(rank, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    wanted = net()
    plain = torch.optim.SGD(wanted.parameters(), lr=0.1)
    for step in range(2 * size):
        x, y = batch(step, size)
        plain.zero_grad()
        for other in range(size):
            if step < 2 * (other + 1):
                (mse_loss(wanted(*part([x], other)), *part([y], other)) / size).backward()
        plain.step()
        if step < 2 * (rank + 1):
            optimizer.zero_grad()
            mse_loss(model(*part([x], rank)), *part([y], rank)).backward()
            optimizer.step()
    assert hvd.join() == size - 1
    hvd.broadcast_parameters(model.state_dict(), root_rank=size - 1)
    assert_like(model, wanted)
    # Calls without a name are numbered equally again.
    assert hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item() == size
