"""Trains, and tells in lines of JSON what it sees. Argument: JSON with `steps` and a plan of deaths.

A plan is a list of `{"worker": 1, "at": "backward", "step": 20, "signal": 9}`. Workers count from 0 in the
order in which they are started, so that who replaces a dead one is another.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import paceline.torch as hvd

from elastic_workers import model as parts

question = json.loads(sys.argv[1])
worker = int(os.environ["PACELINE_RUN_WORKER"])


def tell(**fields):
    sys.stdout.write(json.dumps({"worker": worker, "pid": os.getpid(), **fields}) + "\n")
    sys.stdout.flush()


def point(at, step=None):
    """Die here, if that is planned."""
    for death in question.get("deaths", []):
        if death["worker"] == worker and death["at"] == at and death.get("step", step) == step:
            tell(dies=at, step=step)
            if "raise" in death:
                raise ValueError(death["raise"])
            os.kill(os.getpid(), death.get("signal", signal.SIGKILL))


def held():
    return {
        name: len(list(Path("/proc/self", kind).iterdir())) for name, kind in (("files", "fd"), ("threads", "task"))
    }


class State(hvd.elastic.TorchState):
    def save(self):
        point("before save", self.step)
        super().save()
        point("after save", self.step)

    def sync(self):
        point("before sync")
        super().sync()
        point("after sync")


point("before init")
hvd.init()
point("after init")
model = parts.network()
optimizer = hvd.DistributedOptimizer(parts.optimizer(model), named_parameters=model.named_parameters())
state = State(model=model, optimizer=optimizer, step=0, done=[])
resets = []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])


@hvd.elastic.run
def train(state):
    tell(world=hvd.size(), rank=hvd.rank(), step=state.step, resets=len(resets), time=time.monotonic(), **held())
    while state.step < question["steps"]:
        step = state.step
        optimizer.zero_grad()
        parts.loss(model, step, hvd.rank()).backward()
        point("backward", step)
        optimizer.step()
        if step not in state.done:
            state.done.append(step)
        state.step += 1
        time.sleep(question.get("pause", 0))
        if state.step % question.get("every", 1) == 0:
            state.commit()
    return hvd.rank()


rank = train(state)
time.sleep(question.get("after", 0))  # as it saves its model
tell(ends=rank, size=hvd.size(), step=state.step, done=len(state.done), digest=parts.digest(model), **held())
