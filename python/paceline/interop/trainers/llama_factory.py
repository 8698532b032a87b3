"""LLaMA-Factory's YAML: src/llamafactory/hparams.

What is trained is held in FP32 (`_setup_full_tuning` and `_setup_lora_tuning` in model/adapter.py), unless `pure_bf16`
is set; checkpointing is on unless it is disabled (model/model_utils/checkpointing.py).
"""

from __future__ import annotations

from paceline.interop.trainers import hf_trainer
from paceline.interop.trainers.document import Values
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.words import (
    adapters_in_fp32,
    as_fields,
    fused_kernels,
    take_gpus,
    take_lora,
    take_loss,
    take_optimizer,
    take_whole_modules,
)

_ATTENTION = {
    "auto": "flash",
    "disabled": "unfused",
    "sdpa": "flash",
    "fa2": "flash",
    "fa3": "flash",
    "off": "unfused",
    False: "unfused",
    True: "flash",
}
_STAGES = {"pt": "lm", "sft": "lm", "dpo": "dpo", "kto": "kto", "rm": "rm", "ppo": "ppo"}
_QUANTIZED = {4: "nf4-double", 8: "int8"}
_DEGREES = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
}
"""Fields of its trainer on Megatron-LM, which has that one's kernels."""
_IN_PARTS = {"badam": "BAdam", "galore": "GaLore", "apollo": "APOLLO"}
"""Optimizers of few states that are not modeled, by their switch `use_NAME`."""
_OF_SAME_SIZE = ("hqq", "eetq")
"""Methods whose weights are as large as bitsandbytes' of as many bits."""


def _derive(reading: Reading) -> None:
    reading.name_model(reading.text("model_name_or_path"), "model_name_or_path")
    _parallel(reading)
    take_gpus(reading)
    hf_trainer.batch(reading)
    if "batch" not in reading.options:
        size = hf_trainer.BATCH
        reading.default("batch", size, f"batch {size} per GPU, transformers' default", "--batch N")
    hf_trainer.sharding(reading)
    pure = reading.flag("pure_bf16")
    if pure:
        reading.take("dtype", "bf16", "pure_bf16")
        reading.take("precision", "bf16", "pure_bf16")
        if reading.flag("bf16") or reading.flag("fp16"):
            # Autocast to what the parameters are in already.
            reading.known(reading.present("bf16", "fp16"), "beside pure_bf16")
    elif _kind(reading) == "lora" and not reading.flag("bf16") and not reading.flag("fp16"):
        # The frozen weights stay in the checkpoint's type; all that is trained is cast to FP32.
        reading.default("dtype", "bf16", "bf16, the type of most checkpoints", "--dtype NAME")
        hf_trainer.precision(reading, "bf16")
    else:
        hf_trainer.precision(reading, None)
    if _kind(reading) != "lora":
        hf_trainer.eight_bits(reading, "fp8")
    is_megatron = any(name in reading.values for name in _DEGREES.values())
    if "checkpointing" in reading.options or is_megatron:
        reading.flag("disable_gradient_checkpointing")
    elif reading.flag("use_unsloth_gc"):
        reading.take("checkpointing", "offload", "use_unsloth_gc")
    elif reading.flag("disable_gradient_checkpointing"):
        reading.known("disable_gradient_checkpointing", "--checkpointing none")
    else:
        reading.default("checkpointing", "full", "full checkpointing, LLaMA-Factory's default", "--checkpointing none")
        reading.take("checkpointing", "full", "disable_gradient_checkpointing")
    _tuning(reading, autocast=not pure or reading.flag("bf16") or reading.flag("fp16"))
    if is_megatron:
        fused_kernels(reading)
    else:
        hf_trainer.kernels(reading)
    if reading.flag("use_muon"):
        reading.take("optimizer", "muon", "use_muon")
    take_optimizer(reading, "optim", default="transformers' default")
    reading.take("attention", reading.choice(_ATTENTION, "flash_attn"), "flash_attn", unless="flash")
    reading.take_default("seq", 2048, "cutoff_len", "sequences of 2,048 tokens, LLaMA-Factory's default")
    if reading.text("stage") == "pt" and reading.values.get("packing") is None:
        reading.take("real_tokens", 1, "stage")
    else:
        hf_trainer.packing(reading, "packing", "neat_packing")
    _loss(reading)
    hf_trainer.buckets(reading)


def _parallel(reading: Reading) -> None:
    """Take the degrees of its trainer on Megatron-LM (mcore_adapter)."""
    for setting, name in _DEGREES.items():
        reading.take(setting, reading.whole(name), name, unless=1)
    if reading.flag("use_distributed_optimizer"):
        reading.take("sharding", "zero1", "use_distributed_optimizer")
        reading.take("precision", "megatron", "use_distributed_optimizer")
    kind = reading.choice({"full": "full", "selective": "selective"}, "recompute_granularity")
    reading.take("checkpointing", kind, "recompute_granularity")


def _kind(reading: Reading) -> str:
    return reading.choice({one: one for one in ("full", "lora", "freeze", "oft")}, "finetuning_type") or "lora"


def _tuning(reading: Reading, *, autocast: bool) -> None:
    kind = _kind(reading)
    if kind in ("freeze", "oft"):
        reading.leave("finetuning_type", f"{kind}; --freeze says which layers are not trained")
    for name, title in _IN_PARTS.items():
        if reading.flag(f"use_{name}"):
            for field in (one for one in reading.values if one.startswith(f"{name}_")):
                reading.leave(field, f"a value of {title}")
    if reading.flag("use_badam") and "freeze" in reading.given:
        reading.leave("use_badam", "BAdam, which trains one block at a time; --freeze says what is not trained")
    elif reading.flag("use_badam"):
        reading.leave("use_badam", "BAdam, which trains one block at a time; forecast is full training")
        reading.assume("all blocks trained at once, as BAdam is not modeled", "--freeze PATTERN is the nearest")
        reading.warnings.append(
            "use_badam is not modeled: BAdam trains one block at a time, and the forecast is of full training, with "
            "more memory; the nearest is --freeze with the blocks that are not trained"
        )
    bits = reading.choice(_QUANTIZED, "quantization_bit")
    method = reading.text("quantization_method") or "bnb"
    if bits is not None and kind != "lora":
        reading.leave("quantization_bit", "quantized weights beside what is no LoRA")
    elif bits is not None and method in ("bnb", "bitsandbytes"):
        if bits == "nf4-double" and not reading.flag("double_quantization", default=True):
            bits = "nf4"
        reading.take(
            "quantize", bits, "quantization_bit", "double_quantization", "quantization_method", "quantization_type"
        )
    elif bits is not None and method in _OF_SAME_SIZE:
        # Groups of 64 weights have two 16-bit numbers, as NF4's have one of 32 bits (transformers, HqqConfig).
        bits = "nf4" if bits == "nf4-double" else bits
        reading.take("quantize", bits, "quantization_bit", "quantization_method")
        reading.assume(f"products of {method} weights as with {bits}, which is as large", "--quantize NAME")
    elif bits is not None:
        reading.leave("quantization_method", f"base weights of {method:.20}; --quantize says it")
    if kind != "lora":
        return
    take_lora(
        reading,
        ("lora_rank",),
        ("lora_target",),
        "finetuning_type",
        default_rank=(8, "LLaMA-Factory's default"),
        default_modules=("all-linear", "LLaMA-Factory's default"),
    )
    adapters_in_fp32(reading, autocast=autocast)
    take_whole_modules(reading, "additional_target")
    if reading.flag("use_dora"):
        reading.take("dora", True, "use_dora")


def _loss(reading: Reading) -> None:
    loss = reading.choice(_STAGES, "stage")
    preference = reading.text("pref_loss").lower()
    if loss == "dpo" and preference in ("orpo", "simpo"):
        loss = preference
    if loss == "ppo":
        reading.leave("stage", "generation in PPO")
    else:
        take_loss(reading, loss or "lm", "stage", "pref_loss")


def _recognizes(values: Values) -> bool:
    names = set(as_fields(values)[0])
    own = {"finetuning_type", "stage", "cutoff_len", "template"}
    return "model_name_or_path" in names and bool(names & own) and "micro_batch_size" not in names


LLAMA_FACTORY = Trainer(
    "LLaMA-Factory",
    _recognizes,
    _derive,
    tables=("llama-factory", "transformers"),
    translate=as_fields,
)
