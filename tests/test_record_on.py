"""`paceline record --gpu GPU`: scripts run without the GPU and without data."""

import json
import os
import sys
from pathlib import Path

import cli
import paceline
import pytest
from paceline.catalog.gpus import find_hardware
from paceline.cli.record import _print_summary, _without_launcher
from paceline.operators.operator import Operator, contiguous
from paceline.operators.steps import retimed

pytest.importorskip("torch")

from paceline.torch.simulated.calls import kernels_of

# One recording serves three tests.
shared = pytest.mark.xdist_group("record_on")
# Each is a process of its own, with torch and its compiler: four seconds.
recorded_in_ci = pytest.mark.process
ROOT = Path(__file__).parent.parent
GPT = ROOT / "examples" / "gpt.py"


def record(tmp_path, *command, options=()):
    output = tmp_path / "trace.json"
    words = [sys.executable, "-m", "paceline", "record", *options, "--json", "-o", str(output), "--"]
    result = cli.ended(*words, sys.executable, *command, cwd=tmp_path, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    return result, output


def recorded(tmp_path, *command, options=("--gpu", "h100")):
    result, output = record(tmp_path, *command, options=options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout[result.stdout.index("{\n") :]), json.loads(output.read_text())


def total(summary, kind, phase, what):
    rows = summary["simulated"]["classes"]
    return sum(row[what] for row in rows if row["class"] == kind and row["phase"] == phase)


SIZES = {"layers": 3, "hidden": 96, "sequence": 128, "vocabulary": 500, "batch": 4}
WORDS = [word for name, value in SIZES.items() for word in (f"--{name}", value)]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """Summary, trace and its file."""
    folder = tmp_path_factory.mktemp("gpt")
    return *recorded(folder, GPT, *WORDS, options=("--gpu", "h100", "--dtype", "bf16")), folder / "trace.json"


@shared
def test_a_gpt_on_an_h100(gpt):
    layers, hidden, sequence, vocabulary, batch = SIZES.values()
    summary, trace, path = gpt
    products = layers * 12 * hidden**2 + vocabulary * hidden
    tokens = batch * sequence
    # Two FLOPs per weight and token forward, four backward; attention is counted apart.
    assert total(summary, "matmul", "forward", "flops") == 2 * products * tokens
    assert total(summary, "matmul", "backward", "flops") == 4 * products * tokens
    assert total(summary, "attention", "forward", "flops") == layers * 4 * batch * sequence**2 * hidden
    own = products + layers * 13 * hidden + 2 * hidden + sequence * hidden
    assert summary["parameters"] == own
    assert summary["gradient_bytes"] == 4 * own
    assert (trace["device"], trace["batch"], trace["dtype"]) == ("H100 SXM5 80 GB", batch, "float32")
    assert "operator by operator" in trace["provenance"]
    by_module = {row["module"]: row for row in summary["simulated"]["modules"]}
    up = by_module["blocks.1.up"]
    assert up["forward"]["flops"] == 2 * 4 * hidden**2 * tokens
    assert up["backward"]["flops"] == 4 * 4 * hidden**2 * tokens
    kept = {layer["layer"]: layer["activation_bytes"] for layer in trace["workers"][0]["forward"]}
    # A norm keeps its FP32 input, mean and deviation; the loss keeps the logarithms of probabilities.
    assert kept["blocks.1.norm_1"] == sequence * (hidden + 2) * 4
    assert kept["(loss)"] >= sequence * vocabulary * 4
    only = {layer["layer"]: layer["backward_bytes"] for layer in trace["workers"][0]["forward"]}
    # The gradients of the logarithms and of the logits.
    assert only["(loss)"] == 2 * sequence * vocabulary * 4
    result = paceline.simulate(path, workers=8, bandwidth="100Gbps")
    assert result.iteration_s > summary["forward_s"] + summary["backward_s"]


@shared
def test_one_recording_is_enough_for_every_gpu(gpt):
    *_, path = gpt
    trace = paceline.load_trace(path)
    assert trace.has_operators
    again = retimed(trace, find_hardware("h100"))
    # The first layer waits for the operators before the step, which are not in it.
    assert again.workers[0].forward[1:] == trace.workers[0].forward[1:]
    assert (again.backward_s, again.optimizer_s) == (trace.backward_s, trace.optimizer_s)
    faster, slower = (retimed(trace, find_hardware(name)) for name in ("b200", "a100"))
    assert faster.backward_s < trace.backward_s < slower.backward_s
    results = paceline.sweep(path, gpu=["h100", "b200"], workers=8, strategy="ring")
    assert [result.gpu for result in results] == ["h100", "b200"]
    assert results[0].backward_s == trace.backward_s
    assert results[1].backward_s == faster.backward_s
    with pytest.raises(paceline.InvalidArgumentError, match="has no bfloat16"):
        paceline.simulate(path, gpu="v100", workers=8)
    whole, under, own = (
        paceline.simulate(path, workers=8, strategy="ring", **options)
        for options in ({"gpu": "h100"}, {"gpu": "h100", "power_limit": "350W"}, {"power_limit": "350W"})
    )
    assert under.backward_s == own.backward_s >= whole.backward_s
    notes = cli.notes(cli.output("simulate", path, "--gpu", "h100,b200", "--gpus", "8"))
    assert "--gpu: operators recorded for H100 SXM5 80 GB are timed on B200 SXM 180 GB" in notes


@shared
def test_the_table_says_what_was_estimated(gpt, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    summary, _, path = gpt
    _print_summary(summary, path, as_json=False, to_stderr=True)
    said = capsys.readouterr().err
    assert said.startswith("Estimated GPT (") and f"batch {SIZES['batch']}) for H100 SXM5 80 GB" in said.splitlines()[0]
    assert "No GPU was used: operators, FLOPs and bytes are counted, all times are estimates" in " ".join(said.split())


@shared
@pytest.mark.slow
def test_the_tensors_are_those_of_a_real_recording(gpt, tmp_path):
    _, simulated, _ = gpt
    _, real = recorded(tmp_path, GPT, *WORDS, "--steps", 6, options=("--warmup", "2", "--steps", "2"))
    ours, theirs = simulated["workers"][0], real["workers"][0]
    # A simulated device has no input.
    real_layers = [layer["layer"] for layer in theirs["forward"] if layer["layer"] != "(input)"]
    assert [layer["layer"] for layer in ours["forward"]] == real_layers
    # Under autocast, which the script asks for on a GPU, a bias has one more node to pass than its weight.
    sizes = [sorted((g["tensor"], g["bytes"]) for g in worker["gradients"]) for worker in (ours, theirs)]
    assert sizes[0] == sizes[1]


SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
device = torch.device("cuda", dist.get_rank())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.body = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = checkpoint(self.body, torch.relu(self.bn(self.conv(x))), use_reentrant=False)
        return self.fc(x.mean((2, 3)))

model = DistributedDataParallel(Net().to(device), device_ids=[0])
data = TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(10, (256,)))
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, pin_memory=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
total = 0.0
for x, y in loader:
    x, y = x.cuda(non_blocking=True), y.to(device, non_blocking=True)
    with torch.autocast("cuda"):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    total += float(loss.detach().cpu().numpy()) + loss.item()
    torch.cuda.synchronize()
    torch.save(model.state_dict(), "model.pt")
    assert torch.cuda.get_device_name() == "A100 SXM4 40 GB"
raise SystemExit("was not ended when the steps were recorded")
"""


@recorded_in_ci
def test_a_script_for_nccl_with_loaders_and_scaling(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    summary, trace = recorded(tmp_path, "train.py", options=("--gpu", "a100-40gb"))
    assert summary["batch"] == 16
    assert trace["library"] == "ddp"
    assert [layer["layer"] for layer in trace["workers"][0]["forward"]][:3] == ["conv", "bn", "body.0"]
    pixels = 16 * 32 * 32
    assert total(summary, "matmul", "forward", "flops") == 2 * 9 * 64 * (3 + 64) * pixels + 2 * 16 * 64 * 10
    # The checkpoint's convolution runs again; the first one needs no gradient of its input.
    again, weights = 2 * 9 * 64 * 64 * pixels, 2 * 9 * 64 * (3 + 2 * 64) * pixels
    assert total(summary, "matmul", "backward", "flops") == again + weights + 4 * 16 * 64 * 10
    assert not (tmp_path / "model.pt").exists()
    assert any("torch.save" in note for note in summary["notes"])


CHECKPOINTED = """
import sys, torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(64, 1000)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if "again" in sys.argv else block(x)
        return self.head(x)

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "again", [pytest.param((), id="kept", marks=pytest.mark.slow), pytest.param(("again",), id="recomputed")]
)
@recorded_in_ci
def test_what_exists_only_in_the_backward_pass(again, tmp_path):
    (tmp_path / "train.py").write_text(CHECKPOINTED)
    _, trace = recorded(tmp_path, "train.py", *again, options=("--gpu", "h100"))
    forward = {layer["layer"]: layer for layer in trace["workers"][0]["forward"]}
    narrow, wide = 4 * 64, 4 * 256
    # The gradient of a product's result, and of its argument.
    assert forward["head"]["backward_bytes"] == 4 * 1000 + narrow
    if not again:
        assert forward["blocks.1.down"]["backward_bytes"] == narrow + wide
        assert forward["blocks.1.act"]["backward_bytes"] == 2 * wide
        return
    # The argument and the result of the activation function exist again; the argument until its backward pass.
    assert forward["blocks.1.down"]["backward_bytes"] == narrow + wide + 2 * wide
    assert forward["blocks.1.act"]["backward_bytes"] == 2 * wide + wide
    assert forward["blocks.1.act"]["activation_bytes"] == 0


def test_sparse_gradients_have_the_memory_of_their_values():
    import torch
    from paceline.torch.simulated.calls import storage_of, tensor_of

    values = torch.ones(3, 16)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 4, 9]]), values, (10, 16), check_invariants=False)
    assert tensor_of(sparse).shape == (3, 16)
    assert storage_of(sparse) == storage_of(values)


def test_a_recording_takes_no_gpu_after_its_name(tmp_path):
    own = tmp_path / "mine.json"
    own.write_text((ROOT / "examples" / "tiny.json").read_text())
    with pytest.raises(paceline.InvalidArgumentError, match=r"mine\.json: is no model") as raised:
        paceline.simulate(f"{own}@h100", workers=8)
    assert raised.value.remedy.startswith("gpu='h100'")


def test_a_transposed_weight_that_autograd_keeps_is_no_activation():
    import torch
    from paceline.torch.simulated.account import Account

    account = Account(_calls=[(1, 0)])
    account._keep(torch.nn.Linear(4, 4).weight.t())
    account._keep(torch.ones(2))
    assert account._calls == [(1, 8)]


COMPILING = """
import json
import torch
from torch import nn
from paceline.torch.simulated.mode import enter

def classes():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(256), nn.Linear(256, 256)
        def forward(self, x):
            return x + nn.functional.gelu(self.linear(self.norm(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(256, 1000)
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x).float().log_softmax(-1)

    return Net, Block

def decorate(kind):
    kind.forward = torch.compile(dynamic=False)(kind.forward)

def compiled(how):
    Net, Block = classes()
    model = Net()
    if how == "model":
        return torch.compile(model)
    if how == "model in place":
        model.compile()
    elif how == "model's forward":
        model.forward = torch.compile(model.forward)
    elif how == "model decorated":
        decorate(Net)
    elif how == "function around the model":
        return torch.compile(lambda x: model(x))
    elif how == "in a wrapper":
        return nn.Sequential(torch.compile(model))
    elif how == "blocks":
        for number, block in enumerate(model.blocks):
            model.blocks[number] = torch.compile(block)
    elif how == "blocks in place":
        for block in model.blocks:
            block.compile(mode="max-autotune-no-cudagraphs")
    elif how == "blocks' forwards":
        for block in model.blocks:
            block.forward = torch.compile(block.forward)
    elif how == "blocks decorated":
        decorate(Block)
    elif how == "not fused":
        model.compile(backend="aot_eager")
        torch.compile(model, disable=True)
    elif how == "something else":
        torch.compile(lambda x: x + 1)(torch.zeros(3))
    return model

simulation, loss, times = enter("h100", None), nn.CrossEntropyLoss(), {}
for how in HOWS:
    model, account = compiled(how), simulation.account
    for step in range(2):
        account.places.clear()
        loss(model(torch.zeros(512, 256)), torch.zeros(512, dtype=torch.long)).backward()
        simulation.clock.advance()
        kinds = account.by_kind(simulation.clock.works)
        times[how] = [round(kinds["memory", phase].seconds, 12) for phase in ("forward", "backward")]
        account.end_step()
print(json.dumps(times))
"""
WHOLE = ["model", "model in place", "model's forward", "model decorated", "function around the model", "in a wrapper"]
BLOCKS = ["blocks", "blocks in place", "blocks' forwards", "blocks decorated"]
EAGER = ["as it is", "not fused", "something else"]


TWO_PASSES = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).cuda()
model.compile()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    for _ in range(3):
        model(torch.randn(4096, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@recorded_in_ci
def test_operators_of_several_passes_and_of_fused_chains(tmp_path):
    (tmp_path / "script.py").write_text(TWO_PASSES)
    _, document = recorded(tmp_path, tmp_path / "script.py")
    trace = paceline.Trace.from_dict(document)
    layers = {layer.name: layer.duration_s for layer in trace.workers[0].forward}
    assert layers["(accumulation)"] > trace.backward_s
    assert retimed(trace, find_hardware("h100")).workers == trace.workers


@recorded_in_ci
def test_ways_to_compile():
    script = COMPILING.replace("HOWS", repr([*EAGER, *WHOLE, *BLOCKS]))
    done = cli.ended(sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    times = json.loads(done.stdout)
    eager, whole, blocks = (times[ways[0]] for ways in (EAGER, WHOLE, BLOCKS))
    assert all(most < some < none for most, some, none in zip(whole, blocks, eager, strict=True)), times
    for ways in (EAGER, WHOLE, BLOCKS):
        assert all(times[how] == times[ways[0]] for how in ways), times


def test_mistakes(tmp_path):
    for options, words in (
        (("--gpu", "h1000"), "unknown GPU 'h1000'"),
        (("--gpu", "v100-16gb", "--dtype", "bf16"), "bf16"),
        (("--dtype", "bf16"), "--dtype needs --gpu"),
        (("--gpu", "h100", "--stop-when-recorded"), "--gpu always ends the script"),
    ):
        result, output = record(tmp_path, GPT, options=options)
        assert result.returncode == 2
        assert words in result.stderr
        assert not output.exists()


@recorded_in_ci
def test_what_depends_on_data_is_named(tmp_path):
    (tmp_path / "train.py").write_text("import torch\ntorch.nonzero(torch.ones(4))\n")
    result, output = record(tmp_path, "train.py", options=("--gpu", "h100"))
    assert result.returncode != 0
    assert "aten.nonzero" in result.stderr
    assert "train.py, line 2" in result.stderr
    assert "Traceback" not in result.stderr
    assert not output.exists()


BRANCHES = """
import torch
from torch import nn

class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.seldom = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        x = self.always(x)
        if (x > 0).any():
            x = self.seldom(x)
        return x

model = Chosen().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    for _ in range(2):
        loss = model(torch.randn(8, 64, device="cuda")).square().mean()
        loss.backward()
    if loss > 1e9:  # Not in a layer.
        break
    optimizer.step()
"""


@pytest.mark.slow
def test_a_branch_in_a_layer_is_named(tmp_path):
    (tmp_path / "train.py").write_text(BRANCHES)
    summary, _ = recorded(tmp_path, "train.py")
    output = tmp_path / "trace.json"
    assert summary["unused"] == ["seldom.weight", "seldom.bias"] and summary["not_trained_bytes"] == 4 * 65 * 64
    [note] = [note for note in summary["notes"] if "reads a number" in note]
    assert note.startswith("train.py:12: a layer reads a number that does not exist without the device, and gets False")
    trace = paceline.Trace.read(output)
    forecast = cli.call("simulate", output, "--gpus", 8, "--sharding", "zero3")
    assert any("has several passes per step" in note for note in cli.notes(forecast.stdout))
    assert trace.frozen_bytes == 4 * 65 * 64
    plain = cli.notes(cli.printed("simulate", output, "--gpus", 8))
    assert any("gradients are exchanged after the last, as with no_sync()" in note for note in plain)


SHARDED = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.utils.checkpoint import checkpoint

assert (os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]) == ("0", "0", "1")
mesh = init_device_mesh("cuda", (dist.get_world_size() if dist.is_initialized() else 2, 8), mesh_dim_names=("dp", "tp"))
assert mesh["dp"].size() == dist.get_world_size() == 1 and isinstance(mesh, DeviceMesh)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + checkpoint(lambda x: self.down(torch.relu(self.up(x))), x, use_reentrant=False)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        assert x.dtype == torch.bfloat16
        return self.head(self.norm(x))

if os.environ["FSDP"] == "2":
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    with torch.device("meta"):
        model = Net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    whole = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    assert fully_shard(model, mp_policy=whole) is model
    model.to_empty(device="cuda")
    assert isinstance(model, Net) and isinstance(model, FSDPModule)
    model.set_modules_to_forward_prefetch([model.layers[0]])
    model.unshard(async_op=True).wait()
else:
    policy = MixedPrecision(param_dtype=torch.bfloat16)
    model = FullyShardedDataParallel(Net().cuda(), mixed_precision=policy, device_id=0)
    assert isinstance(model.module, Net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(9):
    if os.environ["FSDP"] == "2":
        model.set_requires_gradient_sync(True)
    out = model(torch.randn(8, 64, device="cuda"))
    assert out.dtype == (torch.float32 if os.environ["FSDP"] == "2" else torch.bfloat16)
    nn.functional.cross_entropy(out.float(), torch.randint(10, (8,), device="cuda")).backward()
    if os.environ["FSDP"] == "2":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    else:
        model.clip_grad_norm_(1.0)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    optimizer.step()
    optimizer.zero_grad()
"""


@recorded_in_ci
@pytest.mark.parametrize("version", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_fsdp_is_left_out(version, tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("FSDP", version)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text(SHARDED)
    summary, trace = recorded(tmp_path, "train.py", options=("--gpu", "a100-80gb"))
    assert trace["name"] == "Net"
    names = ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down", "norm", "head"]
    worker = trace["workers"][0]
    assert [layer["layer"] for layer in worker["forward"]] == [*names, "(loss)"]
    assert trace["dtype"] == "float32"
    assert summary["gradient_bytes"] == 4 * (2 * (2 * 64 * 256 + 256 + 64) + 2 * 64 + 64 * 10 + 10)
    [note] = [note for note in summary["notes"] if "--sharding zero3" in note]
    reduced = version == "1" or torch.__version__ < "2.15"
    assert note.endswith("--sharding zero3 --param-dtype bfloat16" + " --reduce-dtype bfloat16" * reduced)
    # The norm keeps its input in BF16, and no copy of a weight counts.
    kept = {layer["layer"]: layer["activation_bytes"] for layer in worker["forward"]}
    assert kept["norm"] < 64 * 4
    assert kept["head"] <= 64 * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "from torch.distributed.tensor.parallel import parallelize_module as f",
            "parallelize_module, and tensor parallelism",
        ),
        ("from torch.distributed.tensor.experimental import context_parallel as f", "context parallelism"),
    ],
)
def test_what_needs_other_ranks_is_named(line, words, tmp_path):
    (tmp_path / "train.py").write_text(f"import torch\n{line}\nf(torch.nn.Linear(2, 2), None, {{}})\n")
    result, output = record(tmp_path, "train.py", options=("--gpu", "h100"))
    assert result.returncode != 0
    assert words in result.stderr
    assert "train.py, line 3" in result.stderr
    assert "Traceback" not in result.stderr
    assert not output.exists()


def test_the_command_of_a_rank():
    for command, rank in (
        ("torchrun --nproc-per-node 2 train.py --lr 1", "python train.py --lr 1"),
        ("/bin/torchrun -m pkg.train --lr 1", "python -m pkg.train --lr 1"),
        ("python -m torch.distributed.run --nnodes 1 train.py", "python train.py"),
        ("python train.py a.py", "python train.py a.py"),
    ):
        assert _without_launcher(tuple(command.split())) == tuple(rank.split())


LOSS_INSIDE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.loss = nn.Linear(64, 64), nn.Linear(64, 5000), nn.CrossEntropyLoss()

    def forward(self, x, y):
        logits = self.head(self.body(x))
        return {"loss": self.loss(logits, y), "logits": logits}

net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(9):
    out = net(torch.randn(32, 64, device="cuda"), torch.zeros(32, dtype=torch.long, device="cuda"))
    out["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@recorded_in_ci
def test_memory_of_a_loss_inside_the_model(tmp_path):
    (tmp_path / "train.py").write_text(LOSS_INSIDE)
    _, trace = recorded(tmp_path, "train.py", options=("--gpu", "h200", "--batch", "32"))
    last = trace["workers"][0]["forward"][-1]
    logits = 5000 * 4
    # The logarithms and the returned logits are kept; the gradients of both are made in the backward pass only.
    assert 2 * logits <= last["activation_bytes"] < 2.1 * logits
    assert last["backward_bytes"] == 2 * logits


@shared
def test_a_power_limit_is_named(gpt):
    *_, path = gpt
    notes = cli.notes(cli.output("simulate", path, "--power-limit", "350W", "--gpus", "8"))
    gpu = "H100 SXM5 80 GB"
    assert f"--power-limit: operators recorded for {gpu} are timed on {gpu} limited to 350 W" in notes


PASSES = """
import sys, torch
from torch import nn

assert torch.rand(1) > 0.1 and not torch.rand(1) > 0.9  # As layers that are dropped at random.
with torch.autocast("cuda", torch.bfloat16):
    assert torch.is_autocast_enabled() and torch.get_autocast_dtype("cuda") is torch.bfloat16
assert not torch.is_autocast_enabled()
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
passes, keeps = int(sys.argv[1]), sys.argv[2] == "keeps"
for step in range(4):
    for _ in range(passes):
        out = model(torch.randn(8, 64, device="cuda"))
        loss = out.exp().sum()
        if not keeps:
            out = None
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@recorded_in_ci
def test_memory_is_that_of_one_pass_and_of_what_the_script_holds(tmp_path):
    (tmp_path / "train.py").write_text(PASSES)

    def activations(*words):
        _, trace = recorded(tmp_path, "train.py", *words)
        layers = trace["workers"][0]["forward"]
        return trace["batch"] * sum(layer.get("activation_bytes", 0) for layer in layers)

    one = activations(1, "drops")
    # An input and what the GELU reads and writes, and the exponential.
    assert one == 4 * 8 * (64 + 2 * 256 + 64)
    assert activations(3, "drops") == pytest.approx(one, rel=0.01)  # Rounded by sample.
    assert activations(1, "keeps") == one + 4 * 8 * 64


def test_blocks_of_a_diagonal_are_copied_one_by_one():
    blocks = tuple(contiguous((size, size), "float32") for size in (1, 2, 3))
    whole = Operator("block_diag", blocks, (contiguous((6, 6), "float32"),))
    filled, *copies = kernels_of(whole)
    assert filled.outputs == whole.outputs and not filled.inputs
    assert [copy.outputs for copy in copies] == [(block,) for block in blocks]
    assert kernels_of(filled) == (filled,)
