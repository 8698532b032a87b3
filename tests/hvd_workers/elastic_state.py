"""`hvd.elastic.TorchState` and `ElasticSampler` without deaths: what `sync`, `commit` and `restore` do."""

import paceline.torch as hvd
import torch
from torch_workers.checks import run_all


def _state(rank):
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    return hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=20 + rank, seen=[rank])


def _step(state):
    state.optimizer.zero_grad()
    state.model(torch.ones(4, 3)).sum().backward()
    state.optimizer.step()
    state.batch += 1
    state.seen.append("later")


def _now(state):
    moments = [each["exp_avg"].clone() for each in state.optimizer.state.values()]
    weights = [parameter.detach().clone() for parameter in state.model.parameters()]
    return weights + moments, (state.batch, list(state.seen), state.optimizer.param_groups[0]["lr"])


def _same(state, was):
    tensors, values = _now(state)
    assert values == was[1], (values, was[1])
    assert len(tensors) == len(was[0])
    assert all(torch.equal(now, before) for now, before in zip(tensors, was[0], strict=True))


def sync_keeps(rank, size):
    """As in Horovod: before the first commit, `restore` brings back the state that `sync` left."""
    state = _state(rank)
    _step(state)
    state.sync()
    synchronized = _now(state)
    assert synchronized[1] == (21, [0, "later"], 0.1), "rank 0's"
    for _ in range(2):
        _step(state)
        state.restore()
        _same(state, synchronized)
    _step(state)
    state.commit()
    committed = _now(state)
    _step(state)
    state.restore()
    _same(state, committed)
    _step(state)
    state.sync()
    again = _now(state)
    _step(state)
    state.restore()
    _same(state, again)


def sync_is_no_commit(rank, size):
    """The state that `sync` leaves has no number: a rank that failed before it had that state could not go back."""
    state = _state(rank)
    state.sync()
    assert state._commits.numbers == []
    state.commit()
    committed = _now(state)
    _step(state)
    state.sync()
    assert state._commits.numbers == [0]
    state._back_to(0)
    _same(state, committed)


def sampler_counts(rank, size):
    """`processed_num`, as in Horovod: samples of this epoch that all ranks have processed."""
    sampler = hvd.elastic.ElasticSampler(range(20), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    assert sampler.processed_num == 0
    sampler.record_batch(0, 3)
    assert sampler.processed_num == 3 * size
    state.sync()
    sampler.record_batch(1, 2)
    assert sampler.processed_num > 3 * size
    state.restore()
    assert state.sampler.processed_num == 3 * size
    assert len(state.sampler) == -(-(20 - 3 * size) // size)
    sampler.set_epoch(1)
    assert sampler.processed_num == 0


def everything(rank, size):
    run_all([sync_keeps, sync_is_no_commit, sampler_counts], rank, size)
