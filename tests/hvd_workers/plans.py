"""Training under the coordinator `graph`: planned steps, and every deviation from a plan."""

import time
from copy import deepcopy
from functools import partial

import paceline.torch as hvd
import torch
from paceline.errors import InvalidArgumentError, JobError
from paceline.hvd.world import members_of
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_workers.checks import run_all

ROWS = 4
LAYERS = 5


class Branches(nn.Module):
    """Blocks; each call names those that it uses."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(LAYERS))

    def forward(self, x, take=range(LAYERS), way=None):
        for block in take:
            layer = self.blocks[block]
            x = x + torch.tanh(layer(x) if way is None else checkpoint(layer, x, use_reentrant=way))
        return x


def model():
    torch.manual_seed(3)
    return Branches().double()


def rows(step, rank, count=ROWS):
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(count, 6, generator=draw).double().requires_grad_()


def counts():
    """Messages between ranks other than tensors: votes, reports and decisions are control messages."""
    result = members_of(hvd.global_process_set).coordinator.counts()
    return result | {"control": result["votes"] + result["reports"] + result["decisions"]}


class Pair:
    """A model that all ranks train, and a copy trained here with the gradients of all ranks."""

    def __init__(self, size, prefix="", **options):
        self.size, self.theirs, self.ours = size, model(), model()
        self.plain = torch.optim.SGD(self.theirs.parameters(), lr=0.1, momentum=0.9)
        self.prefix, self.options = prefix, options
        self.wrap()

    def wrap(self):
        optimizer = torch.optim.SGD(self.ours.parameters(), lr=0.1, momentum=0.9)
        names = [(self.prefix + name, parameter) for name, parameter in self.ours.named_parameters()]
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=names, **self.options)

    def step(self, number, rank, calls, extra=None):
        """`calls[r]`: rank r's forward passes, each a function of model and inputs; one rank may have none."""
        self.optimizer.zero_grad()
        for call in calls[rank]:
            call(self.ours, rows(number, rank)).square().mean().backward()
        if extra is not None:
            extra()
        self.optimizer.step()
        self.plain.zero_grad()
        for other in range(self.size):
            for call in calls[other]:
                (call(self.theirs, rows(number, other)).square().mean() / self.size).backward()
        for parameter in self.theirs.parameters():
            # A rank that has none contributes zeros.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.plain.step()

    def check(self):
        for (name, one), two in zip(self.ours.named_parameters(), self.theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12, msg=name)


def taking(*blocks, way=None):
    return lambda net, x: net(x, blocks, way)


EVERY = taking(*range(LAYERS))


def same(size, *calls):
    return [list(calls)] * size


def quiet(steps):
    """Takes these steps, in which ranks exchange only tensors; counts control messages and buckets.

    The last step does not count: others may already do later work before this rank reads its counters.
    """
    before = after = counts()
    for step in steps:
        after = counts()
        step()
    assert after["planned"] > before["planned"]
    same = ("control", "negotiated", "plans")
    assert [before[name] for name in same] == [after[name] for name in same], (before, after)


def planned(pair, number, rank, calls):
    """Takes steps until there is a new plan, after the same step on all ranks; returns the number of the next."""
    plans = counts()["plans"]
    for step in range(number, number + 50):
        pair.step(step, rank, calls)
        if counts()["plans"] > plans:
            return step + 1
    raise AssertionError("no plan")


def no_messages(rank, size):
    """After the first few steps ranks exchange only tensors."""
    pair = Pair(size)
    number = planned(pair, 0, rank, same(size, EVERY))
    assert number >= 2
    quiet(partial(pair.step, number + step, rank, same(size, EVERY)) for step in range(12))
    pair.check()


def changes(rank, size):
    """All ranks notice each change in the step in which it happens, with the right sums; then there is a new plan."""
    last = size - 1
    skips = [[EVERY]] * last + [[taking(0, 1, 3, 4)]]
    two_skip = [[taking(0, 1)]] + [[EVERY]] * (size - 2) + [[taking(3, 4)]] if size > 1 else skips
    none = [[EVERY]] * last + [[]]
    other_order = same(size, taking(4, 3, 2, 1, 0))
    unused = same(size, taking(0, 1, 2))
    reentrant, other = same(size, taking(*range(LAYERS), way=True)), same(size, taking(*range(LAYERS), way=False))
    pair = Pair(size)
    number = planned(pair, 0, rank, same(size, EVERY))
    for odd in (skips, two_skip, none, unused, other_order, reentrant, other):
        for _ in range(10):
            pair.step(number, rank, same(size, EVERY))
            number += 1
        buckets, plans = counts()["planned"], counts()["plans"]
        pair.step(number, rank, odd)
        assert counts()["planned"] > buckets, "it was planned"
        assert hvd.allgather_object(counts()["plans"]) == [plans] * size
        pair.step(number + 1, rank, same(size, EVERY))
        pair.check()
        number += 2
        if odd not in (other_order, reentrant, other):
            number = planned(pair, number, rank, same(size, EVERY))
    # What happens in each step is part of the plan, hence no exception.
    pair.step(number, rank, unused)
    number = planned(pair, number + 1, rank, unused)
    quiet(partial(pair.step, number + step, rank, unused) for step in range(5))
    pair.check()


def shapes(rank, size):
    """A different batch on each rank and in each step does not change the shapes of gradients."""
    net, twin = model(), model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), op=hvd.Sum)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        net(rows(step, rank, 1 + (step + rank) % 4)).square().sum().backward()
        optimizer.step()
        plain.zero_grad()
        for other in range(size):
            twin(rows(step, other, 1 + (step + other) % 4)).square().sum().backward()
        plain.step()
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    assert counts()["planned"] > 0


def accumulation(rank, size):
    """Several backward passes accumulate a gradient; one too many is an error as usual."""
    pair = Pair(size, backward_passes_per_step=2)
    number = planned(pair, 0, rank, same(size, EVERY, taking(1, 2, 3)))
    pair.check()
    # Blocks 0 and 4 have one pass only and come late, as planned.
    quiet(partial(pair.step, number + step, rank, same(size, EVERY, taking(1, 2, 3))) for step in range(3))
    for _ in range(2):
        EVERY(pair.ours, rows(8, rank)).mean().backward()
    try:
        EVERY(pair.ours, rows(9, rank)).mean().backward()
    except AssertionError as error:
        assert "more than 2 times" in str(error)
    else:
        raise AssertionError("a third pass raises")
    pair.optimizer.step()


def models(rank, size):
    """A model is swapped for another whose parameters have the same names; two optimizers take turns."""
    first = Pair(size)
    planned(first, 0, rank, same(size, EVERY))
    second = Pair(size)
    planned(second, 50, rank, same(size, EVERY))
    quiet(partial((first, second)[step % 2].step, step, rank, same(size, EVERY)) for step in range(100, 106))
    first.check()
    second.check()
    # The parameters of a model change under the same optimizer: half of the first layer.
    first.ours.half()
    first.theirs.half()
    for step in range(12, 15):
        first.optimizer.zero_grad()
        first.ours(rows(step, rank).half()).square().mean().backward()
        first.optimizer.step()
    sums = hvd.allgather_object([parameter.double().sum().item() for parameter in first.ours.parameters()])
    assert all(one == sums[0] for one in sums)


def forward(rank, size):
    """Tensors that are reduced inside forward are negotiated beside the plan."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), hvd.SyncBatchNorm(8), nn.Linear(8, 2)).double()
    twin = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    twin.load_state_dict(net.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        net(rows(step, rank).detach()).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        twin(torch.cat([rows(step, other).detach() for other in range(size)])).square().mean().backward()
        plain.step()
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    assert counts()["planned"] >= 7


def joins(rank, size):
    """Ranks run out of batches one after the other in each of three epochs, always under a plan."""
    pair = Pair(size)
    number = 0
    for epoch in range(3):
        mine = 5 + (rank + epoch) % size
        for step in range(5):
            pair.step(number + step, rank, same(size, EVERY))
        pair.check()
        for _ in range(5, mine):
            pair.optimizer.zero_grad()
            EVERY(pair.ours, rows(number, rank)).mean().backward()
            pair.optimizer.step()
        hvd.join()
        hvd.broadcast_parameters(pair.ours.state_dict(), root_rank=0)
        pair.theirs.load_state_dict(pair.ours.state_dict())
        hvd.broadcast_optimizer_state(pair.optimizer, root_rank=0)
        pair.plain.load_state_dict(deepcopy(pair.optimizer.state_dict()))
        number += 10
    assert counts()["plans"] >= 3


def one_changes(rank, size):
    """One rank's model has another dtype: all ranks with the old one get an error, and none hangs."""
    pair = Pair(size)
    planned(pair, 0, rank, same(size, EVERY))
    if rank == size - 1:
        pair.ours.half()
        pair.optimizer.zero_grad()
        pair.ours(rows(3, rank).half()).mean().backward()
    else:
        pair.optimizer.zero_grad()
        pair.ours(rows(3, rank)).mean().backward()
    try:
        pair.optimizer.step()
    except JobError as error:
        text = str(error)
        assert "another rank did not have it" in text or "waits" in text or "left" in text, text
    else:
        raise AssertionError("a wrong sum")


def everything(rank, size):
    run_all([no_messages, changes, shapes, accumulation, models, forward], rank, size)


def one_stays_away(rank, size):
    """One rank skips backward and step under a plan: the others get an error that names it, within the time limit."""
    pair = Pair(size)
    planned(pair, 0, rank, same(size, EVERY))
    if rank == 1:
        time.sleep(7)
        return
    pair.optimizer.zero_grad()
    EVERY(pair.ours, rows(3, rank)).mean().backward()
    try:
        pair.optimizer.step()
    except JobError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("nobody was missing")


def order(rank, size):
    """Operations between steps, and the order in which optimizers step, may differ between ranks: none waits."""
    first, second = Pair(size), Pair(size, "second.")
    for step in range(6):
        first.optimizer.zero_grad()
        second.optimizer.zero_grad()
        EVERY(first.ours, rows(step, rank)).square().mean().backward()
        EVERY(second.ours, rows(step, rank)).square().sum().backward()
        steps = [first.optimizer.step, partial(hvd.allreduce, torch.ones(3), name="metric"), second.optimizer.step]
        for do in steps if rank % 2 else steps[::-1]:
            do()
    sums = hvd.allgather_object([parameter.double().sum().item() for parameter in first.ours.parameters()])
    assert all(one == sums[0] for one in sums)
    assert counts()["plans"] > 0


def one_more_optimizer(rank, size):
    """A rank with one more optimizer than the others still plans with them."""
    if rank == 0:
        extra = nn.Linear(3, 3)
        hvd.DistributedOptimizer(torch.optim.SGD(extra.parameters(), lr=0.1), extra.named_parameters())
    pair = Pair(size)
    for step in range(5):
        pair.step(step, rank, same(size, EVERY))
    pair.check()
    assert counts()["planned"] > 0


def shared(rank, size):
    """Two optimizers of the same parameters reduce the same gradients at once: an error, plan or not."""
    pair = Pair(size)
    planned(pair, 0, rank, same(size, EVERY))
    first = pair.optimizer
    pair.wrap()
    first.zero_grad()
    try:
        EVERY(pair.ours, rows(4, rank)).square().mean().backward()
        pair.optimizer.step()
    except InvalidArgumentError as error:
        assert str(error).startswith("Duplicate tensor name 'allreduce."), error
        # Waits for the others, so that none leaves before they have seen theirs.
        time.sleep(0.5)
    else:
        raise AssertionError("wrong sums")


def one_is_slow(rank, size):
    """A rank that computes for longer than the time limit is waited for, as long as it answers."""
    pair = Pair(size)
    for step in range(6):
        if rank == 0 and step == 4:
            time.sleep(5)
        pair.step(step, rank, same(size, EVERY))
    pair.check()
    assert counts()["planned"] > 0


def evaluates(rank, size):
    """Uneven evaluation after training under a plan, ended by join: planned zeros that no rank uses are no failure."""
    pair = Pair(size)
    planned(pair, 0, rank, same(size, EVERY))
    for _ in range(2 if rank else 10):
        hvd.allreduce(torch.ones(3), name="val")
        time.sleep(0.4)
    hvd.join()
    planned(pair, 60, rank, same(size, EVERY))
    pair.check()


def loads(rank, size):
    """A checkpoint is loaded between backward and step: operations in flight complete first."""
    pair = Pair(size)
    planned(pair, 0, rank, same(size, EVERY))
    saved = deepcopy(pair.optimizer.state_dict())
    EVERY(pair.ours, rows(9, rank)).square().mean().backward()
    pair.optimizer.load_state_dict(saved)
    for step in range(4, 8):
        pair.step(step, rank, same(size, EVERY))
    pair.check()


def frozen_on_one(rank, size):
    """One rank freezes a layer for a step: the others get an error naming it, and all continue in the same step."""
    pair = Pair(size)
    planned(pair, 0, rank, same(size, EVERY))
    layer = pair.ours.blocks[1]
    pair.optimizer.zero_grad()
    if rank == 1:
        layer.requires_grad_(False)
    EVERY(pair.ours, rows(4, rank)).square().mean().backward()
    try:
        pair.optimizer.step()
    except JobError as error:
        assert rank != 1 and "another rank did not have it" in str(error), error
    layer.requires_grad_(True)
    hvd.broadcast_parameters(pair.ours.state_dict(), root_rank=0)
    pair.theirs.load_state_dict(pair.ours.state_dict())
    pair.plain = torch.optim.SGD(pair.theirs.parameters(), lr=0.1)
    pair.optimizer = hvd.DistributedOptimizer(torch.optim.SGD(pair.ours.parameters(), lr=0.1))
    sums = hvd.allgather_object([parameter.sum().item() for parameter in pair.ours.parameters()])
    assert all(one == sums[0] for one in sums)


SIZES = {f"blocks.{block}.{kind}": size for block in range(LAYERS) for kind, size in (("weight", 288), ("bias", 48))}
"""Bytes of each gradient of the model, float64."""


def follows(rank, size, buckets):
    """Train by a plan that was made before the run, whose order is that of the parameters, not of backward."""
    pair = Pair(size)
    number = planned(pair, 0, rank, same(size, EVERY))
    before = counts()
    for step in range(number, number + 10):
        pair.step(step, rank, same(size, EVERY))
    after = counts()
    assert after["planned"] - before["planned"] == 10 * buckets, (before, after, buckets)
    assert after["plans"] == 1
    # A branch that one rank skips is negotiated, and then the plan applies again.
    pair.step(number + 10, rank, [[taking(0, 1, 2, 3)], *same(size - 1, EVERY)])
    number = planned(pair, number + 11, rank, same(size, EVERY))
    before = counts()
    pair.step(number, rank, same(size, EVERY))
    assert counts()["planned"] - before["planned"] == buckets
    pair.check()
