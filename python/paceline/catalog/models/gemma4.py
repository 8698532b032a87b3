"""Gemma 4's language models: wider heads in every sixth block, shared keys and values, experts beside an MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.catalog.models.blocks import mlp_layer, norm_tensors
from paceline.catalog.models.config import Config, as_json
from paceline.catalog.models.heads import model_layers
from paceline.catalog.models.layers import Layer, Tensor
from paceline.catalog.models.steps import Add, Attend, Norm, Pointwise, Product, Step
from paceline.catalog.models.stepwise import layer_of
from paceline.catalog.models.traits import Block, Experts

_DEFAULTS: Mapping[str, Any] = {
    **{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8},
    **{"num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_144, "sliding_window": 512},
    **{"tie_word_embeddings": True, "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256},
}
"""Of fields that files leave out, as transformers has them."""
_EVERY = 6
"""Blocks of which the last one attends to everything, if `layer_types` is left out."""
_MOST_EXPERTS = 4096


def layers_of(config: Config, tokens: int) -> list[Layer]:
    """Return the layers of a configuration with so many tokens. Raises InvalidArgumentError."""
    config = replace(config, fields={**_DEFAULTS, **config.fields})
    hidden, count = config.whole("hidden_size"), config.layers("num_hidden_layers")
    kinds = config.texts("layer_types", ("sliding_attention", "full_attention"), count) or [
        "full_attention" if (index + 1) % _EVERY == 0 or index == count - 1 else "sliding_attention"
        for index in range(count)
    ]
    shared = config.whole("num_kv_shared_layers", 0)
    if shared >= count > 0:
        raise config.wrong("num_kv_shared_layers", f"{shared} leaves none of the {count} blocks keys of its own")
    width = config.whole("hidden_size_per_layer_input", 0)
    layers = [_per_layer_table(config, tokens, hidden, count * width, width)] if width else []
    for index, kind in enumerate(kinds):
        name, is_shared = f"model.layers.{index}", index >= count - shared
        layers.append(_attention(config, tokens, name, index, is_full=kind == "full_attention", is_shared=is_shared))
        layers += _mlps(config, tokens, name, is_shared=is_shared)
        if width:
            layers.append(_per_layer_input(tokens, hidden, width, name))
    tied = config.flag("tie_word_embeddings", default=True)
    return model_layers(config, layers, tokens, hidden, tied=tied, norm=1, rms=True)


def _per_layer_table(config: Config, tokens: int, hidden: int, all_layers: int, width: int) -> Layer:
    rows = config.whole("vocab_size_per_layer_input")
    table = Tensor("model.embed.per_layer.table.weight", (rows, all_layers), 1 / rows)
    steps: list[Step] = [Product("in", hidden, all_layers, tokens), Norm("norm", width, tokens * (all_layers // width))]
    return layer_of("model.embed.per_layer", steps, tokens=tokens, hidden=hidden, more=(table,))


def _per_layer_input(tokens: int, hidden: int, width: int, name: str) -> Layer:
    steps: list[Step] = [
        Product("gate", hidden, width, tokens),
        Pointwise("gelu", width, tokens),
        Pointwise("mul", width, tokens),
        Product("out", width, hidden, tokens),
        Norm("norm", hidden, tokens),
        Add(hidden, tokens),
    ]
    return layer_of(f"{name}.per_layer", steps, tokens=tokens, hidden=hidden, block=name)


def _of_layer(config: Config, index: int, *, is_full: bool) -> tuple[int, int]:
    """Return the size of a head and the heads of keys of a block."""
    heads = config.whole("num_attention_heads")
    own = config.part("per_layer_config")
    if own.fields:
        chosen: Any = next((value for key, value in own.fields.items() if key.isdigit() and int(key) == index), {})
        if not isinstance(chosen, dict) or set(chosen) - {"head_dim", "num_key_value_heads"}:
            raise config.wrong("per_layer_config", f"{as_json(chosen)} is not known", remedy='{"5": {"head_dim": 512}}')
        config = replace(config, fields={**config.fields, **chosen})
    elif is_full:
        fields: dict[str, Any] = {"head_dim": config.whole("global_head_dim", 512)}
        if config.flag("attention_k_eq_v", default=False) and config.whole("num_global_key_value_heads", 0):
            fields["num_key_value_heads"] = config.whole("num_global_key_value_heads")
        config = replace(config, fields={**config.fields, **fields})
    return config.whole("head_dim"), config.kv_heads("num_key_value_heads", heads)


def _attention(config: Config, tokens: int, name: str, index: int, *, is_full: bool, is_shared: bool) -> Layer:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    size, kv_heads = _of_layer(config, index, is_full=is_full)
    bias = config.flag("attention_bias", default=False)
    seen = tokens if is_full else min(tokens, config.whole("sliding_window"))
    has_values = not (is_full and config.flag("attention_k_eq_v", default=False))
    made = [] if is_shared else ["k", *["v"] * has_values]
    steps: list[Step] = [
        Norm("norm", hidden, tokens),
        Product("q", hidden, heads * size, tokens, bias=bias),
        *(Product(one, hidden, kv_heads * size, tokens, bias=bias, again=True) for one in made),
        Norm("q_norm", size, tokens * heads),
        *([] if is_shared else [Norm("k_norm", size, tokens * kv_heads), Norm("v_norm", size, tokens * kv_heads, 0)]),
        Attend(tokens, seen, heads, size, causal=seen == tokens, kv_heads=kv_heads),
        Product("out", heads * size, hidden, tokens, bias=bias),
        Norm("after", hidden, tokens),
        Add(hidden, tokens),
    ]
    return layer_of(f"{name}.attention", steps, tokens=tokens, hidden=hidden, block=name)


def _mlps(config: Config, tokens: int, name: str, *, is_shared: bool) -> list[Layer]:
    """Return the MLP of a block, and the experts beside it."""
    hidden = config.whole("hidden_size")
    is_double = is_shared and config.flag("use_double_wide_mlp", default=False)
    ffn = config.whole("intermediate_size") * (2 if is_double else 1)
    block = Block(hidden, 1, 1, 1, ffn, tokens, gated=True, mlp_bias=False, norm=1, after=1, rms=True, offset=True)
    layers = [mlp_layer(block, name)]
    if config.flag("enable_moe_block", default=False):
        count, routed = config.whole("num_experts", None, _MOST_EXPERTS), config.whole("top_k_experts")
        if routed > count:
            raise config.wrong("top_k_experts", f"{routed} is more than the {count} experts")
        mixture = replace(block, ffn=config.whole("moe_intermediate_size"), experts=Experts(count, routed))
        experts = mlp_layer(mixture, f"{name}.moe")
        scales = (
            Tensor(f"{experts.name}.router_scale", (hidden,)),
            Tensor(f"{experts.name}.router_scale_of_each", (count,)),
            *norm_tensors(f"{layers[0].name}.after_own", hidden, 1),
        )
        layers.append(replace(experts, block=name, tensors=(*experts.tensors, *scales)))
    return layers
