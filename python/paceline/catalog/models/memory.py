"""Bytes of GPU memory by kind, for a configuration: parameters, gradients, optimizer states, activations.

Activations are counted tensor by tensor and agree with V. Korthikanti et al., "Reducing Activation Recomputation in
Large Transformer Models", 2022: s·b·h·(34 + 5·a·s/h) for a GPT layer in 16 bits with dropout; flash attention keeps no
scores, full checkpointing only a block's input. Selective checkpointing without flash attention is theirs: the
attention core is recomputed. With flash attention, whose core keeps no scores, Megatron recomputes nothing that counts,
and torchtitan keeps the outputs of attention and of every second matrix product of a block (`SelectiveAC` in
`activation_checkpoint.py`).

In the backward pass of the loss, PyTorch's cross-entropy has two more copies of the logits in FP32, the gradients of
its result and of its argument. A fused one has the logits and their gradient, which eager models convert to FP32
before; in chunks, only those of a chunk exist, with the copies of PyTorch's. The gradient of the head's matrix is made
when these copies have been let go.

Autocast leaves the residual stream in FP32, keeps an input once for each product that takes it, and the weights that it
has converted: for the backward pass, or with checkpointing until the forward pass has ended (`cached_cast` in ATen's
autocast_mode.cpp).

Tensor-parallel GPUs share everything evenly, with one exception: where PyTorch's modules do it (DTensor, so with any
kernels but fused ones), each keeps the inputs that it has gathered for its products, which are whole. Megatron gathers
them again in the backward pass (Korthikanti, section 4.2.2). DTensor's cross-entropy (`loss_parallel`) has three more
copies of its share of the logits, not two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from paceline.catalog import names
from paceline.catalog.models.exchanges import element_bytes
from paceline.catalog.models.layers import Layer, Model, Tensor
from paceline.catalog.models.traits import MEGATRON, TRANSFORMER_ENGINE
from paceline.catalog.names import Attention as AttentionKind
from paceline.catalog.names import Kernels
from paceline.catalog.optimizers import States
from paceline.catalog.optimizers import states_each as average_states
from paceline.catalog.recipes import Recipe, dtype_bytes, recipe_of
from paceline.errors import InvalidArgumentError

Checkpointing = names.Checkpointing
Optimizer = names.Optimizer
SHARDINGS = ("none", "zero1", "zero2", "zero3")


@dataclass(frozen=True)
class Computation:
    """How the layers of a model are computed, as far as it concerns their memory."""

    precision: str = "bf16"
    attention: AttentionKind = "flash"
    """Only `unfused` keeps scores."""
    kernels: Kernels = "fused"
    checkpointing: Checkpointing = "none"
    """`full` keeps the inputs of blocks; `selective` recomputes what is cheap."""
    tensor: int = 1
    """Tensor-parallel GPUs."""
    autocast: bool = False
    """Whether the residual stream is in FP32, and weights are converted."""
    wide_loss: bool | None = None
    """Whether the loss is in FP32, as by autocast; None: where the model converts its logits."""
    loss_chunks: int | None = None
    """Chunks of a fused loss; None: it is not fused."""
    expert: int = 1
    """GPUs that have a part each of the experts."""
    only_scores: bool = False
    """Whether selective checkpointing recomputes scores alone, as Megatron's: with flash attention nothing."""
    offloads: bool = False
    """Whether the CPU's memory has what blocks keep, with checkpointing their inputs."""
    kept: Callable[[Layer], int] | None = field(default=None, compare=False)
    """The bytes that a layer keeps without checkpointing, where frozen weights need less than by the rules below."""

    @property
    def stream_bytes(self) -> int:
        """Of a value of the residual stream."""
        return 4 if self.autocast else element_bytes(self.precision)

    @property
    def pointwise_bytes(self) -> int:
        """Of what norms and activation functions write: Transformer Engine's write the 8 bits that products read."""
        is_narrow = self.precision == "fp8" and self.kernels == TRANSFORMER_ENGINE
        return 1 if is_narrow else element_bytes(self.precision)

    @property
    def is_by_operator(self) -> bool:
        """Whether checkpointing keeps every second product and attention, as torchtitan's does."""
        return self.checkpointing == "selective" and self.attention != "unfused" and not self.only_scores

    @property
    def is_gathered(self) -> bool:
        """Whether each tensor-parallel GPU keeps whole inputs of products."""
        return self.tensor > 1 and self.kernels not in MEGATRON


def activation_bytes(layer: Layer, computed: Computation) -> int:
    """Return the bytes that all GPUs of a rank keep of a layer for its backward pass, per sample."""
    if computed.offloads and layer.block:
        return 0
    size, kept = element_bytes(computed.precision), layer.kept
    attention, checkpointing = computed.attention, computed.checkpointing
    wider = computed.stream_bytes - size
    if checkpointing == "full" and layer.block:
        return round(kept.inputs * (size + wider))
    if computed.kept is not None and layer.logits:
        # Only the gradient of the head's matrix needs what it is multiplied by.
        kept = kept if any(one.trains for one in (*layer.tensors, *layer.shared)) else replace(kept, products=0.0)
    elif computed.kept is not None:
        # Adapters keep more than the rules count; what is frozen never does.
        by_rules = activation_bytes(layer, replace(computed, kept=None))
        own = computed.kept(layer)
        has_adapter = any(tensor.is_of_adapter for tensor in layer.tensors)
        return own if has_adapter and checkpointing != "selective" else min(own, by_rules)
    total = (kept.inputs + kept.products) * size + kept.wide * _kept_of_logits(layer, computed)
    if attention != "unfused" and kept.scores:
        # The log-sum-exp of each query, in FP32.
        total += 4 * (layer.attention.heads * layer.attention.queries if layer.attention else 0)
    if computed.is_by_operator and layer.block:
        total += (kept.alternate - kept.products) * size + kept.inputs * wider
        total += kept.exchanged * size if computed.expert > 1 else 0
        if computed.is_gathered:
            # The sums' shards are kept as well.
            total += ((computed.tensor - 1) * kept.summed + kept.gathered) * size
        return round(total)
    if computed.is_gathered:
        total += (computed.tensor - 1) * kept.gathered * size
    total += kept.stream * wider + kept.pointwise * computed.pointwise_bytes + kept.masks
    if checkpointing == "selective" and layer.block and attention == "unfused":
        return round(total)
    if computed.kernels == "eager":
        total += kept.separate * size + kept.widened * max(0, 4 - size) + kept.copies * size * computed.autocast
    if attention == "unfused":
        # Softmax, in autocast in FP32 with a copy; with dropout, its mask and its output, too.
        again = size if layer.dropout or computed.autocast else 0
        total += kept.scores * (size + wider + again + layer.dropout) + kept.capped * size
    return round(total)


def converted_bytes(layer: Layer, computed: Computation) -> int:
    """Return the bytes of the weights that autocast converts for a layer's products, whatever the batch."""
    is_frozen = computed.kept is not None and bool(layer.block)
    if not (computed.autocast and layer.matmuls) or is_frozen:
        return 0
    matrices = sum(one.size for one in (*layer.tensors, *layer.shared) if len(one.shape) > 1)
    return matrices * element_bytes(computed.precision)


def cached_bytes(layers: Sequence[Layer], computed: Computation) -> int:
    """Return the bytes of a batch that the end of the forward pass needs beyond the backward pass that begins then.

    With checkpointing, weights that autocast has converted are let go when the forward pass has ended.
    """
    return sum(converted_bytes(layer, computed) for layer in layers if is_recomputed(layer, computed))


def is_recomputed(layer: Layer, computed: Computation) -> bool:
    """Whether checkpointing recomputes a layer."""
    return bool(layer.block) and computed.checkpointing != "none"


def forward_loss_bytes(layer: Layer, computed: Computation) -> int:
    """Return the bytes per sample that the loss's forward pass needs beyond what is kept: logits, and in FP32."""
    if computed.loss_chunks is not None or computed.kernels in MEGATRON:
        return 0
    return round(layer.logits * (element_bytes(computed.precision) + _loss_bytes(layer, computed)))


def loss_apart_bytes(layer: Layer, computed: Computation) -> int:
    """Return the bytes per sample of the loss's tensors that do not exist at once: logits, and three copies of them.

    They are the converted ones, those without the last token, and a gradient. Not of a loss in chunks, of Megatron's,
    and of a compiled one.
    """
    is_whole = computed.loss_chunks == 1 or (computed.loss_chunks is None and computed.kernels not in MEGATRON)
    if not is_whole or computed.kernels == "compiled":
        return 0
    each = element_bytes(computed.precision) + 3 * _loss_bytes(layer, computed)
    return round(layer.logits * max(0.0, each - _kept_of_logits(layer, computed) - _of_logits(layer, computed)))


def backward_bytes(layers: Sequence[Layer], computed: Computation) -> list[int]:
    """Return the bytes that only the backward pass of each layer needs on all GPUs of a rank, per sample.

    With checkpointing, a block is recomputed: until the backward pass has passed one of its layers, what this layer and
    those before it do not keep exists again. The loss needs copies of the logits.
    """
    needs, block, again = [], "", 0
    first = next((layer.block for layer in layers if layer.block), "")
    plain, stays = replace(computed, checkpointing="none", offloads=False), replace(computed, offloads=False)
    known: dict[int, tuple[int, int, int]] = {}
    for layer in layers:
        again, block = (again if layer.block == block else 0), layer.block
        if layer.kind not in known:
            recomputed = on_way = 0
            if block and computed.checkpointing != "none":
                recomputed = activation_bytes(layer, plain) - activation_bytes(layer, computed)
            if block and computed.offloads:
                on_way = activation_bytes(layer, stays)
            own = _gradient_bytes(layer, computed) + round(layer.logits * _of_logits(layer, computed))
            known[layer.kind] = recomputed, on_way, own
        recomputed, on_way, own = known[layer.kind]
        # The next block's, on their way from the CPU; without checkpointing, also this one's.
        again += recomputed + on_way * ((block != first) + (computed.checkpointing == "none"))
        needs.append(again + own)
    return needs


def _gradient_bytes(layer: Layer, computed: Computation) -> int:
    """Return the bytes of gradients of activations in the backward pass of a block's layer, per sample."""
    if not layer.block:
        return 0
    through, most = layer.tokens * layer.hidden, layer.kept.gradients
    if computed.is_gathered:
        # The gradients of a sum and of gathered inputs are whole on every GPU.
        whole = computed.tensor * layer.kept.gathered
        most = max(most, whole + most / 2, 2 * whole)
    return round(most * element_bytes(computed.precision) + through * computed.stream_bytes)


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU at the peak of an iteration, by kind."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    """Parameters of the units that ZeRO-3 has gathered, and gradients not yet scattered."""
    activations: int
    loss: int
    """Bytes that only the backward pass of the last layer needs: copies of the logits."""

    @property
    def total(self) -> int:
        """All kinds together."""
        return self.parameters + self.gradients + self.optimizer + self.gathered + self.activations + self.loss


def memory_of(
    model: Model,
    computed: Computation,
    *,
    batch: int,
    sharding: str = "none",
    group: int = 1,
    optimizer: Optimizer = "adam",
    recipe: Recipe | None = None,
    units_in_flight: int = 2,
    activations: int | None = None,
    held_bytes: int | None = None,
    elements: Callable[[Tensor], int] | None = None,
    states_each: States | None = None,
) -> Memory:
    """Return the memory of all GPUs of a rank.

    Args:
        model: The model, at its sequence length.
        computed: How it is computed.
        batch: Samples of a microbatch.
        sharding: `none`, `zero1` (optimizer states), `zero2` (gradients, too) or `zero3` (parameters, too).
        group: Ranks that share a copy; with `none`, more than one makes DDP's buckets.
        optimizer: One of `paceline.catalog.optimizers.KINDS`.
        recipe: Types of parameters, gradients and states; by default the usual ones of the precision.
        units_in_flight: Blocks that are gathered at once with `zero3`.
        activations: Bytes that are kept for the backward pass, if not what all layers keep of a microbatch.
        held_bytes: Of all parameters, where not all are held in the recipe's type.
        elements: Of a trained parameter, in the recipe's type; by default its size.
        states_each: Bytes of states for each of these elements, if not those of the optimizer by the recipe.

    Raises:
        InvalidArgumentError: An unknown sharding.
    """
    if sharding not in SHARDINGS:
        raise InvalidArgumentError(f"unknown sharding '{sharding[:80]}'", remedy=f"one of {', '.join(SHARDINGS)}")
    level = SHARDINGS.index(sharding)
    recipe = recipe or recipe_of(None, computed.precision)
    recipe = recipe.sharded if level >= 3 else recipe
    size, gathered = dtype_bytes(recipe.parameters), dtype_bytes(recipe.gathered)
    held = model.parameters * size if held_bytes is None else held_bytes
    summed = dtype_bytes(recipe.gradients)
    count = model.trained_parameters
    if elements is not None:
        count = sum(elements(tensor) for layer in model.layers for tensor in layer.trained)
    if states_each is None:
        states_each = average_states(optimizer, model.trained_alike, recipe)
    states = math.ceil(count * states_each.resident)
    unit = largest_unit(model)
    if activations is None:
        activations = batch * sum(activation_bytes(layer, computed) for layer in model.layers)
    last = [layer for layer in model.layers if layer.block == model.layers[-1].block]
    return Memory(
        parameters=-(-held // (group if level >= 3 else 1)),
        # DDP's buckets hold a copy.
        gradients=-(-count * summed // (group if level >= 2 else 1)) * (2 if level == 0 and group > 1 else 1),
        optimizer=-(-states // (group if level >= 1 else 1)),
        # Parameters of the units in flight, and the gradients of one.
        gathered=unit * gathered * (units_in_flight + 1) if level >= 3 and group > 1 else 0,
        activations=activations,
        # What is recomputed before it is of its own block.
        loss=batch * backward_bytes(last, computed)[-1],
    )


def largest_unit(model: Model) -> int:
    """Return the parameters of the largest unit: a block, or what belongs to none."""
    units: dict[str, int] = {}
    for layer in model.layers:
        units[layer.block] = units.get(layer.block, 0) + layer.parameters
    return max(units.values())


def _loss_bytes(layer: Layer, computed: Computation) -> int:
    """Return the bytes of a logit as PyTorch's loss takes it: autocast, and most models, convert it to FP32."""
    is_wide = layer.kept.upcast if computed.wide_loss is None else computed.wide_loss
    return 4 if is_wide else element_bytes(computed.precision)


def _kept_of_logits(layer: Layer, computed: Computation) -> int:
    """Return the bytes of a logit that are kept for the loss's backward pass."""
    if computed.kernels in MEGATRON:
        # Its cross-entropy is in FP32.
        return 4 if (computed.loss_chunks or 1) == 1 else 0
    if computed.loss_chunks is None:
        return _loss_bytes(layer, computed)
    if computed.loss_chunks > 1:
        return 0
    # What is compiled converts them on the way.
    return _loss_bytes(layer, computed) if computed.kernels == "eager" else element_bytes(computed.precision)


def _of_logits(layer: Layer, computed: Computation) -> float:
    """Return the bytes of a logit in the loss's backward pass, beyond what is kept."""
    size, own = element_bytes(computed.precision), _loss_bytes(layer, computed)
    if (computed.loss_chunks or 1) > 1:
        return (size + 3 * own) / (computed.loss_chunks or 1)
    if computed.loss_chunks == 1:
        # Transformers converts logits before a fused kernel has them.
        return size if computed.kernels == "compiled" else own
    if computed.kernels in MEGATRON:
        return size
    # The gradients of the result and of the argument; DTensor's has a third copy.
    return own * (3 if computed.is_gathered else 2)
