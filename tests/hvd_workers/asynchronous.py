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

    def frozen_before():
        net = model()
        net[0].weight.requires_grad_(False)
        optimizer = distributed(optimizer_of(net, "plain")[0])
        net[0].weight.requires_grad_(True)
        _steps(net, optimizer, 0, 1)

    def by_hand():
        net = model()
        optimizer = distributed(optimizer_of(net, "plain")[0])
        net[0].weight.grad = torch.ones_like(net[0].weight)
        optimizer.step()

    def by_scaler():
        net = model()
        optimizer = distributed(optimizer_of(net, "plain")[0])
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(net, 0, 0)).backward()
        scaler.step(optimizer)

    def of_another_class():
        own, other = optimizer_of(model(), "plain")[0], optimizer_of(model(), "adam")[0]
        optimizer = distributed(own)
        optimizer.load_state_dict(other.state_dict())
        optimizer.push_in_step()
        first = optimizer.param_groups[0]["params"][0]
        first.grad = torch.ones_like(first)
        optimizer.step()

    def converted():
        net = model()
        optimizer = distributed(optimizer_of(net, "plain")[0])
        _steps(net, optimizer, 0, 1)
        net.half()
        sum(parameter.sum() for parameter in net.parameters()).backward()

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
        "frozen": frozen_before,
        "by hand": by_hand,
        "scaler": by_scaler,
        "class": of_another_class,
        "flags": lambda: changed(lambda _, optimizer: optimizer.param_groups[0].update(maximize=True)),
        "passes": lambda: changed(lambda _, optimizer: optimizer.set_backward_passes_per_step(0)),
        "converted": converted,
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


def forked():
    """A forked process is no worker: it neither trains nor says farewell, and ends while a thread talks to servers."""
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "plain")[0], net.named_parameters())
    _steps(net, optimizer, 0, 1)
    with optimizer._exchange.servers._lock:  # As a thread that writes a checkpoint.
        child = os.fork()
        if child == 0:
            try:
                optimizer.state_dict()
            except hvd.HorovodInternalError as error:
                tell(error=str(error))
            sys.exit(0)
        began = time.monotonic()
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() - began < 60:
            time.sleep(0.05)
    _steps(net, optimizer, 1, 2)
    tell(status=ended[1], child=ended[0] == child)


def alone(how):
    """Rank 0 does not train: it leaves, or waits."""
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "plain")[0], net.named_parameters())
    if hvd.rank() == 0:
        if how == "wait":
            time.sleep(600)
        return
    try:
        _steps(net, optimizer, 0, 1)
    except hvd.HorovodInternalError as error:
        tell(error=str(error), remedy=getattr(error, "remedy", None))
        sys.exit(3)


def scaled_steps(net, optimizer, scaler):
    """Train with losses that are scaled; the second is infinite, so that its step is skipped."""
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, 0, step) * (float("inf") if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


def scaler():
    """Train alone with a scaler of losses."""
    torch.set_num_threads(1)
    net = model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(net, "plain")[0], net.named_parameters())
    optimizer.push_in_step()
    scaled_steps(net, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0))
    tell(weights={name: value.tolist() for name, value in net.named_parameters()})


if __name__ == "__main__":
    hvd.init()
    globals()[sys.argv[1]](*sys.argv[2:])
    hvd.shutdown()
