"""Families whose blocks mix tokens by state-space models, gated delta rules or convolutions, alone or beside attention.

Their kernels are those of mamba-ssm and flash-linear-attention, which transformers uses where they are installed: a
scan is products inside chunks of tokens, and a recurrence over the chunks' states (T. Dao, A. Gu, "Transformers are
SSMs", 2024, section 6; S. Yang et al., "Gated Delta Networks", 2025, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.catalog.models.blocks import attention_layer, mlp_layer
from paceline.catalog.models.config import Config
from paceline.catalog.models.dispatch import groups_of_experts
from paceline.catalog.models.heads import model_layers
from paceline.catalog.models.layers import Layer
from paceline.catalog.models.steps import (
    Add,
    Attend,
    Batched,
    Convolve,
    Norm,
    Pointwise,
    Product,
    Scan,
    Step,
    Weight,
)
from paceline.catalog.models.stepwise import layer_of
from paceline.catalog.models.traits import Block, Experts

_DELTA_CHUNK = 64
"""Tokens of a chunk of flash-linear-attention's gated delta rule (`chunk_gated_delta_rule`)."""
_MOST_EXPERTS = 4096


@dataclass(frozen=True)
class _StateSpace:
    """A Mamba-2 mixer."""

    hidden: int
    heads: int
    head_size: int
    groups: int
    state: int
    kernel: int
    chunk: int
    tokens: int
    bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True
    has_norm: bool = True

    @property
    def inner(self) -> int:
        """The width of all heads."""
        return self.heads * self.head_size

    def steps(self) -> list[Step]:
        """Return the mixer from the normalized residual stream to its output."""
        mixed = self.inner + 2 * self.groups * self.state
        rows, chunk = self.tokens, min(self.chunk, self.tokens)
        chunks = -(-rows // chunk)
        by_head, size, state = chunks * self.heads, self.head_size, self.state
        return [
            Product("in", self.hidden, self.inner + mixed + self.heads, rows, bias=self.bias),
            Convolve("conv", mixed, self.kernel, rows, bias=self.conv_bias),
            Weight("dt_bias", (self.heads,)),
            Weight("decay", (self.heads,)),
            Weight("skip", (self.heads,)),
            Batched(chunks * self.groups, chunk, state, chunk),
            Batched(by_head, chunk, chunk, size),
            Batched(by_head, state, chunk, size, again=True),
            Scan(by_head * state * size),
            Batched(by_head, chunk, state, size, again=True),
            Pointwise("silu", self.inner, rows),
            Pointwise("mul", self.inner, rows),
            *([Norm("gated_norm", self.inner, rows)] if self.has_norm else []),
            Product("out", self.inner, self.hidden, rows, bias=self.out_bias),
        ]


def _mamba2(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_heads")
    size = config.whole("head_dim", 64)
    if heads * size != round(config.number("expand", 2) * hidden):
        raise config.wrong("num_heads", f"{heads} heads of {size} are not expand times the hidden_size, {hidden}")
    bias = config.flag("use_bias", default=False)
    mixer = _StateSpace(
        hidden,
        heads,
        size,
        config.whole("n_groups", 8),
        config.whole("state_size", 128),
        config.whole("conv_kernel", 4),
        config.whole("chunk_size", 256),
        tokens,
        bias=bias,
        out_bias=bias,
        conv_bias=config.flag("use_conv_bias", default=True),
    )
    layers = [_mixer(mixer, f"model.layers.{index}") for index in range(config.layers("num_hidden_layers"))]
    tied = config.flag("tie_word_embeddings", default=False)
    return model_layers(config, layers, tokens, hidden, tied=tied, norm=1, rms=True)


def _mixer(mixer: _StateSpace, name: str) -> Layer:
    steps = [Norm("norm", mixer.hidden, mixer.tokens), *mixer.steps(), Add(mixer.hidden, mixer.tokens)]
    return layer_of(f"{name}.mixer", steps, tokens=mixer.tokens, hidden=mixer.hidden, block=name)


_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}


def _nemotron(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    bias, mlp_bias = config.flag("use_bias", default=False), config.flag("mlp_bias", default=False)
    mixer = _StateSpace(
        hidden,
        config.whole("mamba_num_heads"),
        config.whole("mamba_head_dim", 64),
        config.whole("n_groups", 8),
        config.whole("ssm_state_size", 128),
        config.whole("conv_kernel", 4),
        config.whole("chunk_size", 128),
        tokens,
        bias=bias,
        out_bias=bias,
        conv_bias=config.flag("use_conv_bias", default=True),
    )
    _check_activation(config, "mlp_hidden_act", "relu2")
    size_field = "head_dim" if config.has("head_dim") else "attention_head_dim"
    block = Block(
        hidden,
        heads,
        config.kv_heads("num_key_value_heads", heads),
        config.whole(size_field, 128),
        config.whole("intermediate_size", 0),
        tokens,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=mlp_bias,
        norm=1,
        rms=True,
        activation="relu2",
    )
    kinds = _nemotron_kinds(config)
    mixture = _nemotron_experts(config, block) if "moe" in kinds else block
    layers = []
    for index, kind in enumerate(kinds):
        name = f"model.layers.{index}"
        if kind == "mamba":
            layers.append(_mixer(mixer, name))
        elif kind == "attention":
            layers.append(attention_layer(block, name))
        else:
            layers.append(mlp_layer(mixture if kind == "moe" else block, name))
    tied = config.flag("tie_word_embeddings", default=False)
    return model_layers(config, layers, tokens, hidden, tied=tied, norm=1, rms=True)


def _check_activation(config: Config, field: str, known: str) -> None:
    if config.text(field, known) != known:
        raise config.wrong(field, f"is not modeled: {config.fields[field]!r:.40}", remedy=f'"{field}": "{known}"')


def _nemotron_experts(config: Config, block: Block) -> Block:
    count = config.whole("n_routed_experts", 8, _MOST_EXPERTS)
    routed = config.whole("num_experts_per_tok", 2)
    if routed > count:
        raise config.wrong("num_experts_per_tok", f"{routed} is more than the {count} experts")
    ffn = config.whole("moe_intermediate_size")
    shared = config.whole("moe_shared_expert_intermediate_size", ffn)
    latent = config.whole("moe_latent_size", 0)
    groups, chosen = groups_of_experts(config, count, routed)
    experts = Experts(count, routed, shared, latent=latent, groups=groups, chosen_groups=chosen)
    return replace(block, ffn=ffn, experts=experts)


def _nemotron_kinds(config: Config) -> list[str]:
    """Return the kind of each layer, of a list or of a pattern with a letter for each."""
    pattern = config.text("hybrid_override_pattern", "")
    if pattern and config.get("layers_block_type") is None:
        unknown = next((letter for letter in pattern if letter not in _NEMOTRON), None)
        if unknown is not None:
            raise config.wrong(
                "hybrid_override_pattern", f"'{unknown}' is no kind of layer", remedy=f"letters of {''.join(_NEMOTRON)}"
            )
        return [_NEMOTRON[letter] for letter in pattern]
    listed = config.get("layers_block_type")
    if not isinstance(listed, list) or not listed:
        raise config.wrong("hybrid_override_pattern", "is missing, and a nemotron_h needs it")
    known = (*_NEMOTRON_NAMES, *_NEMOTRON.values())
    return [_NEMOTRON_NAMES.get(kind, kind) for kind in config.texts("layers_block_type", known, len(listed))]


def _falcon_h1(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    bias, out_bias = config.flag("mamba_proj_bias", default=False), config.flag("projectors_bias", default=False)
    ssm_heads, size = config.whole("mamba_n_heads"), config.whole("mamba_d_head")
    inner = config.whole("mamba_d_ssm", round(config.number("mamba_expand", 2) * hidden))
    if ssm_heads * size != inner:
        raise config.wrong("mamba_d_head", f"{ssm_heads} heads of {size} are not the mamba_d_ssm, {inner}")
    mixer = _StateSpace(
        hidden,
        ssm_heads,
        size,
        config.whole("mamba_n_groups", 1),
        config.whole("mamba_d_state", 256),
        config.whole("mamba_d_conv", 4),
        config.whole("mamba_chunk_size", 256),
        tokens,
        bias=bias,
        out_bias=out_bias,
        conv_bias=config.flag("mamba_conv_bias", default=True),
        has_norm=config.flag("mamba_rms_norm", default=False),
    )
    attention_bias = config.flag("attention_bias", default=False)
    block = Block(
        hidden,
        heads,
        config.kv_heads("num_key_value_heads", heads),
        config.whole("head_dim", 0) or config.per_head(hidden, heads, "hidden_size", "num_attention_heads"),
        config.whole("intermediate_size"),
        tokens,
        gated=True,
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias", default=False),
        norm=0,
        mlp_norm=1,
        rms=True,
        rotary=1.0,
        activation="silu",
    )
    layers = []
    for index in range(config.layers("num_hidden_layers")):
        name = f"model.layers.{index}"
        # Both mixers read the same normalized rows, and their sum is added to the residual stream.
        layers += [_mixer(mixer, name), attention_layer(block, name), mlp_layer(block, name)]
    tied = config.flag("tie_word_embeddings", default=False)
    return model_layers(config, layers, tokens, hidden, tied=tied, norm=1, rms=True)


def _delta_net(config: Config, hidden: int, tokens: int, name: str) -> Layer:
    """Return a gated delta net (Qwen3_5GatedDeltaNet)."""
    key_heads, value_heads = config.whole("linear_num_key_heads", 16), config.whole("linear_num_value_heads", 32)
    key, value = config.whole("linear_key_head_dim", 128), config.whole("linear_value_head_dim", 128)
    if value_heads % key_heads:
        raise config.wrong("linear_num_key_heads", f"{key_heads} does not divide the {value_heads} heads of values")
    keys, values = key_heads * key, value_heads * value
    chunk = min(_DELTA_CHUNK, tokens)
    heads = -(-tokens // chunk) * value_heads
    if config.kind == "qwen3_next":
        made = [
            Product("qkvz", hidden, 2 * keys + 2 * values, tokens),
            Product("ba", hidden, 2 * value_heads, tokens, again=True),
        ]
    else:
        made = [
            Product("qkv", hidden, 2 * keys + values, tokens),
            Product("z", hidden, values, tokens, again=True),
            Product("b", hidden, value_heads, tokens, again=True),
            Product("a", hidden, value_heads, tokens, again=True),
        ]
    steps: list[Step] = [
        Norm("norm", hidden, tokens),
        *made,
        Convolve("conv", 2 * keys + values, config.whole("linear_conv_kernel_dim", 4), tokens, bias=False),
        Weight("dt_bias", (value_heads,)),
        Weight("decay", (value_heads,)),
        # Of a chunk: products of keys, the inverse of one minus them, and what it makes of keys and values.
        Batched(heads, chunk, key, chunk),
        Batched(heads, chunk, chunk, chunk, again=True),
        Batched(heads, chunk, chunk, key),
        Batched(heads, chunk, chunk, value),
        # Between chunks: what the state has of keys, the new state, and what queries read of it and of the chunk.
        Batched(heads, chunk, key, value, again=True),
        Scan(heads * key * value),
        Batched(heads, key, chunk, value, again=True),
        Batched(heads, chunk, key, chunk, again=True),
        Batched(heads, chunk, key, value, again=True),
        Batched(heads, chunk, chunk, value, again=True),
        Norm("gated_norm", value, tokens * value_heads),
        Pointwise("silu", values, tokens),
        Pointwise("mul", values, tokens),
        Product("out", values, hidden, tokens),
        Add(hidden, tokens),
    ]
    return layer_of(f"{name}.mixer", steps, tokens=tokens, hidden=hidden, block=name)


def _gated_attention(config: Config, hidden: int, tokens: int, name: str) -> Layer:
    """Return attention whose result is multiplied by a gate that its product of queries makes, too."""
    heads, size = config.whole("num_attention_heads"), config.whole("head_dim", 256)
    kv_heads, bias = config.kv_heads("num_key_value_heads", heads), config.flag("attention_bias", default=False)
    steps: list[Step] = [
        Norm("norm", hidden, tokens),
        Product("q", hidden, 2 * heads * size, tokens, bias=bias),
        Product("k", hidden, kv_heads * size, tokens, bias=bias, again=True),
        Product("v", hidden, kv_heads * size, tokens, bias=bias, again=True),
        Norm("q_norm", size, tokens * heads),
        Norm("k_norm", size, tokens * kv_heads),
        Attend(tokens, tokens, heads, size, causal=True, kv_heads=kv_heads),
        Pointwise("silu", heads * size, tokens),
        Pointwise("mul", heads * size, tokens),
        Product("out", heads * size, hidden, tokens, bias=bias),
        Add(hidden, tokens),
    ]
    return layer_of(f"{name}.attention", steps, tokens=tokens, hidden=hidden, block=name)


def _qwen3_5(config: Config, tokens: int) -> list[Layer]:
    hidden, count = config.whole("hidden_size"), config.layers("num_hidden_layers")
    is_mixture = config.kind in ("qwen3_5_moe_text", "qwen3_next")
    kinds = config.texts("layer_types", ("linear_attention", "full_attention"), count)
    if not kinds:
        every = config.whole("full_attention_interval", 4)
        kinds = ["linear_attention" if (index + 1) % every else "full_attention" for index in range(count)]
    ffn = config.whole("intermediate_size", 0 if is_mixture else None)
    dense = Block(
        hidden, 1, 1, 1, ffn, tokens, gated=True, mlp_bias=False, norm=1, rms=True, activation="silu", offset=True
    )
    blocks = [dense] * count
    if is_mixture:
        experts = config.whole("num_experts", None, _MOST_EXPERTS)
        routed = config.whole("num_experts_per_tok", 8)
        if routed > experts:
            raise config.wrong("num_experts_per_tok", f"{routed} is more than the {experts} experts")
        shared = config.whole("shared_expert_intermediate_size", 512)
        mixture = replace(
            dense,
            ffn=config.whole("moe_intermediate_size", 512),
            experts=Experts(experts, routed, shared, shared_gate=True),
        )
        only = config.members("mlp_only_layers", count)
        step = config.whole("decoder_sparse_step", 1)
        blocks = [dense if i in only or (i + 1) % step else mixture for i in range(count)]
    layers = []
    for index, kind in enumerate(kinds):
        name = f"model.layers.{index}"
        make = _delta_net if kind == "linear_attention" else _gated_attention
        layers += [make(config, hidden, tokens, name), mlp_layer(blocks[index], name)]
    tied = config.flag("tie_word_embeddings", default=False)
    return model_layers(config, layers, tokens, hidden, tied=tied, norm=1, rms=True)


def _short_convolution(config: Config, hidden: int, tokens: int, name: str) -> Layer:
    """Return a gated convolution over a few tokens (Lfm2ShortConv)."""
    bias = config.flag("conv_bias", default=False)
    steps: list[Step] = [
        Norm("norm", hidden, tokens),
        Product("in", hidden, 3 * hidden, tokens, bias=bias),
        Pointwise("mul", hidden, tokens),
        Convolve("conv", hidden, config.whole("conv_L_cache", 3), tokens, bias=bias),
        Pointwise("mul", hidden, tokens),
        Product("out", hidden, hidden, tokens, bias=bias),
        Add(hidden, tokens),
    ]
    return layer_of(f"{name}.mixer", steps, tokens=tokens, hidden=hidden, block=name)


def _lfm2(config: Config, tokens: int) -> list[Layer]:
    """Of LFM2: attention in some layers, and short convolutions in the others."""
    hidden, count = config.whole("hidden_size"), config.layers("num_hidden_layers")
    heads = config.whole("num_attention_heads")
    kinds = config.texts("layer_types", ("conv", "full_attention"), count)
    if not kinds:
        attends = config.members("full_attn_idxs", count) if config.get("full_attn_idxs") is not None else range(count)
        kinds = ["full_attention" if index in attends else "conv" for index in range(count)]
    ffn = config.whole("block_ff_dim", config.whole("intermediate_size", 12_288))
    if config.flag("block_auto_adjust_ff_dim", default=True):
        multiple = config.whole("block_multiple_of", 256)
        ffn = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * ffn / 3))
        ffn = multiple * -(-ffn // multiple)
    block = Block(
        hidden,
        heads,
        config.kv_heads("num_key_value_heads", heads),
        config.per_head(hidden, heads, "hidden_size", "num_attention_heads"),
        ffn,
        tokens,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        norm=1,
        rms=True,
        qk_norm="head",
        rotary=1.0,
        activation="silu",
    )
    layers = []
    for index, kind in enumerate(kinds):
        name = f"model.layers.{index}"
        is_convolution = kind == "conv"
        mixer = _short_convolution(config, hidden, tokens, name) if is_convolution else attention_layer(block, name)
        layers += [mixer, mlp_layer(block, name)]
    tied = config.flag("tie_embedding", default=config.flag("tie_word_embeddings", default=True))
    return model_layers(config, layers, tokens, hidden, tied=tied, norm=1, rms=True)


FAMILIES: dict[str, Callable[[Config, int], list[Layer]]] = {
    "mamba2": _mamba2,
    "nemotron_h": _nemotron,
    "falcon_h1": _falcon_h1,
    "lfm2": _lfm2,
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), _qwen3_5),
}
"""Layers of a configuration with so many tokens, by `model_type`."""
