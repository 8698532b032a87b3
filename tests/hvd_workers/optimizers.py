"""Other behavior of the distributed optimizer: special gradients, errors, process sets, state."""

import gc
import warnings

import paceline.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch_workers.checks import run_all

from hvd_workers.training import assert_like, batch, net, part, sgd


def everything(rank, size):
    run_all(
        [identity, names, in_place, branches, sparse, sparse_as_dense, sparse_or_missing, late_parameters], rank, size
    )
    run_all(
        [protests, wrong_arguments, replaced, of_some_ranks, state_of_sgd, state_of_adam, state_is_refused], rank, size
    )


def _backward(model, rank, size, step=0):
    x, y = part(batch(step, size), rank)
    mse_loss(model(x), y).backward()


def identity(rank, size):
    model = net()
    plain = sgd(model)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    assert optimizer.param_groups is plain.param_groups
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    for _ in range(2):
        _backward(model, rank, size)
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before"] * 2, "hooks of a step run once"


def names(rank, size):
    """Parameters have names where scripts for Horovod look for them, the same on all ranks."""
    model = net()
    named = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    assert named._parameter_names == {parameter: name for name, parameter in model.named_parameters()}
    unnamed = hvd.DistributedOptimizer(sgd(model))._parameter_names
    assert set(unnamed) == set(model.parameters()) and len(set(unnamed.values())) == len(unnamed)
    assert hvd.allgather_object(list(unnamed.values())) == [list(unnamed.values())] * size


def in_place(rank, size):
    """A gradient is reduced in place; one that is not dense, as a copy."""
    model = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    model(torch.full((1, 2, 4, 4), 1.0 + rank).to(memory_format=torch.channels_last)).sum().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    places = [grad.data_ptr() for grad in grads]
    optimizer.synchronize()
    assert [parameter.grad.data_ptr() for parameter in model.parameters()] == places
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), grads, strict=True))
    torch.testing.assert_close(model.weight.grad, torch.full((3, 2, 2, 2), 9.0 * (1 + size) / 2))
    with optimizer.skip_synchronize():
        optimizer.step()


def branches(rank, size):
    """Each rank uses different layers in each step; with and without groups."""
    for groups in (None, 2):
        torch.manual_seed(6)
        layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(3))
        wanted = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(3))
        wanted.load_state_dict(layers.state_dict())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layers.parameters(), lr=0.1), layers.named_parameters(), groups=groups
        )
        plain = torch.optim.SGD(wanted.parameters(), lr=0.1)
        for step in range(6):
            plain.zero_grad()
            optimizer.zero_grad()
            for other in range(size):
                x = torch.full((2, 3), 1.0 + other).double()
                (wanted[(step + other) % 3](x).square().sum() / size).backward()
            layers[(step + rank) % 3](torch.full((2, 3), 1.0 + rank).double()).square().sum().backward()
            optimizer.step()
            plain.step()
        assert_like(layers, wanted)


def _embedding(rank, size, build, sparse=True, steps=8, **options):
    torch.manual_seed(7)
    model, wanted = (nn.Embedding(11, 3, sparse=sparse).double() for _ in range(2))
    wanted.load_state_dict(model.state_dict())
    optimizer = hvd.DistributedOptimizer(build(model.parameters()), model.named_parameters(), **options)
    plain = build(wanted.parameters())
    for step in range(steps):
        plain.zero_grad()
        optimizer.zero_grad()
        words = torch.tensor([(2 * step + 3 * other + at * at) % 11 for other in range(size) for at in range(4)])
        wanted(words).square().sum().div(size).backward()
        model(words[4 * rank : 4 * rank + 4]).square().sum().backward()
        optimizer.step()
        plain.step()
        assert model.weight.grad.is_sparse == sparse
    assert_like(model, wanted)


def sparse(rank, size):
    _embedding(rank, size, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5))
    _embedding(rank, size, lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.1))
    _embedding(rank, size, lambda parameters: torch.optim.SGD(parameters, lr=0.1), groups=1)


def sparse_as_dense(rank, size):
    for groups in (None, 1):
        _embedding(
            rank, size, lambda parameters: torch.optim.SGD(parameters, lr=0.1), sparse_as_dense=True, groups=groups
        )


def sparse_or_missing(rank, size):
    """A sparse gradient that one rank has not computed, after all have had one."""
    torch.manual_seed(7)
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        if step != 1 or rank == 0:
            model(torch.tensor([rank])).sum().backward()
        before = model.weight.detach().clone()
        optimizer.step()
        moved = [1 / size if step != 1 or row == 0 else 0.0 for row in range(size)]
        torch.testing.assert_close((before - model.weight)[:size, 0], torch.tensor(moved))


def late_parameters(rank, size):
    """A parameter that is no longer frozen, and one that was added."""
    model = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
    for layer in model:
        nn.init.eye_(layer.weight)
    model[1].weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([model[0].weight, model[1].weight], lr=1.0), [("0", model[0].weight), ("1", model[1].weight)]
    )
    for step in range(3):
        if step == 1:
            model[1].weight.requires_grad_(True)
            optimizer.add_param_group({"params": [model[2].weight]})
        optimizer.zero_grad()
        for layer in model:
            layer(torch.full((1, 2), float(rank))).sum().backward() if layer.weight.requires_grad else None
        optimizer.step()
        if step == 0:
            assert torch.equal(model[1].weight, torch.eye(2)) and model[1].weight.grad is None
    each = (size - 1) / 2
    torch.testing.assert_close(model[0].weight, torch.eye(2) - 3 * each)
    torch.testing.assert_close(model[1].weight, torch.eye(2) - 2 * each)
    torch.testing.assert_close(model[2].weight, torch.eye(2) - 2 * each)


def protests(rank, size):
    model = net()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    _backward(model, rank, size)
    if size > 1:
        with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after backward"):
            optimizer.zero_grad()
        with pytest.raises(AssertionError, match="increase backward_passes_per_step"):
            _backward(model, rank, size)
    optimizer.synchronize()
    words = (
        r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\) context after optimizer\.synchronize\(\)"
    )
    with pytest.warns(UserWarning, match=f"^{words}"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        optimizer.zero_grad()
    if size > 1:
        with pytest.raises(AssertionError, match="create_graph"):
            model(torch.ones(1, 6).double()).sum().backward(create_graph=True)
    hvd.barrier()


def wrong_arguments(rank, size):
    model = net()

    def wrap(named=None, **how):
        return hvd.DistributedOptimizer(sgd(model), model.named_parameters() if named is None else named, **how)

    pairs = list(model.named_parameters())
    for options, why in (
        ({"named": [name for name, _ in pairs]}, r"tuples \(name, parameter\)"),
        ({"named": [("same", parameter) for _, parameter in pairs]}, "duplicates: same"),
        ({"named": pairs[1:]}, r"parameter 0 of the optimizer's param_groups\[0\] \(shape \[8, 6\]\) has no name"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor"),
        ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"backward_passes_per_step": 1.5}, "give a whole number above 0"),
        ({"compression": "fp16"}, "give hvd.Compression.none"),
        ({"compression": None}, "give hvd.Compression.none"),
        ({"groups": 0}, "groups"),
        ({"groups": "all"}, "groups"),
        ({"groups": [[1.0]]}, "groups contains a float"),
        ({"groups": [[pairs[0][1]], [pairs[0][1]]]}, "twice"),
        ({"op": 99}, "unknown"),
    ):
        with pytest.raises(ValueError, match=why):
            wrap(**options)
    with pytest.raises(NotImplementedError, match="Adasum"):
        wrap(op=hvd.Adasum)
    with pytest.warns(DeprecationWarning, match="groups"):
        once = wrap(num_groups=2)
    with pytest.raises(ValueError, match="already distributed"):
        hvd.DistributedOptimizer(once)


def replaced(rank, size):
    """A deleted optimizer does nothing any more, even if another has the same parameters."""
    model = net()
    for _ in range(2):
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
        gc.collect()
        _backward(model, rank, size)
        optimizer.step()
        optimizer.zero_grad()
    _backward(model, rank, size)
    for parameter in model.parameters():
        parameter.grad = None  # while it is reduced
    optimizer.step()


def of_some_ranks(rank, size):
    """Ranks outside the process set step by themselves."""
    if size == 1:
        return
    some = hvd.add_process_set(range(0, size, 2))
    members = len(range(0, size, 2))
    for groups in (None, 1):
        weight = nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("w", weight)], process_set=some, groups=groups
        )
        (weight.sum() * (rank + 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        want = sum(range(1, size + 1, 2)) / members if rank % 2 == 0 else rank + 1
        assert weight.tolist() == [-want] * 3
    assert hvd.remove_process_set(some)


def _trained(optimizer, model, steps=3):
    for step in range(steps):
        x, y = batch(step, 1)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()


def _state(rank, size, build, wrap):
    """Only rank 0 has trained."""
    model = net()
    optimizer = build(model, 0.5 if rank == 0 else 0.1)
    if rank == 0:
        _trained(optimizer, model)
    if wrap:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    options = optimizer.param_groups[0]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0] is options and options["lr"] == 0.5
    states = hvd.allgather_object(optimizer.state_dict())
    for state in states[1:]:
        assert state["param_groups"] == states[0]["param_groups"]
        assert state["state"].keys() == states[0]["state"].keys() and state["state"]
        for index, values in state["state"].items():
            assert values.keys() == states[0]["state"][index].keys()
            for key, value in values.items():
                other = states[0]["state"][index][key]
                assert type(value) is type(other)
                assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
    _trained(optimizer, model)  # the same on all ranks, so that the mean is each rank's own
    assert all(text == texts[0] for texts in [hvd.allgather_object(str(model.state_dict()))] for text in texts)


def state_of_sgd(rank, size):
    for wrap in (False, True):
        _state(rank, size, lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), wrap)


def state_of_adam(rank, size):
    for wrap in (False, True):
        _state(rank, size, lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr, amsgrad=True), wrap)
        _state(rank, size, lambda model, lr: torch.optim.Adagrad(model.parameters(), lr=lr), wrap)


def state_is_refused(rank, size):
    model = net()
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_optimizer_state(plain, size - 1)
    assert not plain.state_dict()["state"]
