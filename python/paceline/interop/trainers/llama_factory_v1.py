"""LLaMA-Factory's YAML of its version 1, which has sections: src/llamafactory/v1/config, v1/plugins.

FSDP2 gathers FP32 parameters in bfloat16 and reduces gradients in FP32 (trainer_plugins/distributed/fsdp2.py).
"""

from __future__ import annotations

from paceline.interop.trainers import deepspeed, hf_trainer
from paceline.interop.trainers.document import Values
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.words import (
    eager_kernels,
    recipe_of,
    take_gpus,
    take_lora,
    take_optimizer,
    take_whole_modules,
)

_STRATEGIES = {"fsdp2": "zero3", "fsdpturbo": "zero3", "deepspeed": "", "ddp": "none"}
_BITS = {4: "nf4-double", 8: "int8"}
_STRATEGY, _ADAPTER = "dist_config.name", "peft_config.name"


def _derive(reading: Reading) -> None:
    reading.name_model(reading.text("model"), "model")
    take_gpus(reading)
    reading.take("batch", reading.whole("micro_batch_size"), "micro_batch_size")
    if "batch" not in reading.options:
        reading.default("batch", 1, "batch 1 per GPU, LLaMA-Factory's default", "--batch N")
    reading.take("context_parallel", reading.whole("cp_size"), "cp_size", unless=1)
    reading.take("expert_parallel", reading.whole("dist_config.ep_size"), "dist_config.ep_size", unless=1)
    reading.passes_of_global("global_batch_size", reading.whole("global_batch_size"))
    reading.take_default("seq", 2048, "cutoff_len", "sequences of 2,048 tokens, LLaMA-Factory's default")
    _sharding(reading)
    name = "enable_activation_checkpointing"
    reading.default("checkpointing", "full", "full checkpointing, LLaMA-Factory's default", "--checkpointing none")
    reading.take("checkpointing", "full" if reading.flag(name, default=True) else "none", name)
    _kernels(reading)
    take_optimizer(reading, "optim_config.name")
    if reading.choice({"lora": True, "freeze": False}, _ADAPTER):
        take_lora(
            reading,
            ("peft_config.r",),
            ("peft_config.target_modules",),
            _ADAPTER,
            default_modules=("all-linear", "LLaMA-Factory's default"),
            dropout="peft_config.lora_dropout",
        )
        # Only full training converts the model to FP32 (v1/core/model_engine.py).
        reading.forget("precision")
        take_whole_modules(reading, "peft_config.modules_to_save")
        names = ("quant_config.quantization_bit", "quant_config.double_quantization", "quant_config.name")
        bits = reading.choice(_BITS, names[0])
        if bits == "nf4-double" and not reading.flag(names[1], default=True):
            bits = "nf4"
        reading.take("quantize", bits, *names)
    elif reading.has(_ADAPTER):
        reading.leave(_ADAPTER, "layers that are trained alone; --freeze says which are not")
    hf_trainer.packing(reading, "packing")


def _sharding(reading: Reading) -> None:
    kind = reading.choice(_STRATEGIES, _STRATEGY)
    if kind:
        reading.take("sharding", kind, _STRATEGY)
    deepspeed.include(reading, "dist_config.config_file")
    if "sharding" not in reading.options:
        reading.default("sharding", "none", "DDP, as no strategy is named", "--sharding zero3")
    is_half = reading.flag("bf16", default=True)
    reading.default("dtype", "bf16", "bf16, LLaMA-Factory's default", "--dtype NAME")
    reading.take("dtype", "bf16" if is_half else "fp32", "bf16")
    if is_half and "precision" not in reading.options:
        recipe = recipe_of(reading, "bf16")
        # FSDP2 of its own reduces in FP32.
        recipe = "fsdp-mixed" if recipe == "mixed" else recipe
        reading.take("precision", recipe, "bf16", _STRATEGY)
        if not reading.source("precision"):
            reading.default("precision", recipe, "bf16, LLaMA-Factory's default", "--dtype NAME")


def _kernels(reading: Reading) -> None:
    name = "kernel_config.name"
    if any("liger" in one for one in reading.words(name)):
        hf_trainer.liger(reading, name)
    else:
        eager_kernels(reading)


def _recognizes(values: Values) -> bool:
    return "model" in values and ("train_dataset" in values or any(one.startswith("dist_config.") for one in values))


LLAMA_FACTORY_V1 = Trainer("LLaMA-Factory", _recognizes, _derive, tables=("llama-factory", "transformers"))
