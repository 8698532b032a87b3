"""The layers of a model in order of execution: tensors, matrix products, attention, and form.

Everything is per sample: a sample is one sequence, or one image. Shapes are what torch's modules have, so that counts
of parameters agree with published ones exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

from paceline.catalog.models.traits import Experts, Form
from paceline.catalog.optimizers import is_matrix

SAVED = "modules_to_save"
"""Part of the names of trained copies beside adapters (`ModulesToSaveWrapper` in peft/utils/other.py)."""


def is_saved(name: str) -> bool:
    """Whether a parameter is the trained copy of a module beside adapters."""
    return f".{SAVED}." in name


@dataclass(frozen=True)
class Tensor:
    """A parameter."""

    name: str
    shape: tuple[int, ...]
    active: float = 1.0
    """Share of it that a token uses: below 1 for experts."""
    trains: bool = True
    """Whether it has a gradient."""
    unquantized: bool = False
    """Whether quantization leaves it as it is."""

    @property
    def is_of_experts(self) -> bool:
        """Whether it is of experts of a mixture: a part of its path is `experts`."""
        return "experts" in self.name.split(".")

    @property
    def is_of_adapter(self) -> bool:
        """Whether it is one of the matrices that an adapter adds to a weight."""
        return ".lora_" in self.name

    @property
    def is_saved(self) -> bool:
        """Whether it is the trained copy of a module beside adapters."""
        return is_saved(self.name)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Matmul:
    """Rows times a matrix of `inner` by `outer`."""

    rows: float
    inner: int
    outer: int
    matrices: int = 1
    """Experts among which the rows are divided."""

    @property
    def flops(self) -> float:
        """Of the forward pass; the backward pass has twice as many."""
        return 2.0 * self.rows * self.inner * self.outer


@dataclass(frozen=True)
class Attention:
    """Scaled dot-product attention of one layer."""

    queries: int
    keys: int
    heads: int
    head_size: int
    causal: bool
    exchanged: int = 0
    """Elements of a token's keys and values, all heads; 0 where they are of other tokens than the queries."""
    relative: bool = False
    """Whether queries are multiplied by encodings of relative positions, too, and both scores added."""

    @property
    def scores(self) -> float:
        """Scores of one sample, all heads, without regard to the mask."""
        return float(self.heads) * self.queries * self.keys * (2 if self.relative else 1)

    @property
    def flops(self) -> float:
        """Of the forward pass over all scores: queries times keys (and positions), and weights times values."""
        pairs = float(self.heads) * self.queries * self.keys
        return (6.0 if self.relative else 4.0) * pairs * self.head_size


@dataclass(frozen=True)
class Activations:
    """Elements kept for the backward pass, per sample, by what happens to them under checkpointing."""

    inputs: float = 0.0
    """Inputs of the block: kept even with full checkpointing."""
    products: float = 0.0
    """Outputs of matrix products and of flash attention: kept with Korthikanti's selective checkpointing."""
    alternate: float = 0.0
    """Kept by torchtitan's selective checkpointing: outputs of attention and of a block's products 1, 3, 5 and 7.

    Grouped products of experts are not on its list (`aten._grouped_mm`), and are recomputed."""
    summed: float = 0.0
    """Of `alternate`, parts of sums that every tensor-parallel GPU has whole."""
    pointwise: float = 0.0
    """Outputs of norms and activation functions, which are cheap to recompute."""
    masks: float = 0.0
    """Dropout masks, one byte each."""
    scores: float = 0.0
    """Attention scores, for which unfused attention keeps 2 elements and a mask each (with dropout), or 1 element."""
    capped: float = 0.0
    """Of those, the results of tanh that bounds them, which unfused attention keeps, too."""
    separate: float = 0.0
    """Bytes that eager kernels keep besides: values that RMSNorm has normalized, activations that a gate multiplies."""
    widened: float = 0.0
    """Inputs of RMSNorm, which eager kernels keep in FP32 instead."""
    stream: float = 0.0
    """Of all those, values of the residual stream, which autocast leaves in FP32."""
    copies: float = 0.0
    """Elements that autocast converts again, as eager kernels do for each product of the same input."""
    exchanged: float = 0.0
    """Results of exchanges with other GPUs' experts, which torchtitan's selective checkpointing keeps."""
    gathered: float = 0.0
    """Inputs of products that every tensor-parallel GPU has whole; as many outputs of others are summed to shards."""
    gradients: float = 0.0
    """Gradients of activations that exist at a time in the backward pass of the layer, less what it has let go."""
    wide: float = 0.0
    """Logits of the loss."""
    upcast: bool = True
    """Whether the model converts them to FP32, as transformers' causal language models do (`ForCausalLMLoss`)."""


@dataclass(frozen=True)
class Layer:
    """One step of the forward pass."""

    name: str
    tensors: tuple[Tensor, ...]
    tokens: int
    """Tokens of a sample that pass through it."""
    hidden: int
    """Width of the residual stream."""
    matmuls: tuple[Matmul, ...] = ()
    attention: Attention | None = None
    mixed_flops: float = 0.0
    """Of a sample's other products of activations, in the forward pass: those of scans by chunks."""
    logits: float = 0.0
    """Logits of a sample, for the loss."""
    routed: float = 0.0
    """Rows of a sample that go to experts: every token as often as it is routed."""
    block: str = ""
    """The block that checkpointing and sharding treat as one; empty for embeddings and heads."""
    shared: tuple[Tensor, ...] = ()
    """Tensors of an earlier layer that it also uses, such as tied embeddings."""
    kept: Activations = field(default_factory=Activations)
    dropout: bool = False
    form: Form = field(default_factory=Form)
    passes: bool = True
    """Whether its backward pass hands a gradient on to the layer before."""

    @cached_property
    def parameters(self) -> int:
        """Number of its own parameters."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def experts(self) -> Experts | None:
        """The mixture of experts; None if it is none."""
        return self.form.block.experts if self.routed and self.form.block is not None else None

    @property
    def mixing_flops(self) -> float:
        """Of a sample's products of activations, in the forward pass."""
        return self.mixed_flops + (0.0 if self.attention is None else self.attention.flops)

    @cached_property
    def trained(self) -> tuple[Tensor, ...]:
        """Its own parameters that have a gradient."""
        return tuple(tensor for tensor in self.tensors if tensor.trains)

    @property
    def has_backward(self) -> bool:
        """Whether something in it or before it is trained."""
        return self.passes or bool(self.trained)

    @cached_property
    def kind(self) -> int:
        """A number that layers share which differ only in their names, as those of most blocks do."""
        alike = replace(self, name="", tensors=(), shared=(), block="block" * bool(self.block))
        own, shared = (
            tuple((tensor.shape, tensor.trains, tensor.active, tensor.unquantized) for tensor in tensors)
            for tensors in (self.tensors, self.shared)
        )
        if len(_KINDS) >= _MOST_KINDS:
            _KINDS.clear()
        return _KINDS.setdefault((alike, own, shared), next(_NUMBERS))


_KINDS: dict[object, int] = {}
_NUMBERS = count()
_MOST_KINDS = 4096
"""Numbers are never used twice: when the table is emptied, equal layers that come later have other ones."""


def _with_part_of_experts(layer: Layer, ways: int) -> Layer:
    """Return a layer with one of `ways` parts of its experts, to which the tokens of as many ranks come."""
    if not layer.routed:
        return layer
    return replace(layer, tensors=tuple(_part(tensor, ways) for tensor in layer.tensors))


def _part(tensor: Tensor, ways: int) -> Tensor:
    if not tensor.is_of_experts:
        return tensor
    return replace(tensor, shape=(tensor.shape[0] // ways, *tensor.shape[1:]), active=tensor.active * ways)


@dataclass(frozen=True)
class Model:
    """A model at one sequence length."""

    name: str
    family: str
    layers: tuple[Layer, ...]
    sequence: int
    """Tokens of a sample: of the encoder's input where there is one; patches for images."""
    architecture: str = ""
    """The class that it is, which has its head."""
    notes: tuple[str, ...] = ()
    """Assumptions where the file is silent, and parts of it that are left out."""
    largest: str = ""
    """The user's file and its field with the largest size, for errors about what the model takes; empty if built in."""

    def tensors(self) -> Iterator[Tensor]:
        """Yield every parameter once."""
        for layer in self.layers:
            yield from layer.tensors

    @cached_property
    def parameters(self) -> int:
        """Number of parameters; tied ones count once."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def trained_parameters(self) -> int:
        """Number of parameters that have a gradient."""
        return sum(tensor.size for layer in self.layers for tensor in layer.trained)

    @cached_property
    def trained_alike(self) -> tuple[tuple[str, tuple[int, ...], int], ...]:
        """Name and shape of one trained tensor of each kind that optimizers treat alike, and how many there are."""
        names: dict[tuple[bool, bool, tuple[int, ...]], str] = {}
        counts: Counter[tuple[bool, bool, tuple[int, ...]]] = Counter()
        for layer in self.layers:
            for tensor in layer.trained:
                kind = is_matrix(tensor.name, tensor.shape), tensor.is_saved, tensor.shape
                names.setdefault(kind, tensor.name)
                counts[kind] += 1
        return tuple((name, kind[-1], counts[kind]) for kind, name in names.items())

    @property
    def is_frozen(self) -> bool:
        """Whether a part of it has no gradient."""
        return self.trained_parameters < self.parameters

    @cached_property
    def _with_parts(self) -> dict[int, Model]:
        return {1: self}

    def with_part_of_experts(self, ways: int) -> Model:
        """Return the model with one of `ways` parts of its experts; the same one for the same number."""
        if ways not in self._with_parts:
            layers = tuple(_with_part_of_experts(layer, ways) for layer in self.layers)
            self._with_parts[ways] = replace(self, layers=layers)
        return self._with_parts[ways]

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that a token uses: of a mixture of experts, the routed share."""
        return round(sum(tensor.size * tensor.active for tensor in self.tensors()))

    @cached_property
    def has_experts(self) -> bool:
        """Whether some of its layers are mixtures of experts."""
        return any(one.matrices > 1 for layer in self.layers for one in layer.matmuls)

    @cached_property
    def flops(self) -> float:
        """Model FLOPs of one sample, forward and backward.

        6 per parameter and token, and 12 times width, queries and keys for attention, masked or not: PaLM's convention
        (A. Chowdhery et al., 2022, appendix B). Recomputation does not count. A frozen parameter has 4, as its own
        gradient is not computed, and 2 if nothing before it is trained.
        """
        dense = sum(
            2.0 * (1 + layer.has_backward + tensor.trains) * tensor.size * tensor.active * layer.tokens
            for layer in self.layers
            for tensor in layer.tensors
        )
        return dense + sum((1.0 + 2 * layer.has_backward) * layer.mixing_flops for layer in self.layers)

    @cached_property
    def forward_flops(self) -> float:
        """Those of the forward pass."""
        dense = sum(2.0 * one.size * one.active * layer.tokens for layer in self.layers for one in layer.tensors)
        return dense + sum(layer.mixing_flops for layer in self.layers)
