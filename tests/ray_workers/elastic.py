"""An elastic job's training function, whose data depend on the step."""

import os
import time

import torch
from torch import nn

from ray_workers import work


def train(steps, pids, pause_s=0.0):
    """Train to the end, however often ranks die; rank r's process id stands in pids/rank-r, the step in pids/step."""
    import paceline.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    net = work.model()
    own = hvd.DistributedOptimizer(work.optimizer(net.parameters()), named_parameters=net.named_parameters())
    state = hvd.elastic.TorchState(model=net, optimizer=own, step=0)
    began = []

    @hvd.elastic.run
    def go(state):
        began.append(state.step)
        (pids / f"rank-{hvd.rank()}").write_text(f"{os.getpid()} {hvd.size()}")
        while state.step < steps:
            inputs, targets = work.batch(hvd.rank(), state.step)
            own.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            own.step()
            state.step += 1
            state.commit()
            if hvd.rank() == 0:
                (pids / "step").write_text(str(state.step))
            time.sleep(pause_s)
        return hvd.size()

    size = go(state)
    weights = {name: weight.detach().numpy() for name, weight in net.named_parameters()}
    return began, size, weights
