"""From what users type to a workload: `llama-3-8b@h100:seq=8192,batch=2`, or a name or config.json with options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from paceline._internal.nearest import nearest
from paceline._internal.units import binary_count, memory, watts
from paceline.catalog import names
from paceline.catalog.adapters import Adapter, adapted, frozen, parse_adapter, quantized_bytes
from paceline.catalog.builtin_names import built_in_trace, trace_names
from paceline.catalog.gpus import Hardware, find_hardware
from paceline.catalog.losses import LOSSES
from paceline.catalog.models.checkpoints import checkpoint_of
from paceline.catalog.models.config import Config, read_config
from paceline.catalog.models.exchanges import Links, element_bytes
from paceline.catalog.models.families import model_of
from paceline.catalog.models.layers import Model
from paceline.catalog.models.names import resolve, unknown_model
from paceline.catalog.models.pipeline import can_be_cut
from paceline.catalog.models.traits import MEGATRON, TRANSFORMER_ENGINE
from paceline.catalog.models.workload import Workload
from paceline.catalog.offload import ACTIVATIONS, STATES, Offload, parse_offload
from paceline.catalog.optimizers import ALIASES, KINDS, check_impl, check_moments, check_offload, default_impl
from paceline.catalog.recipes import Recipe, precision_of, recipe_of
from paceline.errors import InvalidArgumentError
from paceline.operators.power import limited

_PARALLEL = (
    "tensor_parallel",
    "pipeline_parallel",
    "microbatches",
    "virtual_stages",
    "expert_parallel",
    "expert_dispatch",
    "context_parallel",
)
_RECIPE = (
    *("precision", "optimizer_impl", "moment_dtype", "cuda_graphs"),
    *("loss_chunks", "loss_dtype", "offload", "loss", "real_tokens"),
)
_TRAINED = ("lora", "dora", "lora_dropout", "quantize", "modules_to_save", "freeze")
OPTIONS = (
    *("gpu", "power_limit", "seq", "batch", "dtype", "checkpointing", "attention", "kernels", "optimizer"),
    *(*_RECIPE, *_TRAINED, *_PARALLEL),
)
"""Settings that make a workload of a model."""
_IN_WORDS = OPTIONS[1 : -len(_PARALLEL)]
"""Options in a word: the parallel ones change the cluster, too, which a word does not know."""
ONLY_MODELS = ("gpu", "power_limit", "seq", "checkpointing", "attention", "kernels", *_RECIPE, *_TRAINED, *_PARALLEL)
"""Those that have no effect on a recording."""
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LONGEST = 2**24
_FLASH: Mapping[str, Literal[1, 2]] = {"flash-1": 1, "flash-2": 2}


def find_workload(source: object, *, default_gpu: str | None = None, **given: Any) -> Workload | None:  # noqa: ANN401
    """Return the workload that a word or a file stands for; None if it is not a model.

    Args:
        source: A configuration, `NAME`, `NAME@GPU` or `NAME@GPU:OPTION=VALUE,…`, `org/name`, a folder or a
            config.json, likewise.
        default_gpu: The GPU of a model that names none, such as the cluster's.
        **given: `OPTIONS`; None counts as not given. Those in `source` and those given may not contradict.

    Raises:
        InvalidArgumentError: The model has no GPU, an option is unknown or wrong, or the configuration is malformed.
    """
    if isinstance(source, Config):
        return _workload(source, {name: value for name, value in given.items() if value is not None}, default_gpu)
    if not isinstance(source, str | Path):
        return None
    named, own = split_word(str(source))
    options = _merged(str(source), own, {name: value for name, value in given.items() if value is not None})
    config = resolve(named)
    if config is None:
        if not own or (is_recorded(named) and set(own) == {"gpu"}):
            return None
        if is_file(named):
            raise InvalidArgumentError(
                f"{named:.200}: is no model's configuration, and a recording has no options after @",
                remedy=f"{{gpu={own['gpu']:.80}}} and {named:.80}",
            )
        raise unknown_model(named)
    if "gpu" not in options and is_recorded(named):
        return None
    return _workload(config, options, default_gpu)


def _workload(config: Config, options: dict[str, Any], default_gpu: str | None) -> Workload:
    """Return the workload of a configuration, by default on this GPU. Raises InvalidArgumentError."""
    if "gpu" not in options and default_gpu is not None:
        options["gpu"] = default_gpu
    if "gpu" not in options:
        raise InvalidArgumentError(f"{config.name} needs a GPU type", remedy="{gpu=h100} (list: paceline list gpus)")
    return workload_of(config, **switched_on(options))


_BY_NONE = ("lora", "modules_to_save", "freeze", "offload", "loss_chunks")


def switched_on(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without those that `none` switches off, and those that are not given.

    That of `quantize` says of a checkpoint in fewer bits that its weights are not.
    """
    return {
        name: value
        for name, value in options.items()
        if value is not None and not (name in _BY_NONE and value in ("none", ["none"]))
    }


def config_named(word: str) -> Config:
    """Return the configuration of a model; options after @ are ignored. Raises InvalidArgumentError."""
    named, _ = split_word(word)
    resolved = resolve(named)
    if resolved is None and Path(named).suffix == ".json":
        return read_config(Path(named))
    if resolved is None:
        raise unknown_model(named)
    return resolved


def workload_of(  # noqa: PLR0917
    config: Config,
    gpu: str | Hardware,
    seq: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    checkpointing: str | None = None,
    attention: str | None = None,
    kernels: str | None = None,
    optimizer: str | None = None,
    precision: str | None = None,
    optimizer_impl: str | None = None,
    moment_dtype: str | None = None,
    cuda_graphs: bool | None = None,
    loss_chunks: int | None = None,
    loss_dtype: str | None = None,
    offload: str | None = None,
    loss: str | None = None,
    real_tokens: float | None = None,
    lora: str | None = None,
    dora: bool | None = None,
    lora_dropout: float | None = None,
    quantize: str | None = None,
    modules_to_save: Sequence[str] | None = None,
    freeze: Sequence[str] | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    microbatches: int | None = None,
    virtual_stages: int | None = None,
    expert_parallel: int | None = None,
    expert_dispatch: str | None = None,
    context_parallel: int | None = None,
    links: Links | None = None,
    power_limit: float | None = None,
) -> Workload:
    """Return the workload of a configuration on a GPU.

    Args:
        config: The configuration.
        gpu: Its name or device file.
        seq: Tokens of a sample; by default the model's context, at most 8,192.
        batch: Samples of a forward and backward pass, 1 by default.
        dtype: `fp8`, `bf16`, `fp16`, `tf32` or `fp32`; by default the GPU's 16-bit type. In 16 bits beside `precision`
            `fp32` and `quantize`: of products by quantized weights alone (`bnb_4bit_compute_dtype`).
        checkpointing: `none`, `selective`, `full`, or `offload`: `full` with inputs of blocks in the CPU's memory;
            `reentrant`: `full` by torch's reentrant function, under FSDP1.
        attention: `flash`, the kernel that torch chooses today; `flash-1` or `flash-2`, FlashAttention's of that
            version, which torch 2.2 to 2.8 choose on Hopper; `efficient`, CUTLASS's of all scores, which torch chooses
            for a mask, as of padding, on Hopper before 2.9; or `unfused`.
        kernels: `eager`, `fused` or `compiled`; by default `fused`, and `eager` with adapters.
        optimizer: One of `paceline.catalog.optimizers.KINDS`; `adamw` is `adam`.
        precision: A recipe of `paceline.catalog.recipes`, which `dtype` may not contradict; with adapters, autocast's
            by default.
        optimizer_impl: `fused`, `foreach` or `loop`; by default fused with FP32 masters, else foreach. Others than
            `adam`, `sgd` and `momentum` have but one implementation.
        moment_dtype: `bf16`, `fp16` or `fp32`: of moments, where the optimizer's are not of a type of their own.
        cuda_graphs: Whether blocks are CUDA graphs, except for their routed experts.
        loss_chunks: Chunks of tokens in which a fused loss computes logits; by default it is not fused.
        loss_dtype: `bf16`, `fp16` or `fp32`: of cross-entropy; by default `fp32`, where the model converts its logits.
        offload: `cpu`, `nvme` or `cpu:states,activations`: what the host has instead of the GPU.
        loss: One of `paceline.catalog.losses`, `lm` by default.
        real_tokens: Share of the tokens that are no padding, 1 by default.
        lora: `RANK` or `RANK:MODULES`: adapters beside weights that are not trained.
        dora: Whether they are DoRA's.
        lora_dropout: The share of an adapter's inputs that is dropped, 0 by default.
        quantize: How the weights beside adapters are held: `nf4`, `nf4-double`, `int8` or `gptq-int4`; by default in
            16 bits.
        modules_to_save: Modules that are trained wholly beside adapters, by transformers' names.
        freeze: Patterns of the names of layers that are not trained, or have no adapters.
        tensor_parallel: GPUs that share every layer.
        pipeline_parallel: Stages of a pipeline.
        microbatches: Of an iteration, each of `batch` samples, with a pipeline.
        virtual_stages: Parts of the model that each stage has: the interleaved schedule.
        expert_parallel: GPUs that have a part each of the experts of every layer.
        expert_dispatch: `alltoall` or `deepep`: what sends tokens to experts on other GPUs.
        context_parallel: Ranks that share every sample, each with a part of its tokens.
        links: Over which tokens come to experts, and keys and values to queries.
        power_limit: Watts that each GPU may draw, by default the board's.

    Raises:
        InvalidArgumentError: A value is unknown, or contradicts the model or the GPU.
    """
    hardware = gpu if isinstance(gpu, Hardware) else find_hardware(gpu)
    if power_limit is not None:
        hardware = limited(hardware, power_limit)
    computed = _one_of(_PRECISIONS.get(dtype, dtype), get_args(names.Precision), "dtype") if dtype else None
    named: names.Recipe | None = None
    of_quantized = ""
    if precision is not None:
        named = _one_of(precision, get_args(names.Recipe), "precision")
        if named == "fp32" and quantize is not None and computed in ("bf16", "fp16"):
            hardware.peak(computed)
            of_quantized, computed = computed, None
        computed = precision_of(precision, computed, hardware)
    computed = computed or _default_precision(hardware)
    hardware.peak(computed)
    is_assumed = lora is not None and named is None and computed in ("bf16", "fp16")
    if is_assumed:
        named = "amp-bf16" if computed == "bf16" else "amp-fp16"
    recipe = recipe_of(named, computed)
    if kernels is None and lora is not None:
        config = replace(config, notes=(*config.notes, _EAGER))
    kernels = kernels or ("fused" if lora is None else "eager")
    adapter = _adapter(lora, modules_to_save or (), dora=bool(dora), dropout=lora_dropout or 0.0)
    quantize, note = _of_checkpoint(config, quantize, adapter)
    config = replace(config, notes=(*config.notes, note)) if note else config
    held = _quantization(None if quantize == "none" else quantize, adapter, recipe, dora=bool(dora))
    if held in ("nf4", "nf4-double") and recipe.name == "mixed":
        config = replace(config, notes=(*config.notes, _COMPUTE_DTYPE.format(recipe.computation)))
    if held is not None and is_assumed:
        config = replace(config, notes=(*config.notes, _UNCONVERTED.format(computed)))
    recipe = recipe if adapter is None else recipe.of_adapters
    chosen: names.Optimizer = _one_of(ALIASES.get(optimizer or "", optimizer or "adam"), tuple(KINDS), "optimizer")
    check_impl(chosen, optimizer_impl)
    if moment_dtype is not None:
        check_moments(chosen)
        recipe = recipe.with_moments(_one_of(moment_dtype, get_args(names.MomentDtype), "moment_dtype"))
    moved = Offload() if offload is None else _offload(offload, chosen, hardware, pipeline_parallel or 1)
    recomputed = _one_of(checkpointing or "none", get_args(names.Checkpointing), "checkpointing")
    model, tensor, pipeline = model_of(config, seq), tensor_parallel or 1, pipeline_parallel or 1
    wide_experts, note_on_experts = _experts(config, model, held, 4 if recipe.is_upcast else element_bytes(computed))
    note_on_sinks = _of_sinks(model, hardware, kernels) if attention is None else ""
    if note_on_experts or note_on_sinks:
        config = replace(config, notes=(*config.notes, *filter(None, (note_on_experts, note_on_sinks))))
        model = model_of(config, seq)
    if held is not None and max(tensor, expert_parallel or 1) > 1:
        raise InvalidArgumentError(
            "needs whole weights on a GPU: bitsandbytes and GPTQ do not divide theirs",
            setting="quantize",
            remedy=f"drop {'' if note else '{this}, or '}{{tensor_parallel}} and {{expert_parallel}}",
        )
    if adapter is not None:
        model = adapted(model, adapter, without=freeze or (), wide_experts=wide_experts)
    elif freeze:
        model = frozen(model, freeze)
    _check_parallel(model, hardware, tensor, pipeline, microbatches=microbatches, parts=virtual_stages)
    expert = expert_parallel or 1
    if expert > 1:
        _check_experts(model, hardware, tensor, expert)
    if context_parallel is not None and context_parallel > 1:
        _check_context(model, hardware, context_parallel)
    compared = _loss(loss or "lm", model, batch or 1, pipeline)
    kernel: names.Attention = _one_of(attention or "flash", get_args(names.Attention), "attention")
    version: Literal[0, 1, 2] = _FLASH.get(kernel, 0)
    return Workload(
        model,
        hardware,
        batch or LOSSES[compared].sequences,
        computed,
        "flash" if version else kernel,
        "full" if recomputed in ("offload", "reentrant") else recomputed,
        _one_of(kernels, get_args(names.Kernels), "kernels"),
        chosen,
        tensor,
        pipeline,
        microbatches or 1,
        virtual_stages or 1,
        expert,
        context_parallel or 1,
        links,
        dispatch=_one_of(expert_dispatch or "alltoall", get_args(names.ExpertDispatch), "expert_dispatch"),
        recipe=recipe,
        optimizer_impl=_one_of(
            optimizer_impl or default_impl(chosen, recipe),
            get_args(names.OptimizerImpl),
            "optimizer_impl",
        ),
        loss_chunks=_checked_chunks(model, loss_chunks, kernels),
        wide_loss=_is_wide(loss_dtype, model, recipe, computed, kernels),
        offloads=recomputed == "offload" or ACTIVATIONS in moved.named,
        reentrant=recomputed == "reentrant",
        loss=compared,
        real_tokens=real_tokens or 1.0,
        offload=moved if offload is not None else None,
        adapter=adapter,
        quantization=held,
        quantized_precision=of_quantized,
        flash=version,
        cuda_graphs=_graphs(
            hardware, is_offloaded=recomputed == "offload" or bool({*moved.named} - {STATES}), wanted=bool(cuda_graphs)
        ),
        source=config.source or config.where,
    )


_OF_SINKS = "kernels-community/vllm-flash-attn3"
_SINKS = "Assumed flash attention, which transformers has for {name}'s attention sinks on Hopper alone"
"""The kernels of attention that it loads for them are FlashAttention 3's:
https://github.com/huggingface/transformers/issues/43120. Its SDPA has no sinks."""


def _of_sinks(model: Model, hardware: Hardware, kernels: str) -> str:
    """Return a note where transformers' attention may not be the assumed one, as with sinks; empty for others."""
    has_sinks = any(layer.form.block is not None and layer.form.block.sinks for layer in model.layers)
    if not has_sinks or hardware.is_cpu or kernels == TRANSFORMER_ENGINE:
        return ""
    words = _SINKS.format(name=model.name)
    if hardware.architecture != "hopper":
        return f"{words}, and not on {hardware.title}: there transformers' is eager (attention unfused)"
    if kernels in ("eager", "compiled"):
        return f"{words}, with attn_implementation {_OF_SINKS}; else it is eager (attention unfused)"
    return ""


def _graphs(hardware: Hardware, *, wanted: bool, is_offloaded: bool) -> bool:
    """Return whether blocks are CUDA graphs. Raises InvalidArgumentError where they cannot be."""
    if wanted and hardware.is_cpu:
        raise InvalidArgumentError(
            f"has no effect on {hardware.title}, which launches nothing on a GPU",
            setting="cuda_graphs",
            remedy="drop {this}",
        )
    if wanted and is_offloaded:
        # As Megatron-Core's transformer_config.py does.
        raise InvalidArgumentError(
            "needs parameters and activations in the GPU's memory, at the same addresses in each step",
            setting="cuda_graphs",
            remedy="drop {this}, or what is offloaded",
        )
    return wanted


def _adapter(text: str | None, saved: Sequence[str], *, dora: bool, dropout: float) -> Adapter | None:
    """Return the adapter of `lora` and what belongs to it; None without `lora`. Raises InvalidArgumentError."""
    if text is None and saved:
        raise InvalidArgumentError(
            "names modules that are trained beside adapters, and needs them",
            setting="modules_to_save",
            remedy="{lora=16}, or drop {this}: without {lora} all are trained",
        )
    if text is None and dropout:
        raise InvalidArgumentError("needs adapters", setting="lora_dropout", remedy="{lora=16}, or drop {this}")
    if text is None:
        return None
    try:
        return parse_adapter(text, dora=dora, saved=saved, dropout=dropout)
    except InvalidArgumentError as error:
        raise error.at("lora") from None


_OF_BITSANDBYTES = ("nf4", "nf4-double", "int8")
_COMPUTE_DTYPE = (
    "Assumed bnb_4bit_compute_dtype={}: without it and without autocast, bitsandbytes multiplies in FP32, several "
    "times as slowly (precision fp32)"
)
_EAGER = "Assumed eager kernels, as PEFT's adapters run in; full training is assumed with fused ones (kernels fused)"
_UNCONVERTED = (
    "Assumed weights that are not quantized in 16 bits, as axolotl, TRL and LLaMA-Factory have them; after PEFT's "
    "prepare_model_for_kbit_training alone they are in FP32 (precision upcast-{})"
)
"""axolotl converts them back (loaders/model.py), TRL all but norms (`peft_module_casting_to_bf16`)."""


_FUSED = ("gpt_oss",)
"""Types of models whose experts are in one tensor in each version of transformers that has them.

bitsandbytes replaces `nn.Linear` alone, and leaves such tensors as they are:
https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1849.
"""
_WIDE_EXPERTS = (
    "Assumed experts that are not quantized, {wide}: bitsandbytes quantizes linear layers, and {name} has its experts "
    "in one tensor; a checkpoint that has them in 4 bits ends with bnb-4bit (unsloth/gpt-oss-20b-unsloth-bnb-4bit)"
)
_NARROW_EXPERTS = (
    "Assumed experts in {held}, too, {narrow}, as transformers 4 has them for most models, and axolotl with "
    "quantize_moe_experts; transformers 5 has them in one tensor, which bitsandbytes does not quantize: {wide}"
)


def _experts(config: Config, model: Model, held: names.Quantization | None, size: int) -> tuple[bool, str]:
    """Return whether bitsandbytes leaves a mixture's experts as they are, and a note on that; empty if it has none.

    `size`: bytes of a parameter that is not quantized.
    """
    experts = [one for one in model.tensors() if one.is_of_experts] if held in _OF_BITSANDBYTES else []
    checkpoint = checkpoint_of(config) if experts else None
    if held is None or not experts or (checkpoint is not None and checkpoint.quantization is not None):
        return False, ""
    is_wide = config.kind in _FUSED
    wide, narrow = sum(size * one.size for one in experts), sum(quantized_bytes(one, held) for one in experts)
    words = _WIDE_EXPERTS if is_wide else _NARROW_EXPERTS
    return is_wide, words.format(name=model.name, held=held, wide=memory(wide), narrow=memory(narrow))


def _of_checkpoint(config: Config, quantize: str | None, adapter: Adapter | None) -> tuple[str | None, str]:
    """Return how the weights of a checkpoint are held, and a note on that.

    Raises InvalidArgumentError if quantized weights are to be trained themselves, or to be held otherwise.
    """
    checkpoint = checkpoint_of(config)
    if checkpoint is None:
        return quantize, ""
    named = config.called or config.where
    own = checkpoint.quantization
    if own is None:
        return quantize, f"Weights of {named} are in {checkpoint.method}, {checkpoint.in_16_bits}"
    base = f"the base model, {config.name}" if checkpoint.is_named else "a config.json without quantization_config"
    if adapter is None:
        raise InvalidArgumentError(
            f"{named}: its weights are in {checkpoint.method}, and cannot be trained themselves",
            remedy=f"{{lora=16}}, or {base}",
        )
    if quantize is not None and quantize not in checkpoint.options:
        raise InvalidArgumentError(
            f"{quantize} contradicts {named}, whose weights are in {checkpoint.method}",
            setting="quantize",
            remedy=f"drop {{this}}, or {base}",
        )
    return own, f"Weights beside adapters are in {checkpoint.method} ({own}), as {named} has them"


def _quantization(
    name: str | None, adapter: Adapter | None, recipe: Recipe, *, dora: bool
) -> names.Quantization | None:
    """Return how frozen weights are held. Raises InvalidArgumentError for options that need adapters."""
    if adapter is None and dora:
        raise InvalidArgumentError("needs adapters", setting="dora", remedy="{lora=16}, or drop {this}")
    if name is None:
        return None
    if adapter is None:
        raise InvalidArgumentError(
            "needs adapters: quantized weights are not trained themselves", setting="quantize", remedy="{lora=16}"
        )
    if recipe.name == "fsdp-mixed":
        raise InvalidArgumentError(
            f"contradicts {recipe.name}, which has all weights in FP32", setting="quantize", remedy="{precision=bf16}"
        )
    made: names.Quantization = _one_of(name, get_args(names.Quantization), "quantize")
    return made


def _offload(text: str, optimizer: names.Optimizer, hardware: Hardware, stages: int) -> Offload:
    """Return what `offload` stands for. Raises InvalidArgumentError for what contradicts it."""
    try:
        offload = parse_offload(text)
    except InvalidArgumentError as error:
        raise error.at("offload") from None
    if hardware.is_cpu:
        raise InvalidArgumentError(f"{hardware.title} is the host itself", setting="offload", remedy="drop {this}")
    if stages > 1:
        raise InvalidArgumentError(
            "is not modeled with stages of a pipeline",
            setting="offload",
            remedy="drop {pipeline_parallel}, or drop {this}",
        )
    if not offload.named or STATES in offload.named:
        check_offload(optimizer)
    return offload


def _loss(name: str, model: Model, batch: int, stages: int) -> names.Loss:
    """Return the loss of a name. Raises InvalidArgumentError for one that contradicts the model or the batch."""
    loss: names.Loss = _one_of(name, tuple(LOSSES), "loss")
    if loss == "lm":
        return loss
    if model.family == "vit":
        raise InvalidArgumentError(
            f"{loss} compares texts, of which {model.name} has none", setting="loss", remedy="drop {this}"
        )
    if stages > 1:
        raise InvalidArgumentError(
            f"{loss} is not modeled with stages of a pipeline", setting="loss", remedy="drop {pipeline_parallel}"
        )
    # Searches begin with one sequence, for its share of a pair's time.
    if batch > 1:
        check_sequences(loss, batch)
    return loss


def check_sequences(loss: names.Loss, batch: int) -> None:
    """Raise InvalidArgumentError for a batch without whole comparisons of sequences."""
    sequences = LOSSES[loss].sequences
    if batch % sequences:
        raise InvalidArgumentError(
            f"{loss} compares {sequences} sequences, of which a batch of {batch} is no multiple",
            setting="loss",
            remedy=f"{{batch={-(-batch // sequences) * sequences}}}",
        )


def _is_wide(dtype: str | None, model: Model, recipe: Recipe, precision: str, kernels: str) -> bool | None:
    """Return whether cross-entropy is in FP32. None: as the model has it.

    Raises InvalidArgumentError for a type that it cannot have.
    """
    if dtype is None:
        return None
    if not any(layer.logits for layer in model.layers):
        raise InvalidArgumentError(
            f"has no effect on {model.name}, whose loss is not of tokens", setting="loss_dtype", remedy="drop {this}"
        )
    if dtype == "fp32":
        return True
    always = f"{recipe.name} computes" if recipe.autocast else ""
    if kernels in MEGATRON:
        always = f"{kernels} kernels compute"
    if always:
        raise InvalidArgumentError(
            f"{always} the loss in FP32", setting="loss_dtype", remedy="{this=fp32}, or drop {this}"
        )
    if dtype != precision:
        raise InvalidArgumentError(
            f"logits are in {precision}",
            setting="loss_dtype",
            remedy="drop {this}" if precision == "fp32" else f"{{this={precision}}}, or {{this=fp32}}",
        )
    return False


def _checked_chunks(model: Model, chunks: int | None, kernels: str) -> int | None:
    """Return the chunks of the loss. Raises InvalidArgumentError where they have no effect."""
    if chunks is None:
        return None
    if not any(layer.logits for layer in model.layers) or model.family == "vit":
        raise InvalidArgumentError(
            f"has no effect on {model.name}, whose loss is not of tokens",
            setting="loss_chunks",
            remedy="drop {this}",
        )
    if chunks == 1 and kernels == TRANSFORMER_ENGINE:
        raise InvalidArgumentError(
            f"1 has no effect with {kernels} kernels, whose loss is fused",
            setting="loss_chunks",
            remedy="{this=8}, or {kernels=eager} or compiled",
        )
    if chunks > model.sequence:
        raise InvalidArgumentError(
            f"{chunks} chunks are more than the {model.sequence} tokens of a sample",
            setting="loss_chunks",
            remedy=f"{{this={min(8, model.sequence)}}}",
        )
    return chunks


def _check_parallel(
    model: Model, hardware: Hardware, tensor: int, pipeline: int, *, microbatches: int | None, parts: int | None
) -> None:
    """Raise InvalidArgumentError if a model cannot be cut like this."""
    if tensor > 1:
        _check_steps(model, "tensor_parallel")
        _check_nvlink(hardware, ", and tensor-parallel GPUs need one", "tensor_parallel")
    heads = {layer.attention.heads for layer in model.layers if layer.attention is not None}
    if any(count % tensor for count in heads):
        raise InvalidArgumentError(
            f"{tensor} does not divide the {min(heads)} attention heads of {model.name}",
            setting="tensor_parallel",
            remedy=f"{{tensor_parallel={largest_divisor(min(heads), tensor)}}}",
        )
    blocks = {layer.block for layer in model.layers if layer.block}
    if not can_be_cut(len(blocks), pipeline):
        raise InvalidArgumentError(
            f"{pipeline} stages are more than the {len(blocks)} blocks of {model.name}",
            setting="pipeline_parallel",
            remedy=f"{{pipeline_parallel={len(blocks)}}}",
        )
    if pipeline > 1 and microbatches is None:
        raise InvalidArgumentError(
            "needs a number of microbatches", setting="pipeline_parallel", remedy=f"{{microbatches={4 * pipeline}}}"
        )
    if pipeline == 1 and microbatches is not None:
        raise InvalidArgumentError(
            "needs a pipeline",
            setting="microbatches",
            remedy="{pipeline_parallel=2}, or drop {this} ({accumulate=4} makes passes without a pipeline)",
        )
    if parts is None or parts == 1:
        return
    if pipeline == 1:
        raise InvalidArgumentError(
            "needs a pipeline", setting="virtual_stages", remedy="{pipeline_parallel=2}, or drop {virtual_stages}"
        )
    if not can_be_cut(len(blocks), pipeline * parts):
        raise InvalidArgumentError(
            f"{pipeline} stages of {parts} parts are more than the {len(blocks)} blocks of {model.name}",
            setting="virtual_stages",
            remedy=f"{{virtual_stages={max(1, len(blocks) // pipeline)}}}",
        )
    if microbatches is not None and microbatches % pipeline:
        raise InvalidArgumentError(
            f"microbatches must be a multiple of the {pipeline} stages, not {microbatches}",
            setting="virtual_stages",
            remedy=f"{{microbatches={-(-microbatches // pipeline) * pipeline}}}",
        )


def _check_steps(model: Model, setting: str) -> None:
    """Raise InvalidArgumentError if a layer is of a kind that GPUs do not share."""
    layer = next((layer for layer in model.layers if layer.form.steps and layer.block), None)
    if layer is not None:
        raise InvalidArgumentError(
            f"is not modeled for {layer.name} of {model.name}", setting=setting, remedy="drop {this}"
        )


def largest_divisor(whole: int, most: int) -> int:
    """Return the largest number up to `most` that divides a whole."""
    return next(number for number in range(min(most, whole), 0, -1) if whole % number == 0)


def _check_nvlink(hardware: Hardware, why: str, setting: str) -> None:
    """Raise InvalidArgumentError if a GPU has no NVLink; `why`: what for."""
    if hardware.bus_bandwidth is None:
        raise InvalidArgumentError(
            f"{hardware.title} has no NVLink{why}",
            setting=setting,
            remedy="drop {this}, or a device file with bus_bandwidth (paceline list gpus NAME --json)",
        )


def _check_experts(model: Model, hardware: Hardware, tensor: int, expert: int) -> None:
    """Raise InvalidArgumentError if a model's experts cannot be divided like this."""
    experts = [tensor for tensor in model.tensors() if tensor.is_of_experts]
    if not experts:
        raise InvalidArgumentError(
            f"needs experts, and {model.name} has none", setting="expert_parallel", remedy="drop {expert_parallel}"
        )
    if experts[0].shape[0] % expert:
        raise InvalidArgumentError(
            f"{expert} does not divide the {experts[0].shape[0]} experts of {model.name}",
            setting="expert_parallel",
            remedy=f"{{expert_parallel={largest_divisor(experts[0].shape[0], expert)}}}",
        )
    if expert % tensor:
        raise InvalidArgumentError(
            f"must be a multiple of the {tensor} tensor-parallel GPUs, not {expert}",
            setting="expert_parallel",
            remedy=f"{{expert_parallel={-(-expert // tensor) * tensor}}}",
        )
    _check_nvlink(hardware, ", over which tokens come to the experts of a node", "expert_parallel")


def _check_context(model: Model, hardware: Hardware, context: int) -> None:
    """Raise InvalidArgumentError if ranks cannot share a model's samples."""
    _check_steps(model, "context_parallel")
    attentions = [layer.attention for layer in model.layers if layer.attention is not None]
    if model.family == "vit" or not all(one.exchanged for one in attentions):
        raise InvalidArgumentError(
            f"needs text whose attention is within one sequence, unlike {model.name}",
            setting="context_parallel",
            remedy="drop {context_parallel}",
        )
    if model.sequence % context:
        raise InvalidArgumentError(
            f"{context} does not divide the {model.sequence} tokens of a sample",
            setting="context_parallel",
            remedy=f"{{context_parallel={largest_divisor(model.sequence, context)}}}",
        )
    _check_nvlink(hardware, ", over which keys and values are passed in a node", "context_parallel")


def is_recorded(name: str) -> bool:
    """Return whether there is a built-in recording of this name, too."""
    return built_in_trace(name) in trace_names()


def _default_precision(hardware: Hardware) -> str:
    return next(name for name in ("bf16", "fp16", "fp32") if name in hardware.peak_flops)


def split_word(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a word such as NAME@GPU:OPTION=VALUE. Raises InvalidArgumentError."""
    named, at, rest = text.rpartition("@")
    if not at or "/" in rest or is_file(text):
        return text, {}
    gpu, colon, pairs = rest.partition(":")
    if not gpu:
        raise InvalidArgumentError(f"'{text[:80]}' has no GPU after @", remedy=f"{named}@h100")
    options: dict[str, Any] = {"gpu": gpu}
    for pair in pairs.split(",") if colon else []:
        option, equals, value = pair.partition("=")
        option = option.replace("-", "_")  # As it is on the command line.
        if option not in _IN_WORDS or not (equals and value):
            raise InvalidArgumentError(
                f"'{text[:80]}': unknown option '{pair[:40]}'",
                remedy=f"{named}@{gpu}:{_IN_WORDS[1]}=VALUE (or {', '.join((_IN_WORDS[0], *_IN_WORDS[2:]))})",
            )
        if option in options:
            raise InvalidArgumentError(f"'{text[:80]}': {option} is given twice", remedy=f"one {option}")
        options[option] = _VALUES[option](text, option, value) if option in _VALUES else value
    return named, options


def is_file(text: str) -> bool:
    """Return whether a word is the path of a file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or contains a NUL
        return False


def _watts(text: str, option: str, value: str) -> float:
    limit = watts(value)
    if not limit:
        raise InvalidArgumentError(
            f"'{text[:80]}': {option}: '{value[:40]}' is not a power with its unit", remedy=f"{option}=500W"
        )
    return limit


def _switch(text: str, option: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidArgumentError(
            f"'{text[:80]}': {option}: '{value[:40]}' is neither", remedy=f"{option}=true or false"
        )
    return value == "true"


def _whole(text: str, option: str, value: str) -> int:
    number = binary_count(value)
    if number is None and value.isascii() and value.isdigit() and len(value) < 12:
        number = int(value)
    if not isinstance(number, int) or not 1 <= number <= _LONGEST:
        raise InvalidArgumentError(
            f"'{text[:80]}': {option}: '{value[:40]}' must be 1-{_LONGEST}",
            remedy=f"{option}={4096 if option == 'seq' else 8}",
        )
    return number


def _share(text: str, option: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InvalidArgumentError(f"'{text[:80]}': {option}: '{value[:40]}' is no share", remedy=f"{option}=0.6")
    return share


_VALUES: Mapping[str, Callable[[str, str, str], Any]] = {
    **dict.fromkeys(("seq", "batch", "loss_chunks"), _whole),
    "power_limit": _watts,
    **dict.fromkeys(("real_tokens", "lora_dropout"), _share),
    **dict.fromkeys(("dora", "cuda_graphs"), _switch),
    **dict.fromkeys(("modules_to_save", "freeze"), lambda text, option, value: value.split("+")),
}
"""Values of options in words that are no text."""


def _merged(text: str, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name in own and own[name] != value:
            own_value = f"{own[name]:g} W" if name == "power_limit" else own[name]
            own_value = "+".join(own_value) if isinstance(own_value, list) else own_value
            raise InvalidArgumentError(f"'{text[:80]}' says {own_value}, too", setting=name, remedy="drop {this}")
    return given | own


def _one_of(value: str, known: tuple[str, ...], setting: str) -> Any:  # noqa: ANN401 - a Literal
    if value not in known:
        near = nearest(value, list(known))
        remedy = f"{{this={near or known[0]}}} (one of {', '.join(known)})"
        raise InvalidArgumentError(f"unknown value '{value[:80]}'", setting=setting, remedy=remedy)
    return value
