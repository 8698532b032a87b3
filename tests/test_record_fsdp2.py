"""Recording FSDP2: on two ranks, of which this process is one and the other is pretended, so all shards are at hand."""

import time
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from paceline.torch import record  # noqa: E402
from paceline.torch.recorder.communication_hooks import take_rank_apart  # noqa: E402
from paceline.torch.recorder.fsdp2 import without_clipping, without_sharding  # noqa: E402
from paceline.torch.recorder.modules import survey  # noqa: E402
from paceline.torch.recorder.step import Event, EventKind, take_apart  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WAIT_S = 0.02


@contextmanager
def two_ranks():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def ranks():
    with two_ranks():
        yield


class Net(nn.Module):
    """Three blocks of two layers, whose weights cannot be split evenly, and a head."""

    def __init__(self, around=None):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 5)) for _ in range(3))
        self.head = nn.Linear(5, 3, bias=False)
        self.around = around

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.around is None else self.around(block, x, use_reentrant=False)
        return self.head(x)


def sharded(net, **options):
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def train(net, optimizer, steps, passes=1):
    for _ in range(steps):
        for number in range(passes):
            if hasattr(net, "set_requires_gradient_sync"):
                net.set_requires_gradient_sync(number == passes - 1)
            net(torch.randn(8, 5)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def recorded(net, passes=1, warmup=1, kind=torch.optim.SGD):
    optimizer = kind(net.parameters(), lr=0.01)
    with record(net, optimizer, warmup=warmup, steps=2) as recorder:
        train(net, optimizer, warmup + 4, passes)
    return recorder


def skeleton(trace):
    """All but the times."""
    (worker,) = trace["workers"]
    layers = [(layer["layer"], layer.get("tensors")) for layer in worker["forward"]]
    return layers, [{**gradient, "ready_s": 0} for gradient in worker["gradients"]]


@pytest.mark.parametrize(
    ("around", "passes", "options"),
    [
        (None, 1, {}),
        (None, 3, {}),
        (None, 1, {"reshard_after_forward": False}),
        (checkpoint, 1, {}),
        (checkpoint, 2, {"reshard_after_forward": False}),
    ],
)
def test_layers_and_gradients_are_those_of_a_worker_without_shards(around, passes, options):
    alone = recorded(Net(around), passes).trace
    with two_ranks():
        trace = recorded(sharded(Net(around), **options), passes).trace
    assert skeleton(trace) == skeleton(alone)
    assert (trace["name"], trace["batch"]) == ("Net", 8 * passes)
    assert all(gradient["ready_s"] > 0 for gradient in trace["workers"][0]["gradients"])


def test_steps_recorded_from_the_first_on():
    """Before it, there are no whole parameters."""
    alone = recorded(Net(), warmup=0).trace
    with two_ranks():
        assert skeleton(recorded(sharded(Net()), warmup=0).trace) == skeleton(alone)


def test_one_rank_is_recorded_alike():
    alone = recorded(Net()).trace
    with two_ranks():
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        trace = recorded(sharded(Net(), mesh=mesh["shard"])).trace
    assert skeleton(trace) == skeleton(alone)
    assert "it is multiplied by 1" in trace["provenance"]


@pytest.mark.parametrize(
    ("parameters", "gradients", "dtype", "options"),
    [
        (torch.bfloat16, torch.bfloat16, "bfloat16", "--sharding zero3"),
        pytest.param(
            *(torch.bfloat16, None, "bfloat16", "--sharding zero3"),
            marks=pytest.mark.skipif(torch.__version__ >= "2.15", reason="reduces in the type of the parameters"),
        ),
        pytest.param(
            *(torch.bfloat16, None, "float32", "--sharding zero3 --param-dtype bfloat16"),
            marks=pytest.mark.skipif(torch.__version__ < "2.15", reason="reduces in the type that is gathered"),
        ),
        (torch.bfloat16, torch.float32, "float32", "--sharding zero3 --param-dtype bfloat16"),
        (None, torch.bfloat16, "bfloat16", "--sharding zero3 --param-dtype float32"),
    ],
)
def test_the_dtype_is_that_of_the_reduction(ranks, parameters, gradients, dtype, options):
    policy = MixedPrecisionPolicy(param_dtype=parameters, reduce_dtype=gradients)
    trace = recorded(sharded(Net(), mp_policy=policy)).trace
    assert trace["dtype"] == dtype
    assert f"forecast it with {options};" in trace["provenance"] + ";"
    sizes = [gradient["bytes"] for gradient in trace["workers"][0]["gradients"]]
    whole = [4 * parameter.numel() for parameter in Net().parameters()]
    assert sum(sizes) == sum(whole) / (2 if dtype == "bfloat16" else 1)


@pytest.mark.parametrize("passes", [1, 2])
def test_waiting_for_other_ranks_is_left_out(ranks, passes, monkeypatch):
    def slowly(original):
        def called(*args, **kwargs):
            time.sleep(WAIT_S)
            return original(*args, **kwargs)

        return called

    # Newer torch calls these by other names.
    names = ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")
    for name in names:
        if hasattr(dist, name):
            monkeypatch.setattr(dist, name, slowly(getattr(dist, name)))
    summary = recorded(sharded(Net()), passes).summary
    assert summary.step_s > 10 * WAIT_S  # Four units, of which three gather twice.
    # They compute in a few milliseconds, more on a busy machine.
    assert summary.forward_s + summary.backward_s < summary.step_s / 3
    assert summary.optimizer_s < WAIT_S
    assert summary.input_in_trace


def test_the_optimizers_step_is_multiplied(ranks):
    class Slow(torch.optim.SGD):
        def _init_group(self, *args):
            time.sleep(WAIT_S)
            return super()._init_group(*args)

    recorder = recorded(sharded(Net()), kind=Slow)
    shards = recorder._hooks.units.shards
    assert 1.6 < shards < 2  # This rank has the larger part of what cannot be split evenly.
    assert shards * WAIT_S <= recorder.summary.optimizer_s < shards * WAIT_S + 0.02
    assert recorder.summary.step_s < shards * WAIT_S + 0.02
    assert f"of a shard; it is multiplied by {shards:.4g}" in recorder.trace["provenance"]


def test_methods_are_replaced_while_steps_are_recorded_alone(ranks):
    net = sharded(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    group = net.head and net._get_fsdp_state()._fsdp_param_group
    original = type(group).unshard
    with record(net, optimizer, warmup=1, steps=2) as recorder:
        assert "unshard" not in vars(group)
        train(net, optimizer, 1)
        assert "unshard" in vars(group)
        whole = group.fsdp_params[0]._unsharded_param
        assert len(whole._post_accumulate_grad_hooks) == 1
        train(net, optimizer, 2)
        assert recorder.finished
        for owner in (group, net._get_fsdp_state()):
            assert not [name for name, value in vars(owner).items() if hasattr(value, "__wrapped__")]
        assert not whole._post_accumulate_grad_hooks
        assert type(group).unshard is original


def test_two_recorders_of_one_model(ranks):
    net = sharded(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with record(net, optimizer, warmup=1, steps=4) as long:
        with record(net, optimizer, warmup=1, steps=2) as short:
            train(net, optimizer, 3)
        train(net, optimizer, 3)
    assert skeleton(short.trace) == skeleton(long.trace)
    assert "unshard" not in vars(net._get_fsdp_state()._fsdp_param_group)


def test_fsdp1_has_a_note(ranks):
    class FullyShardedDataParallel(Net):
        pass

    (note,) = [each for each in recorded(FullyShardedDataParallel()).summary.notes if "FSDP" in each]
    assert note.startswith("sharded by FSDP1: forward and backward include its all-gathers")


# Marks, with a clock that the test owns

TABLE, _, _ = survey(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)))
ALONE = (
    (EventKind.FORWARD_START, 8, 1.0),
    *((EventKind.CALL, 0, 1.0), (EventKind.CALL, 1, 1.25), (EventKind.CALL, 2, 2.0)),
    *((EventKind.FORWARD_END, 0, 2.5), (EventKind.BACKWARD_START, 0, 3.0)),
    *((EventKind.GRADIENT, 3, 3.5), (EventKind.GRADIENT, 2, 4.0)),
    *((EventKind.GRADIENT, 1, 5.0), (EventKind.GRADIENT, 0, 5.5)),
    *((EventKind.BACKWARD_END, 0, 5.5), (EventKind.OPTIMIZER_START, 0, 5.5), (EventKind.OPTIMIZER_END, 0, 7.0)),
)


def events(marks):
    return [Event(*mark) for mark in marks]


def units_in(marks, before):
    """The same marks, with a second of FSDP2 before some of them."""
    made, late = [], 0.0
    for place, (kind, key, at) in enumerate(marks):
        if place in before:
            made += [(EventKind.SHARDING_START, 0, at + late), (EventKind.SHARDING_END, 0, at + late + 1)]
            late += 1
        made.append((kind, key, at + late))
    return made


def test_what_is_left_is_the_step_without_units():
    # Before each layer, at the end of the forward pass, and around gradients.
    marks = units_in(ALONE, {2, 3, 4, 6, 8, 10})
    assert without_sharding(events(marks)) == (events(ALONE), 6.0)
    step = take_rank_apart(events(marks), TABLE, waits_in_backward=True, shards=1.0)
    alone = take_apart(events(mark for mark in ALONE if mark[0] is not EventKind.OPTIMIZER_START), TABLE)
    assert {**vars(step), "exchange_s": 0.0} == vars(alone)
    assert step.total_s == alone.total_s + 6.0


def test_collectives_of_units_are_not_the_scripts():
    """The script may gather a unit itself between steps, and the gathering may run on."""
    inside = ((EventKind.COLLECTIVE_START, 1, 0.5), (EventKind.CALL, 0, 0.75), (EventKind.COLLECTIVE_END, 0, 0.75))
    marks = ((EventKind.SHARDING_START, 0, 0.25), *inside, (EventKind.SHARDING_END, 0, 1.0), *ALONE)
    kept, cut_s = without_sharding(events(marks))
    assert (kept[0], cut_s) == (Event(EventKind.CALL, 0, 0.25), 0.75)
    assert len(kept) == 1 + len(ALONE)


def test_clipping_and_the_step_are_multiplied_and_the_rest_is_not():
    """Clipping takes 0.5 s, of which 0.25 s wait for the norm. Logging takes a second, and the step 1.5 s."""
    clipping = (
        *((EventKind.CLIPPING_START, 0, 5.5), (EventKind.COLLECTIVE_START, 0, 5.625)),
        *((EventKind.COLLECTIVE_END, 0, 5.875), (EventKind.CLIPPING_END, 0, 6.0)),
    )
    late = [(kind, key, at + 1.5) for kind, key, at in ALONE[-2:]]
    marks = events((*ALONE[:-2], *clipping, *late))
    kept, work_s = without_clipping(marks)
    assert (len(kept), work_s) == (len(marks) - 2, 0.25 + 1.5)
    step = take_rank_apart(marks, TABLE, waits_in_backward=True, shards=4.0)
    assert step.optimizer_s == 4 * (0.25 + 1.5) + 1.0
    assert step.elsewhere_s == 3 * (0.25 + 1.5)
    assert step.exchange_s == 0.25
    assert step.total_s == 6.0 + 1.5
