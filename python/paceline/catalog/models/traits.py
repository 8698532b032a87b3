"""Traits of the blocks of transformers, by which their tensors, operators and activations are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.catalog import names
from paceline.catalog.models.steps import Step

TRANSFORMER_ENGINE: names.Kernels = "transformer-engine"
MEGATRON: tuple[names.Kernels, ...] = ("fused", TRANSFORMER_ENGINE)
"""Kernels of Megatron-LM, whose pipelines, losses and gathered activations are its own; others are PyTorch's."""
Activation = Literal["gelu", "silu", "relu", "relu2"]
"""Activation functions of MLPs."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts instead of one MLP: each token passes a few of them."""

    count: int
    routed: int
    """Experts that a token passes."""
    shared: int = 0
    """Width of the expert that all tokens pass; 0 for none."""
    shared_gate: bool = False
    router_bias: bool = False
    latent: int = 0
    """Width of what routed experts read and write, between two products that all tokens pass; 0: that of the stream."""
    groups: int = 1
    """Equal groups of neighboring experts, of which a token may choose from a few."""
    chosen_groups: int = 1
    """Groups from which a token chooses (DeepSeek-AI, DeepSeek-V3, 2024, section 2.1.2, node-limited routing)."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-AI, DeepSeek-V2, 2024, section 2.1)."""

    kv_rank: int
    """Width of the vector of which keys and values are made."""
    q_rank: int
    """Likewise of queries; 0: they are made of the residual stream."""
    plain: int
    """Of each head's queries and keys, dimensions without positions."""
    rotary: int
    """Those with positions; all heads share those of keys."""
    value: int
    """Dimensions of each head's values."""


@dataclass(frozen=True)
class Block:
    """Traits that the blocks of a family share."""

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
    k_bias: bool = True
    """Whether keys have a bias where queries and values have one."""
    out_bias: bool = True
    mlp_bias: bool = True
    norm: int = 2
    """Vectors of a norm: 2 with a bias, 1 without, 0 for no norm of its own."""
    mlp_norm: int | None = None
    rms: bool = False
    """Whether norms are RMSNorm, which eager PyTorch composes of several operators."""
    qk_norm: Literal["none", "head", "whole"] = "none"
    """Whether queries and keys are normalized, each head alike or all heads as one vector."""
    after: int = 0
    """Vectors of a norm of what attention and the MLP add to the residual stream; 0 for none."""
    sinks: bool = False
    """Whether each head has a score for attending to nothing."""
    latent: Latent | None = None
    """Keys, values and queries made of narrower vectors; `kv_heads` and `head_size` are not used then."""
    dropout: bool = False
    window: int | None = None
    composed: bool = False
    """Whether eager kernels compose the activation function, a GELU by tanh, of several operators (GPT-2's)."""
    one_gate_up: bool = False
    """Whether one matrix makes what a gate multiplies."""
    experts: Experts | None = None
    memory: int | None = None
    """Tokens of the encoder's output, for cross-attention."""
    cached: int = 0
    """Tokens before the sequence whose hidden states are kept and attended to, without gradients."""
    relative: bool = False
    """Relative positions, as in Transformer-XL."""
    rotary: float = 0.0
    """Share of a head's dimensions that rotary positions turn; 0: none."""
    activation: Activation = "gelu"
    post_norm: bool = False
    """Whether norms follow the residual sums, as in BERT, instead of preceding attention and the MLP."""
    attention_dropout: bool = False
    capped: bool = False
    """Whether scores are bounded by tanh (`attn_logit_softcapping`), which unfused attention alone does."""
    offset: bool = False
    """Whether norms multiply by one plus their weight, as Gemma's."""
    transposed: bool = False
    """Whether weights are held inner by outer, as GPT-2's Conv1D has them."""
    position_bias: Literal["none", "fixed", "learned"] = "none"
    """Whether a bias of positions is added to the scores: ALiBi's, which is fixed, or T5's."""

    @property
    def width(self) -> int:
        """Of all heads' queries."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Of all heads' keys, and of their values."""
        return self.kv_heads * self.head_size


@dataclass(frozen=True)
class Form:
    """The form of a layer, by which its operators are known."""

    role: Literal["attention", "cross-attention", "mlp", "embedding", "norm", "head", "plain", "steps"] = "plain"
    block: Block | None = None
    """Traits of the block that it is in."""
    rms: bool = False
    """Whether its norms are RMSNorm."""
    dropout: bool = False
    """Whether it ends in dropout: embeddings."""
    tied: bool = False
    """Whether its table is that of the embedding, too."""
    causal: bool = False
    """Whether the loss is that of the next token, in FP32; otherwise, it is in the dtype of the logits."""
    steps: tuple[Step, ...] = ()
    """The step that it is, with the role `steps`."""
    selects: bool = False
    """Whether its result chooses what others read, so that no gradient passes it."""
