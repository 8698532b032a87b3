"""Blocks of transformers as layers: tensors, products, and what they keep for the backward pass.

Names are the same for all families, `model.layers.N.attention` and `model.layers.N.mlp` (`model.encoder.layers.N.…` and
`model.decoder.layers.N.…` where there are both), so that wrapped units can be found by prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.catalog.models.layers import Activations, Attention, Layer, Matmul, Tensor
from paceline.catalog.models.traits import Block, Experts, Form, Latent


def norm_tensors(name: str, hidden: int, vectors: int) -> tuple[Tensor, ...]:
    """Return a norm's weight, with 2 vectors its bias, too; with 0 there is no norm."""
    return tuple(Tensor(f"{name}.{part}", (hidden,)) for part in ("weight", "bias")[:vectors])


def linear(name: str, inner: int, outer: int, *, bias: bool) -> tuple[Tensor, ...]:
    """Return the tensors of a linear layer."""
    weight = Tensor(f"{name}.weight", (outer, inner))
    return (weight, Tensor(f"{name}.bias", (outer,))) if bias else (weight,)


def attention_layer(block: Block, name: str, part: str = "attention", more: tuple[Tensor, ...] = ()) -> Layer:
    """Return the attention of a block; `part`: `cross_attention`, or of its own sequence."""
    if block.latent is not None:
        return _latent_attention(block, block.latent, name)
    at = f"{name}.{part}"
    hidden, width, kv, tokens = block.hidden, block.width, block.kv_width, block.tokens
    is_cross = part != "attention"
    keys = (block.memory or tokens) if is_cross else tokens + block.cached
    through = float(tokens * hidden * ((block.norm > 0) + (block.after > 0) or 1))
    normed = tokens * (width + kv) * (block.qk_norm != "none")
    made = (("qkv", width + 2 * kv),) if block.one_qkv and not is_cross else (("q", width), ("k", kv), ("v", kv))
    tensors = (
        *norm_tensors(f"{at}.norm", hidden, block.norm),
        *[
            one
            for what, outer in made
            for one in linear(f"{at}.{what}", hidden, outer, bias=block.qkv_bias and (what != "k" or block.k_bias))
        ],
        *_qk_norms(block, at),
        *((Tensor(f"{at}.sinks", (block.heads,)),) * block.sinks),
        *linear(f"{at}.out", width, hidden, bias=block.out_bias),
        *norm_tensors(f"{at}.after", hidden, block.after),
        *more,
    )
    matmuls = (Matmul(tokens, hidden, width), Matmul(keys, hidden, 2 * kv), Matmul(tokens, width, hidden))
    kept = Activations(
        inputs=0.0 if is_cross else tokens * hidden,
        products=tokens * 2 * width + keys * 2 * kv + (tokens * hidden if is_cross else 0),
        alternate=tokens * 2 * width + keys * kv,
        # A norm before keeps its result, one after what it normalizes.
        pointwise=through + normed,
        masks=tokens * hidden if block.dropout else 0,
        scores=float(block.heads) * tokens * keys,
        capped=float(block.heads) * tokens * keys * block.capped,
        separate=through * block.rms,
        widened=through * block.rms,
        stream=tokens * hidden,
        copies=keys * hidden if is_cross else 0 if block.one_qkv else 2 * tokens * hidden,
        gathered=tokens * hidden,
        # Of the result, queries, keys and values.
        gradients=tokens * 2 * width + keys * 2 * kv,
    )
    # A window bounds the keys of a query; the mask's half is left out where most queries see a full window.
    seen = keys if is_cross or block.window is None else min(keys, block.window)
    causal = block.causal and not is_cross and seen == keys
    exchanged = 0 if is_cross or block.cached else 2 * kv
    attention = Attention(tokens, seen, block.heads, block.head_size, causal, exchanged, block.relative)
    return Layer(
        at,
        tensors,
        tokens,
        hidden,
        matmuls,
        attention,
        block=name,
        kept=kept,
        dropout=block.dropout,
        form=Form("cross-attention" if is_cross else "attention", block, rms=block.rms),
    )


def _qk_norms(block: Block, at: str) -> tuple[Tensor, ...]:
    sizes = {"none": (), "head": (block.head_size,) * 2, "whole": (block.width, block.kv_width)}[block.qk_norm]
    return tuple(Tensor(f"{at}.{name}_norm", (size,)) for name, size in zip("qk", sizes, strict=False))


def _latent_attention(block: Block, latent: Latent, name: str) -> Layer:
    at = f"{name}.attention"
    hidden, heads, tokens, rank = block.hidden, block.heads, block.tokens, latent.q_rank
    size = latent.plain + latent.rotary
    queries, made, values = heads * size, heads * (latent.plain + latent.value), heads * latent.value
    down = latent.kv_rank + latent.rotary
    of_queries = (
        *linear(f"{at}.q_down", hidden, rank, bias=block.qkv_bias),
        *norm_tensors(f"{at}.q_norm", rank, 1),
        *linear(f"{at}.q_up", rank, queries, bias=False),
    )
    tensors = (
        *norm_tensors(f"{at}.norm", hidden, block.norm),
        *(of_queries if rank else linear(f"{at}.q", hidden, queries, bias=False)),
        *linear(f"{at}.kv_down", hidden, down, bias=block.qkv_bias),
        *norm_tensors(f"{at}.kv_norm", latent.kv_rank, 1),
        *linear(f"{at}.kv_up", latent.kv_rank, made, bias=False),
        *linear(f"{at}.out", values, hidden, bias=block.out_bias),
    )
    for_queries = (Matmul(tokens, hidden, rank), Matmul(tokens, rank, queries))
    matmuls = (
        *(for_queries if rank else (Matmul(tokens, hidden, queries),)),
        Matmul(tokens, hidden, down),
        Matmul(tokens, latent.kv_rank, made),
        Matmul(tokens, values, hidden),
    )
    narrow = tokens * (rank + latent.kv_rank)
    kept = Activations(
        inputs=tokens * hidden,
        # Queries and keys with their positions, values, the result, and the narrow vectors that norms take.
        products=tokens * (2 * queries + 2 * values) + narrow,
        alternate=tokens * (values + rank + down + hidden),
        pointwise=tokens * hidden + narrow,
        scores=float(heads) * tokens * tokens,
        separate=tokens * hidden + narrow,
        widened=tokens * hidden + narrow,
        stream=tokens * hidden,
        copies=tokens * hidden,
        gathered=tokens * hidden,
        gradients=tokens * (2 * queries + 2 * values),
    )
    # Scores have the width of queries, results that of values.
    exchanged = heads * (size + latent.value)
    seen = tokens if block.window is None else min(tokens, block.window)
    causal = block.causal and seen == tokens
    attention = Attention(tokens, seen, heads, (size + latent.value) // 2, causal, exchanged)
    form = Form("attention", block, rms=block.rms)
    return Layer(at, tensors, tokens, hidden, matmuls, attention, block=name, kept=kept, form=form)


def _expert_tensors(block: Block, experts: Experts, at: str) -> list[Tensor]:
    """Return the router's and the experts' tensors: all experts' matrices are in one tensor, as in torchtitan."""
    hidden, ffn, count = block.hidden, block.ffn, experts.count
    share = experts.routed / count
    width = experts.latent or hidden
    shapes = {"gate_up" if block.gated else "up": ((1 + block.gated) * ffn, width), "down": (width, ffn)}
    tensors = [*linear(f"{at}.router", hidden, count, bias=experts.router_bias)]
    for name, (outer, inner) in shapes.items():
        tensors.append(Tensor(f"{at}.experts.{name}.weight", (count, outer, inner), share))
        tensors += [Tensor(f"{at}.experts.{name}.bias", (count, outer), share)] * block.mlp_bias
    if experts.latent:
        tensors += linear(f"{at}.latent_in", hidden, width, bias=block.mlp_bias)
        tensors += linear(f"{at}.latent_out", width, hidden, bias=block.mlp_bias)
    if experts.shared:
        tensors += _mlp_tensors(block, f"{at}.shared", experts.shared)
        tensors += [Tensor(f"{at}.shared_gate.weight", (1, hidden))] * experts.shared_gate
    return tensors


def _mlp_tensors(block: Block, at: str, ffn: int) -> list[Tensor]:
    names = ("gate_up",) if block.gated and block.one_gate_up else ("up", "gate") if block.gated else ("up",)
    outer = 2 * ffn if block.gated and block.one_gate_up else ffn
    ups = [one for name in names for one in linear(f"{at}.{name}", block.hidden, outer, bias=block.mlp_bias)]
    return [*ups, *linear(f"{at}.down", ffn, block.hidden, bias=block.mlp_bias)]


def mlp_layer(block: Block, name: str) -> Layer:
    """Return the MLP of a block, or its mixture of experts."""
    at = f"{name}.mlp"
    hidden, ffn, tokens, experts = block.hidden, block.ffn, block.tokens, block.experts
    tensors = [*norm_tensors(f"{at}.norm", hidden, block.norm if block.mlp_norm is None else block.mlp_norm)]
    tensors += _mlp_tensors(block, at, ffn) if experts is None else _expert_tensors(block, experts, at)
    tensors += norm_tensors(f"{at}.after", hidden, block.after)
    ups = 2 if block.gated else 1
    passed = 1 if experts is None else experts.routed
    rows = float(tokens * passed)
    matrices = 1 if experts is None else experts.count
    width = hidden if experts is None else experts.latent or hidden
    matmuls = [Matmul(rows, width, ups * ffn, matrices), Matmul(rows, ffn, width, matrices)]
    wide = rows * ffn
    dense = wide if experts is None else float(tokens * experts.shared)
    if experts is not None:
        if experts.latent:
            matmuls += [Matmul(tokens, hidden, width), Matmul(tokens, width, hidden)]
        if experts.shared:
            matmuls += [Matmul(tokens, hidden, ups * experts.shared), Matmul(tokens, experts.shared, hidden)]
            wide += tokens * experts.shared
        passed += bool(experts.shared)
    norm = block.norm if block.mlp_norm is None else block.mlp_norm
    through = float(tokens * hidden * ((norm > 0) + (block.after > 0) or 1))
    kept = Activations(
        # Of experts, the inputs of their first product, too: a copy of each token for each.
        products=tokens * hidden + ups * wide + (rows * width if experts is not None else 0),
        # After four products of attention: the first one, and with a gate the last one, too; of experts, shared ones.
        alternate=dense + tokens * hidden * block.gated * (dense > 0),
        summed=tokens * hidden * block.gated * (dense > 0),
        pointwise=through + wide,
        masks=tokens * hidden if block.dropout else 0,
        # Of a composed GELU, the results of tanh, 1 + tanh, and x / 2.
        separate=through * block.rms + wide * (block.gated + 3 * block.composed),
        widened=through * block.rms,
        stream=tokens * hidden,
        copies=tokens * hidden * (block.gated and not block.one_gate_up and experts is None),
        exchanged=0 if experts is None else 2 * rows * width,
        gathered=tokens * hidden,
        # Of the second product's input, which is let go, and of what that is made of.
        gradients=ups * wide,
    )
    return Layer(
        at,
        tuple(tensors),
        tokens,
        hidden,
        tuple(matmuls),
        routed=rows if experts is not None else 0.0,
        block=name,
        kept=kept,
        dropout=block.dropout,
        form=Form("mlp", block, rms=block.rms),
    )


def stack(blocks: Sequence[Block], prefix: str = "model", first: tuple[Tensor, ...] = ()) -> list[Layer]:
    """Return the layers of blocks in their order; `first`: tensors that only the first attention has."""
    layers = []
    for index, block in enumerate(blocks):
        name = f"{prefix}.layers.{index}"
        more = first if index == 0 else ()
        if block.relative:
            more = (*more, Tensor(f"{name}.attention.positions.weight", (block.width, block.hidden)))
        layers.append(attention_layer(block, name, more=more))
        if block.memory is not None:
            layers.append(attention_layer(block, name, "cross_attention"))
        layers.append(mlp_layer(block, name))
    return layers


def embedding_layer(
    name: str, tokens: int, hidden: int, tensors: tuple[Tensor, ...], *shared: Tensor, dropout: bool = False
) -> Layer:
    """Return a layer that looks tokens up, in tables of its own or shared ones."""
    form = Form("embedding", dropout=dropout)
    return Layer(name, tensors, tokens, hidden, shared=shared, form=form)


def head_layers(
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
    upcast: bool = True,
    more: tuple[Tensor, ...] = (),
) -> list[Layer]:
    """Return the final norm and the output head.

    `rows`: tokens with logits; `dense`: BERT's transform; `upcast`: whether the loss is in FP32 in any precision.
    """
    rows = tokens if rows is None else min(rows, tokens)
    tensors: list[Tensor] = []
    matmuls = []
    if dense:
        tensors += [*linear("model.head.dense", hidden, hidden, bias=True), *norm_tensors("model.head.norm", hidden, 2)]
        matmuls.append(Matmul(rows, hidden, hidden))
    if tied is None:
        tensors.append(Tensor("model.head.weight", (vocabulary, hidden)))
    if bias:
        tensors.append(Tensor("model.head.bias", (vocabulary,)))
    matmuls.append(Matmul(rows, hidden, vocabulary))
    kept = Activations(products=rows * hidden, wide=float(rows) * vocabulary, upcast=upcast, gathered=rows * hidden)
    head = Layer(
        "model.head",
        (*tensors, *more),
        tokens,
        hidden,
        tuple(matmuls),
        logits=float(rows) * vocabulary,
        shared=() if tied is None else (tied,),
        kept=kept,
        form=Form("head", rms=rms, tied=tied is not None, causal=not dense),
    )
    return [final_norm("model.norm", tokens, hidden, norm, rms=rms), head] if norm else [head]


def final_norm(name: str, tokens: int, hidden: int, vectors: int, *, rms: bool) -> Layer:
    """Return the norm behind the last block."""
    through = float(tokens * hidden)
    kept = Activations(inputs=through, separate=through * rms, widened=through * rms, stream=through)
    form = Form("norm", rms=rms)
    return Layer(name, norm_tensors(name, hidden, vectors), tokens, hidden, kept=kept, form=form)
