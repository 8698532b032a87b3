"""Model families by the `model_type` of a Hugging Face configuration: from fields to layers.

Names are the same for all families, `model.layers.N.attention` and `model.layers.N.mlp` (`model.encoder.layers.N.…` and
`model.decoder.layers.N.…` where there are both), so that wrapped units can be found by prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.catalog.models.config import Config
from paceline.catalog.models.layers import Activations, Attention, Layer, Matmul, Model, Tensor
from paceline.errors import InvalidArgumentError

_ATTENTION, _MLP = 13 / 34, 21 / 34
"""Shares of a layer's memory-bound traffic: those of its activations (V. Korthikanti et al., 2022, section 4.1)."""
_MOST_EXPERTS = 4096
"""Of a layer."""
_MOST_EXPERTS_OF_ALL = 40_000
"""Of all layers together: each has three tensors, and a forecast takes time and memory for every tensor."""
_LOOKUP = 0.05
"""Share for an embedding's gather and sum."""


@dataclass(frozen=True)
class _Block:
    """What the blocks of a family have in common."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    tokens: int
    causal: bool = True
    gated: bool = False
    one_qkv: bool = False
    """Whether queries, keys and values of self-attention are made by one matrix."""
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    norm: int = 2
    """Vectors of a norm: 2 with a bias, 1 without, 0 for no norm of its own."""
    mlp_norm: int | None = None
    rms: bool = False
    """Whether norms are RMSNorm, which eager PyTorch composes of several operators."""
    qk_norm: bool = False
    dropout: bool = False
    window: int | None = None
    experts: int = 1
    routed: int = 1
    memory: int | None = None
    """Tokens of the encoder's output, for cross-attention."""
    cached: int = 0
    """Tokens before the sequence whose hidden states are kept and attended to, without gradients."""
    relative: bool = False
    """Relative positions, as in Transformer-XL."""

    @property
    def width(self) -> int:
        """Of all heads' queries."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size


def _norm(name: str, hidden: int, vectors: int) -> tuple[Tensor, ...]:
    return tuple(Tensor(f"{name}.{part}", (hidden,)) for part in ("weight", "bias")[:vectors])


def _linear(name: str, inner: int, outer: int, *, bias: bool) -> tuple[Tensor, ...]:
    weight = Tensor(f"{name}.weight", (outer, inner))
    return (weight, Tensor(f"{name}.bias", (outer,))) if bias else (weight,)


def _attention(block: _Block, name: str, part: str = "attention", more: tuple[Tensor, ...] = ()) -> Layer:
    at = f"{name}.{part}"
    hidden, width, kv, tokens = block.hidden, block.width, block.kv_width, block.tokens
    is_cross = part != "attention"
    keys = (block.memory or tokens) if is_cross else tokens + block.cached
    made = (("qkv", width + 2 * kv),) if block.one_qkv and not is_cross else (("q", width), ("k", kv), ("v", kv))
    tensors = (
        *_norm(f"{at}.norm", hidden, block.norm),
        *[one for what, outer in made for one in _linear(f"{at}.{what}", hidden, outer, bias=block.qkv_bias)],
        *((Tensor(f"{at}.q_norm", (block.head_size,)), Tensor(f"{at}.k_norm", (block.head_size,))) * block.qk_norm),
        *_linear(f"{at}.out", width, hidden, bias=block.out_bias),
        *more,
    )
    matmuls = (Matmul(tokens, hidden, width), Matmul(keys, hidden, 2 * kv), Matmul(tokens, width, hidden))
    kept = Activations(
        inputs=0.0 if is_cross else tokens * hidden,
        products=tokens * 2 * width + keys * 2 * kv + (tokens * hidden if is_cross else 0),
        alternate=tokens * 2 * width + keys * kv,
        pointwise=tokens * hidden,
        masks=tokens * hidden if block.dropout else 0,
        scores=float(block.heads) * tokens * keys,
        separate=tokens * hidden * block.rms,
        widened=tokens * hidden * block.rms,
        gathered=tokens * hidden,
        # Of the result, queries, keys and values.
        gradients=tokens * 2 * width + keys * 2 * kv,
    )
    # A window bounds the keys of a query; the mask's half is left out where most queries see a full window.
    seen = keys if is_cross or block.window is None else min(keys, block.window)
    causal = block.causal and not is_cross and seen == keys
    attention = Attention(tokens, seen, block.heads, block.head_size, causal, block.relative)
    return Layer(
        at,
        tensors,
        tokens,
        hidden,
        matmuls,
        attention,
        traffic=_ATTENTION,
        block=name,
        kept=kept,
        dropout=block.dropout,
    )


def _mlp(block: _Block, name: str) -> Layer:
    at = f"{name}.mlp"
    hidden, ffn, tokens = block.hidden, block.ffn, block.tokens
    share = block.routed / block.experts
    tensors = [*_norm(f"{at}.norm", hidden, block.norm if block.mlp_norm is None else block.mlp_norm)]
    if block.experts > 1:
        tensors.append(Tensor(f"{at}.router.weight", (block.experts, hidden)))
    for expert in range(block.experts):
        own = at if block.experts == 1 else f"{at}.experts.{expert}"
        parts = [*_linear(f"{own}.up", hidden, ffn, bias=block.mlp_bias)]
        if block.gated:
            parts += _linear(f"{own}.gate", hidden, ffn, bias=block.mlp_bias)
        parts += _linear(f"{own}.down", ffn, hidden, bias=block.mlp_bias)
        tensors += [replace(tensor, active=share) for tensor in parts]
    ups = 2 if block.gated else 1
    rows = float(tokens * block.routed)
    kept = Activations(
        products=tokens * hidden + rows * ups * ffn,
        # After four products of attention: the first one, and with a gate the last one, too.
        alternate=rows * ffn + rows * hidden * block.gated,
        summed=rows * hidden * block.gated,
        pointwise=tokens * hidden + rows * ffn,
        masks=tokens * hidden if block.dropout else 0,
        separate=tokens * hidden * block.rms + rows * ffn * block.gated,
        widened=tokens * hidden * block.rms,
        gathered=tokens * hidden,
        # Of the second product's input, which is let go, and of what that is made of.
        gradients=rows * ups * ffn,
    )
    return Layer(
        at,
        tuple(tensors),
        tokens,
        hidden,
        (Matmul(rows, hidden, ups * ffn), Matmul(rows, ffn, hidden)),
        traffic=_MLP * block.routed,
        block=name,
        kept=kept,
        dropout=block.dropout,
    )


def _blocks(block: _Block, count: int, prefix: str = "model", first: tuple[Tensor, ...] = ()) -> list[Layer]:
    """Return the layers of `count` blocks; `first`: tensors that only the first attention has."""
    layers = []
    for index in range(count):
        name = f"{prefix}.layers.{index}"
        more = first if index == 0 else ()
        if block.relative:
            more = (*more, Tensor(f"{name}.attention.positions.weight", (block.width, block.hidden)))
        layers.append(_attention(block, name, more=more))
        if block.memory is not None:
            layers.append(_attention(block, name, "cross_attention"))
        layers.append(_mlp(block, name))
    return layers


def _embedding(name: str, tokens: int, hidden: int, tensors: tuple[Tensor, ...], *shared: Tensor) -> Layer:
    return Layer(name, tensors, tokens, hidden, traffic=_LOOKUP, shared=shared)


def _head(
    tokens: int,
    hidden: int,
    vocabulary: int,
    norm: int,
    tied: Tensor | None,
    *,
    bias: bool = False,
    dense: bool = False,
    rms: bool = False,
    rows: int | None = None,
    more: tuple[Tensor, ...] = (),
) -> list[Layer]:
    """Return the final norm and the output head. `rows`: tokens with logits; `dense`: BERT's transform."""
    rows = tokens if rows is None else min(rows, tokens)
    tensors: list[Tensor] = []
    matmuls = []
    if dense:
        tensors += [*_linear("model.head.dense", hidden, hidden, bias=True), *_norm("model.head.norm", hidden, 2)]
        matmuls.append(Matmul(rows, hidden, hidden))
    if tied is None:
        tensors.append(Tensor("model.head.weight", (vocabulary, hidden)))
    if bias:
        tensors.append(Tensor("model.head.bias", (vocabulary,)))
    matmuls.append(Matmul(rows, hidden, vocabulary))
    kept = Activations(products=rows * hidden, wide=float(rows) * vocabulary, gathered=rows * hidden)
    head = Layer(
        "model.head",
        (*tensors, *more),
        tokens,
        hidden,
        tuple(matmuls),
        logits=float(rows) * vocabulary,
        shared=() if tied is None else (tied,),
        kept=kept,
    )
    return [_final_norm("model.norm", tokens, hidden, norm, rms=rms), head] if norm else [head]


def _final_norm(name: str, tokens: int, hidden: int, vectors: int, *, rms: bool) -> Layer:
    through = float(tokens * hidden)
    kept = Activations(inputs=through, separate=through * rms, widened=through * rms)
    return Layer(name, _norm(name, hidden, vectors), tokens, hidden, traffic=_LOOKUP, kept=kept)


def _decoder(config: Config, block: _Block, count: int, *, positions: int = 0, tied: bool, norm: int) -> list[Layer]:
    vocabulary = config.whole("vocab_size")
    words = Tensor("model.embed.tokens.weight", (vocabulary, block.hidden))
    places = (Tensor("model.embed.positions.weight", (positions, block.hidden)),) if positions else ()
    return [
        _embedding("model.embed", block.tokens, block.hidden, (words, *places)),
        *_blocks(block, count),
        *_head(block.tokens, block.hidden, vocabulary, norm, words if tied else None, rms=block.rms),
    ]


def _gpt2(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("n_embd"), config.whole("n_head")
    block = _Block(
        hidden,
        heads,
        heads,
        config.per_head(hidden, heads, "n_embd", "n_head"),
        config.whole("n_inner", 4 * hidden),
        tokens,
        one_qkv=True,
        dropout=config.number("resid_pdrop", 0.1) > 0,
    )
    positions = config.positions(tokens, "n_positions")
    tied = config.flag("tie_word_embeddings", default=True)
    return _decoder(config, block, config.layers("n_layer"), positions=positions, tied=tied, norm=2)


def _llama(config: Config, tokens: int) -> list[Layer]:
    kind = config.kind
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    is_biased = config.flag("attention_bias", default=False)
    qkv_bias = {"qwen2": True, "internlm": config.flag("bias", default=True)}.get(kind, is_biased)
    out_bias = {"qwen2": False, "internlm": qkv_bias}.get(kind, is_biased)
    window = config.whole("sliding_window", 0) if config.flag("use_sliding_window", default=kind != "qwen2") else 0
    block = _Block(
        hidden,
        heads,
        config.kv_heads("num_key_value_heads", heads),
        config.whole("head_dim", 0) or config.per_head(hidden, heads, "hidden_size", "num_attention_heads"),
        config.whole("intermediate_size"),
        tokens,
        gated=True,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=config.flag("mlp_bias", default=False),
        norm=1,
        rms=True,
        qk_norm=kind == "qwen3",
        window=window or None,
        experts=config.whole("num_local_experts", 8, _MOST_EXPERTS) if kind == "mixtral" else 1,
        routed=config.whole("num_experts_per_tok", 2) if kind == "mixtral" else 1,
    )
    if block.routed > block.experts:
        raise config.wrong("num_experts_per_tok", f"{block.routed} is more than the {block.experts} experts")
    count = config.layers("num_hidden_layers")
    if count * block.experts > _MOST_EXPERTS_OF_ALL:
        raise config.wrong(
            "num_local_experts",
            f"{count} layers of {block.experts} experts are more than {_MOST_EXPERTS_OF_ALL} experts; give fewer",
        )
    tied = config.flag("tie_word_embeddings", default=False)
    return _decoder(config, block, count, tied=tied, norm=1)


def _mpt(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("d_model"), config.whole("n_heads")
    has_bias = not config.flag("no_bias", default=True)
    attention = config.part("attn_config")
    block = _Block(
        hidden,
        heads,
        attention.kv_heads("kv_n_heads", heads),
        config.per_head(hidden, heads, "d_model", "n_heads"),
        config.whole("expansion_ratio", 4) * hidden,
        tokens,
        one_qkv=True,
        qkv_bias=has_bias,
        out_bias=has_bias,
        mlp_bias=has_bias,
        norm=1 + has_bias,
        dropout=config.number("resid_pdrop", 0.0) > 0,
    )
    learned = config.flag("learned_pos_emb", default=True) and not attention.flag("alibi", default=True)
    positions = config.positions(tokens, "max_seq_len") if learned else 0
    return _decoder(config, block, config.layers("n_layers"), positions=positions, tied=True, norm=1 + has_bias)


def _falcon(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    is_new = config.flag("new_decoder_architecture", default=False)
    has_bias = config.flag("bias", default=False)
    is_multi_query = config.flag("multi_query", default=True)
    own = config.kv_heads("num_kv_heads", heads)
    kv_heads = own if is_new else 1 if is_multi_query else heads
    is_parallel = is_new or config.flag("parallel_attn", default=True)
    block = _Block(
        hidden,
        heads,
        kv_heads,
        config.per_head(hidden, heads, "hidden_size", "num_attention_heads"),
        config.whole("ffn_hidden_size", 4 * hidden),
        tokens,
        one_qkv=True,
        qkv_bias=has_bias,
        out_bias=has_bias,
        mlp_bias=has_bias,
        mlp_norm=0 if is_parallel and not is_new else 2,
    )
    tied = config.flag("tie_word_embeddings", default=True)
    return _decoder(config, block, config.layers("num_hidden_layers"), tied=tied, norm=2)


def _opt(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if config.whole("word_embed_proj_dim", hidden) != hidden:
        raise config.wrong("word_embed_proj_dim", "embeddings of another width than hidden_size are not supported")
    per_head = config.per_head(hidden, heads, "hidden_size", "num_attention_heads")
    dropout = config.number("dropout", 0.1) > 0
    block = _Block(hidden, heads, heads, per_head, config.whole("ffn_dim"), tokens, dropout=dropout)
    # Positions are offset by 2.
    positions = config.positions(tokens, "max_position_embeddings") + 2
    return _decoder(config, block, config.layers("num_hidden_layers"), positions=positions, tied=True, norm=2)


def _neox(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    per_head = config.per_head(hidden, heads, "hidden_size", "num_attention_heads")
    dropout = config.number("hidden_dropout", 0.0) > 0
    ffn = config.whole("intermediate_size")
    block = _Block(hidden, heads, heads, per_head, ffn, tokens, one_qkv=True, dropout=dropout)
    tied = config.flag("tie_word_embeddings", default=False)
    return _decoder(config, block, config.layers("num_hidden_layers"), tied=tied, norm=2)


def _bert(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    is_roberta = config.kind == "roberta"
    block = _Block(
        hidden,
        heads,
        heads,
        config.per_head(hidden, heads, "hidden_size", "num_attention_heads"),
        config.whole("intermediate_size"),
        tokens,
        causal=False,
        dropout=config.number("hidden_dropout_prob", 0.1) > 0,
    )
    vocabulary = config.whole("vocab_size")
    words = Tensor("model.embed.tokens.weight", (vocabulary, hidden))
    # RoBERTa's first two positions are not used.
    positions = config.positions(tokens + 2 * is_roberta, "max_position_embeddings")
    embedding = (
        words,
        Tensor("model.embed.positions.weight", (positions, hidden)),
        Tensor("model.embed.types.weight", (config.whole("type_vocab_size", 2), hidden)),
        *_norm("model.embed.norm", hidden, 2),
    )
    layers = [
        _embedding("model.embed", tokens, hidden, embedding),
        *_blocks(block, config.layers("num_hidden_layers")),
    ]
    base = "Roberta" if is_roberta else "Bert"
    heads_known = {
        f"{base}Model": False,
        f"{base}ForMaskedLM": True,
        **({} if is_roberta else {"BertForPreTraining": True}),
    }
    asked = config.architecture(tuple(heads_known), f"{base}ForMaskedLM" if is_roberta else "BertForPreTraining")
    pooler = _linear("model.pooler", hidden, hidden, bias=True) if not asked.endswith("ForMaskedLM") else ()
    relation = _linear("model.relation", hidden, 2, bias=True) if asked.endswith("ForPreTraining") else ()
    if not heads_known[asked]:
        return [*layers, Layer("model.pooler", pooler, 1, hidden, (Matmul(1, hidden, hidden),))]
    rows = config.whole("max_predictions_per_seq", tokens)
    head = _head(tokens, hidden, vocabulary, 0, words, bias=True, dense=True, rows=rows, more=(*pooler, *relation))
    return [*layers, *head]


def _t5(config: Config, tokens: int) -> list[Layer]:
    hidden, heads, size = config.whole("d_model"), config.whole("num_heads"), config.whole("d_kv")
    form = config.text("feed_forward_proj", "relu")
    block = _Block(
        hidden,
        heads,
        heads,
        size,
        config.whole("d_ff"),
        tokens,
        causal=False,
        gated=form.startswith("gated"),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        norm=1,
        rms=True,
        dropout=config.number("dropout_rate", 0.1) > 0,
    )
    vocabulary, count = config.whole("vocab_size"), config.layers("num_layers")
    words = Tensor("model.embed.tokens.weight", (vocabulary, hidden))
    buckets = config.whole("relative_attention_num_buckets", 32)
    encoder = _blocks(block, count, "model.encoder", (Tensor("model.encoder.relative_bias", (buckets, heads)),))
    decoder = _blocks(
        replace(block, causal=True, memory=tokens),
        config.layers("num_decoder_layers", count),
        "model.decoder",
        (Tensor("model.decoder.relative_bias", (buckets, heads)),),
    )
    final = _final_norm("model.encoder.norm", tokens, hidden, 1, rms=True)
    tied = words if config.flag("tie_word_embeddings", default=True) else None
    return [
        _embedding("model.embed", tokens, hidden, (words,)),
        *encoder,
        final,
        _embedding("model.decoder.embed", tokens, hidden, (), words),
        *decoder,
        *_head(tokens, hidden, vocabulary, 1, tied, rms=True),
    ]


def _bart(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("d_model"), config.whole("encoder_attention_heads")
    block = _Block(
        hidden,
        heads,
        heads,
        config.per_head(hidden, heads, "d_model", "encoder_attention_heads"),
        config.whole("encoder_ffn_dim"),
        tokens,
        causal=False,
        dropout=config.number("dropout", 0.1) > 0,
    )
    decoder_heads = config.whole("decoder_attention_heads", heads)
    decoder = replace(
        block,
        heads=decoder_heads,
        kv_heads=decoder_heads,
        head_size=config.per_head(hidden, decoder_heads, "d_model", "decoder_attention_heads"),
        ffn=config.whole("decoder_ffn_dim"),
        causal=True,
        memory=tokens,
    )
    vocabulary = config.whole("vocab_size")
    words = Tensor("model.embed.tokens.weight", (vocabulary, hidden))
    # Positions are offset by 2.
    positions = config.positions(tokens, "max_position_embeddings") + 2

    def places(part: str) -> tuple[Tensor, ...]:
        table = Tensor(f"model.{part}.embed.positions.weight", (positions, hidden))
        return (table, *_norm(f"model.{part}.embed.norm", hidden, 2))

    return [
        _embedding("model.encoder.embed", tokens, hidden, (words, *places("encoder"))),
        *_blocks(block, config.layers("encoder_layers"), "model.encoder"),
        _embedding("model.decoder.embed", tokens, hidden, places("decoder"), words),
        *_blocks(decoder, config.layers("decoder_layers"), "model.decoder"),
        *_head(tokens, hidden, vocabulary, 0, words),
    ]


def _transfo_xl(config: Config, tokens: int) -> list[Layer]:
    """Transformer-XL (Z. Dai et al., 2019) with adaptive input and softmax (E. Grave et al., 2017)."""
    hidden, heads, size = config.whole("d_model"), config.whole("n_head"), config.whole("d_head")
    block = _Block(
        hidden,
        heads,
        heads,
        size,
        config.whole("d_inner"),
        tokens,
        one_qkv=True,
        qkv_bias=False,
        out_bias=False,
        dropout=config.number("dropout", 0.1) > 0,
        cached=config.whole("mem_len", 0),
        relative=True,
    )
    vocabulary, width = config.whole("vocab_size"), config.whole("d_embed", hidden)
    ends = config.wholes("cutoffs", vocabulary)
    shrink = config.whole("div_val", 4)
    tables, projections = [], []
    for number, (first, end) in enumerate(zip([0, *ends], [*ends, vocabulary], strict=True)):
        own = width // shrink**number
        if own == 0:
            raise config.wrong("div_val", f"{shrink} leaves words of cluster {number} no width")
        # Nearly all words of a text are in the first cluster.
        share = 1.0 if number == 0 else 0.0
        tables.append(Tensor(f"model.embed.tokens.{number}.weight", (end - first, own), share))
        if shrink > 1 or own != hidden:
            projections.append(Tensor(f"model.embed.projections.{number}.weight", (hidden, own), share))
    biases = tuple(Tensor(f"model.layers.0.attention.{one}_bias", (heads, size)) for one in ("query", "position"))
    rows = (ends or [vocabulary])[0] + len(ends)
    head = (
        *(Tensor(f"model.head.{number}.bias", table.shape[:1], table.active) for number, table in enumerate(tables)),
        # The first cluster's projection to the output is its own; the others' are those of the input.
        *(Tensor("model.head.projection.weight", (hidden, width)) for _ in projections[:1]),
        *((Tensor("model.head.clusters.weight", (len(ends), width)),) if ends else ()),
        *((Tensor("model.head.clusters.bias", (len(ends),)),) if ends else ()),
    )
    return [
        _embedding("model.embed", tokens, hidden, (*tables, *projections)),
        *_blocks(block, config.layers("n_layer"), first=biases),
        Layer(
            "model.head",
            head,
            tokens,
            hidden,
            (Matmul(tokens, hidden, width), Matmul(tokens, width, rows)),
            logits=float(tokens) * rows,
            shared=tuple(tables),
            kept=Activations(products=tokens * hidden, wide=float(tokens) * rows),
        ),
    ]


def _vit(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    patch, channels = config.whole("patch_size", 16), config.whole("num_channels", 3)
    per_head = config.per_head(hidden, heads, "hidden_size", "num_attention_heads")
    dropout = config.number("hidden_dropout_prob", 0.0) > 0
    ffn = config.whole("intermediate_size")
    block = _Block(hidden, heads, heads, per_head, ffn, tokens, causal=False, dropout=dropout)
    pixels = patch * patch * channels
    embedding = (
        Tensor("model.embed.class_token", (hidden,)),
        Tensor("model.embed.positions", (tokens, hidden)),
        Tensor("model.embed.patches.weight", (hidden, channels, patch, patch)),
        Tensor("model.embed.patches.bias", (hidden,)),
    )
    labels = config.part("id2label").fields
    classes = config.whole("num_labels", len(labels) or 1000)
    return [
        Layer("model.embed", embedding, tokens, hidden, (Matmul(tokens - 1, pixels, hidden),), traffic=_LOOKUP),
        *_blocks(block, config.layers("num_hidden_layers")),
        _final_norm("model.norm", tokens, hidden, 2, rms=False),
        Layer(
            "model.head",
            _linear("model.head", hidden, classes, bias=True),
            1,
            hidden,
            (Matmul(1, hidden, classes),),
            logits=classes,
        ),
    ]


_FAMILIES: dict[str, Callable[[Config, int], list[Layer]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "internlm": _llama,
    "mpt": _mpt,
    "falcon": _falcon,
    "opt": _opt,
    "gpt_neox": _neox,
    "bert": _bert,
    "roberta": _bert,
    "t5": _t5,
    "bart": _bart,
    "transfo-xl": _transfo_xl,
    "vit": _vit,
}
MODEL_TYPES = tuple(_FAMILIES)
"""Known values of `model_type`."""
_CONTEXT = {
    "gpt2": "n_positions",
    "mpt": "max_seq_len",
    "t5": "n_positions",
    "transfo-xl": "tgt_len",
}
LONGEST_DEFAULT = 8192
"""Tokens of a sequence by default, unless the model's context is shorter."""


def with_context(config: Config, sequence: int) -> Config:
    """Return a configuration with positions for so many tokens, as whoever trains on longer sequences makes it."""
    field = _CONTEXT.get(config.kind, "max_position_embeddings")
    # RoBERTa's first two positions are not used.
    needed = sequence + 2 * (config.kind == "roberta")
    known = config.fields.get(field)
    return replace(config, fields={**config.fields, field: needed}) if known is not None and known < needed else config


def model_of(config: Config, sequence: int | None = None) -> Model:
    """Return the layers of a configuration; by default at its context length, at most `LONGEST_DEFAULT` tokens.

    Raises InvalidArgumentError, which names file and field.
    """
    if config.kind not in _FAMILIES:
        raise config.wrong("model_type", f"'{config.kind[:80]}' is not known; known are {', '.join(MODEL_TYPES)}")
    if config.kind == "vit":
        side, patch = config.whole("image_size", 224), config.whole("patch_size", 16)
        if side % patch:
            raise config.wrong("patch_size", f"{patch} does not divide the image's {side} pixels")
        tokens = (side // patch) ** 2 + 1
        if sequence is not None:
            raise InvalidArgumentError(
                f"has no effect on {config.name}, whose images have {tokens} patches; leave it out", setting="seq"
            )
    else:
        field = _CONTEXT.get(config.kind, "max_position_embeddings")
        context = config.whole(field, {"t5": 512, "transfo-xl": 128}.get(config.kind, 2048))
        if config.kind == "roberta":
            # RoBERTa's first two positions are not used.
            if context < 3:
                raise config.wrong(field, f"{context} leaves no position for a token, as the first 2 are not used")
            context -= 2
        tokens = sequence or min(context, LONGEST_DEFAULT)
    return Model(config.name, config.kind, tuple(_FAMILIES[config.kind](config, tokens)), tokens)
