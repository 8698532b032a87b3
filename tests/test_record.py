"""The recorder on real models and real steps."""

import gc
import json
import time
import weakref
from functools import partial

import pytest

torch = pytest.importorskip("torch")
import paceline.torch  # noqa: E402
from paceline.torch import Recorder, RecordingError, record  # noqa: E402
from test_record_format import check_trace, layers  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def train(model, optimizer, steps, *, batch=4, passes=1):
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            model(torch.randn(batch, 8)).square().mean().backward()
        optimizer.step()


def recorded(model, *, steps=3, total=None, **more):
    optimizer = sgd(model)
    with record(model, optimizer, warmup=1, steps=steps) as recorder:
        train(model, optimizer, total or 1 + steps, **more)
    return recorder, check_trace(recorder.trace)


def is_clean(model, optimizer):
    hooks = [m for m in model.modules() if m._forward_pre_hooks or m._forward_hooks]
    parameters = [p for p in model.parameters() if p._post_accumulate_grad_hooks]
    steps = [*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks]
    return not hooks and not parameters and not steps and torch.autograd.backward is BACKWARD


BACKWARD = torch.autograd.backward


class Sleep(nn.Module):
    """Takes a known time in the forward and in the backward pass."""

    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.forward_s = forward_s
        self.backward_s = backward_s

    def forward(self, x):
        time.sleep(self.forward_s)
        return _Sleep.apply(x, self.backward_s)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, backward_s):
        ctx.backward_s = backward_s
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return gradient, None


# A busy machine stretches what is measured here: upwards, and not each time.
on_a_busy_machine = pytest.mark.flaky(reruns=3)


@on_a_busy_machine
def test_known_times_are_found_where_they_belong():
    model = nn.Sequential(nn.Linear(8, 8), Sleep(0.02, 0.01), nn.Linear(8, 8), Sleep(0.01, 0.03))
    optimizer = sgd(model)
    with record(model, optimizer, warmup=1, steps=3) as recorder:
        for _ in range(8):
            time.sleep(0.005)  # input
            output = model(torch.randn(4, 8))
            time.sleep(0.015)  # loss
            output.sum().backward()
            time.sleep(0.01)  # clipping
            optimizer.step()
    worker = check_trace(recorder.trace)
    forward = {x["layer"]: x["duration_s"] for x in worker["forward"]}
    ready = {g["tensor"]: g["ready_s"] for g in worker["gradients"]}
    assert list(forward) == ["(input)", "0", "1", "2", "3", "(loss)"]
    slack = 0.015  # a shared machine's
    assert 0.02 <= forward["1"] <= 0.02 + slack
    assert 0.01 <= forward["3"] <= 0.01 + slack
    assert 0.015 <= forward["(loss)"] <= 0.015 + slack
    assert forward["0"] < slack
    assert 0.03 <= ready["2.weight"] <= 0.03 + slack
    assert 0.04 <= ready["0.weight"] <= 0.04 + slack
    assert 0.04 <= worker["backward_s"] <= 0.04 + slack
    assert 0.01 <= worker["optimizer_s"] <= 0.01 + slack
    assert 0.005 <= recorder.summary.input_s <= 0.005 + slack
    assert forward["(input)"] == pytest.approx(recorder.summary.input_s, abs=1e-8)
    total = recorder.summary.forward_s + worker["backward_s"] + worker["optimizer_s"] + recorder.summary.input_s
    assert total == pytest.approx(0.1, rel=0.25)
    assert recorder.summary.step_s == pytest.approx(total, rel=0.25)
    assert recorder.overhead.ratio == pytest.approx(1.0, abs=0.25)
    assert "recording made the step" in recorder.trace["provenance"]


def test_order_names_bytes_and_batch():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    optimizer = sgd(model)
    with record(model, optimizer, warmup=1, steps=2, name="small") as recorder:
        for _ in range(3):
            model(torch.randn(6, 3, 8, 8)).sum().backward()
            optimizer.step()
    worker = check_trace(recorder.trace)
    assert layers(worker) == {
        "0": ["0.weight", "0.bias"],
        "1": ["1.weight", "1.bias"],
        "2": [],
        "3": [],
        "4": ["4.weight", "4.bias"],
    }
    assert (recorder.trace["name"], recorder.trace["batch"], recorder.trace["dtype"]) == ("small", 6, "float32")
    sizes = {g["tensor"]: g["bytes"] for g in worker["gradients"]}
    assert sizes == {name: p.numel() * 4 for name, p in model.named_parameters()}
    assert [g["ready_s"] for g in worker["gradients"]] == sorted(g["ready_s"] for g in worker["gradients"])
    summary = recorder.summary
    assert (summary.gradients, summary.gradient_bytes) == (6, sum(sizes.values()))
    assert json.loads(json.dumps(summary.as_dict()))["overhead_ratio"] is None  # no step after the recorded ones
    assert "overhead not measured: too few steps" in str(summary)


def test_it_ends_by_itself_and_leaves_nothing():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, warmup=2, steps=3) as recorder:
        train(model, optimizer, 2)
        assert not recorder.finished
        assert model[0]._forward_pre_hooks
        train(model, optimizer, 3)
        assert recorder.finished
        assert not recorder.done
        assert not model[0]._forward_pre_hooks
        check_trace(recorder.trace)
        train(model, optimizer, 3)
        assert recorder.done
        train(model, optimizer, 1)
        assert is_clean(model, optimizer)
    assert recorder.overhead.bare_steps == 4  # one of warm-up, three after
    gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert gone() is None
    check_trace(recorder.trace)


def test_alternating_steps():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    optimizer = sgd(model)
    hooked = []
    with Recorder(model, optimizer, warmup=2, steps=2, alternate=True) as recorder:
        while not recorder.done:
            hooked.append(bool(model[0]._forward_pre_hooks))
            train(model, optimizer, 1)
        train(model, optimizer, 1)
        assert is_clean(model, optimizer)
    assert hooked == [False, False, True, False, True, False]
    assert len(hooked) == recorder.steps_wanted
    assert (recorder.overhead.recorded_steps, recorder.overhead.bare_steps) == (2, 2)
    check_trace(recorder.trace)


def test_a_module_called_twice_is_two_layers():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Linear(8, 8)

        def forward(self, x):
            return self.shared(self.shared(x).relu())

    _, worker = recorded(Twice())
    names = ["shared.weight", "shared.bias"]
    assert layers(worker) == {"shared": names, "shared#2": names}
    assert len(worker["gradients"]) == 2


def test_a_tied_weight_appears_once_and_both_layers_need_it():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 8)
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x.long().clamp(0, 9)))

    _, worker = recorded(Tied())
    assert layers(worker) == {"embed": ["embed.weight"], "head": ["embed.weight"]}
    assert [g["tensor"] for g in worker["gradients"]] == ["embed.weight"]


def test_unused_and_frozen_parameters_are_no_gradients_and_named():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(8, 8)
            self.unused = nn.Linear(8, 8)
            self.frozen = nn.Linear(8, 8).requires_grad_(False)

        def forward(self, x):
            return self.used(self.frozen(x))

    recorder, worker = recorded(Part())
    others = ["frozen.weight", "frozen.bias", "unused.weight", "unused.bias"]
    assert layers(worker) == {"frozen": others, "used": ["used.weight", "used.bias"]}
    assert {gradient["tensor"] for gradient in worker["gradients"]} == {"used.weight", "used.bias"}
    sizes = {one["tensor"]: one["bytes"] for one in recorder.trace["frozen"]}
    assert sizes == {name: 4 * 64 if name.endswith("weight") else 4 * 8 for name in others}
    assert recorder.summary.not_trained_bytes == sum(sizes.values())
    assert recorder.summary.unused == ("unused.weight", "unused.bias")
    assert recorder.summary.frozen == ("frozen.weight", "frozen.bias")
    assert "frozen: 2 parameters, such as frozen.weight" in str(recorder.summary)
    assert "without a gradient: 2 parameters, such as unused.weight" in str(recorder.summary)
    assert "these have 576 B, which ranks hold but do not reduce" in str(recorder.summary)


@pytest.mark.parametrize(
    ("make", "per_element"),
    [(torch.optim.AdamW, 8), (torch.optim.SGD, 0), (partial(torch.optim.SGD, momentum=0.9), 4)],
)
def test_the_states_of_the_optimizer_are_counted(make, per_element):
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8).requires_grad_(False))
    optimizer = make(model[0].parameters())
    with record(model, optimizer, warmup=1, steps=2) as recorder:
        train(model, optimizer, 3)
    assert recorder.trace["optimizer_bytes"] == per_element * (8 * 16 + 16)
    trace = paceline.Trace.from_json(json.dumps(recorder.trace).encode(), "it")
    result = paceline.simulate(trace, workers=1, sharding="none")
    assert result.sharded.memory.optimizer_bytes == per_element * (8 * 16 + 16)
    assert result.sharded.memory.parameters_bytes == 4 * (8 * 16 + 16 + 16 * 8 + 8)
    requested = paceline.simulate(trace, workers=1, sharding="none", optimizer="adam")
    assert requested.sharded.memory.optimizer_bytes == 8 * (8 * 16 + 16)


@on_a_busy_machine
def test_gradient_accumulation():
    recorder, worker = recorded(nn.Sequential(nn.Linear(8, 8), Sleep(0.005, 0.005)), passes=3, batch=5)
    assert [x["layer"] for x in worker["forward"]] == ["(input)", "0", "1", "(accumulation)", "(loss)"]
    accumulation = worker["forward"][3]["duration_s"]
    assert 0.02 <= accumulation <= 0.035  # two passes of ten milliseconds
    assert recorder.trace["batch"] == 15
    assert any("3 passes" in note for note in recorder.summary.notes)


def test_two_forwards_and_one_backward_are_one_pass():
    model = nn.Linear(8, 8)
    optimizer = sgd(model)
    with record(model, optimizer, warmup=0, steps=2) as recorder:
        for _ in range(2):
            (model(torch.randn(4, 8)) - model(torch.randn(4, 8))).square().sum().backward()
            optimizer.step()
    worker = check_trace(recorder.trace)
    assert list(layers(worker)) == ["Linear", "Linear#2"]
    assert recorder.trace["batch"] == 4


def test_attention_takes_the_projection_that_is_never_called():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    _, worker = recorded(nn.Sequential(nn.Unflatten(1, (1, 8)), layer))
    assert {"1.self_attn.in_proj_weight", "1.self_attn.out_proj.weight", "1.self_attn.out_proj.bias"} <= set(
        layers(worker)["1.self_attn"]
    )
    assert len(worker["gradients"]) == len(list(layer.parameters()))


def test_a_parameter_of_a_container():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return self.inner(x) * self.scale

    _, worker = recorded(Scaled())
    assert layers(worker) == {"Scaled": ["scale"], "inner": ["inner.weight", "inner.bias"]}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_recomputes_no_layers(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.block, self.first(x), use_reentrant=reentrant)

    _, worker = recorded(Checkpointed())
    assert list(layers(worker)) == ["first", "block.0", "block.1"]
    assert len(worker["gradients"]) == 4


def test_a_checkpointed_root():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    optimizer = sgd(model)
    with record(model, optimizer, warmup=0, steps=2) as recorder:
        for _ in range(2):
            checkpoint(model, torch.randn(4, 8), use_reentrant=False).sum().backward()
            optimizer.step()
    assert list(layers(check_trace(recorder.trace))) == ["0", "1"]
    assert recorder.trace["batch"] == 4


def test_an_exception_in_a_step_leaves_no_hooks():
    class Fails(nn.Linear):
        def forward(self, x):
            if x.shape[0] == 13:
                raise KeyError("unlucky")
            return super().forward(x)

    model = nn.Sequential(Fails(8, 8))
    optimizer = sgd(model)
    with pytest.raises(KeyError), record(model, optimizer, warmup=1, steps=5) as recorder:
        train(model, optimizer, 3)
        train(model, optimizer, 1, batch=13)
    assert is_clean(model, optimizer)
    check_trace(recorder.trace)  # of the two steps there were

    with record(model, optimizer, warmup=0, steps=2) as recorder:
        for batch in (4, 13, 4):
            try:
                train(model, optimizer, 1, batch=batch)
            except KeyError:
                model(torch.randn(4, 8)).sum().backward()  # the loop goes on
                optimizer.step()
    assert layers(check_trace(recorder.trace)) == {"0": ["0.weight", "0.bias"]}


def test_too_few_steps():
    model = nn.Linear(8, 8)
    optimizer = sgd(model)
    with pytest.raises(RecordingError, match="ran 2 optimizer steps"), record(model, optimizer) as recorder:
        train(model, optimizer, 2)
    assert is_clean(model, optimizer)
    with record(model, optimizer, warmup=1, steps=10) as recorder:
        train(model, optimizer, 4)
    check_trace(recorder.trace)
    assert any("only 3 of 10" in note for note in recorder.summary.notes)


def test_a_step_of_another_models_gradients_is_an_error_that_says_so():
    model, other = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = sgd(model)
    with pytest.raises(RecordingError, match="none of the recorded steps"), record(model, optimizer, warmup=0, steps=1):
        other(torch.randn(4, 8)).sum().backward()
        optimizer.step()


def test_a_closure_that_is_called_several_times_is_refused():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().sum()
        loss.backward()
        return loss

    with pytest.raises(RecordingError, match="closure several times"), record(model, optimizer):
        optimizer.step(closure)
    assert is_clean(model, optimizer)


class SlowSGD(torch.optim.SGD):
    """Takes 20 ms for its own work."""

    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        time.sleep(0.02)
        super().step()
        return loss


@on_a_busy_machine
def test_forward_and_backward_inside_a_step_with_a_closure():
    model = nn.Sequential(nn.Linear(8, 8), Sleep(0.01, 0.03))
    optimizer = SlowSGD(model.parameters(), lr=0.1)

    def closure():
        loss = model(torch.randn(4, 8)).sum()
        loss.backward()
        return loss

    with record(model, optimizer, warmup=1, steps=3) as recorder:
        for _ in range(8):
            optimizer.step(closure)
    worker = check_trace(recorder.trace)
    forward = {x["layer"]: x["duration_s"] for x in worker["forward"]}
    assert 0.01 <= forward["1"] <= 0.025 and forward["0"] < 0.01
    assert 0.03 <= worker["backward_s"] <= 0.045
    assert 0.02 <= worker["optimizer_s"] <= 0.035
    assert recorder.trace["batch"] == 4


def test_the_batch_of_a_lightning_module_is_that_of_its_loader():
    class LightningModule(nn.Module):
        pass

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, batch, index):
            return self.layer(batch[0]) + batch[1]

    model = Module()
    optimizer = sgd(model)
    with record(model, optimizer, warmup=0, steps=1) as recorder:
        for index in range(2):
            model([torch.ones(5, 8), torch.ones(5, 1)], index).sum().backward()
            optimizer.step()
    assert recorder.trace["batch"] == 5


def test_two_recorders_at_once():
    first, second = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8), Sleep(0.0, 0.01))
    one, two = sgd(first), sgd(second)
    with record(first, one, warmup=1, steps=2) as a, record(second, two, warmup=1, steps=4) as b:
        for _ in range(6):
            x, y = first(torch.randn(4, 8)).sum(), second(torch.randn(3, 8)).sum()
            y.backward()
            x.backward()
            one.step()
            two.step()
            one.zero_grad()
            two.zero_grad()
    worker = check_trace(a.trace)
    assert worker["backward_s"] < 0.01 <= check_trace(b.trace)["backward_s"]
    assert (a.trace["batch"], b.trace["batch"]) == (4, 3)
    assert is_clean(first, one)
    assert is_clean(second, two)


def test_evaluation_between_steps_is_no_pass():
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = sgd(model)
    with record(model, optimizer, warmup=1, steps=2) as recorder:
        for _ in range(3):
            train(model, optimizer, 1)
            with torch.no_grad():
                model(torch.randn(4, 8))
    assert list(layers(check_trace(recorder.trace))) == ["0"]


def test_mixed_precision_with_a_grad_scaler():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    with record(model, optimizer, warmup=1, steps=2) as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert list(layers(check_trace(recorder.trace))) == ["0", "1", "2"]
    assert recorder.trace["dtype"] == "float32"


def test_half_precision_parameters_mixed_in():
    model = nn.Sequential(nn.Linear(8, 1, bias=True).to(torch.bfloat16), nn.Linear(1, 8))
    optimizer = sgd(model)
    with record(model, optimizer, warmup=0, steps=1) as recorder:
        model[1](model[0](torch.randn(4, 8, dtype=torch.bfloat16)).float()).sum().backward()
        optimizer.step()
    sizes = {g["tensor"]: g["bytes"] for g in check_trace(recorder.trace)["gradients"]}
    assert recorder.trace["dtype"] == "float32"
    assert (sizes["0.weight"], sizes["0.bias"]) == (16, 4)  # the one bfloat16 of the bias fills a float32
    assert any("bfloat16" in note for note in recorder.summary.notes)


def test_children_called_without_the_model():
    # nn.ModuleDict has no forward: the script calls the parts.
    model = nn.ModuleDict({"encoder": nn.Linear(8, 4), "decoder": nn.Linear(4, 8)})
    optimizer = sgd(model)
    with record(model, optimizer, warmup=0, steps=2) as recorder:
        for _ in range(2):
            model["decoder"](model["encoder"](torch.randn(4, 8))).sum().backward()
            optimizer.step()
    worker = check_trace(recorder.trace)
    assert list(layers(worker)) == ["encoder", "decoder"]
    assert recorder.trace["batch"] == 4


def test_sparse_gradients_are_given_as_dense():
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = sgd(model)
    with record(model, optimizer, warmup=0, steps=1) as recorder:
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    assert check_trace(recorder.trace)["gradients"][0]["bytes"] == 160
    assert any("sparse" in note for note in recorder.summary.notes)


def test_distributed_data_parallel_of_one_rank(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch without torch.distributed")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
        recorder, worker = recorded(model)
    finally:
        torch.distributed.destroy_process_group()
    assert layers(worker) == {"0": ["0.weight", "0.bias"], "1": [], "2": ["2.weight", "2.bias"]}
    assert recorder.trace["name"] == "Sequential"
    # One rule, whatever the number of ranks.
    assert recorder.trace["library"] == "ddp-gloo"


class Block(nn.Sequential):
    """A class of ours: torch 2.7 does not compile modules of its own classes in place."""

    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize("how", ["wrapped", "in place", "forward", "one block", "one block's forward"])
def test_compiled_models(how):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = Block(nn.Linear(8, 8), Block(nn.Linear(8, 8), nn.ReLU()))
    whole = not how.startswith("one block")
    compiled, part = model, model if whole else model[1]
    if how == "wrapped":
        compiled = torch.compile(model, backend="aot_eager")
    elif how.endswith("forward"):
        part.forward = torch.compile(part.forward, backend="aot_eager")
    else:
        part.compile(backend="aot_eager")
    recorder, worker = recorded(compiled, total=8)
    tensors = {"0.weight", "0.bias", "1.0.weight", "1.0.bias"}
    actual = {name: set(needed) for name, needed in layers(worker).items()}
    if whole:
        assert actual == {"Block": tensors}
    else:
        assert actual == {"0": {"0.weight", "0.bias"}, "1": {"1.0.weight", "1.0.bias"}}
    assert any("compiled" in note for note in recorder.summary.notes)
    assert worker["forward"][-1]["layer"] == "(loss)"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, "recording made torch compile again"


@pytest.mark.slow
def test_inductor():
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    try:
        model(torch.randn(4, 8)).sum().backward()
    except Exception as error:
        pytest.skip(f"no compiler: {type(error).__name__}")
    _, worker = recorded(model)
    assert layers(worker) == {"Sequential": ["0.weight", "0.bias"]}


def test_a_model_of_fully_shard_has_the_name_of_its_own_class():
    from torch.distributed.fsdp import FSDPModule

    model = nn.Sequential(nn.Linear(2, 2))
    model.__class__ = type("FSDPSequential", (FSDPModule, nn.Sequential), {})
    assert Recorder(model, torch.optim.SGD(model.parameters())).name == "Sequential"


def test_saving_is_atomic_and_paths_are_checked_first(tmp_path):
    model = nn.Linear(8, 8)
    optimizer = sgd(model)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        record(model, optimizer, output=tmp_path / "nowhere" / "T.json")
    path = tmp_path / "T.json"
    path.write_text("old")
    with record(model, optimizer, warmup=1, steps=1, output=path) as recorder:
        train(model, optimizer, 3)
        assert json.loads(path.read_text()) == recorder.trace  # saved as soon as all is known
    assert json.loads(path.read_text()) == recorder.trace
    assert list(tmp_path.iterdir()) == [path]


def test_arguments_are_checked():
    model = nn.Linear(2, 2)
    for wrong in ({"steps": 0}, {"warmup": -1}, {"batch": 0}):
        with pytest.raises(ValueError, match="must be at least"):
            record(model, sgd(model), **wrong)
    with pytest.raises(ValueError, match="no parameters"):
        record(nn.ReLU(), sgd(model))
    assert record(model, sgd(model), batch=7).name == "Linear"


def test_the_batch_must_be_told_where_no_tensor_tells_it():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self):
            return self.weight.sum()

    model = Constant()
    for batch in (None, 5):
        optimizer = sgd(model)
        with record(model, optimizer, warmup=0, steps=1, batch=batch) as recorder:
            model().backward()
            optimizer.step()
        if batch is None:
            with pytest.raises(RecordingError, match="batch="):
                _ = recorder.trace
        else:
            assert recorder.trace["batch"] == 5


def test_functional_use_of_a_childs_weight():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.never_called = nn.Linear(8, 8)

        def forward(self, x):
            return F.linear(self.first(x), self.never_called.weight)

    recorder, worker = recorded(Functional())
    assert layers(worker) == {"first": ["first.weight", "first.bias", "never_called.weight", "never_called.bias"]}
    assert recorder.summary.unused == ("never_called.bias",)


def test_public_names():
    assert set(paceline.torch.__all__) >= {"record", "Recorder", "RecordingError"}
