"""Compressed gradients, and optimizers that exchange parameters now and then."""

import copy

import torch
import torch.distributed as dist
from paceline.catalog.compression import INT8_BLOCK
from paceline.torch import DiLoCo, in_order
from paceline.torch.compression import Int8State, TopKState, hook_of, int8_hook, register, topk_hook
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from torch_workers.checks import run_all

NAMES = ("none", "fp16", "bf16", "int8", "powersgd:2", "topk:0.1")
WIDTH, STEPS = 64, 12


class Bucket:
    """One vector of gradients, as a hook sees it."""

    def __init__(self, values, owner, index=0):
        self.values, self.owner, self.number = values, owner, index

    def index(self):
        return self.number

    def buffer(self):
        return self.values

    def parameters(self):
        return [self.owner]

    def gradients(self):
        return [self.values]

    def is_last(self):
        return True


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def batches(rank, steps=STEPS):
    """The same in each step, so that losses fall."""
    inputs = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(rank))
    for _ in range(steps):
        yield inputs, inputs[:, :4].sum(1, keepdim=True)


def losses(model, optimizer, rank, steps=STEPS):
    """The ranks' mean loss of each step."""
    values = []
    for inputs, wanted in batches(rank, steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        values.append(mean.item())
    return values


def same(model, size):
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(gathered, weights)
    return all(torch.equal(one, weights) for one in gathered)


def losses_fall_and_ranks_agree(rank, size):
    plain = None
    for name in NAMES:
        model = DistributedDataParallel(net(), bucket_cap_mb=0.01)
        register(model, name)
        result = losses(model, torch.optim.SGD(model.parameters(), lr=0.1), rank)
        assert same(model, size), name
        assert result[-1] < 0.8 * result[0], (name, result)
        plain = plain or result
        assert abs(result[-1] - plain[-1]) < 0.2 * plain[0], (name, result, plain)


def all_values_are_the_plain_average(rank, size):
    values = torch.randn(1000, generator=torch.Generator().manual_seed(rank))
    mean = values.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    got = topk_hook(TopKState(density=1.0), Bucket(values, values)).wait()
    torch.testing.assert_close(got, mean, rtol=1e-6, atol=1e-7)
    state, hook = hook_of("none")
    values = torch.full((5,), float(rank))
    assert torch.equal(hook(state, Bucket(values, values)).wait(), torch.full((5,), (size - 1) / 2))
    assert hook is default_hooks.allreduce_hook


def what_is_not_sent_is_sent_later(rank, size):
    """Of a gradient that comes once, everything arrives after as many steps as there are parts."""
    for dtype in (torch.float32, torch.bfloat16):
        once = torch.arange(1.0, 41.0, dtype=dtype) * (1 + rank)
        owner, state, total = once.clone(), TopKState(density=0.25), torch.zeros(40, dtype=dtype)
        for step in range(4):
            values = once.clone() if step == 0 else torch.zeros(40, dtype=dtype)
            total += topk_hook(state, Bucket(values, owner)).wait()
            assert (total != 0).sum() == 10 * (step + 1)
        assert torch.equal(total, torch.arange(1.0, 41.0, dtype=dtype) * (size + 1) / 2)
    # Without memory, the rest is lost.
    state, total = TopKState(density=0.25, error_feedback=False), torch.zeros(40)
    for step in range(4):
        values = torch.arange(1.0, 41.0) if step == 0 else torch.zeros(40)
        total += topk_hook(state, Bucket(values, owner)).wait()
    assert (total != 0).sum() == 10


def what_is_left_follows_a_parameter_into_another_bucket(rank, size):
    state, first, second = TopKState(density=0.5), torch.tensor([5.0, 1.0]), torch.tensor([7.0, 2.0])
    both = Bucket(torch.cat([first, second]), None)
    both.parameters = lambda: [first, second]
    topk_hook(state, both).wait()
    assert state.residuals.of(Bucket(torch.zeros(2), second)).tolist() == [0.0, 2.0]
    assert state.residuals.of(Bucket(torch.zeros(2), first, index=1)).tolist() == [0.0, 1.0]


def eight_bits_are_within_their_steps(rank, size):
    for length in (1, INT8_BLOCK, 3 * INT8_BLOCK + 17):
        values = torch.randn(length, generator=torch.Generator().manual_seed(rank)) * 10
        mean, largest = values.clone(), values.abs().max()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        state = Int8State()
        got = in_order(int8_hook)(state, Bucket(values.clone(), values)).wait()
        assert (got - mean).abs().max() <= 2 * largest / 254 + 1e-5, length
        # The next steps send what was lost: the mean of many is nearer.
        total, steps = got.clone(), 50
        for _ in range(steps - 1):
            total += in_order(int8_hook)(state, Bucket(values.clone(), values)).wait()
        assert (total / steps - mean).abs().max() <= 4 * largest / 254 / steps + 1e-5, length
    zeros = torch.zeros(10)
    assert torch.equal(in_order(int8_hook)(Int8State(), Bucket(zeros, zeros)).wait(), torch.zeros(10))
    wrong = torch.ones(10)
    if rank == 0:
        wrong[3] = float("inf")
    assert not in_order(int8_hook)(Int8State(), Bucket(wrong, wrong)).wait().isfinite().all()


def one_step_of_diloco_is_an_average(rank, size):
    """Without momentum and with a rate of 1, after every step."""
    model, alone = net(), net()
    optimizer = DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), sync_every=1, lr=1.0, momentum=0.0)
    own = torch.optim.SGD(alone.parameters(), lr=0.1)
    for inputs, wanted in batches(rank, 3):
        for one, with_ in ((model, optimizer), (alone, own)):
            with_.zero_grad()
            nn.functional.mse_loss(one(inputs), wanted).backward()
            with_.step()
        for parameter in alone.parameters():
            dist.all_reduce(parameter.data, dist.ReduceOp.AVG)
        for got, want in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def diloco_is_the_papers_algorithm(rank, size):
    """Algorithm 1 of arXiv:2311.08105, written down again."""
    model, mine = net(), net()
    lr, momentum, inner = 0.7, 0.9, 4
    optimizer = DiLoCo(torch.optim.AdamW(model.parameters(), lr=0.01), sync_every=inner, bucket_size=1000)
    own = torch.optim.AdamW(mine.parameters(), lr=0.01)
    outer = [one.detach().clone() for one in mine.parameters()]
    moving = [torch.zeros_like(one) for one in outer]
    for step, (inputs, wanted) in enumerate(batches(rank)):
        for one, with_ in ((model, optimizer), (mine, own)):
            with_.zero_grad()
            nn.functional.mse_loss(one(inputs), wanted).backward()
            with_.step()
        if (step + 1) % inner == 0:
            for before, parameter, speed in zip(outer, mine.parameters(), moving, strict=True):
                change = before - parameter.detach()
                dist.all_reduce(change, dist.ReduceOp.AVG)
                speed.mul_(momentum).add_(change)
                before.sub_(lr * (change + momentum * speed))
                parameter.data.copy_(before)
            assert same(model, size)
        else:
            assert not same(model, size)
    for got, want in zip(model.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def diloco_trains_with_every_compression(rank, size):
    for name in NAMES:
        model = net()
        optimizer = DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), sync_every=3, compression=name)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        result = losses(model, optimizer, rank)
        scheduler.step()
        assert same(model, size), name
        assert result[-1] < 0.8 * result[0], (name, result)


def diloco_continues_from_its_state(rank, size):
    model = net()
    optimizer = DiLoCo(torch.optim.AdamW(model.parameters(), lr=0.01), sync_every=4)
    losses(model, optimizer, rank, 6)
    other = copy.deepcopy(model)
    again = DiLoCo(torch.optim.AdamW(other.parameters(), lr=0.01), sync_every=4)
    other.load_state_dict(model.state_dict())  # It has begun with the parameters of the first rank.
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert again.steps == 2
    losses(model, optimizer, rank, 6)
    losses(other, again, rank, 6)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))


def everything(rank, size):
    run_all(
        (
            all_values_are_the_plain_average,
            what_is_not_sent_is_sent_later,
            what_is_left_follows_a_parameter_into_another_bucket,
            eight_bits_are_within_their_steps,
            losses_fall_and_ranks_agree,
            one_step_of_diloco_is_an_average,
            diloco_is_the_papers_algorithm,
            diloco_trains_with_every_compression,
            diloco_continues_from_its_state,
        ),
        rank,
        size,
    )


MARK = 7777
"""Bytes of a message that no hook sends."""


def one_step_of_each(rank, size, names):
    """A step with each compression, between messages of `MARK` bytes from the first rank; gradients are one bucket."""
    for name in names:
        model = nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 128), nn.Linear(128, 10))
        parallel = DistributedDataParallel(model)
        register(parallel, name)
        for step in range(4):
            if step == 3:
                dist.broadcast(torch.zeros(MARK, dtype=torch.uint8), 0)
            parallel(torch.randn(4, 200)).sum().backward()
        dist.broadcast(torch.zeros(MARK, dtype=torch.uint8), 0)
