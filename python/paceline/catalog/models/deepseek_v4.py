"""DeepSeek V4: compressed keys, an indexer that chooses among them, and several residual streams.

A block mixes the streams into one row before attention and before its experts, and spreads the result over them
(manifold-constrained hyper-connections, DeepSeek-AI, 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.catalog.models.blocks import mlp_layer
from paceline.catalog.models.config import Config
from paceline.catalog.models.heads import model_layers
from paceline.catalog.models.layers import Layer
from paceline.catalog.models.steps import Add, Attend, Norm, Pointwise, Product, Step, Weight
from paceline.catalog.models.stepwise import layer_of
from paceline.catalog.models.traits import Block, Experts

_SPARSE, _HEAVY, _SLIDING = "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"
_DEFAULTS: Mapping[str, Any] = {
    **{"hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 43, "num_attention_heads": 64},
    **{"head_dim": 512, "q_lora_rank": 1024, "num_experts_per_tok": 6, "n_routed_experts": 256, "hc_mult": 4},
    **{"sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64, "index_head_dim": 128},
    **{"index_topk": 512, "vocab_size": 129_280},
}
"""Of fields that files leave out, as transformers has them."""
_RATES = {_SPARSE: ("compress_rate_csa", 4), _HEAVY: ("compress_rate_hca", 128)}
"""Tokens that become one key, in older files and by default."""
_RATIOS = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}
_MOST_EXPERTS = 4096


def layers_of(config: Config, tokens: int) -> list[Layer]:
    """Return the layers of a configuration with so many tokens. Raises InvalidArgumentError."""
    config = replace(config, fields={**_DEFAULTS, **config.fields})
    hidden, streams = config.whole("hidden_size"), config.whole("hc_mult")
    count, routed = config.whole("n_routed_experts", None, _MOST_EXPERTS), config.whole("num_experts_per_tok")
    if routed > count:
        raise config.wrong("num_experts_per_tok", f"{routed} is more than the {count} experts")
    ffn = config.whole("moe_intermediate_size")
    experts = Experts(count, routed, ffn * config.whole("n_shared_experts", 1))
    block = Block(
        *(hidden, 1, 1, 1, ffn, tokens),
        gated=True,
        mlp_bias=False,
        norm=1,
        rms=True,
        activation="silu",
        experts=experts,
    )
    layers = []
    for index, kind in enumerate(_kinds(config)):
        name = f"model.layers.{index}"
        layers += [
            _hyper(hidden, streams, tokens, f"{name}.attention_streams", name),
            *_attention(config, kind, tokens, name),
            _hyper(hidden, streams, tokens, f"{name}.mlp_streams", name),
            mlp_layer(block, name),
        ]
    steps: list[Step] = [
        Norm("norm", streams * hidden, tokens, vectors=0),
        Product("mix", streams * hidden, streams, tokens),
        Weight("base", (streams,)),
        Weight("scale", (1,)),
        Pointwise("mul", streams * hidden, tokens),
    ]
    layers.append(layer_of("model.streams", steps, tokens=tokens, hidden=hidden))
    tied = config.flag("tie_word_embeddings", default=False)
    return model_layers(config, layers, tokens, hidden, tied=tied, norm=1, rms=True)


def _kinds(config: Config) -> list[str]:
    """Return the kind of attention of each block."""
    count = config.layers("num_hidden_layers")
    kinds = config.texts("layer_types", (_SPARSE, _HEAVY, _SLIDING), count)
    if kinds:
        return kinds
    ratios = config.get("compress_ratios")
    if ratios is None:
        return [_SPARSE if index > 1 and index % 2 else _HEAVY for index in range(count)]
    if not isinstance(ratios, list) or len(ratios) < count or any(one not in _RATIOS for one in ratios):
        raise config.wrong("compress_ratios", f"must be 0, 4 or 128 for each of the {count} blocks")
    return [_RATIOS[one] for one in ratios[:count]]


def _hyper(hidden: int, streams: int, tokens: int, name: str, block: str) -> Layer:
    """Return what mixes streams into one row, and how its result is spread over them."""
    wide, made = streams * hidden, (2 + streams) * streams
    steps: list[Step] = [
        Norm("norm", wide, tokens, vectors=0),
        Product("mix", wide, made, tokens),
        Weight("base", (made,)),
        Weight("scale", (3,)),
        Pointwise("softmax", streams * streams, tokens),
        Pointwise("mul", wide, tokens),
        Add(wide, tokens),
    ]
    return layer_of(name, steps, tokens=tokens, hidden=hidden, block=block)


def _compressor(hidden: int, width: int, kept: int, rate: int, tokens: int) -> list[Step]:
    """Return products that make one key of `rate` tokens."""
    return [
        Product("compressed_kv", hidden, width, tokens),
        Product("compressed_gate", hidden, width, tokens, again=True),
        Weight("compressed_positions", (rate, width)),
        Pointwise("softmax", width, tokens),
        Pointwise("mul", width, tokens),
        Norm("compressed_norm", kept, max(1, tokens // rate)),
    ]


def _attention(config: Config, kind: str, tokens: int, name: str) -> list[Layer]:
    """Return attention to a window and to compressed keys, and the indexer that chooses among these."""
    hidden, heads, size = config.whole("hidden_size"), config.whole("num_attention_heads"), config.whole("head_dim")
    rank, groups, narrow = config.whole("q_lora_rank"), config.whole("o_groups"), config.whole("o_lora_rank")
    if (heads * size) % groups:
        raise config.wrong("o_groups", f"{groups} does not divide the width of all heads, {heads * size}")
    seen = min(tokens, config.whole("sliding_window"))
    layers: list[Layer] = []
    made: list[Step] = []
    if kind != _SLIDING:
        field, default = _RATES[kind]
        rate = config.part("compress_rates").whole(kind, config.whole(field, default))
        keys = max(1, tokens // rate)
        width = 2 * size if kind == _SPARSE else size
        made = _compressor(hidden, width, size, rate, tokens)
        if kind == _SPARSE:
            keys = min(keys, config.whole("index_topk"))
            layers.append(_indexer(config, rate, tokens, name))
        seen += keys
    steps: list[Step] = [
        Norm("norm", hidden, tokens),
        Product("q_down", hidden, rank, tokens),
        Product("kv", hidden, size, tokens, again=True),
        *made,
        Norm("kv_norm", size, tokens),
        Norm("q_norm", rank, tokens),
        Product("q_up", rank, heads * size, tokens),
        Weight("sinks", (heads,)),
        Attend(tokens, seen, heads, size, causal=False, kv_heads=1),
        Product("out_down", heads * size, groups * narrow, tokens, groups=groups),
        Product("out", groups * narrow, hidden, tokens),
        Add(hidden, tokens),
    ]
    return [*layers, layer_of(f"{name}.attention", steps, tokens=tokens, hidden=hidden, block=name)]


def _indexer(config: Config, rate: int, tokens: int, name: str) -> Layer:
    hidden, heads, size = config.whole("hidden_size"), config.whole("index_n_heads"), config.whole("index_head_dim")
    keys = max(1, tokens // rate)
    steps: list[Step] = [
        *_compressor(hidden, 2 * size, size, rate, tokens),
        Product("q", config.whole("q_lora_rank"), heads * size, tokens),
        Product("weights", hidden, heads, tokens),
        # Products of queries and keys alone: as many FLOPs as attention of half the size.
        Attend(tokens, keys, heads, size // 2, causal=False),
        Pointwise("topk", keys, tokens),
    ]
    return layer_of(f"{name}.attention.indexer", steps, tokens=tokens, hidden=hidden, block=name, trains=False)
