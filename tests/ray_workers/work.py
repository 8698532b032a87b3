"""Functions for the workers of an executor, and models to train through the object store."""

import os
import signal
import time

import torch
from torch import nn

SEEN = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")


def total(scale):
    """The sum over ranks of scale * (rank + 1), and this rank's variables."""
    import numpy as np
    import paceline

    with paceline.job.join() as job:
        summed = job.all_reduce(np.full(1000, scale * (job.rank + 1), "float32"))
        return job.rank, job.size, float(summed[0]), {name: os.environ.get(name) for name in SEEN}


def pid():
    return os.getpid()


def raises(rank):
    """One rank has no data; the others wait for it in an operation."""
    import numpy as np
    import paceline

    job = paceline.job.join()
    if job.rank == rank:
        raise LookupError("no pictures here")
    job.all_reduce(np.zeros(10, "float32"))


def ends(rank, how, path):
    """Sums until one rank has been killed or stopped; first reports the ids of its server processes and its own."""
    import numpy as np
    import paceline

    job = paceline.job.join()
    for step in range(1_000_000):
        job.all_reduce(np.zeros(1000, "float32"))
        if step == 20:
            (path / f"rank-{job.rank}").write_text(str(os.getpid()))
            if job.rank == rank:
                os.kill(os.getpid(), getattr(signal, how))
        if step > 20:
            time.sleep(0.001)


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 33), nn.Tanh(), nn.Linear(33, 7))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(5, 3, 4, 4, generator=generator), torch.randint(7, (5,), generator=generator)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(steps):
    """With Horovod's interface."""
    import paceline.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    net = model()
    own = hvd.DistributedOptimizer(optimizer(net.parameters()), named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    for step in range(steps):
        inputs, targets = batch(hvd.rank(), step)
        own.zero_grad()
        nn.functional.cross_entropy(net(inputs), targets).backward()
        own.step()
    hvd.shutdown()
    return {name: weight.detach().numpy() for name, weight in net.named_parameters()}


def train_alone(workers, steps):
    """One process, with the batches of all."""
    torch.manual_seed(0)
    net = model()
    own = optimizer(net.parameters())
    for step in range(steps):
        own.zero_grad()
        for rank in range(workers):
            inputs, targets = batch(rank, step)
            (nn.functional.cross_entropy(net(inputs), targets) / workers).backward()
        own.step()
    return {name: weight.detach().numpy() for name, weight in net.named_parameters()}


def bad_batch(rank, step, at, how):
    """As batch; the last of four ranks, at a step, raises, dies, or stays away."""
    if (rank, step) == (3, at):
        if how == "raises":
            raise LookupError("no pictures here")
        if how == "dies":
            os._exit(1)
        time.sleep(1000)
    return batch(rank, step)
