"""The memory of plans against torch's: every allocation of a step on one rank, whose peers are pretended."""

import functools
import gc
import json
from contextlib import contextmanager, nullcontext
from itertools import product

import paceline
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WORDS, HIDDEN, BLOCKS = 8192, 256, 4
"""An embedding of 8 MiB, and blocks of 2 MiB; activations of one token are next to nothing."""
COPIES_OF_CPUS = ("aten::_chunk_cat", "aten::add_")
"""They convert types, and put shards together, in memory of their own; CUDA's kernels do it on the way."""


@contextmanager
def ranks(count, rank=0):
    dist.init_process_group("fake", rank=rank, world_size=count, store=FakeStore())
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


def measured_peak(net, passes, held, path, exchanging):
    """Return the most bytes of a step of training, if there were `held` bytes before it.

    `exchanging` is called before each pass, with whether it is the last one.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        for number in range(passes):
            with exchanging(number + 1 == passes):
                net(torch.tensor([[1]])).square().mean().backward()
        optimizer.step()

    step()
    step()
    optimizer.zero_grad()
    gc.collect()  # What earlier tests have left is not freed in this one.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    return peak_of(profiler, held, path)


def peak_of(profiler, held, path):
    """Return the most bytes of a profile that began with `held` bytes, without what only CPUs need."""
    events, allocations = profiled(profiler, path)
    copying = [(one["ts"], one["ts"] + one["dur"]) for one in events if one.get("name") in COPIES_OF_CPUS]
    now = peak = held
    for event, until in zip(allocations, freed_at(allocations), strict=True):
        now += event["args"]["Bytes"]
        if not any(begin <= event["ts"] and until <= end for begin, end in copying):
            peak = max(peak, now)
    return peak


def profiled(profiler, path):
    """Return the events of a profile, and in their order those of memory that was allocated in it."""
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    allocations, known = [], set()
    for event in sorted((one for one in events if one.get("name") == "[memory]"), key=lambda event: event["ts"]):
        # What an earlier profile has seen allocated may be freed now.
        if event["args"]["Bytes"] > 0:
            known.add(event["args"]["Addr"])
        if event["args"]["Addr"] in known:
            allocations.append(event)
    return events, allocations


def freed_at(allocations):
    """Return when the address of each event is in the next one."""
    following, result = {}, []
    for event in reversed(allocations):
        result.append(following.get(event["args"]["Addr"], float("inf")))
        following[event["args"]["Addr"]] = event["ts"]
    return result[::-1]


def unchanged(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


EVERYDAY = {((1, 2, None), True), ((2, 3, False), False)}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def forecast(path, sharding, world, passes, accumulate_sync, **options):
    return paceline.simulate(
        path,
        sharding=sharding,
        workers=world,
        accumulate=passes,
        accumulate_sync=accumulate_sync,
        optimizer="sgd",
        bandwidth="1Tbps",
        strategy="ring",
        **options,
    ).sharded.memory


@pytest.mark.parametrize(
    ("world", "passes", "accumulate_sync", "shared"),
    [
        pytest.param(*case, shared, marks=() if (case, shared) in EVERYDAY else pytest.mark.slow)
        for case, shared in product([(1, 1, None), (1, 2, None), (2, 1, None), (2, 3, False)], (True, False))
    ],
)
def test_the_peak_of_ddp_is_torchs(tmp_path, world, passes, accumulate_sync, shared):
    net = Net(shared)
    file = trace(net, tmp_path / "net.json")
    held = sum(4 * weight.numel() for weight in net.parameters())
    with ranks(world):
        if world > 1:
            net = DistributedDataParallel(net)
            # The pretended group has no all-reduce for DDP.
            net.register_comm_hook(None, unchanged)
            held *= 2  # Its buckets.

        def exchanging(is_last):
            return nullcontext() if is_last or world == 1 else net.no_sync()

        peak = measured_peak(net, passes, held, tmp_path / "profile.json", exchanging)
    memory = forecast(file, "none", world, passes, accumulate_sync)
    assert memory.peak_bytes == pytest.approx(peak, rel=0.005), memory


CASES = [(1, 1, None), (1, 2, None), (2, 1, None), (2, 2, None), (2, 2, False), (8, 1, None), (8, 3, False)]
PAIRS = [("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"), ("fp32", "bf16")]


def fsdp2():
    """Every combination, two of them everyday."""
    everyday = {(CASES[case], PAIRS[pair], bool(pair % 2)) for pair, case in ((1, 3), (2, 4))}
    for one in product(CASES, PAIRS, (True, False)):
        (case, types, shared), marks = one, () if one in everyday else pytest.mark.slow
        name = "-".join(map(str, (*types, *case, "shared" if shared else "apart")))
        yield pytest.param(*one, id=name, marks=marks)


@pytest.mark.parametrize(("case", "types", "shared"), [*fsdp2()])
def test_the_peak_of_fsdp2_is_torchs(tmp_path, case, types, shared):
    (world, passes, accumulate_sync), (param, reduce) = case, types
    net = Net(shared)
    file = trace(net, tmp_path / "net.json")
    held = sum(4 * weight.numel() for weight in net.parameters()) // world
    policy = MixedPrecisionPolicy(param_dtype=TYPES[param], reduce_dtype=TYPES[reduce])
    with ranks(world):
        mesh = init_device_mesh("cpu", (world,))
        for block in net.h:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)

        def exchanging(is_last):
            net.set_requires_gradient_sync(is_last or accumulate_sync is not False)
            return nullcontext()

        peak = measured_peak(net, passes, held, tmp_path / "profile.json", exchanging)
    # On a CPU, the host does not run ahead of what it starts: no unit is gathered while the one before computes.
    memory = forecast(file, "zero3", world, passes, accumulate_sync, prefetch=0, param_dtype=param, reduce_dtype=reduce)
    assert memory.peak_bytes == pytest.approx(peak, rel=0.005), memory


class Adapted(nn.Module):
    """Blocks whose weights are frozen, beside adapters that FSDP1 wraps by themselves, under checkpoints."""

    def __init__(self, blocks, is_reentrant):
        super().__init__()
        self.is_reentrant = is_reentrant
        self.h = nn.ModuleList(AdaptedBlock() for _ in range(blocks))

    def forward(self, x):
        for block in self.h:
            x = checkpoint(block.__call__, x, use_reentrant=self.is_reentrant)
        return x


class Adapter(nn.Linear):
    pass


class AdaptedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(HIDDEN, HIDDEN, bias=False).requires_grad_(False)
        self.adapter = Adapter(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        return x + self.weight(x) + self.adapter(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("is_reentrant", "tensors"), [(True, 2), (False, 1)])
def test_fsdp1_keeps_inputs_and_gradients_of_frozen_blocks_under_reentrant_checkpoints(tmp_path, is_reentrant, tensors):
    """Each block more has its input at the peak, and with reentrant checkpoints the gradient of that, too."""
    tokens, peaks = 4096, []
    for blocks in (3, 5):
        with ranks(2):
            wrap = functools.partial(
                lambda_auto_wrap_policy, lambda_fn=lambda one: isinstance(one, (AdaptedBlock, Adapter))
            )
            net = FullyShardedDataParallel(
                Adapted(blocks, is_reentrant), auto_wrap_policy=wrap, device_id=torch.device("cpu")
            )
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                net(torch.ones(tokens, HIDDEN, requires_grad=True)).sum().backward()
        peaks.append(peak_of(profiler, 0, tmp_path / "profile.json"))
    assert (peaks[1] - peaks[0]) / 2 == pytest.approx(tensors * tokens * HIDDEN * 4, rel=0.15)
