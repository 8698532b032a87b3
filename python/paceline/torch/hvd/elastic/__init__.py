"""Horovod's elastic training: ranks that die are replaced, and training continues from the last commit.

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)

    @hvd.elastic.run
    def train(state):
        while state.batch < 1000:
            ...
            state.batch += 1
            state.commit()

    train(state)

`paceline run --elastic -np 4 -- python train.py` starts it (docs/how-to/elastic.md).

| module | contents |
| --- | --- |
| paceline.hvd.elastic | run, the loop around the training function; State and ObjectState: commit, restore, sync |
| torch_state, state_handlers | TorchState: models, optimizers, samplers, objects with a state_dict |
| sampler | ElasticSampler |
"""

from paceline._internal.lazy import public_names
from paceline.hvd.elastic.runner import run
from paceline.hvd.elastic.state import HostsUpdatedInterrupt, ObjectState, State
from paceline.hvd.world import HorovodInternalError
from paceline.torch.hvd.elastic.sampler import ElasticSampler
from paceline.torch.hvd.elastic.torch_state import TorchState

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]

__dir__ = public_names(__name__)
