"""Decoders of Llama's kind: RMSNorm, rotary positions and gated MLPs, dense and as mixtures of experts.

Defaults of fields that released files leave out are those of Hugging Face's transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paceline.catalog.models.blocks import attention_layer, mlp_layer
from paceline.catalog.models.config import Config
from paceline.catalog.models.dispatch import groups_of_experts
from paceline.catalog.models.heads import decoder_layers, model_layers
from paceline.catalog.models.layers import Layer
from paceline.catalog.models.steps import Attend, Norm, Pointwise, Product, Step
from paceline.catalog.models.stepwise import layer_of
from paceline.catalog.models.traits import Block, Experts, Latent

_MOST_EXPERTS = 4096
"""Of a layer."""


@dataclass(frozen=True)
class _Traits:
    """Traits of a family that its configurations leave out."""

    qkv_bias: bool | None = None
    """None: `attention_bias`."""
    out_bias: bool | None = None
    qk_norm: Literal["none", "head", "whole"] = "none"
    before: bool = True
    """Whether attention and the MLP normalize what they take."""
    after: bool = False
    """Whether they normalize what they add."""
    one_qkv: bool = False
    one_gate_up: bool = False
    sinks: bool = False
    """As in `Block`, like the two before."""
    windows: Callable[[int], bool] | None = None
    """Whether a layer attends to a window only, unless `layer_types` says so; None: every layer, or none."""
    asks: bool = False
    """Whether windows are used only if `use_sliding_window` says so."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of fields that released files leave out."""


def _every(count: int) -> Callable[[int], bool]:
    """Return whether a layer attends to a window, where each `count`th attends to everything."""
    return lambda layer: (layer + 1) % count != 0


_GEMMA = {"tie_word_embeddings": True, "head_dim": 256}
_TRAITS = {
    "llama": _Traits(),
    "mistral": _Traits(),
    "ministral": _Traits(),
    "ministral3": _Traits(defaults={"head_dim": 128}),
    "mixtral": _Traits(),
    "granite": _Traits(),
    "qwen2": _Traits(qkv_bias=True, out_bias=False, asks=True),
    "qwen2_moe": _Traits(qkv_bias=True, out_bias=False, asks=True),
    "qwen3": _Traits(qk_norm="head", asks=True, defaults={"head_dim": 128}),
    "qwen3_moe": _Traits(qk_norm="head", asks=True),
    "internlm": _Traits(),
    "helium": _Traits(defaults={"head_dim": 128}),
    "hunyuan_v1_dense": _Traits(qk_norm="head"),
    "exaone4": _Traits(qk_norm="head", before=False, after=True),
    "smollm3": _Traits(asks=True, defaults={"tie_word_embeddings": True}),
    "seed_oss": _Traits(qkv_bias=True, out_bias=False, defaults={"head_dim": 128}),
    "phi3": _Traits(one_qkv=True, one_gate_up=True),
    "olmo2": _Traits(qk_norm="whole", before=False, after=True),
    "olmo3": _Traits(qk_norm="whole", before=False, after=True, windows=_every(4)),
    "olmoe": _Traits(qk_norm="whole"),
    "glm": _Traits(out_bias=False, one_gate_up=True, defaults={"attention_bias": True, "head_dim": 128}),
    "glm4": _Traits(out_bias=False, after=True, one_gate_up=True, defaults={"attention_bias": True, "head_dim": 128}),
    "glm4_moe": _Traits(out_bias=False, defaults={"n_shared_experts": 1}),
    "gemma": _Traits(defaults=_GEMMA),
    "gemma2": _Traits(after=True, windows=_every(2), defaults={**_GEMMA, "sliding_window": 4096}),
    "gemma3_text": _Traits(
        qk_norm="head",
        after=True,
        windows=_every(6),
        defaults={
            **{**_GEMMA, "sliding_window": 4096, "vocab_size": 262_208},
            **{"num_attention_heads": 8, "num_key_value_heads": 4},
        },
    ),
    "gpt_oss": _Traits(
        sinks=True, windows=_every(2), defaults={"attention_bias": True, "sliding_window": 128, "head_dim": 64}
    ),
    "deepseek_v2": _Traits(defaults={"n_shared_experts": 2}),
    "deepseek_v3": _Traits(defaults={"n_shared_experts": 1, "q_lora_rank": 1536}),
    "kimi_k2": _Traits(defaults={"n_shared_experts": 1, "q_lora_rank": 1536}),
    "deepseek_v32": _Traits(defaults={"n_shared_experts": 1, "q_lora_rank": 1536}),
    "glm_moe_dsa": _Traits(
        defaults={
            **{"n_shared_experts": 1, "q_lora_rank": 2048, "index_n_heads": 32},
            **{"qk_nope_head_dim": 192, "v_head_dim": 256},
        }
    ),
    "glm4_moe_lite": _Traits(
        defaults={"n_shared_experts": 1, "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256}
    ),
    "minimax_m2": _Traits(qk_norm="whole", defaults={"head_dim": 128}),
    "llama4_text": _Traits(windows=_every(4), defaults={"head_dim": 128, "attention_chunk_size": 8192}),
    "qwen": _Traits(qkv_bias=True, out_bias=False, one_qkv=True),
}
_SPARSE = ("qwen2_moe", "qwen3_moe")
"""Families that say which layers are mixtures of experts."""
_INDEXED = ("deepseek_v32", "glm_moe_dsa")
"""Families in which an indexer chooses the keys of each query (DeepSeek-AI, "DeepSeek-V3.2", 2025, section 2.1)."""
_LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", *_INDEXED)
_FIRST = {
    **{"deepseek_v2": 0, "glm4_moe": 1, "kimi_k2": 1, "glm4_moe_lite": 1},
    **dict.fromkeys(("deepseek_v3", *_INDEXED), 3),
}
"""Families whose first layers are dense, and how many if the file leaves it out."""
_WINDOWED = {"sliding_attention": True, "chunked_attention": True, "full_attention": False}
_WIDE_EXPERTS = ("mixtral", "olmoe", "gpt_oss", "minimax_m2", "llama4_text")
"""Families whose experts have the `intermediate_size`."""
_COUNTS = {
    **dict.fromkeys(("mixtral", "gpt_oss", "minimax_m2", "llama4_text"), "num_local_experts"),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe"), "num_experts"),
    **dict.fromkeys((*_LATENT, "glm4_moe"), "n_routed_experts"),
}
"""Fields with the number of experts."""
_ROUTED = {"mixtral": 2, "gpt_oss": 4, "qwen2_moe": 4, "llama4_text": 1, "glm4_moe_lite": 4}
"""Experts of a token, if the file leaves them out; 8 in other families."""


def _layers(config: Config, tokens: int) -> list[Layer]:
    traits = _TRAITS[config.kind]
    config = replace(config, fields={**traits.defaults, **config.fields})
    count = config.layers("num_hidden_layers")
    window, is_windowed = _windows(config, traits, count)
    whole = _block(config, traits, tokens)
    experts = _experts(config)
    blocks = []
    for layer in range(count):
        block = replace(whole, window=window if is_windowed(layer) else None)
        if experts is not None and _is_mixture(config, layer, count):
            width = "intermediate_size" if config.kind in _WIDE_EXPERTS else "moe_intermediate_size"
            block = replace(block, ffn=config.whole(width), experts=experts)
        blocks.append(block)
    tied = config.flag("tie_word_embeddings", default=False)
    if config.kind in _INDEXED:
        return _indexed(config, blocks, tied=tied)
    return decoder_layers(config, blocks, tied=tied, norm=1)


def _indexed(config: Config, blocks: list[Block], *, tied: bool) -> list[Layer]:
    """Return blocks whose attention reads the keys that an indexer chooses, or one of a block before."""
    choices = _choices(config, len(blocks))
    keys = config.whole("index_topk", 2048)
    layers: list[Layer] = []
    for index, (block, is_own) in enumerate(zip(blocks, choices, strict=True)):
        name = f"model.layers.{index}"
        if is_own:
            layers.append(_indexer(config, block, f"{name}.attention.indexer", name))
        layers += [attention_layer(replace(block, window=keys), name), mlp_layer(block, name)]
    return model_layers(config, layers, blocks[0].tokens, blocks[0].hidden, tied=tied, norm=1, rms=True)


def _choices(config: Config, count: int) -> list[bool]:
    """Return which blocks have an indexer of their own."""
    kinds = config.texts("indexer_types", ("full", "shared"), count)
    if kinds:
        return [kind == "full" for kind in kinds]
    every, first = max(1, config.whole("index_topk_freq", 1)), config.whole("index_skip_topk_offset", 2)
    return [max(0, index - first + 1) % every == 0 for index in range(count)]


def _indexer(config: Config, block: Block, name: str, of_block: str) -> Layer:
    """Return the indexer, whose kernel sums scores of all heads (`fp8_mqa_logits` of DeepGEMM)."""
    heads, size, tokens = config.whole("index_n_heads", 64), config.whole("index_head_dim", 128), block.tokens
    assert block.latent is not None
    steps: list[Step] = [
        Product("q", block.latent.q_rank, heads * size, tokens),
        Product("k", block.hidden, size, tokens),
        Norm("k_norm", size, tokens, vectors=2, rms=False),
        Product("weights", block.hidden, heads, tokens),
        # Products of queries and keys alone: as many FLOPs as attention of half the size.
        Attend(tokens, tokens, heads, size // 2, causal=True),
        Pointwise("topk", tokens, tokens),
    ]
    return layer_of(name, steps, tokens=tokens, hidden=block.hidden, block=of_block, trains=False)


def _block(config: Config, traits: _Traits, tokens: int) -> Block:
    """Return a dense block that attends to everything."""
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    is_biased = config.flag("attention_bias", default=False)
    if config.kind == "internlm":
        is_biased = config.flag("bias", default=True)
    latent = _latent(config) if config.kind in _LATENT else None
    size = 0 if latent is not None else config.whole("kv_channels" if config.kind == "qwen" else "head_dim", 0)
    if latent is None:
        size = size or config.per_head(hidden, heads, "hidden_size", "num_attention_heads")
    has_norm = traits.qk_norm
    if config.kind == "glm4_moe" and config.flag("use_qk_norm", default=False):
        has_norm = "head"
    return Block(
        hidden,
        heads,
        heads if latent is not None else config.kv_heads("num_key_value_heads", heads),
        size,
        _dense_width(config),
        tokens,
        gated=True,
        one_qkv=traits.one_qkv,
        one_gate_up=traits.one_gate_up,
        qkv_bias=is_biased if traits.qkv_bias is None else traits.qkv_bias,
        out_bias=is_biased if traits.out_bias is None else traits.out_bias,
        mlp_bias=config.flag("mlp_bias", default=config.kind == "gpt_oss"),
        norm=int(traits.before),
        after=int(traits.after),
        rms=True,
        qk_norm=has_norm,
        sinks=traits.sinks,
        latent=latent,
        rotary=config.number("partial_rotary_factor", 0.5 if config.kind.startswith("glm4") else 1.0),
        activation="gelu" if config.kind.startswith("gemma") else "silu",
        offset=config.kind.startswith("gemma"),
        capped=bool(config.number("attn_logit_softcapping", 50.0 if config.kind == "gemma2" else 0.0)),
    )


def _dense_width(config: Config) -> int:
    """Return the width of dense MLPs."""
    if config.kind == "llama4_text":
        return config.whole("intermediate_size_mlp", config.whole("intermediate_size"))
    # Of Qwen's first release, the field has what both products of a gate make.
    return config.whole("intermediate_size") // (2 if config.kind == "qwen" else 1)


def _windows(config: Config, traits: _Traits, count: int) -> tuple[int | None, Callable[[int], bool]]:
    """Return the tokens of a window, and whether a layer attends to it alone."""
    if config.kind in _INDEXED:
        return None, lambda layer: False
    window = config.whole("attention_chunk_size" if config.kind == "llama4_text" else "sliding_window", 0) or None
    if not config.flag("use_sliding_window", default=not traits.asks):
        window = None
    kinds = config.texts("layer_types", tuple(_WINDOWED), count)
    if kinds:
        return window, lambda layer: _WINDOWED[kinds[layer]]
    pattern = config.whole("sliding_window_pattern", 0)
    if pattern:
        return window, _every(pattern)
    return window, traits.windows or (lambda layer: True)


def _experts(config: Config) -> Experts | None:
    name = _COUNTS.get(config.kind)
    if name is None:
        return None
    # transformers has renamed some of these fields.
    name = next((it for it in (name, "num_local_experts", "num_experts") if config.has(it)), name)
    count = config.whole(name, 8 if config.kind == "mixtral" else None, _MOST_EXPERTS)
    routed = config.whole("num_experts_per_tok", _ROUTED.get(config.kind, 8))
    if routed > count:
        raise config.wrong("num_experts_per_tok", f"{routed} is more than the {count} experts")
    shared = config.whole("n_shared_experts", 0) * config.whole("moe_intermediate_size", 0)
    if config.kind == "qwen2_moe":
        shared = config.whole("shared_expert_intermediate_size")
    if config.kind == "llama4_text":
        shared = config.whole("intermediate_size")
    groups, chosen = groups_of_experts(config, count, routed)
    return Experts(
        count,
        routed,
        shared,
        shared_gate=config.kind == "qwen2_moe",
        router_bias=config.kind == "gpt_oss",
        groups=groups,
        chosen_groups=chosen,
    )


def _is_mixture(config: Config, layer: int, count: int) -> bool:
    if config.kind in _SPARSE:
        dense = config.members("mlp_only_layers", count)
        return layer not in dense and (layer + 1) % config.whole("decoder_sparse_step", 1) == 0
    if config.kind == "llama4_text":
        if config.get("moe_layers"):
            return layer in config.members("moe_layers", count)
        return (layer + 1) % config.whole("interleave_moe_layer_step", 1) == 0
    kinds = config.texts("mlp_layer_types", ("dense", "sparse"), count)
    if kinds:
        return kinds[layer] == "sparse"
    first = _FIRST.get(config.kind)
    return first is None or layer >= config.whole("first_k_dense_replace", first)


def _latent(config: Config) -> Latent:
    return Latent(
        config.whole("kv_lora_rank", 512),
        config.whole("q_lora_rank", 0),
        config.whole("qk_nope_head_dim", 128),
        config.whole("qk_rope_head_dim", 64),
        config.whole("v_head_dim", 128),
    )


FAMILIES: dict[str, Callable[[Config, int], list[Layer]]] = dict.fromkeys(_TRAITS, _layers)
"""Layers of a configuration with so many tokens, by `model_type`."""
