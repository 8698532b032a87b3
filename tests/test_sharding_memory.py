"""The memory of plans against torch's: every allocation of a step on one rank, whose peers are pretended."""

import json
from contextlib import contextmanager, nullcontext

import paceline
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

WORDS, HIDDEN, BLOCKS = 8192, 256, 4
"""An embedding of 8 MiB, and blocks of 2 MiB; activations of one token are next to nothing."""


@contextmanager
def ranks(count):
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.wte = nn.Embedding(WORDS, HIDDEN)
        self.h = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        if shared:
            self.head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        return self.head(x)


def trace(net, path):
    """Write a trace of the model, whose layers take equally long."""
    layers = {"wte": net.wte.weight}
    for number, block in enumerate(net.h):
        layers |= {f"h.{number}.up": block.up.weight, f"h.{number}.down": block.down.weight}
    layers["head"] = net.head.weight
    names = {}
    for name, weight in layers.items():
        names.setdefault(weight, f"{name}.weight")
    forward = [
        {"layer": name, "duration_s": 0.001, "tensors": [names[weight]], "activation_bytes": 0}
        for name, weight in layers.items()
    ]
    # A shared weight's gradient is ready with that of its first layer.
    backward = list(enumerate(reversed(layers.values()), start=1))
    ready = {names[weight]: 0.002 * place for place, weight in backward}
    gradients = [
        {"tensor": names[weight], "ready_s": ready[names[weight]], "bytes": 4 * weight.numel()} for weight in names
    ]
    document = {"format": "paceline-trace", "version": 1, "name": "net", "batch": 1, "dtype": "float32"}
    document["workers"] = [{"forward": forward, "gradients": gradients, "optimizer_s": 0.001}]
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def measured_peak(net, passes, held, path, exchanging=None):
    """Return the most bytes of a step of training, if there were `held` bytes before it.

    `exchanging` is called before each pass, with whether it is the last one.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        for number in range(passes):
            with exchanging(number + 1 == passes) if exchanging else nullcontext():
                net(torch.tensor([[1]])).square().mean().backward()
        optimizer.step()

    step()
    step()
    optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    now = peak = held
    for event in sorted(events, key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        peak = max(peak, now)
    return peak


def unchanged(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize(
    "case",
    [
        ("none", 1, 1, None),
        ("none", 1, 2, None),
        ("none", 2, 1, None),
        ("none", 2, 3, False),
        ("zero3", 1, 1, None),
        ("zero3", 1, 2, None),
        ("zero3", 2, 1, None),
        ("zero3", 2, 2, None),
        ("zero3", 2, 2, False),
        ("zero3", 8, 1, None),
        ("zero3", 8, 3, False),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_the_peak_is_torchs(tmp_path, case, shared):
    sharding, world, passes, accumulate_sync = case
    net = Net(shared)
    file = trace(net, tmp_path / "net.json")
    is_sharded = sharding == "zero3"
    held = sum(4 * weight.numel() for weight in net.parameters()) // (world if is_sharded else 1)
    with ranks(world):
        if is_sharded:
            mesh = init_device_mesh("cpu", (world,))
            for block in net.h:
                fully_shard(block, mesh=mesh)
            fully_shard(net, mesh=mesh)
        elif world > 1:
            net = DistributedDataParallel(net)
            # The pretended group has no all-reduce for DDP.
            net.register_comm_hook(None, unchanged)
            held *= 2  # Its buckets.

        def exchanging(is_last):
            if is_sharded:
                net.set_requires_gradient_sync(is_last)
            elif world > 1 and not is_last:
                return net.no_sync()
            return nullcontext()

        peak = measured_peak(
            net, passes, held, tmp_path / "profile.json", exchanging if accumulate_sync is False else None
        )
    # On a CPU, the host does not run ahead of what it starts: no unit is gathered while the one before computes.
    options = {"prefetch": 0} if is_sharded else {}
    options["accumulate_sync"] = accumulate_sync
    asked = {"workers": world, "bandwidth": "1Tbps", "strategy": "ring"} | options
    found = paceline.simulate(file, sharding=sharding, optimizer="sgd", accumulate=passes, **asked)
    memory = found.sharded.memory
    assert memory.peak_bytes == pytest.approx(peak, rel=0.005), memory
