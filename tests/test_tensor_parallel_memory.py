"""The memory of tensor-parallel models against torch's: every allocation of a step on one rank of DTensor's."""

import gc
from collections import Counter
from contextlib import nullcontext
from itertools import accumulate, product

import pytest
from paceline.catalog.models.config import Config
from paceline.catalog.models.families import model_of
from paceline.catalog.models.memory import Computation, activation_bytes, backward_bytes

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed")
import torch.nn.functional as F  # noqa: E402
from test_sharding_memory import profiled, ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts  # noqa: E402

TOKENS, HIDDEN, HEADS, KEYS, FFN, BLOCKS = 2048, 64, 8, 4, 224, 3
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "intermediate_size": FFN,
    "num_hidden_layers": BLOCKS,
    "max_position_embeddings": TOKENS,
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = HIDDEN // HEADS
        self.wq = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.wk = nn.Linear(HIDDEN, KEYS * self.size, bias=False)
        self.wv = nn.Linear(HIDDEN, KEYS * self.size, bias=False)
        self.wo = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        q, k, v = (one(x).view(*x.shape[:2], -1, self.size).transpose(1, 2) for one in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).reshape(*x.shape[:2], -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(HIDDEN, FFN, bias=False)
        self.w2 = nn.Linear(FFN, HIDDEN, bias=False)
        self.w3 = nn.Linear(HIDDEN, FFN, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN)
        self.attention = Attention()
        self.ffn_norm = nn.RMSNorm(HIDDEN)
        self.feed_forward = MLP()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Net(nn.Module):
    def __init__(self, checkpointing, words):
        super().__init__()
        self.checkpointing = checkpointing
        self.embed = nn.Embedding(words, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.output = nn.Linear(HIDDEN, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = self.computed(block, x)
        return self.output(self.norm(x))

    def computed(self, block, x):
        if self.checkpointing == "none":
            return block(x)
        context = {"context_fn": selective} if self.checkpointing == "selective" else {}
        return checkpoint(block, x, use_reentrant=False, **context)


def selective():
    """Keep the outputs of attention, of exchanges, and of every second product of a block, as torchtitan does."""
    products = Counter()
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    kept = {attention, torch.ops._c10d_functional.reduce_scatter_tensor.default}

    def policy(context, func, *_args, **_kwargs):
        if func == torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
        must = func in kept or (func == torch.ops.aten.mm.default and products[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if must else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def share(net, mesh):
    """Share the model among tensor-parallel ranks as torchtitan does, with sequence parallelism."""
    whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    parallelize_module(
        net,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        },
    )
    for block in net.blocks:
        columns = {name: ColwiseParallel() for name in ("attention.wq", "attention.wk", "attention.wv")}
        columns |= {name: ColwiseParallel() for name in ("feed_forward.w1", "feed_forward.w3")}
        rows = {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")}
        norms = {name: SequenceParallel() for name in ("attention_norm", "ffn_norm")}
        inputs = {name: PrepareModuleInput(**whole) for name in ("attention", "feed_forward")}
        parallelize_module(block, mesh, columns | rows | norms | inputs)


def measured(ways, checkpointing, words, path):
    """Return the bytes that are kept when the backward pass begins, and the most that exist in the loss's."""
    with ranks(ways):
        net = Net(checkpointing, words)
        if ways > 1:
            share(net, init_device_mesh("cpu", (ways,)))
        tokens = torch.randint(0, words, (1, TOKENS))

        def step():
            with loss_parallel() if ways > 1 else nullcontext():
                logits = net(tokens)
                loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
                del logits
                with record_function("the backward pass"):
                    loss.backward()
            net.zero_grad()

        step()
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
    events, allocations = profiled(profiler, path)
    begin = next(one["ts"] for one in events if one.get("name") == "the backward pass")
    now = kept = peak = 0
    for event in allocations:
        now += event["args"]["Bytes"]
        if event["ts"] < begin:
            kept = now
        peak = max(peak, now)
    return kept, peak


EVERYDAY = {(16, 4, "selective")}


@pytest.mark.parametrize(
    ("words", "ways", "checkpointing"),
    [
        pytest.param(*case, marks=() if case in EVERYDAY else pytest.mark.slow)
        # With many words the loss needs most, with few a block.
        for case in product((2048, 16), (4, 1, 2), ("none", "selective", "full"))
    ],
)
def test_activations_are_those_of_dtensor(words, ways, checkpointing, tmp_path):
    config = Config("net", "config.json", {**CONFIG, "vocab_size": words})
    layers = model_of(config, TOKENS).layers
    computed = Computation("fp32", "flash", "eager", checkpointing, ways)
    kept, peak = measured(ways, checkpointing, words, tmp_path / "trace.json")
    own = list(accumulate(activation_bytes(layer, computed) / ways for layer in layers))
    most = max(held + more / ways for held, more in zip(own, backward_bytes(layers, computed), strict=True))
    assert own[-1] == pytest.approx(kept, rel=0.02)
    assert most == pytest.approx(peak, rel=0.07)
