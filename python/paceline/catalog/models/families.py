"""Model families by the `model_type` of a Hugging Face configuration: from fields to layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paceline.catalog.models import decoders, deepseek_v4, diffusion, gemma4, hybrids
from paceline.catalog.models.blocks import (
    embedding_layer,
    final_norm,
    head_layers,
    linear,
    norm_tensors,
    stack,
)
from paceline.catalog.models.composites import language_part
from paceline.catalog.models.config import Config
from paceline.catalog.models.heads import ROBERTAS, decoder_layers, head_of, labeling
from paceline.catalog.models.layers import Activations, Layer, Matmul, Model, Tensor
from paceline.catalog.models.steps import Pointwise, Product, Weight
from paceline.catalog.models.stepwise import layer_of
from paceline.catalog.models.traits import Block, Form
from paceline.catalog.models.unread import not_modeled
from paceline.catalog.models.vision import tower_of
from paceline.errors import InvalidArgumentError


def _gpt2(config: Config, tokens: int) -> list[Layer]:
    """Of GPT-2, and of GPTBigCode, whose heads share keys and values."""
    hidden, heads = config.whole("n_embd"), config.whole("n_head")
    is_bigcode = config.kind == "gpt_bigcode"
    block = Block(
        hidden,
        heads,
        1 if is_bigcode and config.flag("multi_query", default=True) else heads,
        config.per_head(hidden, heads, "n_embd", "n_head"),
        config.whole("n_inner", 4 * hidden),
        tokens,
        one_qkv=True,
        dropout=config.number("resid_pdrop", 0.1) > 0,
        composed=config.text("activation_function", "gelu" if is_bigcode else "gelu_new") in ("gelu_new", "gelu_fast"),
        attention_dropout=config.number("attn_pdrop", 0.1) > 0,
        transposed=not is_bigcode,
    )
    positions = config.positions(tokens, "n_positions")
    tied = config.flag("tie_word_embeddings", default=True)
    dropout = config.number("embd_pdrop", 0.1) > 0
    blocks = [block] * config.layers("n_layer")
    return decoder_layers(config, blocks, positions=positions, tied=tied, norm=2, dropout=dropout)


def _mpt(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("d_model"), config.whole("n_heads")
    has_bias = not config.flag("no_bias", default=True)
    attention = config.part("attn_config")
    block = Block(
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
        position_bias="fixed" if attention.flag("alibi", default=True) else "none",
    )
    learned = config.flag("learned_pos_emb", default=True) and not attention.flag("alibi", default=True)
    positions = config.positions(tokens, "max_seq_len") if learned else 0
    tied = config.flag("tie_word_embeddings", default=True)
    blocks = [block] * config.layers("n_layers")
    return decoder_layers(config, blocks, positions=positions, tied=tied, norm=1 + has_bias)


def _falcon(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    is_new = config.flag("new_decoder_architecture", default=False)
    has_bias = config.flag("bias", default=False)
    is_multi_query = config.flag("multi_query", default=True)
    own = config.kv_heads("num_kv_heads", heads)
    kv_heads = own if is_new else 1 if is_multi_query else heads
    is_parallel = is_new or config.flag("parallel_attn", default=True)
    block = Block(
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
        rotary=0.0 if config.flag("alibi", default=False) else 1.0,
        position_bias="fixed" if config.flag("alibi", default=False) else "none",
    )
    tied = config.flag("tie_word_embeddings", default=True)
    return decoder_layers(config, [block] * config.layers("num_hidden_layers"), tied=tied, norm=2)


def _opt(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if config.whole("word_embed_proj_dim", hidden) != hidden:
        raise config.wrong("word_embed_proj_dim", "embeddings of another width than hidden_size are not supported")
    per_head = config.per_head(hidden, heads, "hidden_size", "num_attention_heads")
    dropout = config.number("dropout", 0.1) > 0
    block = Block(hidden, heads, heads, per_head, config.whole("ffn_dim"), tokens, dropout=dropout, activation="relu")
    # Positions are offset by 2.
    positions = config.positions(tokens, "max_position_embeddings") + 2
    tied = config.flag("tie_word_embeddings", default=True)
    return decoder_layers(config, [block] * config.layers("num_hidden_layers"), positions=positions, tied=tied, norm=2)


def _starcoder2(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    has_bias = config.flag("use_bias", default=True)
    block = Block(
        hidden,
        heads,
        config.kv_heads("num_key_value_heads", heads),
        config.per_head(hidden, heads, "hidden_size", "num_attention_heads"),
        config.whole("intermediate_size"),
        tokens,
        qkv_bias=has_bias,
        out_bias=has_bias,
        mlp_bias=has_bias,
        dropout=config.number("residual_dropout", 0.0) > 0,
        window=config.whole("sliding_window", 0) or None,
        rotary=1.0,
    )
    tied = config.flag("tie_word_embeddings", default=True)
    return decoder_layers(config, [block] * config.layers("num_hidden_layers"), tied=tied, norm=2)


def _neox(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    per_head = config.per_head(hidden, heads, "hidden_size", "num_attention_heads")
    dropout = config.number("hidden_dropout", 0.0) > 0
    ffn, rotary = config.whole("intermediate_size"), config.number("rotary_pct", 0.25)
    block = Block(hidden, heads, heads, per_head, ffn, tokens, one_qkv=True, dropout=dropout, rotary=rotary)
    tied = config.flag("tie_word_embeddings", default=False)
    return decoder_layers(config, [block] * config.layers("num_hidden_layers"), tied=tied, norm=2)


def _chatglm(config: Config, tokens: int) -> list[Layer]:
    """Of ChatGLM2 and 3 and of GLM-4 before transformers had it (`modeling_chatglm.py` of their checkpoints)."""
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    has_bias = config.flag("add_bias_linear", default=True)
    is_grouped = config.flag("multi_query_attention", default=False)
    block = Block(
        hidden,
        heads,
        config.kv_heads("multi_query_group_num", heads) if is_grouped else heads,
        config.whole("kv_channels", 128),
        config.whole("ffn_hidden_size"),
        tokens,
        gated=True,
        one_qkv=True,
        one_gate_up=True,
        qkv_bias=has_bias or config.flag("add_qkv_bias", default=False),
        out_bias=has_bias,
        mlp_bias=has_bias,
        norm=1,
        rms=config.flag("rmsnorm", default=True),
        rotary=0.5,
        dropout=config.number("hidden_dropout", 0.0) > 0,
        attention_dropout=config.number("attention_dropout", 0.0) > 0,
        activation="silu",
    )
    vocabulary = config.whole("padded_vocab_size", config.whole("vocab_size", 65_024))
    config = replace(config, fields={**config.fields, "vocab_size": vocabulary})
    tied = config.flag("tie_word_embeddings", default=False)
    return decoder_layers(config, [block] * config.layers("num_layers"), tied=tied, norm=1)


def _bert(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    is_roberta = config.kind in ROBERTAS
    block = Block(
        hidden,
        heads,
        heads,
        config.per_head(hidden, heads, "hidden_size", "num_attention_heads"),
        config.whole("intermediate_size"),
        tokens,
        causal=False,
        dropout=config.number("hidden_dropout_prob", 0.1) > 0,
        attention_dropout=config.number("attention_probs_dropout_prob", 0.1) > 0,
        post_norm=True,
    )
    vocabulary = config.whole("vocab_size")
    words = Tensor("model.embed.tokens.weight", (vocabulary, hidden))
    # RoBERTa's first two positions are not used.
    positions = config.positions(tokens + 2 * is_roberta, "max_position_embeddings")
    embedding = (
        words,
        Tensor("model.embed.positions.weight", (positions, hidden)),
        Tensor("model.embed.types.weight", (config.whole("type_vocab_size", 2), hidden)),
        *norm_tensors("model.embed.norm", hidden, 2),
    )
    layers = [
        embedding_layer("model.embed", tokens, hidden, embedding, dropout=block.dropout),
        *stack([block] * config.layers("num_hidden_layers")),
    ]
    return [*layers, *_bert_head(config, tokens, hidden, words)]


def _bert_head(config: Config, tokens: int, hidden: int, words: Tensor) -> list[Layer]:
    """Return the head of BERT and RoBERTa. The pooler is a product of the first token's row."""
    what, vocabulary = head_of(config).what, words.shape[0]
    dense = linear("model.pooler", hidden, hidden, bias=True)
    pooler = Layer("model.pooler", dense, 1, hidden, (Matmul(1, hidden, hidden),))
    if what == "none":
        return [pooler]
    if what == "relation":
        return [pooler, labeling("model.relation", 1, hidden, 2)]
    if what == "choice":
        return [pooler, labeling("model.head", 1, hidden, 1)]
    if what == "sequence":
        if config.kind in ROBERTAS:
            return [labeling("model.head", 1, hidden, config.labels(), more=_dense(hidden))]
        return [pooler, labeling("model.head", 1, hidden, config.labels())]
    if what in ("tokens", "answers"):
        return [labeling("model.head", tokens, hidden, config.labels())]
    tied = words if config.flag("tie_word_embeddings", default=True) else None
    rows = config.whole("max_predictions_per_seq", tokens)
    more = (*dense, *linear("model.relation", hidden, 2, bias=True)) if what == "pretraining" else ()
    if tied is None:
        # The product then has a bias of its own besides that of the predictions.
        more = (*more, Tensor("model.head.product_bias", (vocabulary,)))
    return head_layers(tokens, hidden, vocabulary, 0, tied, bias=True, dense=True, rows=rows, upcast=False, more=more)


def _dense(hidden: int) -> tuple[Tensor, ...]:
    """Return the tensors of the product in front of a classifier."""
    return linear("model.head.dense", hidden, hidden, bias=True)


def _t5(config: Config, tokens: int) -> list[Layer]:
    hidden, heads, size = config.whole("d_model"), config.whole("num_heads"), config.whole("d_kv")
    form = config.text("feed_forward_proj", "relu")
    block = Block(
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
        attention_dropout=config.number("dropout_rate", 0.1) > 0,
        activation="gelu" if form.startswith("gated") else "relu",
        composed=form.startswith("gated"),
        position_bias="learned",
    )
    vocabulary, count = config.whole("vocab_size"), config.layers("num_layers")
    words = Tensor("model.embed.tokens.weight", (vocabulary, hidden))
    buckets = config.whole("relative_attention_num_buckets", 32)
    encoder = stack([block] * count, "model.encoder", (Tensor("model.encoder.relative_bias", (buckets, heads)),))
    decoder = stack(
        [replace(block, causal=True, memory=tokens)] * config.layers("num_decoder_layers", count),
        "model.decoder",
        (Tensor("model.decoder.relative_bias", (buckets, heads)),),
    )
    what = head_of(config).what
    half = [
        embedding_layer("model.embed", tokens, hidden, (words,)),
        *encoder,
        final_norm("model.encoder.norm", tokens, hidden, 1, rms=True),
    ]
    if what == "encoder":
        return half
    if what == "tokens":
        return [*half, labeling("model.head", tokens, hidden, config.labels())]
    both = [
        *half,
        embedding_layer("model.decoder.embed", tokens, hidden, (), words),
        *decoder,
        final_norm("model.norm", tokens, hidden, 1, rms=True),
    ]
    if what == "words":
        tied = words if config.flag("tie_word_embeddings", default=True) else None
        return [*both, *head_layers(tokens, hidden, vocabulary, 0, tied, upcast=False)]
    if what == "sequence":
        # Of the token that ends the sequence.
        return [*both, labeling("model.head", 1, hidden, config.labels(), more=_dense(hidden))]
    return both if what == "none" else [*both, labeling("model.head", tokens, hidden, config.labels())]


def _decoder_of(config: Config, encoder: Block, tokens: int) -> Block:
    """Return a block of the decoder that reads what an encoder's block makes."""
    heads = config.whole("decoder_attention_heads", encoder.heads)
    return replace(
        encoder,
        heads=heads,
        kv_heads=heads,
        head_size=config.per_head(encoder.hidden, heads, "d_model", "decoder_attention_heads"),
        ffn=config.whole("decoder_ffn_dim"),
        tokens=tokens,
        causal=True,
        memory=encoder.tokens,
    )


def _bart(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("d_model"), config.whole("encoder_attention_heads")
    block = Block(
        hidden,
        heads,
        heads,
        config.per_head(hidden, heads, "d_model", "encoder_attention_heads"),
        config.whole("encoder_ffn_dim"),
        tokens,
        causal=False,
        dropout=config.number("dropout", 0.1) > 0,
        attention_dropout=config.number("attention_dropout", 0.0) > 0,
        post_norm=True,
    )
    decoder = _decoder_of(config, block, tokens)
    vocabulary = config.whole("vocab_size")
    words = Tensor("model.embed.tokens.weight", (vocabulary, hidden))
    # Positions are offset by 2.
    positions = config.positions(tokens, "max_position_embeddings") + 2

    def places(part: str) -> tuple[Tensor, ...]:
        table = Tensor(f"model.{part}.embed.positions.weight", (positions, hidden))
        return (table, *norm_tensors(f"model.{part}.embed.norm", hidden, 2))

    what = head_of(config).what
    tied = config.flag("tie_word_embeddings", default=True)
    layers = stack([decoder] * config.layers("decoder_layers"), "model.decoder")
    if what == "decoder":
        # It attends to no encoder; the tensors that would are there.
        layers = [_without_work(layer) if "cross" in layer.name else layer for layer in layers]
        return [
            embedding_layer("model.decoder.embed", tokens, hidden, (words, *places("decoder"))),
            *layers,
            *head_layers(tokens, hidden, vocabulary, 0, words if tied else None),
        ]
    own = [] if tied else [Tensor(f"model.{it}.embed.tokens.weight", words.shape) for it in ("encoder", "decoder")]
    both = [
        embedding_layer("model.encoder.embed", tokens, hidden, (words, *own, *places("encoder"))),
        *stack([block] * config.layers("encoder_layers"), "model.encoder"),
        embedding_layer("model.decoder.embed", tokens, hidden, places("decoder"), words),
        *layers,
    ]
    if what == "words":
        return [*both, *head_layers(tokens, hidden, vocabulary, 0, words if tied else None, upcast=False)]
    if what == "sequence":
        # Of the token that ends the sequence.
        return [*both, labeling("model.head", 1, hidden, config.labels(3), more=_dense(hidden))]
    return both if what == "none" else [*both, labeling("model.head", tokens, hidden, 2)]


def _whisper(config: Config, tokens: int) -> list[Layer]:
    """Return Whisper, whose encoder sees all frames of its spectrograms: two for each position."""
    hidden, heads = config.whole("d_model"), config.whole("encoder_attention_heads")
    frames, mels = config.whole("max_source_positions", 1500), config.whole("num_mel_bins", 80)
    block = Block(
        hidden,
        heads,
        heads,
        config.per_head(hidden, heads, "d_model", "encoder_attention_heads"),
        config.whole("encoder_ffn_dim"),
        frames,
        causal=False,
        k_bias=False,
        dropout=config.number("dropout", 0.0) > 0,
        attention_dropout=config.number("attention_dropout", 0.0) > 0,
    )
    decoder = _decoder_of(config, block, tokens)
    vocabulary, what = config.whole("vocab_size"), head_of(config).what
    words = Tensor("model.embed.tokens.weight", (vocabulary, hidden))
    places = Tensor("model.embed.positions.weight", (config.positions(tokens, "max_target_positions"), hidden))
    # Convolutions over three frames, the second one with a stride of two.
    convolutions = (
        Product("conv1", 3 * mels, hidden, 2 * frames, bias=True),
        Pointwise("gelu", hidden, 2 * frames),
        Product("conv2", 3 * hidden, hidden, frames, bias=True),
        Pointwise("gelu", hidden, frames),
        Weight("positions", (frames, hidden)),
    )
    both = [
        layer_of("model.encoder.embed", convolutions, tokens=frames, hidden=hidden),
        *stack([block] * config.layers("encoder_layers"), "model.encoder"),
        final_norm("model.encoder.norm", frames, hidden, 2, rms=False),
        embedding_layer("model.embed", tokens, hidden, (words, places)),
        *stack([decoder] * config.layers("decoder_layers"), "model.decoder"),
        final_norm("model.norm", tokens, hidden, 2, rms=False),
    ]
    if what == "none":
        return both
    tied = words if config.flag("tie_word_embeddings", default=True) else None
    return [*both, *head_layers(tokens, hidden, vocabulary, 0, tied, upcast=False)]


def _without_work(layer: Layer) -> Layer:
    return replace(layer, matmuls=(), attention=None, kept=Activations())


def _transfo_xl(config: Config, tokens: int) -> list[Layer]:
    """Transformer-XL (Z. Dai et al., 2019) with adaptive input and softmax (E. Grave et al., 2017)."""
    hidden, heads, size = config.whole("d_model"), config.whole("n_head"), config.whole("d_head")
    block = Block(
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
        attention_dropout=config.number("dropatt", 0.0) > 0,
        activation="relu",
        post_norm=True,
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
    body = [
        embedding_layer("model.embed", tokens, hidden, (*tables, *projections)),
        *stack([block] * config.layers("n_layer"), first=biases),
    ]
    what = head_of(config).what
    if what == "none":
        return body
    if what == "sequence":
        return [*body, labeling("model.head", tokens, width, config.labels(), bias=False)]
    return [
        *body,
        Layer(
            "model.head",
            head,
            tokens,
            hidden,
            (Matmul(tokens, hidden, width), Matmul(tokens, width, rows)),
            logits=float(tokens) * rows,
            shared=tuple(tables),
            kept=Activations(products=tokens * hidden, wide=float(tokens) * rows),
            form=Form("head", causal=True),
        ),
    ]


def _vit(config: Config, tokens: int) -> list[Layer]:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    patch, channels = config.whole("patch_size", 16), config.whole("num_channels", 3)
    per_head = config.per_head(hidden, heads, "hidden_size", "num_attention_heads")
    dropout = config.number("hidden_dropout_prob", 0.0) > 0
    ffn = config.whole("intermediate_size")
    block = Block(hidden, heads, heads, per_head, ffn, tokens, causal=False, dropout=dropout)
    pixels = patch * patch * channels
    embedding = (
        Tensor("model.embed.class_token", (hidden,)),
        Tensor("model.embed.positions", (tokens, hidden)),
        Tensor("model.embed.patches.weight", (hidden, channels, patch, patch)),
        Tensor("model.embed.patches.bias", (hidden,)),
    )
    head = head_of(config)
    masked = (Tensor("model.embed.mask_token", (hidden,)),) if head.what == "patches" else ()
    tables = (*embedding, *masked)
    return [
        Layer(
            "model.embed",
            tables,
            tokens,
            hidden,
            (Matmul(tokens - 1, pixels, hidden),),
            form=Form("embedding"),
        ),
        *stack([block] * config.layers("num_hidden_layers")),
        final_norm("model.norm", tokens, hidden, 2, rms=False),
        _vit_head(config, tokens, hidden, channels),
    ]


def _vit_head(config: Config, tokens: int, hidden: int, channels: int) -> Layer:
    head = head_of(config)
    if head.what == "none":
        width = config.whole("pooler_output_size", hidden)
        pooler = linear("model.pooler", hidden, width, bias=True)
        return Layer("model.pooler", pooler, 1, hidden, (Matmul(1, hidden, width),))
    if head.what == "patches":
        pixels = channels * config.whole("encoder_stride", 16) ** 2
        return labeling("model.head", tokens - 1, hidden, pixels)
    # Without `architectures`, the classes of ImageNet.
    return labeling("model.head", 1, hidden, config.labels(1000 if head.is_assumed else 2))


_FAMILIES: dict[str, Callable[[Config, int], list[Layer]]] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), _gpt2),
    **decoders.FAMILIES,
    **hybrids.FAMILIES,
    **diffusion.FAMILIES,
    "gemma4_text": gemma4.layers_of,
    "deepseek_v4": deepseek_v4.layers_of,
    "mpt": _mpt,
    "falcon": _falcon,
    "opt": _opt,
    "gpt_neox": _neox,
    "chatglm": _chatglm,
    "starcoder2": _starcoder2,
    "bert": _bert,
    **dict.fromkeys(ROBERTAS, _bert),
    "t5": _t5,
    "mt5": _t5,
    "bart": _bart,
    "transfo-xl": _transfo_xl,
    "whisper": _whisper,
    "vit": _vit,
}
MODEL_TYPES = tuple(_FAMILIES)
"""Known values of `model_type`."""
_CONTEXT = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), "n_positions"),
    "mpt": "max_seq_len",
    "t5": "n_positions",
    "transfo-xl": "tgt_len",
    **dict.fromkeys(("qwen", "chatglm"), "seq_length"),
    "whisper": "max_target_positions",
}
_CONTEXTS = {
    **{"whisper": 448, "gemma4_text": 131_072, "deepseek_v4": 1_048_576},
    **{"t5": 512, "transfo-xl": 128, "gemma": 8192, "gemma2": 8192, "phi3": 4096, "olmoe": 4096, "deepseek_v3": 4096},
    **{"starcoder2": 4096, "helium": 4096, "glm": 131_072, "ministral3": 262_144},
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"), 32_768),
    **dict.fromkeys(("gemma3_text", "glm4", "glm4_moe", "gpt_oss", "ministral", "mistral", "mixtral"), 131_072),
    "lfm2": 128_000,
    **{"seed_oss": 524_288, "deepseek_v32": 163_840, "minimax_m2": 196_608, "kimi_k2": 131_072, "llama4_text": 131_072},
    **dict.fromkeys(("glm_moe_dsa", "glm4_moe_lite"), 202_752),
    **{"qwen3_5_text": 32_768, "qwen3_5_moe_text": 32_768, "qwen3_next": 32_768, "falcon_h1": 8192, "nemotron_h": 4096},
}
"""Contexts of files that leave them out, as transformers has them; 2,048 for other families."""
LONGEST_DEFAULT = 8192
"""Tokens of a sequence by default, unless the model's context is shorter."""


def default_context(kind: str) -> int:
    """Return the context in tokens of a configuration that leaves it out."""
    return _CONTEXTS.get(kind, 2048)


def context_of(whole: Config) -> int:
    """Return the context in tokens of a model of text."""
    config = language_part(whole, MODEL_TYPES).config
    context = config.whole(_CONTEXT.get(config.kind, "max_position_embeddings"), default_context(config.kind))
    # RoBERTa's first two positions are not used.
    return context - 2 * (config.kind in ROBERTAS)


def with_context(whole: Config, sequence: int) -> Config:
    """Return a configuration with positions for so many tokens, as whoever trains on longer sequences makes it."""
    config = language_part(whole, MODEL_TYPES).config
    field = _CONTEXT.get(config.kind, "max_position_embeddings")
    # RoBERTa's first two positions are not used.
    needed = sequence + 2 * (config.kind in ROBERTAS)
    known = config.fields.get(field)
    return replace(config, fields={**config.fields, field: needed}) if known is not None and known < needed else whole


def model_of(config: Config, sequence: int | None = None) -> Model:
    """Return the layers of a configuration; by default at its context length, at most `LONGEST_DEFAULT` tokens.

    Raises InvalidArgumentError, which names file and field.
    """
    key = repr((config.name, config.where, config.prefix, config.notes, config.fields)), sequence
    if key not in _MADE:
        while len(_MADE) >= _MOST_MADE:
            _MADE.pop(next(iter(_MADE)), None)
        _MADE[key] = _made(config, sequence)
    return _MADE[key]


_MADE: dict[tuple[str, int | None], Model] = {}
_MOST_MADE = 16
"""Searches ask for the same model thousands of times."""


def _made(whole: Config, sequence: int | None) -> Model:
    whole = replace(whole, reads=set())
    part = language_part(whole, MODEL_TYPES)
    config = part.config
    assumed: tuple[str, ...] = ()
    if config.kind == "vit":
        side, patch = config.whole("image_size", 224), config.whole("patch_size", 16)
        if side % patch:
            raise config.wrong("patch_size", f"{patch} does not divide the image's {side} pixels")
        tokens = (side // patch) ** 2 + 1
        if sequence is not None:
            raise InvalidArgumentError(
                f"needs a model of text, and images of {config.name} have {tokens} patches",
                setting="seq",
                remedy="drop {seq}",
            )
    elif config.kind in diffusion.FAMILIES:
        tokens = sequence or diffusion.default_patches(config)
        if text := diffusion.TEXT_TOKENS[config.kind]:
            assumed = (f"Assumed {text} tokens of text beside {tokens:,} patches of an image in latent space (seq)",)
    else:
        field = _CONTEXT.get(config.kind, "max_position_embeddings")
        context = config.whole(field, default_context(config.kind))
        if config.kind in ROBERTAS:
            # RoBERTa's first two positions are not used.
            if context < 3:
                raise config.wrong(field, f"{context} leaves no position for a token, as the first 2 are not used")
            context -= 2
        tokens = sequence or min(context, LONGEST_DEFAULT)
        if tokens > context:
            assumed = (f"Sequences of {tokens:,} tokens are longer than {config.name}'s context, {context:,} tokens",)
    layers, head = tuple(_FAMILIES[config.kind](config, tokens)), head_of(config)
    if config.kind == "whisper":
        seen = config.whole("max_source_positions", 1500)
        assumed = (*assumed, f"Assumed that the encoder sees {seen:,} positions (30 s)")
    if (tower := tower_of(whole, tokens)) is not None:
        layers, assumed = (*tower.layers, *layers), (*assumed, tower.note)
    notes = (*whole.notes, *part.notes, *assumed)
    if head.is_assumed and not whole.source:
        notes = (*notes, f"Assumed {head.architecture}: {whole.where} has no `architectures`")
    if note := not_modeled(config, whole):
        notes = (*notes, note)
    largest = "" if whole.source else config.largest_size()
    return Model(config.name, config.kind, layers, tokens, head.architecture, notes, largest)
