"""Parameter servers: weights after 50 steps, pulled in step() or by layer."""

import copy
import hashlib
import pickle

import paceline.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn import functional

STEPS = 50


class Net(nn.Module):
    """Layers of several kinds; one is used twice, and one not in every step."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.LayerNorm(16)
        self.twice = nn.Linear(16, 16, bias=False)
        self.seldom = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x, with_seldom):
        x = torch.tanh(self.norm(self.first(x)))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        if with_seldom:
            x = x + self.seldom(x)
        return self.last(x)


def batch(step, rank):
    made = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 6, generator=made, dtype=torch.float64), torch.randn(
        8, 3, generator=made, dtype=torch.float64
    )


def optimizer_of(kind, net):
    if kind == "adam":
        return torch.optim.AdamW(net.parameters(), lr=0.01)
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def trained(kind, batches, wrap):
    """The parameters after STEPS steps; `batches` gives those of a step."""
    torch.manual_seed(3)
    net = Net().double()
    optimizer = wrap(optimizer_of(kind, net), net)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    for step in range(STEPS):
        x, y = batches(step)
        optimizer.zero_grad(set_to_none=step % 3 > 0)
        functional.mse_loss(net(x, step % 4 != 1), y).backward()
        if not hasattr(optimizer, "synchronize"):
            for parameter in net.parameters():  # as Horovod's optimizer does for an unused one
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if step % 10 == 7:
            optimizer.synchronize() if hasattr(optimizer, "synchronize") else None
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            with optimizer.skip_synchronize() if hasattr(optimizer, "skip_synchronize") else torch.enable_grad():
                optimizer.step()
        else:
            optimizer.step()
        schedule.step()
        if step == 20:
            net.load_state_dict(net.state_dict())
            optimizer.load_state_dict(optimizer.state_dict())
    return net.state_dict()


def wrapped(optimizer, net):
    return hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())


def same_as_one_process(rank, size, kind):
    """Equal up to rounding, and bit for bit between ranks."""

    def joined(step):
        parts = [batch(step, other) for other in range(size)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    got = trained(kind, lambda step: batch(step, rank), wrapped)
    want = trained(kind, joined, lambda optimizer, _: optimizer)
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: name + text)
        assert torch.equal(hvd.broadcast(got[name], 0, name=name), got[name]), name


def digest(rank, size):
    """Of the parameters after training."""
    got = trained("adam", lambda step: batch(step, rank), wrapped)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in got.values())).hexdigest()


def kinds(rank, size):
    for kind in ("sgd", "adam"):
        same_as_one_process(rank, size, kind)


def step_waits_for_nothing(rank, size):
    """Parameters change when their layer is called and not before; the state is complete whenever it is read."""
    torch.manual_seed(0)
    net = Net().double()
    optimizer = wrapped(torch.optim.SGD(net.parameters(), lr=0.1), net)
    before = {name: tensor.clone() for name, tensor in net.named_parameters()}
    functional.mse_loss(net(batch(0, rank)[0], True), batch(0, rank)[1]).backward()
    optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.named_parameters())
    net.first(batch(0, rank)[0])
    assert not torch.equal(net.first.weight, before["first.weight"])
    assert torch.equal(net.last.weight, before["last.weight"])
    state = net.state_dict()
    assert not any(torch.equal(state[name], tensor) for name, tensor in before.items())
    # The use of a parameter elsewhere is detected.
    optimizer.zero_grad()
    net(batch(1, rank)[0], True).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = functional.linear(batch(0, rank)[0], net.first.weight).sum()
    with pytest.raises(RuntimeError, match=r"'first\.weight' was used before it was pulled"):
        loss.backward()
    optimizer.synchronize()
    with pytest.raises(ValueError, match="cannot be pulled by layer"):
        optimizer.step(lambda: loss)


def behind(rank, *, compiled=False):
    """A net whose parameters are all one step behind, its optimizer, and the parameters before that step."""
    torch.manual_seed(0)
    net = Net().double()
    optimizer = wrapped(torch.optim.SGD(net.parameters(), lr=0.1), net)
    before = {name: tensor.detach().clone() for name, tensor in net.named_parameters()}
    model = torch.compile(net, backend="eager") if compiled else net
    for _ in range(3 if compiled else 1):
        before = {name: tensor.detach().clone() for name, tensor in net.named_parameters()}
        optimizer.zero_grad()
        functional.mse_loss(model(batch(0, rank)[0], True), batch(0, rank)[1]).backward()
        optimizer.step()
    assert compiled or all(torch.equal(tensor, before[name]) for name, tensor in net.named_parameters())
    return net, optimizer, before


def copies_are_whole(rank, size):
    """A module can be copied or pickled in any way; copies work without their optimizer."""
    for method in (copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))):
        net, optimizer, before = behind(rank)
        other = method(net)
        for name, tensor in other.named_parameters():
            assert not torch.equal(tensor, before[name]), name
            assert torch.equal(tensor, dict(net.named_parameters())[name]), name
        other.load_state_dict(other.state_dict())
        other(batch(1, rank)[0], True).sum().backward()
        optimizer.synchronize()


def what_is_loaded_stays(rank, size):
    """A pending step is applied before loading, not to the loaded values."""
    net, optimizer, before = behind(rank)
    net.load_state_dict(before)
    optimizer.synchronize()
    net(batch(0, rank)[0], True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.named_parameters())


def changes_before_the_pull_are_told(rank, size):
    net, optimizer, _ = behind(rank)
    with torch.no_grad():
        net.last.bias.clamp_(-0.01, 0.01)
    with pytest.raises(RuntimeError, match=r"'last\.bias' was changed after step\(\) and before it was pulled"):
        net(batch(0, rank)[0], True)
    optimizer.synchronize()
    hvd.barrier()


def compiled_models_train(rank, size):
    net, optimizer, before = behind(rank, compiled=True)
    optimizer.synchronize()
    plain, same, _ = behind(rank)
    for _ in range(2):
        same.zero_grad()
        functional.mse_loss(plain(batch(0, rank)[0], True), batch(0, rank)[1]).backward()
        same.step()
    for each in (optimizer, same):
        each.synchronize()
    for (name, tensor), other in zip(net.named_parameters(), plain.parameters(), strict=True):
        assert not torch.equal(tensor, before[name])
        torch.testing.assert_close(tensor, other, rtol=1e-9, atol=1e-12)


def closures_are_refused(rank, size):
    torch.manual_seed(0)
    net = Net().double()
    optimizer = wrapped(torch.optim.SGD(net.parameters(), lr=0.1), net)
    with pytest.raises(ValueError, match=r"step\(closure\) .* use --pull step, with a barrier"):
        optimizer.step(lambda: net(batch(0, rank)[0], True).sum())


def clipping_needs_synchronize(rank, size):
    """What changes gradients in flight is refused; after `synchronize` it is what one process does."""
    torch.manual_seed(0)
    net = Net().double()
    optimizer = wrapped(torch.optim.SGD(net.parameters(), lr=0.1), net)
    for change in (
        lambda: nn.utils.clip_grad_norm_(net.parameters(), 1e-3),
        lambda: net.last.weight.grad.mul_(2),
    ):
        functional.mse_loss(net(batch(0, rank)[0], True), batch(0, rank)[1]).backward()
        change()
        with pytest.raises(
            RuntimeError, match=r"was changed after it was sent.*; call optimizer.synchronize\(\) before"
        ):
            optimizer.step()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    functional.mse_loss(net(batch(0, rank)[0], True), batch(0, rank)[1]).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    assert torch.equal(hvd.broadcast(norm, 0, name="norm"), norm), "the norm is that of the sums"
    before = net.last.weight.detach().clone()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert not torch.equal(net.last.weight, before)


def scalers_need_synchronize(rank, size):
    torch.manual_seed(0)
    net = Net().double()
    optimizer = wrapped(torch.optim.SGD(net.parameters(), lr=0.1), net)
    torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)  # wraps step()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(functional.mse_loss(net(batch(0, rank)[0], True), batch(0, rank)[1])).backward()
    with pytest.raises(RuntimeError, match=r"call optimizer.synchronize\(\) before scaler.unscale_\(optimizer\)"):
        scaler.step(optimizer)
    optimizer.synchronize()
    before = net.last.weight.detach().clone()
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    assert not torch.equal(net.last.weight, before)
