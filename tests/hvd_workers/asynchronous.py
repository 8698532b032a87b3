"""Workers of asynchronous training. Arguments: what to do, and how."""

import json
import os
import signal
import sys
import time

import paceline.torch as hvd
import torch
from job_workers.values import tell
from torch import nn

STEPS = 12
KINDS = {
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, True),
    "plain": ("SGD", {"lr": 0.1}, False),
    "adam": ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.02, "amsgrad": True}, False),
    "adamw": ("AdamW", {"lr": 0.01}, True),
    "adagrad": ("Adagrad", {"lr": 0.05, "lr_decay": 0.01}, False),
    "rmsprop": ("RMSprop", {"lr": 0.005, "momentum": 0.5, "centered": True}, False),
}
"""By name: the optimizer, its options, and whether a schedule halves the learning rate every four steps."""


def model():
    """A net with tensors of several sizes and two dtypes."""
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    net[2].double()
    return net


def loss_of(net, rank, step):
    """Return the loss of a rank's batch, which depends on nothing but rank and step."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    points = torch.randn(6, 5, generator=generator)
    return net[2](net[1](net[0](points)).double()).square().mean() + points.sum() * net[0].bias.mean()


def optimizer_of(net, kind):
    """Return the optimizer of a kind: two groups, of which one learns faster; and a schedule or None."""
    name, options, scheduled = KINDS[kind]
    groups = [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 2 * options["lr"]}]
    optimizer = getattr(torch.optim, name)(groups, **options)
    return optimizer, (lambda it: torch.optim.lr_scheduler.StepLR(it, 4, 0.5)) if scheduled else None


def train(kinds, slow):
    """Train one net after the other; rank 0 tells the order of application and the final weights of all."""
    torch.set_num_threads(1)
    for kind in kinds.split(","):
        net = model()
        inner, scheduled = optimizer_of(net, kind)
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(inner, net.named_parameters())
        optimizer.record_order()
        schedule = scheduled(optimizer) if scheduled else None
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(net, hvd.rank(), step).backward()
            if hvd.rank() == int(slow):
                time.sleep(0.01)
            optimizer.step()
            if schedule is not None:
                schedule.step()
        hvd.barrier()
        optimizer.zero_grad()
        optimizer.step()  # Pulls what all have pushed.
        if hvd.rank() == 0:
            order = [[entry._asdict() for entry in server] for server in optimizer.applied_order()]
            weights = {name: value.tolist() for name, value in net.named_parameters()}
            tell(kind=kind, order=order, weights=weights, staleness=dict(optimizer.staleness().counts))


def together(kind):
    """Train in lock-step: nobody computes before all have pulled."""
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, kind)[0], net.named_parameters())
    for step in range(STEPS):
        hvd.barrier()
        optimizer.zero_grad()
        loss_of(net, hvd.rank(), step).backward()
        hvd.barrier()
        optimizer.step()
    tell(weights={name: value.tolist() for name, value in net.named_parameters()})


def resume():
    """Save after some steps, load in another job, and go on; alone, so that the order is known."""
    net = model()
    inner, _ = optimizer_of(net, "adam")
    optimizer = hvd.DistributedOptimizer(inner, net.named_parameters())
    _steps(net, optimizer, 0, 5)
    saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    saved = json.loads(json.dumps(saved, default=lambda tensor: tensor.tolist()))
    hvd.shutdown()
    hvd.init()
    net = model()
    net.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in saved["model"].items()})
    inner, _ = optimizer_of(net, "adam")
    optimizer = hvd.DistributedOptimizer(inner, net.named_parameters())
    state = saved["optimizer"]
    state["state"] = {
        int(at): {key: torch.tensor(value, dtype=torch.float64) for key, value in each.items()}
        for at, each in state["state"].items()
    }
    optimizer.load_state_dict(state)
    _steps(net, optimizer, 5, STEPS)
    tell(weights={name: value.tolist() for name, value in net.named_parameters()})


def _steps(net, optimizer, begin, end):
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(net, hvd.rank(), step).backward()
        optimizer.step()


def lose(how, victim):
    """One rank ends or stops itself in the middle; the others train until that is noticed."""
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "plain")[0], net.named_parameters())
    try:
        for step in range(100_000):
            optimizer.zero_grad()
            loss_of(net, hvd.rank(), step).backward()
            if step == 5 and hvd.rank() == int(victim):
                os.kill(os.getpid(), getattr(signal, how))
            optimizer.step()
    except hvd.HorovodInternalError as error:
        tell(rank=hvd.rank(), error=str(error), steps=step)
        raise


def sleep(victim):
    """One rank is busy elsewhere for long; with a bound, the others report that."""
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "plain")[0], net.named_parameters())
    for step in range(50):
        optimizer.zero_grad()
        loss_of(net, hvd.rank(), step).backward()
        if step == 5 and hvd.rank() == int(victim):
            time.sleep(30)
        try:
            optimizer.step()
        except hvd.HorovodInternalError as error:
            tell(rank=hvd.rank(), error=str(error))
            raise


def uneven(how):
    """Ranks have different numbers of steps; who has finished keeps nobody waiting."""
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "plain")[0], net.named_parameters())
    _steps(net, optimizer, 0, 4 * (hvd.rank() + 1))
    tell(rank=hvd.rank())
    if how == "join":
        hvd.join()
        tell(gradients=optimizer.staleness().gradients)


def differ(what):
    """Rank 1 trains another model than the others."""
    net = model()
    if hvd.rank() == 1 and what == "shape":
        net[2] = nn.Linear(8, 4).double()
    if hvd.rank() == 1 and what == "dtype":
        net[2].float()
    if hvd.rank() == 1 and what == "weights":
        with torch.no_grad():
            net[0].bias += 1
    kind = "adam" if what == "rule" and hvd.rank() == 1 else "plain"
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, kind)[0])
    optimizer.zero_grad()
    sum(parameter.double().square().sum() for parameter in net.parameters()).backward()
    optimizer.step()


def refusals():
    """What servers cannot do, with the message of each."""

    def distributed(optimizer, **how):
        return hvd.DistributedOptimizer(optimizer, **how)

    class Own(torch.optim.SGD):
        pass

    def changed(change, *, before_step=True):
        net = model()
        optimizer = distributed(optimizer_of(net, "plain")[0])
        _steps(net, optimizer, 0, 1)
        if not before_step:
            change(net, optimizer)
        loss_of(net, 0, 1).backward()
        if before_step:
            change(net, optimizer)
        optimizer.step()

    def scaled(net, optimizer):
        net[0].weight.grad.mul_(2)

    def faster(net, optimizer):
        optimizer.param_groups[0]["lr"] = 1.0

    def overwritten(net, optimizer):
        with torch.no_grad():
            net[0].weight.zero_()

    def hooked(net, optimizer):
        optimizer.register_step_post_hook(lambda *_: None)

    sparse = nn.Embedding(4, 2, sparse=True)

    def pushed_sparse():
        optimizer = distributed(torch.optim.SGD(sparse.parameters(), lr=1.0))
        sparse(torch.tensor([1])).sum().backward()
        optimizer.step()

    net = model()
    for name, call in {
        "own": lambda: distributed(Own(net.parameters(), lr=1.0)),
        "lbfgs": lambda: distributed(torch.optim.LBFGS(net.parameters())),
        "fused": lambda: distributed(torch.optim.Adam(net.parameters(), fused=True)),
        "compression": lambda: distributed(torch.optim.SGD(net.parameters(), lr=1.0), compression=hvd.Compression.fp16),
        "op": lambda: distributed(torch.optim.SGD(net.parameters(), lr=1.0), op=hvd.Sum),
        "scaled": lambda: changed(scaled),
        "faster": lambda: changed(faster),
        "overwritten": lambda: changed(overwritten, before_step=False),
        "hooked": lambda: changed(hooked),
        "synchronize": lambda: changed(lambda _, optimizer: optimizer.synchronize()),
        "sparse": pushed_sparse,
    }.items():
        try:
            call()
        except hvd.HorovodInternalError as error:
            tell(what=name, error=f"JobError: {error}", remedy=None)
        except Exception as error:
            tell(what=name, error=f"{type(error).__name__}: {error}", remedy=getattr(error, "remedy", None))


def clipped():
    """Gradients are changed between backward and step, as for clipping; alone, so that the order is known."""
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "plain")[0], net.named_parameters())
    optimizer.push_in_step()
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, 0, step).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
    tell(weights={name: value.tolist() for name, value in net.named_parameters()})


if __name__ == "__main__":
    hvd.init()
    globals()[sys.argv[1]](*sys.argv[2:])
    hvd.shutdown()
