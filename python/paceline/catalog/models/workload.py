"""A model on a GPU with options becomes a workload: durations by layer, a trace, memory, and figures such as MFU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Literal

from paceline import _core
from paceline._core import Gradient, Trace, Worker
from paceline._internal import units
from paceline.catalog import names
from paceline.catalog.adapters import Adapter, is_quantized, linear_name, quantized_bytes
from paceline.catalog.gpus import Hardware
from paceline.catalog.losses import LOSSES
from paceline.catalog.models.dispatch import deepep_s
from paceline.catalog.models.exchanges import Links, all_reduce_s, all_to_all_s, element_bytes, pass_around_s
from paceline.catalog.models.layers import Attention, Layer, Model, Tensor, is_saved
from paceline.catalog.models.memory import (
    Checkpointing,
    Computation,
    Memory,
    Optimizer,
    activation_bytes,
    backward_bytes,
    cached_bytes,
    converted_bytes,
    forward_loss_bytes,
    is_recomputed,
    loss_apart_bytes,
    memory_of,
)
from paceline.catalog.models.modules import Setting
from paceline.catalog.models.pipeline import blocks_of_parts, in_flight
from paceline.catalog.models.timing import Spent, spent_before, spent_by, spent_on_update
from paceline.catalog.models.traits import MEGATRON, TRANSFORMER_ENGINE
from paceline.catalog.models.updates import update_of
from paceline.catalog.names import Attention as AttentionKind
from paceline.catalog.names import Kernels, OptimizerImpl
from paceline.catalog.offload import PARAMETERS, STATES, Offload
from paceline.catalog.optimizers import IN_BACKWARD, KINDS, States, states_each, states_of
from paceline.catalog.recipes import Recipe, dtype_bytes, recipe_of
from paceline.errors import InvalidArgumentError
from paceline.operators.constants import constant as operator_constant
from paceline.operators.machine import Machine
from paceline.operators.queues import Program


@dataclass(frozen=True)
class Timed:
    """A layer with its durations in seconds, for the whole batch of an iteration."""

    layer: Layer
    forward_s: float
    backward_s: float
    """With what is recomputed."""
    activation_bytes: int
    """Kept for the backward pass, per sample."""
    exchange_s: float = 0.0
    """Of both passes: all-reduces between tensor-parallel GPUs, or of what goes to experts and back."""
    context_s: float = 0.0
    """Of both passes: waiting for keys and values of other parts of the sequence."""


@dataclass(frozen=True)
class Workload:
    """A model on one GPU. Made by `paceline.catalog.models.spec.workload_of`, which checks the options."""

    model: Model
    hardware: Hardware
    batch: int
    """Samples of one forward and backward pass; with a pipeline, of a microbatch."""
    precision: str = "bf16"
    attention: AttentionKind = "flash"
    checkpointing: Checkpointing = "none"
    kernels: Kernels = "fused"
    optimizer: Optimizer = "adam"
    tensor: int = 1
    """GPUs that share every layer."""
    pipeline: int = 1
    """Stages, of consecutive blocks."""
    microbatches: int = 1
    """Of an iteration, with a pipeline."""
    virtual_stages: int = 1
    """Parts of the model that each stage of an interleaved pipeline has."""
    expert: int = 1
    """GPUs that have a part each of the experts of every layer."""
    context: int = 1
    """Data-parallel ranks that share every sample, each with a part of its tokens."""
    links: Links | None = None
    """Over which tokens come to experts, keys and values to queries, and sums to tensor-parallel GPUs of other nodes.

    None: to none on other GPUs.
    """
    dispatch: names.ExpertDispatch = "alltoall"
    """The dispatcher that sends tokens to experts on other GPUs."""
    recipe: Recipe = field(default_factory=lambda: recipe_of(None, "bf16"))
    """Types of parameters, gradients and optimizer states; its computation is that of `precision`."""
    optimizer_impl: OptimizerImpl = "fused"
    loss_chunks: int | None = None
    """Chunks of tokens in which a fused cross-entropy computes logits, one at a time; None: it is not fused."""
    wide_loss: bool | None = None
    """Whether cross-entropy is in FP32; None: where the model converts its logits."""
    offloads: bool = False
    """Whether the CPU's memory has what blocks keep for the backward pass, with checkpointing their inputs."""
    reentrant: bool = False
    """Whether full checkpointing is torch's reentrant one, and what gathers units FSDP1."""
    offload: Offload | None = None
    """Other parts that the host has instead of the GPU."""
    loss: names.Loss = "lm"
    """Of `paceline.catalog.losses`, by which more passes than one are made."""
    real_tokens: float = 1.0
    """Share of the tokens that are no padding."""
    flash: Literal[0, 1, 2] = 0
    """The version of FlashAttention that a library brings; 0: the kernel that torch chooses today."""
    gathered: Literal[0, 1, 2] = 0
    """The version of FSDP that gathers parameters for each pass of a microbatch; 0: none does."""
    adapter: Adapter | None = None
    """Adapters beside weights that are not trained; None: what is trained is trained itself."""
    quantization: names.Quantization | None = None
    """How weights beside adapters are held; None: in 16 bits."""
    quantized_precision: str = ""
    """Of products by quantized weights, `bf16` or `fp16`, where all else is FP32; empty: that of all products."""
    cuda_graphs: bool = False
    """Whether the host launches CUDA graphs of blocks, except for their routed experts."""
    source: str = field(default="", compare=False)

    @property
    def gpus(self) -> int:
        """GPUs of a data-parallel rank."""
        return self.tensor * self.pipeline

    @property
    def peak_flops(self) -> float:
        """FLOPs per second of a GPU, in the precision of its products.

        Where attention in FP32 takes Tensor Cores, its FLOPs have their peak and all others that of the CUDA cores.
        With quantized weights that are multiplied in 16 bits, it is the peak of these.
        """
        if self.quantized_precision:
            return self.hardware.peak(self.quantized_precision)
        peak = self.hardware.peak(self.precision)
        higher = Machine(self.hardware).float_attention_peak
        if self.precision != "fp32" or self.attention == "unfused" or higher <= peak:
            return peak
        attention = sum(
            (1 + 2 * layer.has_backward) * layer.attention.flops
            for layer in self.model.layers
            if layer.attention is not None
        )
        share = attention / self.model.flops
        return 1 / ((1 - share) / peak + share / higher)

    @property
    def tensor_nodes(self) -> int:
        """Nodes of the GPUs that share a layer."""
        per_node = self.tensor if self.links is None or self.links.nodes is None else self.links.gpus_per_node
        return max(1, self.tensor // per_node)

    @property
    def expert_ranks(self) -> int:
        """Data-parallel ranks that have a part each of the experts."""
        return max(1, self.expert // self.tensor)

    @property
    def has_exchanges(self) -> bool:
        """Whether GPUs exchange something within its computation."""
        return max(self.tensor, self.expert, self.context) > 1

    @property
    def own(self) -> Model:
        """The model as a rank has it: of the experts, its part."""
        return self.model.with_part_of_experts(self.expert_ranks)

    @property
    def samples(self) -> int:
        """Samples of a data-parallel rank in an iteration."""
        return self.batch * self.microbatches

    @cached_property
    def computed(self) -> Computation:
        """How layers are computed, as far as it concerns their memory."""
        return Computation(
            self.precision,
            self.attention,
            self.kernels,
            self.checkpointing,
            self.tensor,
            self._has_wide_stream,
            True if self.recipe.autocast else self.wide_loss,
            self.loss_chunks,
            self.expert,
            self.recipe.name == "megatron",
            self.offloads,
            self._kept_beside_frozen if self.model.is_frozen else None,
        )

    def _kept_beside_frozen(self, layer: Layer) -> int:
        """Return the bytes per sample that a rank's GPUs keep of a layer without checkpointing, if some is frozen.

        They are those of the values that autograd saves. What torch.compile makes of several operators keeps neither
        what a norm reads in FP32 nor the results of an activation that a gate multiplies.
        """
        known = self._known_kept.get(layer.kind)
        if known is None:
            known = self._known_kept[layer.kind] = self._kept_by_autograd(layer)
        return known

    @cached_property
    def _known_kept(self) -> dict[int, int]:
        """Of each kind of layer."""
        return {}

    def _kept_by_autograd(self, layer: Layer) -> int:
        kept = -(-self._spent(layer).kept_bytes * self.tensor * self.context // self.batch)
        if self.kernels != "compiled":
            return kept
        size = element_bytes(self.precision)
        wide = layer.kept.widened * max(0, 4 - size) + (layer.kept.separate - layer.kept.widened) * size
        return max(0, kept - round(wide))

    def _beside_frozen(self, layer: Layer) -> int:
        """Return the bytes of a GPU that the backward pass of a layer with adapters needs besides, for all samples.

        A gradient in the adapters' type, and a matrix that is converted from few bits. DoRA makes that of its adapter,
        the weight with it, and an identity.
        """
        sizes = [one.shape for one in layer.tensors if linear_name(one) is not None and not one.is_of_adapter]
        if self.adapter is None or not sizes:
            return 0
        own, size = dtype_bytes(self.recipe.parameters), element_bytes(self.precision)
        rows = self.batch * layer.tokens / self.context
        outer = 0 if self.recipe.autocast else max(shape[0] for shape in sizes) * own
        through = rows * (outer + max(shape[1] for shape in sizes) * own) if own > size or self.recipe.autocast else 0.0
        is_converted = self.quantization not in (None, "gptq-int4")
        converted = element_bytes(self.quantized_precision or self.precision)
        matrix = max(map(math.prod, sizes)) * converted if is_converted else 0
        if self.adapter.dora:
            matrix += max(own * (3 * outer * inner + inner * inner) for outer, inner in sizes)
        return round((through + matrix) / self.tensor)

    @cached_property
    def parts(self) -> tuple[tuple[Timed, ...], ...]:
        """Layers of each part of the model with their durations, for one microbatch; stages take the parts in turn."""
        parts = self._parts()
        made: list[tuple[Timed, ...]] = [()] * len(parts)
        for stage in range(self.pipeline):
            made[stage :: self.pipeline] = self._timed(parts[stage :: self.pipeline])
        return tuple(made)

    @cached_property
    def stages(self) -> tuple[tuple[Timed, ...], ...]:
        """Layers of each stage with their durations, for one microbatch."""
        return tuple(tuple(chain.from_iterable(self._parts_of(stage))) for stage in range(self.pipeline))

    @cached_property
    def slowest(self) -> int:
        """The number of the slowest stage."""
        return max(range(self.pipeline), key=lambda it: sum(one.forward_s + one.backward_s for one in self.stages[it]))

    @cached_property
    def host_s(self) -> float:
        """Seconds that the host takes to launch the operators of a pass, of the slowest stage."""
        programs = [program for one in self.timed for program in self._programs_of(one.layer)]
        return sum(program.host[0] for program in programs)

    def _programs_of(self, layer: Layer) -> tuple[Program, Program]:
        spent = self._spent(layer)
        return spent.forward, spent.backward

    @property
    def timed(self) -> tuple[Timed, ...]:
        """Layers of the slowest stage."""
        return self.stages[self.slowest]

    def _parts(self) -> list[list[Layer]]:
        """Cut the layers into parts with as many blocks each as can be; embeddings and head are at the ends.

        Where only that divides evenly, embeddings and head are counted as a block each, so that the 126 blocks of
        Llama 3.1 405B can be cut into 16 stages.
        """
        blocks = list(dict.fromkeys(layer.block for layer in self.own.layers if layer.block))
        count = self.pipeline * self.virtual_stages
        sizes = blocks_of_parts(len(blocks), count)
        part_of = dict(zip(blocks, (part for part, size in enumerate(sizes) for _ in range(size)), strict=True))
        parts: list[list[Layer]] = [[] for _ in range(count)]
        last, left = 0, set(blocks)
        for layer in self.own.layers:
            # What is in no block belongs to the block before it, and to the last part after all of them.
            last = count - 1 if not left and not layer.block else part_of.get(layer.block, last)
            left.discard(layer.block)
            parts[last].append(layer)
        return parts

    def _parts_of(self, stage: int) -> tuple[tuple[Timed, ...], ...]:
        return self.parts[stage :: self.pipeline]

    @cached_property
    def setting(self) -> Setting:
        """How the layers run."""
        recipe = self.recipe if self.adapter is None else recipe_of(None, self.precision)
        return Setting(
            self.hardware.architecture,
            self.batch,
            recipe.gathered if self.precision == "fp8" else recipe.computation,
            self.kernels,
            self.attention,
            autocast=self._has_wide_stream,
            tf32=self.precision == "tf32",
            tensor=self.tensor,
            expert=self.expert,
            dispatch=self.dispatch,
            context=self.context,
            flash=self.flash,
            gathered=self.gathered,
            reduction=self.recipe.reduction,
            main_gradients=self._has_main_gradients,
            chunks=self.loss_chunks,
            wide_loss=self.wide_loss,
            adapter=self.adapter,
            adapter_dtype=self.recipe.parameters,
            adapter_autocast=self.recipe.autocast,
            quantization=self.quantization,
            quantized_dtype=recipe_of(None, self.quantized_precision).computation if self.quantized_precision else "",
            cuda_graphs=self.cuda_graphs,
        )

    @property
    def _has_wide_stream(self) -> bool:
        """Whether the residual stream is in FP32: that of embeddings in FP32, with autocast."""
        return self.recipe.autocast and (self.adapter is None or self.recipe.is_upcast)

    @property
    def _has_main_gradients(self) -> bool:
        """Whether products add to FP32 gradients: Transformer Engine's do, and those of Megatron's pipelines."""
        has_own = self.pipeline > 1 or self.recipe.gradients == "float32"
        return self.kernels == TRANSFORMER_ENGINE or (self.kernels in MEGATRON and self.recipe.masters and has_own)

    def _setting_of(self, layer: Layer) -> Setting:
        """How a layer runs: products of blocks are in 8 bits where the precision says so, those of heads are not."""
        return replace(self.setting, eight_bits=self.precision == "fp8" and bool(layer.block))

    def _spent(self, layer: Layer) -> Spent:
        known = self._known_spent.get(layer.kind)
        if known is None:
            known = spent_by(layer, self.hardware, self._setting_of(layer), self.checkpointing)
            self._known_spent[layer.kind] = known
        return known

    @cached_property
    def _known_spent(self) -> dict[int, Spent]:
        """Of each kind of layer."""
        return {}

    def _before(self, part: Sequence[Layer]) -> Program:
        """Return what a part takes before its first layer: for positions and masks, the host waits for the device."""
        is_decoder = any(layer.attention is not None and layer.attention.causal for layer in part)
        return spent_before(part[0], self.hardware, self.setting) if is_decoder else Program()

    def _pass(self, parts: Sequence[Sequence[Layer]]) -> Program:
        """Return a forward and a backward pass of a stage that has these parts."""
        made = Program()
        for part in parts:
            made = made.then(self._before(part))
            for layer in part:
                made = made.then(self._spent(layer).forward)
        for layer in reversed([*chain.from_iterable(parts)]):
            made = made.then(self._spent(layer).backward)
        return made

    def _timed(self, parts: Sequence[Sequence[Layer]]) -> list[tuple[Timed, ...]]:
        """Return the layers of a stage's parts with the durations that they have in one of many passes in a row."""
        queues = self._pass(parts).steady
        begun = queues.done_s
        forward_s: list[float] = []
        for part in parts:
            self._before(part).run(queues)
            for layer in part:
                self._spent(layer).forward.run(queues)
                forward_s.append(queues.done_s - begun)
                begun = queues.done_s
        backward_s: list[float] = []
        for layer in reversed([*chain.from_iterable(parts)]):
            self._spent(layer).backward.run(queues)
            backward_s.append(queues.done_s - begun)
            begun = queues.done_s
        durations = zip(forward_s, reversed(backward_s), strict=True)
        return [tuple(self._with_waits(layer, *next(durations)) for layer in part) for part in parts]

    def _with_waits(self, layer: Layer, forward_s: float, backward_s: float) -> Timed:
        """Return a layer with what it waits for other GPUs in both passes, in addition to its durations."""
        spent = self._spent(layer)
        waits = (0.0, 0.0)
        if layer.attention is not None:
            waits = self._context_waits(layer.attention, *spent.attention_s)
        exchange = self._exchange(layer, spent.products_s) if layer.block else 0.0
        # Full checkpointing exchanges again, and waits again.
        times = 2 if self.checkpointing == "full" and layer.block else 1
        return Timed(
            layer,
            forward_s + waits[0] + exchange,
            backward_s + waits[1] + exchange + (times - 1) * (waits[0] + exchange),
            round(activation_bytes(layer, self.computed) / self.context),
            (1 + times) * exchange,
            times * waits[0] + waits[1],
        )

    def _context_waits(self, attention: Attention, forward_s: float, backward_s: float) -> tuple[float, float]:
        """Return what attention of a part of the sequence waits in both passes for keys and values of the others.

        They are passed around in a ring (H. Liu et al., "Ring Attention with Blockwise Transformers", 2023): a part
        arrives while the one before it is attended to. In the backward pass, their gradients follow.
        """
        if self.context == 1:
            return 0.0, 0.0
        tokens = min(attention.keys, attention.queries)
        moved = self.batch * tokens * attention.exchanged * element_bytes(self.precision) / self.tensor
        others = (self.context - 1) / self.context
        gpus = self.tensor * self.context

        def waits(bytes_: float, hidden_by: float) -> float:
            whole = pass_around_s(self.hardware, bytes_ * others, self.context, self.links, gpus=gpus)
            return max(0.0, whole - others * hidden_by)

        return waits(moved, forward_s), waits(2 * moved, backward_s)

    def _exchange(self, layer: Layer, products: float) -> float:
        """Return what a layer's computation waits for in a pass: one all-reduce among tensor-parallel GPUs.

        Where experts are divided, tokens are sent to them and back instead, each from the GPU that has its part of the
        sequence. Nothing hides either, but Transformer Engine overlaps an all-reduce's halves with the products before
        and after them, piece by piece, of which one is left; in 8 bits it gathers 8 bits.
        """
        if layer.routed and self.expert > 1:
            experts = layer.experts
            assert self.links is not None
            assert experts is not None
            share = self.batch / self.context / self.tensor * operator_constant("experts.imbalance")
            tokens = share * layer.tokens * (experts.latent or layer.hidden) * element_bytes(self.precision)
            if self.dispatch == "deepep":
                return 2 * deepep_s(self.hardware, tokens, experts, self.expert, self.links)
            return 2 * all_to_all_s(self.hardware, experts.routed * tokens, self.expert, self.links)
        moved = self.batch / self.context * layer.tokens * layer.hidden * element_bytes(self.precision)
        if self.kernels != TRANSFORMER_ENGINE:
            return all_reduce_s(self.hardware, moved, self.tensor, self.links)
        whole = all_reduce_s(self.hardware, moved * (0.75 if self.precision == "fp8" else 1.0), self.tensor, self.links)
        return max(whole / self.tensor, whole - products)

    @cached_property
    def forward_s(self) -> float:
        """Seconds of the forward pass."""
        return sum(one.forward_s for one in self.timed)

    @cached_property
    def backward_s(self) -> float:
        """Seconds of the backward pass."""
        return sum(one.backward_s for one in self.timed)

    def elements(self, tensor: Tensor) -> int:
        """Return the size of a trained parameter, as many elements as it would have in the adapters' type.

        A module that is trained wholly beside adapters has the type of the frozen weights, as PEFT copies it.
        """
        if not (self._has_saved and tensor.is_saved):
            return tensor.size
        return -(-tensor.size * self._frozen_bytes // max(self._frozen_bytes, dtype_bytes(self.recipe.parameters)))

    @cached_property
    def _has_saved(self) -> bool:
        """Whether modules are trained wholly beside adapters."""
        return self.adapter is not None and bool(self.adapter.saved)

    @cached_property
    def trained_elements(self) -> int:
        """All `elements` of a rank."""
        if not self._has_saved:
            return self.own.trained_parameters
        return sum(self.elements(tensor) for layer in self.own.layers for tensor in layer.trained)

    @property
    def _frozen_bytes(self) -> int:
        """Bytes of a parameter beside adapters that is not quantized."""
        is_wide = self.recipe.is_upcast or self.recipe.name == "fsdp-mixed"
        return 4 if is_wide else element_bytes(self.precision)

    def _of_saved(self, recipe: Recipe) -> Recipe:
        """Return the types of modules that are trained wholly beside adapters of a recipe."""
        if self._frozen_bytes >= dtype_bytes(self.recipe.parameters):
            return recipe
        kind = recipe_of(None, self.precision).computation
        return replace(recipe, parameters=kind, gradients=kind, states=kind)

    def _updated(self, layers: Sequence[Layer], recipe: Recipe) -> list[tuple[Recipe, list[Tensor]]]:
        """Return what an optimizer updates by each recipe: modules that are trained wholly have their own types."""
        trained = [tensor for layer in layers for tensor in layer.trained]
        saved = [tensor for tensor in trained if tensor.is_saved]
        if not saved:
            return [(recipe, trained)]
        return [(recipe, [tensor for tensor in trained if not tensor.is_saved]), (self._of_saved(recipe), saved)]

    def states_each(self, recipe: Recipe) -> States:
        """Return the bytes of the optimizer's states for each of the `trained_elements`, by a recipe."""
        if self.trained_elements == self.own.trained_parameters:
            return states_each(self.optimizer, self.own.trained_alike, recipe)
        own = self._of_saved(recipe)
        resident = paged = 0.0
        for name, shape, times in self.own.trained_alike:
            states = states_of(self.optimizer, name, shape, own if is_saved(name) else recipe)
            resident, paged = resident + times * states.resident, paged + times * states.paged
        return States(resident / self.trained_elements, paged / self.trained_elements)

    def update_bytes(self, recipe: Recipe) -> int:
        """Return the bytes that a step reads and writes of all parameters that are trained, by a recipe."""
        return sum(
            one.read + one.written
            for own, tensors in self._updated(self.own.layers, recipe)
            for one in update_of(tensors, own, self.optimizer, self.optimizer_impl)
        )

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients have buffers that are never freed, whatever the host has: Megatron's."""
        return self.recipe.masters and dtype_bytes(self.recipe.gradients) > dtype_bytes(self.recipe.parameters)

    @property
    def releases_gradients(self) -> bool:
        """Whether each gradient is let go when the step of its own tensor has used it."""
        return self.optimizer_impl == IN_BACKWARD and not self.keeps_gradients

    @cached_property
    def offloaded_bytes(self) -> int:
        """Bytes of activations that a GPU's part of a pass has in the host's memory."""
        kept = replace(self.computed, offloads=False)
        own = sum(activation_bytes(layer, kept) for layer in self.own.layers if layer.block)
        return -(-self.batch * own // (self.context * self.tensor))

    @cached_property
    def optimizer_s(self) -> float:
        """Seconds that the update of the stage's parameters adds to passes; a rank of a shard takes its share of it.

        It is what an iteration takes longer than its passes alone, when iterations follow each other: where the host is
        behind the device, the device does part of it meanwhile.
        """
        passes = self._pass([[one.layer for one in part] for part in self._parts_of(self.slowest)])
        return passes.then(self._update).period_s - passes.period_s

    @cached_property
    def _update(self) -> Program:
        """The update of the slowest stage's parameters."""
        made = Program()
        for recipe, parameters in self._updated([one.layer for one in self.timed], self.recipe):
            made = made.then(
                spent_on_update(
                    parameters,
                    recipe,
                    optimizer=self.optimizer,
                    impl=self.optimizer_impl,
                    ways=self.tensor,
                    hardware=self.hardware,
                )
            )
        return made

    @property
    def update_host_s(self) -> float:
        """Seconds that the host takes to launch the operators of the update."""
        return self._update.host[0]

    @property
    def before_s(self) -> float:
        """Seconds of an iteration before the last microbatch's forward pass in its slowest stage.

        1F1B: the other microbatches, and the bubble of P - 1 passes, which V virtual stages divide by V (D. Narayanan
        et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section
        2.2).
        """
        others_s = (self.microbatches - 1) * (self.forward_s + self.backward_s) + self.bubble_s
        return others_s + self.reference_s

    @property
    def reference_s(self) -> float:
        """Seconds of forward passes without gradients, of the reference and of the model itself."""
        own = LOSSES[self.loss]
        return (own.policy + own.reference) * self.forward_s

    @property
    def has_reference(self) -> bool:
        """Whether a reference is in memory: with adapters, it is the model without them."""
        return LOSSES[self.loss].reference > 0 and self.adapter is None

    @property
    def bubble_s(self) -> float:
        """Seconds of an iteration in which a stage of a pipeline waits for others."""
        return (self.pipeline - 1) / self.virtual_stages * (self.forward_s + self.backward_s)

    @property
    def compute_s(self) -> float:
        """Seconds of one iteration without communication between data-parallel ranks."""
        return self.before_s + self.forward_s + self.backward_s + self.optimizer_s

    @property
    def tensor_parallel_s(self) -> float:
        """Seconds of an iteration's computation in which tensor-parallel GPUs of a stage exchange activations."""
        return self.microbatches * sum(one.exchange_s for one in self.timed if not self._is_divided(one.layer))

    @property
    def expert_parallel_s(self) -> float:
        """Seconds of an iteration's computation in which tokens are on their way to experts and back."""
        return self.microbatches * sum(one.exchange_s for one in self.timed if self._is_divided(one.layer))

    @property
    def context_parallel_s(self) -> float:
        """Seconds of an iteration's computation in which attention waits for other parts of its sequences."""
        return self.microbatches * sum(one.context_s for one in self.timed)

    def _is_divided(self, layer: Layer) -> bool:
        return self.expert > 1 and layer.routed > 0

    @property
    def tokens(self) -> int:
        """Tokens of a sample."""
        return self.model.sequence

    @property
    def is_text(self) -> bool:
        """Whether samples are sequences of tokens."""
        return self.model.family != "vit"

    @property
    def hardware_flops(self) -> float:
        """FLOPs of a sample as executed: with full checkpointing, blocks run forward twice (8 instead of 6)."""
        forward = self.model.forward_flops / self.model.flops if self.model.is_frozen else 1 / 3
        return self.model.flops * (1 + (forward if self.checkpointing == "full" else 0.0))

    def mfu(self, samples_per_s: float) -> float:
        """Return the model FLOPs utilization of one GPU that trains so many samples per second."""
        return samples_per_s * self.model.flops / self.peak_flops

    def figures(self, samples_per_s: float | None, workers: int, passes: int = 1) -> dict[str, float]:
        """Return the figures of a forecast: `mfu`, and for text `tokens_per_s_per_gpu`. Empty without a rate.

        Args:
            samples_per_s: Of all workers; where several share samples, each counts its part as one.
            workers: Data-parallel ranks.
            passes: Accumulated ones of an iteration.
        """
        if samples_per_s is None:
            return {}
        own = samples_per_s / workers / self.gpus / self.context
        figures = {"mfu": self.mfu(own)} | ({"tokens_per_s_per_gpu": own * self.tokens} if self.is_text else {})
        if self.real_tokens < 1 and self.is_text:
            figures["real_tokens_per_s_per_gpu"] = own * self.tokens * self.real_tokens
        figures |= {"trained_parameters": self.model.trained_parameters} if self.model.is_frozen else {}
        figures |= {"tensor_parallel_s": passes * self.tensor_parallel_s} if self.tensor > 1 else {}
        figures |= {"context_parallel_s": passes * self.context_parallel_s} if self.context > 1 else {}
        figures |= {"expert_parallel_s": passes * self.expert_parallel_s} if self.expert > 1 else {}
        return figures if self.gpus == 1 else figures | {"gpus_per_worker": self.gpus}

    @property
    def parallelism(self) -> dict[str, int]:
        """How many ways each layer, the model, sequences and experts are divided, by the names of the settings."""
        return {
            "tensor_parallel": self.tensor,
            "pipeline_parallel": self.pipeline,
            "virtual_stages": self.virtual_stages,
            "microbatches": self.microbatches,
            "context_parallel": self.context,
            "expert_parallel": self.expert,
        }

    def memory(self, *, sharding: str = "none", group: int = 1) -> Memory:
        """Return the memory of one GPU by kind, of the stage that needs most; not all of it is needed at once.

        Raises InvalidArgumentError for an unknown sharding.
        """
        stages = (self._memory_of_stage(stage, sharding, group) for stage in range(self.pipeline))
        return max(stages, key=lambda memory: memory.total)

    @cached_property
    def _kept_by_stage(self) -> dict[int, list[int]]:
        return {}

    def _kept(self, stage: int) -> list[int]:
        """Return the bytes that a stage keeps of each of its layers for a sample of every microbatch, at most."""
        if stage not in self._kept_by_stage:
            self._kept_by_stage[stage] = self._kept_of(stage)
        return self._kept_by_stage[stage]

    def _kept_of(self, stage: int) -> list[int]:
        parts = self._parts_of(stage)
        kept = [[one.activation_bytes for one in part] for part in parts]
        if self.attention == "efficient":
            # All blocks share the mask of a pass.
            kept[0][0] += self.model.sequence**2 // self.context * element_bytes(self.precision)
        if self.virtual_stages > 1 and self.kernels not in MEGATRON:
            # PyTorch keeps what an interleaved part has sent until its backward pass; 1F1B lets it go.
            for layers, part in zip(kept, parts, strict=True):
                last = part[-1].layer
                sent = last.tokens / self.context * last.hidden * element_bytes(self.precision)
                layers[-1] += 0 if last.logits else round(sent)
        counts = in_flight(stage, self.pipeline, self.microbatches, [sum(layers) for layers in kept])
        return [size * count for layers, count in zip(kept, counts, strict=True) for size in layers]

    def _kept_outputs(self, layer: Layer) -> int:
        """Return the bytes per sample that a pipeline keeps of the model's outputs until all microbatches are done.

        PyTorch's does (`output_chunks` in torch/distributed/pipelining/stage.py, unless `return_outputs=False`);
        Megatron's, with fused kernels, keeps losses.
        """
        if self.pipeline == 1 or self.kernels in MEGATRON:
            return 0
        return round(layer.logits / self.context * element_bytes(self.precision))

    def _kept_weights(self, layer: Layer) -> int:
        """Return the bytes of converted weights that a layer keeps for its backward pass."""
        return 0 if is_recomputed(layer, self.computed) else converted_bytes(layer, self.computed)

    @cached_property
    def _only_backward(self) -> tuple[list[int], ...]:
        """Of each stage, the bytes per sample of a microbatch that only the backward pass of each layer needs."""
        return tuple(self._only_backward_of(model.layers) for model in self._models)

    def _only_backward_of(self, layers: Sequence[Layer]) -> list[int]:
        """Return the bytes per sample of a microbatch that only the backward pass of each layer of a stage needs.

        The last one begins where the forward pass has ended, with the loss and all weights that it has converted. Its
        step also allocates the gradient of the head's matrix, when the copies of the loss have been let go.
        """
        needs = [-(-size // self.context) for size in backward_bytes(layers, self.computed)]
        for place, layer in enumerate(layers if self.adapter is not None else ()):
            needs[place] += -(-self._beside_frozen(layer) * self.tensor // self.batch)
        last = layers[-1]
        if last.logits and (self.loss_chunks or 1) == 1:
            trained = sum(one.size for one in (*last.tensors, *last.shared) if one.trains)
            matrices = trained * dtype_bytes(self.recipe.gathered)
            least = element_bytes(self.precision) * last.logits / self.context
            needs[-1] = round(max(needs[-1] - matrices / self.batch, min(needs[-1], least)))
        cached = -(-cached_bytes(layers, self.computed) // self.batch)
        if cached:
            needs[-1] = max(needs[-1], cached + forward_loss_bytes(layers[-1], self.computed) // self.context)
        return needs

    def _retained(self, layers: Sequence[Layer]) -> list[int]:
        """Return the bytes per sample that FSDP1 has of blocks whose backward pass has ended, in that of each layer.

        A reentrant checkpoint makes the input of a block a leaf, which has a gradient. A hook on it frees the unit if
        nothing in that is trained, and holds it until the whole backward pass has ended
        (`_register_post_backward_reshard_only_hook` in torch/distributed/fsdp/_runtime_utils.py). Adapters are units
        of their own (`fsdp_auto_wrap_policy` in peft/utils/other.py).
        """
        retained, held, block = [0] * len(layers), 0, ""
        for place in reversed(range(len(layers))):
            layer = layers[place]
            if layer.block != block:
                block, above = layer.block, held
            retained[place] = above if block else held
            if block and layer.passes and all(".lora_" in one.name for one in layer.trained):
                held += 2 * activation_bytes(layer, replace(self.computed, offloads=False)) // self.context
        return retained

    @property
    def least_passing_bytes(self) -> int:
        """The smaller one of what a GPU needs only in the loss's backward pass, and only in that of a block.

        Of one stage with a loss; else 0.
        """
        layers = self._models[0].layers
        if self.pipeline > 1 or not layers[-1].logits:
            return 0
        *blocks, loss = self._only_backward[0]
        return -(-self.batch * min(loss, max(blocks, default=0)) // self.tensor)

    @property
    def loss_blocks_bytes(self) -> int:
        """Bytes that the allocator reserves beside adapters for the loss, beyond what that allocates at once.

        Measured with vocabularies of 32,000 and 128,256 (fms-acceleration, `refs/a100_80gb_liger.csv`): from 4 to 8
        samples, all that a GPU has in use grows by 14 bytes a logit. Where all is trained, gradients and temporaries of
        the optimizer take these blocks.
        """
        if self.pipeline > 1 or not self.model.is_frozen:
            return 0
        apart = sum(loss_apart_bytes(layer, self.computed) for layer in self.model.layers)
        return self.batch * apart // (self.tensor * self.context)

    @cached_property
    def _models(self) -> tuple[Model, ...]:
        """The part of the model that each stage has."""
        if self.pipeline == 1:
            return (self.own,)
        return tuple(replace(self.model, layers=tuple(one.layer for one in stage)) for stage in self.stages)

    def _memory_of_stage(self, stage: int, sharding: str = "none", group: int = 1) -> Memory:
        model = self._models[stage]
        layers = model.layers
        memory = memory_of(
            model,
            self.computed,
            batch=self.batch,
            sharding=sharding,
            group=group,
            optimizer=self.optimizer,
            recipe=self.recipe,
            activations=self.batch * sum(self._kept(stage)),
            held_bytes=None if self.adapter is None else self._held[stage],
            elements=self.elements if self._has_saved else None,
            states_each=self.states_each(self.recipe) if self._has_saved else None,
        )
        outputs = self.samples * sum(map(self._kept_outputs, layers)) + sum(map(self._kept_weights, layers))
        loss = max(-(-memory.loss // self.context), self.batch * self._only_backward[stage][-1])
        memory = replace(memory, activations=memory.activations + outputs, loss=loss)
        if self.has_reference:
            copy = model.parameters * dtype_bytes(self.recipe.parameters) // (group if sharding == "zero3" else 1)
            memory = replace(memory, parameters=memory.parameters + copy)
        moved = () if self.offload is None else self.offload.parts(gathers=sharding == "zero3")
        if STATES in moved:
            memory = replace(memory, optimizer=0, gradients=memory.gradients if self.keeps_gradients else 0)
        if self.releases_gradients:
            memory = replace(memory, gradients=0)
        memory = replace(memory, parameters=0) if PARAMETERS in moved else memory
        return memory if self.tensor == 1 else Memory(*(-(-size // self.tensor) for size in vars(memory).values()))

    @property
    def assumed(self) -> str:
        """Assumptions of the compute times: the GPU, and options with their defaults."""
        words = [f"sequences of {self.tokens} tokens"] if self.is_text else [f"images of {self.tokens} patches"]
        words += [*self.precision_words, f"{self.attention_kernel} attention", f"{self.kernels} kernels"]
        words += self.graphs_words
        words.append(self.checkpointing_words)
        words += [f"{self.tensor} tensor-parallel GPUs"] if self.tensor > 1 else []
        words += [f"samples shared by {self.context} ranks"] if self.context > 1 else []
        words += [self.experts_words] if self.expert > 1 else []
        order = f"1F1B, {self.virtual_stages} virtual stages" if self.virtual_stages > 1 else "1F1B"
        words += [f"{self.pipeline} stages, {self.microbatches} microbatches ({order})"] if self.pipeline > 1 else []
        words += [*self.loss_words, *self.passes_words, *self.offload_words, *self.trained_words]
        return f"{self.hardware.under_limit}, {', '.join(words)}, {self.optimizer}"

    @property
    def experts_words(self) -> str:
        """How experts are divided, for prose."""
        return f"experts on {self.expert} GPUs{' (DeepEP)' if self.dispatch == 'deepep' else ''}"

    @property
    def graphs_words(self) -> list[str]:
        """CUDA graphs if there are any, for prose."""
        return ["CUDA graphs"] if self.cuda_graphs else []

    @property
    def checkpointing_words(self) -> str:
        """The recomputation, for prose."""
        words = f"{'no' if self.checkpointing == 'none' else self.checkpointing} checkpointing"
        return f"{words}, {'offloaded' if self.offloads else 'reentrant'}" if self.offloads or self.reentrant else words

    @property
    def loss_words(self) -> list[str]:
        """The loss if it is fused, for prose."""
        if self.loss_chunks is None:
            return []
        return ["fused loss" if self.loss_chunks == 1 else f"fused loss in {self.loss_chunks} chunks"]

    @property
    def passes_words(self) -> list[str]:
        """The loss and the padding, for prose."""
        own = LOSSES[self.loss]
        words = [] if self.loss == "lm" else [own.title]
        passes = own.reference + own.policy
        words += [f"{passes} forward {'pass' if passes == 1 else 'passes'} without gradients"] if passes else []
        return words + ([f"{units.percent(self.real_tokens)} real tokens"] if self.real_tokens < 1 else [])

    @property
    def offload_words(self) -> list[str]:
        """The parts that the host has, for prose."""
        return [] if self.offload is None else [self.offload.words]

    @property
    def optimizer_words(self) -> str:
        """The optimizer, and how its step is made if the CPU makes it, for prose."""
        title = KINDS[self.optimizer].title
        if self.offload is None or STATES not in self.offload.parts(gathers=False):
            return title
        return f"{title} on the CPU ({self.optimizer_impl})"

    @property
    def trained_words(self) -> list[str]:
        """The trained parts if these are not all, for prose."""
        if self.adapter is not None:
            computed = f", multiplied in {self.quantized_precision}" if self.quantized_precision else ""
            held = [] if self.quantization is None else [f"weights in {self.quantization}{computed}"]
            return [self.adapter.words, *held]
        model = self.model
        return [f"{model.parameters - model.trained_parameters:,} parameters frozen"] if model.is_frozen else []

    @property
    def precision_words(self) -> list[str]:
        """The precision, and its recipe if that is not the usual one, for prose."""
        moments = "" if self.recipe.states == self._usual_recipe.states else f"moments in {self.recipe.states}"
        words = [] if self.recipe.is_usual else [f"recipe {self.recipe.name}"]
        return [self.precision, *words, *([moments] if moments else [])]

    @property
    def _usual_recipe(self) -> Recipe:
        """The recipe of this name as it is without an option that changes its types."""
        own = recipe_of(self.recipe.name, self.precision)
        return own if self.adapter is None else own.of_adapters

    @property
    def attention_kernel(self) -> str:
        """The kernel of attention, with the version of FlashAttention if one is chosen."""
        return f"{self.attention}-{self.flash}" if self.flash else self.attention

    @property
    def provenance(self) -> str:
        """How the trace was made, with the source of the configuration."""
        made = f"computed operator by operator for {self.assumed}"
        return f"{made}; {self.source}" if self.source else made

    def _worker(self, stage: int) -> Worker:
        timed = self.stages[stage]
        size = dtype_bytes(self.recipe.reduction)
        forward = self._reference(timed)
        if not forward and self.before_s > 0:
            before = "model.pipeline" if self.pipeline > 1 else "model.reference"
            forward = [_core.Layer(before, _seconds(self.before_s))]
        only = self._only_backward[stage]
        if self.reentrant and self.gathered:
            retained = self._retained([one.layer for one in timed])
            only = [size + more for size, more in zip(only, retained, strict=True)]
        known: set[str] = set()
        for one, kept, backward in zip(timed, self._kept(stage), only, strict=True):
            known |= {tensor.name for tensor in one.layer.tensors}
            # A tied tensor whose first use is in another stage is a copy here.
            tensors = [tensor.name for tensor in (*one.layer.shared, *one.layer.tensors) if tensor.name in known]
            forward.append(
                _core.Layer(
                    one.layer.name,
                    _seconds(one.forward_s),
                    tensors,
                    activation_bytes=round(kept / self.microbatches)
                    + self._kept_outputs(one.layer)
                    + -(-self._kept_weights(one.layer) // self.samples),
                    # Of one microbatch.
                    backward_bytes=-(-backward // self.microbatches) if backward else None,
                )
            )
        first = {tensor.name: index for index, one in reversed(list(enumerate(timed))) for tensor in one.layer.tensors}
        gradients: list[Gradient] = []
        now = 0.0
        for index, one in reversed(list(enumerate(timed))):
            own = [tensor for tensor in reversed(one.layer.trained) if first[tensor.name] == index]
            total = sum(tensor.size for tensor in own)
            done = 0
            for tensor in own:
                done += tensor.size
                ready, elements = now + one.backward_s * done / total, self.elements(tensor)
                shape = tensor.shape if elements == tensor.size else None
                gradients.append(Gradient(tensor.name, _seconds(ready), elements * size, shape))
            now += one.backward_s
        # They are in the order in which they are ready.
        backward_s = max([_seconds(now), *(one.ready_s for one in gradients[-1:])])
        return Worker(forward, gradients, backward_s=backward_s, optimizer_s=_seconds(self.optimizer_s))

    def _reference(self, timed: Sequence[Timed]) -> list[_core.Layer]:
        """Return the layers of a reference that is another model; what passes take without gradients is theirs."""
        if not self.has_reference:
            return []
        times = self.reference_s / self.forward_s
        return [
            _core.Layer(
                f"reference.{one.layer.name}",
                _seconds(times * one.forward_s),
                [f"reference.{tensor.name}" for tensor in (*one.layer.shared, *one.layer.tensors)],
                activation_bytes=0,
            )
            for one in timed
        ]

    def all_held_bytes(self, recipe: Recipe) -> int:
        """Return the bytes of all parameters by a recipe before they are sharded, a reference's included."""
        reference = self.own.parameters * dtype_bytes(self.recipe.parameters) if self.has_reference else 0
        held = sum(self._held) + reference
        return held * dtype_bytes(recipe.parameters) // dtype_bytes(self.recipe.parameters)

    @cached_property
    def _held(self) -> tuple[int, ...]:
        """Bytes of the parameters of each stage."""
        return tuple(sum(map(self.held_bytes, model.tensors())) for model in self._models)

    def held_bytes(self, tensor: Tensor) -> int:
        """Return the bytes of a parameter as a rank has it that shards nothing."""
        if tensor.trains or self.adapter is None:
            return self.elements(tensor) * dtype_bytes(self.recipe.parameters)
        if self.quantization is not None and is_quantized(tensor):
            return quantized_bytes(tensor, self.quantization)
        return tensor.size * self._frozen_bytes

    def _frozen(self, stage: int) -> list[tuple[str, int]]:
        """Return the parameters of a stage that are not trained.

        Traces have elements of the gradients' type, and a plan as many of the type in which parameters are held.
        """
        held, reduced = dtype_bytes(self.recipe.parameters), dtype_bytes(self.recipe.reduction)
        own = {tensor.name: tensor for one in self.stages[stage] for tensor in one.layer.tensors if not tensor.trains}
        frozen = [(name, -(-self.held_bytes(tensor) // held) * reduced) for name, tensor in own.items()]
        if self.has_reference:
            frozen += [(f"reference.{tensor.name}", tensor.size * reduced) for tensor in self.own.tensors()]
        return frozen

    def trace(self, stage: int | None = None) -> Trace:
        """Return the trace of one iteration, of the slowest stage or of another one.

        Raises InvalidArgumentError if an iteration takes longer than a day, or a layer more than a petabyte.
        """
        try:
            return Trace(
                self.model.name,
                self.samples,
                self.recipe.reduction,
                [self._worker(self.slowest if stage is None else stage)],
                frozen=self._frozen(self.slowest if stage is None else stage),
                provenance=self.provenance,
                device=self.hardware.name,
            )
        except (InvalidArgumentError, OverflowError) as error:
            # Of names that the trace has inside, a reader knows none.
            if not (takes := self._beyond_traces(error)):
                raise
            sizes = f"batch {self.batch}" + (f" of {self.tokens} tokens (seq)" if self.is_text else "")
            if self.model.largest:
                raise InvalidArgumentError(
                    f"{self.model.largest}, the largest size of a model of which {takes}",
                    remedy=f"another size than {sizes}",
                ) from None
            raise InvalidArgumentError(f"{self.model.name}: {takes}", remedy=f"another size than {sizes}") from None

    def _beyond_traces(self, error: InvalidArgumentError | OverflowError) -> str:
        """Return what of it exceeds what traces may have (docs/reference/trace-format.md); empty if nothing does."""
        if max(self.before_s + self.forward_s, self.backward_s, self.optimizer_s) > _DAY_S:
            return f"an iteration takes longer than a day on {self.hardware.title}"
        elements = sum(tensor.size for layer in self.model.layers for tensor in layer.tensors)
        is_about_bytes = isinstance(error, OverflowError) or (error.place or "").endswith("bytes")
        if is_about_bytes or elements * dtype_bytes(self.recipe.reduction) > _PETABYTE:
            return "its tensors and activations take more than a petabyte"
        return ""


_DAY_S, _PETABYTE = 86_400.0, 10**15


def _seconds(value: float) -> float:
    """Round to picoseconds, as traces do."""
    return round(value, 12)
