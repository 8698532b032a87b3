"""axolotl's YAML: https://docs.axolotl.ai/docs/config-reference.html.

axolotl holds parameters in the type of `bf16` or `fp16`, over which no FP32 copy is kept (`torch_dtype` of its model
loader), except under FSDP and DeepSpeed.
"""

from __future__ import annotations

from paceline.interop.trainers import hf_trainer
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.words import (
    DTYPES,
    adapters_in_fp32,
    eager_kernels,
    take_gpus,
    take_lora,
    take_loss,
    take_optimizer,
    take_whole_modules,
)

_LOSSES = {one: one for one in ("dpo", "ipo", "kto", "orpo", "simpo", "grpo", "gdpo", "ebft")}

_TYPES = ("torch_dtype", "bf16", "bfloat16", "fp16", "float16", "float32", "tf32")


def _derive(reading: Reading) -> None:
    model = reading.text("base_model")
    reading.name_model(model, "base_model")
    reading.take("batch", reading.whole("micro_batch_size"), "micro_batch_size")
    take_gpus(reading)
    _parallel(reading)
    passes, total = reading.whole("gradient_accumulation_steps"), reading.whole("batch_size")
    if passes is None and total is not None:
        # The older way: the samples of an iteration on one GPU.
        passes = max(1, total // int(reading.effective("batch", 1)))
    reading.passes(passes, "gradient_accumulation_steps", "batch_size")
    hf_trainer.sharding(reading)
    reading.take_default("seq", 512, "sequence_len", "sequences of 512 tokens, axolotl's default")
    quantized = reading.flag("load_in_4bit") or reading.flag("load_in_8bit")
    held = reading.choice(DTYPES, "torch_dtype") if reading.value("torch_dtype") else None
    if held is None and not reading.flag("float32"):
        held = next(
            (one for one in ("bf16", "bfloat16", "fp16", "float16") if reading.has(one) and reading.values[one]),
            None,
        )
        held = None if held is None else DTYPES[held]
    if held is None and "bf16" not in reading.values and not reading.flag("float32"):
        held = "bf16"
        reading.default("dtype", held, "bf16: auto, axolotl's default", "--dtype NAME")
    for name in ("bfloat16", "float16"):
        if reading.flag(name):
            reading.take("dtype", DTYPES[name], name)
    types = [name for name in _TYPES if reading.has(name) and reading.values[name]]
    autocast = hf_trainer.precision(reading, held, *types)
    if not reading.has("adapter"):
        hf_trainer.eight_bits(reading, "fp8")
    # These two are without autocast (axolotl's reference of the configuration).
    _adapter(reading, autocast=autocast and not (reading.flag("bfloat16") or reading.flag("float16")))
    if quantized:
        hf_trainer.quantized(reading)
        if reading.options.get("quantize") == "nf4":
            # axolotl's loader asks bitsandbytes for double quantization.
            reading.take("quantize", "nf4-double", "load_in_4bit")
    _experts(reading)
    if reading.text("gradient_checkpointing") in ("offload", "offload_disk", "unsloth"):
        reading.take("checkpointing", "offload", "gradient_checkpointing")
    else:
        hf_trainer.recomputation(reading, "gradient_checkpointing")
    if reading.text("activation_offloading").lower() in ("true", "legacy", "disk", "hidden_states"):
        hf_trainer.offload_activations(reading, "activation_offloading")
    _kernels(reading)
    take_optimizer(reading, "optimizer", default="axolotl's default")
    hf_trainer.packing(reading, "sample_packing")
    loss = reading.choice(_LOSSES, "rl")
    if loss:
        take_loss(reading, loss, "rl", "rl_beta")
    elif reading.flag("reward_model"):
        take_loss(reading, "rm", "reward_model")
    hf_trainer.attention(reading)
    unfused = reading.flag("eager_attention")
    reading.take("attention", "unfused" if unfused else None, "eager_attention")
    for name in ("flash_attention", "sdp_attention", "xformers_attention", "flex_attention", "s2_attention"):
        if reading.flag(name):
            reading.take("attention", "flash", name, unless=None if hf_trainer.has_sinks(reading) else "flash")
            reading.known(name, "as a forecast has it")
    hf_trainer.eager_by_default(reading)


def _experts(reading: Reading) -> None:
    """Take that experts are quantized, too, which is a forecast's assumption except for models that always fuse them.

    axolotl/monkeypatch/moe_quant.py quantizes each parameter of experts with three dimensions.
    """
    name = "quantize_moe_experts"
    if not reading.flag(name):
        reading.known(name, "without effect")
    elif hf_trainer.has_sinks(reading):
        reading.leave(name, "experts in few bits; the name of a checkpoint that has them, NAME-bnb-4bit, says it")
    else:
        reading.known(name, "as a forecast has them")


def _parallel(reading: Reading) -> None:
    for setting, names in {
        "tensor_parallel": ("tensor_parallel_size",),
        "context_parallel": ("context_parallel_size", "sequence_parallel_degree"),
        "expert_parallel": ("expert_parallel_size",),
    }.items():
        reading.take(setting, reading.whole(*names), *names, unless=1)
    names = ("dp_shard_size", "dp_replicate_size")
    shard, replicas = (reading.whole(one) for one in names)
    if shard and replicas and replicas > 1:
        reading.take("sharding", f"hsdp:{shard}", *names)
    if (shard or replicas) and reading.gpus is None:
        product = (shard or 1) * (replicas or 1)
        product *= reading.degree("tensor_parallel") * reading.degree("context_parallel")
        reading.take("workers", product, *names, "tensor_parallel_size", "context_parallel_size")


def _adapter(reading: Reading, *, autocast: bool) -> None:
    adapter = reading.choice({"lora": "lora", "qlora": "qlora", "": "", "llama-adapter": "other"}, "adapter")
    if not adapter:
        return
    if adapter == "other":
        reading.leave("adapter", "this adapter")
        return
    is_quantized = reading.flag("load_in_4bit")
    if adapter == "qlora" and not is_quantized and not reading.flag("gptq"):
        # axolotl/utils/schemas/peft.py (`validate_qlora`) refuses it, too.
        raise reading.wrong("load_in_4bit", "qlora needs weights in 4 bits", "true (or adapter: lora)")
    # axolotl/loaders/adapter.py (`_build_peft_lora_config`): its switch joins all linear layers to those named.
    take_lora(reading, ("lora_r",), ("lora_target_modules",), "adapter", beside="lora_target_linear")
    adapters_in_fp32(reading, autocast=autocast)
    take_whole_modules(reading, "lora_modules_to_save", "unfrozen_parameters")
    if reading.flag("peft_use_dora"):
        reading.take("dora", True, "peft_use_dora")
    is_off = any(reading.values.get(name) for name in ("rl", "trust_remote_code", "load_in_8bit"))
    if not is_off and not reading.has("lora_*_kernel") and reading.given.get("lora") != "none":
        # axolotl/utils/schemas/validation.py (`check_auto_enable_lora_kernels`)
        reading.assume("no kernels of axolotl's own for LoRA, which it enables by default")


_CUT = "CutCrossEntropyPlugin"
_LIGER = (
    "liger_rms_norm",
    "liger_rope",
    "liger_glu_activation",
    "liger_swiglu",
    "liger_layer_norm",
    "liger_rms_norm_gated",
)


def _kernels(reading: Reading) -> None:
    fused = [name for name in _LIGER if reading.flag(name)]
    if reading.flag("torch_compile"):
        reading.take("kernels", "compiled", "torch_compile")
        hf_trainer.compile_mode(reading)
    elif fused:
        reading.take("kernels", "fused", *fused)
    else:
        eager_kernels(reading)
    if reading.flag("liger_fused_linear_cross_entropy"):
        reading.take("loss_chunks", reading.liger_chunks(), "liger_fused_linear_cross_entropy")
    elif reading.flag("cut_cross_entropy", default=_CUT in " ".join(reading.words("plugins"))):
        # The plugin alone switches it on (axolotl/integrations/cut_cross_entropy/args.py).
        reading.take("loss_chunks", reading.liger_chunks(), "cut_cross_entropy", "plugins")
        reading.assume("chunks of logits as Liger's loss has them", "--loss-chunks N")


AXOLOTL = Trainer(
    "axolotl",
    lambda values: (
        "base_model" in values and ("micro_batch_size" in values or "sequence_len" in values or "datasets" in values)
    ),
    _derive,
    tables=("axolotl", "transformers"),
)
