"""ms-swift's arguments, as YAML or in a shell script: swift/arguments, swift/trainers/arguments.py.

`swift sft`, `pt` and `rlhf` are transformers' Trainer; `megatron sft` is Megatron Core under names of swift's own
(swift/megatron/arguments/megatron_args.py). Models are loaded in the checkpoint's type, which is autocast's, too.
"""

from __future__ import annotations

import math

from paceline.interop.trainers import deepspeed, hf_trainer, megatron, nemo
from paceline.interop.trainers.document import Values
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.shell import PROGRAM
from paceline.interop.trainers.words import (
    DTYPES,
    NO_BITSANDBYTES,
    adapters_in_fp32,
    as_fields,
    fused_kernels,
    take_gpus,
    take_lora,
    take_loss,
    take_optimizer,
    take_whole_modules,
)

_TUNERS = ("tuner_type", "train_type", "sft_type")
_MODELS = ("model", "model_id_or_path")
_KINDS = {"lora": "lora", "lora_llm": "lora", "full": "full", "longlora": "lora", "adalora": "lora"}
_BUILT_IN = {
    "zero0": ("none", ""),
    "zero1": ("zero1", ""),
    "zero2": ("zero2", ""),
    "zero3": ("zero3", ""),
    "zero2_offload": ("zero2", "cpu:states"),
    "zero3_offload": ("zero3", "cpu:parameters,states"),
}
"""Files of DeepSpeed's that it brings: swift/config."""
_ATTENTION = {
    **dict.fromkeys(("flash_attn", "flash_attention_2", "flash_attention_3", "sdpa", "flex_attention"), "flash"),
    "eager": "unfused",
}
_OF_CORE = {"word_embeddings": "embed_tokens", "output_layer": "lm_head"}
"""Modules by Megatron Core's names."""
_QUANTIZED = {4: "nf4-double", 8: "int8"}
_SAMPLES = 16
"""Of an iteration by default, on all GPUs."""
_OWN = "ms-swift's default"


def _derive(reading: Reading) -> None:
    reading.name_model(reading.text(*_MODELS), *_MODELS)
    take_gpus(reading)
    reading.take("context_parallel", reading.whole("sequence_parallel_size"), "sequence_parallel_size", unless=1)
    hf_trainer.batch(reading)
    reading.default("batch", 1, f"batch 1 per GPU, {_OWN}", "--batch N")
    if not reading.has("gradient_accumulation_steps") and reading.replicas is not None:
        passes = max(1, math.ceil(_SAMPLES / reading.effective("batch") / reading.replicas))
        if passes > 1:
            reading.default("accumulate", passes, f"{_SAMPLES} samples an iteration, {_OWN}", "--accumulate N")
    held = reading.choice(DTYPES, "torch_dtype")
    reading.default("dtype", "bf16", "parameters in bf16, the type of most checkpoints", "--dtype NAME")
    reading.take("dtype", held, "torch_dtype")
    _sharding(reading)
    autocast = hf_trainer.precision(reading, held or "bf16", "torch_dtype")
    if reading.flag("gradient_checkpointing", default=True):
        reading.default("checkpointing", "full", f"full checkpointing, {_OWN}", "--checkpointing none")
        reading.take("checkpointing", "full", "gradient_checkpointing")
    _adapters(reading, "lora", autocast=autocast)
    hf_trainer.kernels(reading)
    if reading.text("optimizer") in ("muon", "muonclip"):
        reading.take("optimizer", "muon", "optimizer")
    take_optimizer(reading, "optim", default="transformers' default")
    unless = None if hf_trainer.has_sinks(reading) else "flash"
    reading.take("attention", reading.choice(_ATTENTION, "attn_impl"), "attn_impl", unless=unless)
    hf_trainer.eager_by_default(reading)
    reading.take("seq", reading.whole("max_length"), "max_length")
    kind = reading.text("rlhf_type").lower()
    if kind:
        take_loss(reading, kind, "rlhf_type")
    hf_trainer.packing(reading, "packing")


def _sharding(reading: Reading) -> None:
    word = reading.text("deepspeed")
    if word in _BUILT_IN:
        sharding, offload = _BUILT_IN[word]
        reading.lack(deepspeed.LACKS)
        reading.take("sharding", sharding, "deepspeed")
        reading.take("precision", "o2", "deepspeed")
        reading.take("offload", offload or None, "deepspeed")
    elif reading.text("fsdp") == "fsdp2":
        # swift/config/fsdp2.json
        reading.lack({"sharding": ("zero1", "zero2")})
        reading.take("sharding", "zero3", "fsdp")
    else:
        hf_trainer.sharding(reading)


def _adapters(reading: Reading, default: str, *, autocast: bool, prefix: str = "") -> None:
    names = tuple(f"{prefix}{one.replace('_', '-') if prefix else one}" for one in _TUNERS)
    kind = reading.choice(_KINDS, *names) if reading.text(*names).lower() in ("", *_KINDS) else "other"
    if kind == "other":
        reading.leave(reading.present(*names), "this way of training a part; --lora and --freeze say others")
    if (kind or default) != "lora":
        return
    rank, targets, saved, dora, bits, dropout = (
        f"{prefix}{one.replace('_', '-') if prefix else one}"
        for one in ("lora_rank", "target_modules", "modules_to_save", "use_dora", "quant_bits", "lora_dropout")
    )
    if kind is None:
        reading.assume(f"LoRA, {_OWN}", "--lora none")
    modules = ("all-linear", "which ms-swift adapts")
    words = reading.words(targets)
    if own := nemo.modules_of(reading, [one for one in words if one.startswith("linear_")]):
        # Megatron Core's names.
        others = [one for one in words if not one.startswith("linear_")]
        reading.stand_in("(modules)", ",".join((*own, *others)), targets)
        targets = "(modules)"
    take_lora(
        reading,
        (rank,),
        (targets,),
        *names,
        default_rank=(8, _OWN),
        default_modules=modules,
        dropout=dropout,
        default_dropout=(0.05, _OWN),
    )
    adapters_in_fp32(reading, autocast=autocast)
    names_of_core = [_OF_CORE.get(one, one) for one in reading.words(saved)]
    if names_of_core != reading.words(saved):
        reading.stand_in("(saved)", ",".join(names_of_core), saved)
        saved = "(saved)"
    take_whole_modules(reading, saved)
    if reading.flag(dora):
        reading.take("dora", True, dora)
    reading.take("quantize", reading.choice(_QUANTIZED, bits), bits)


def _derive_megatron(reading: Reading) -> None:
    # A checkpoint of Megatron Core's is called as the model that it was made of.
    name = reading.present("--model", "--load", "--mcore-model")
    reading.name_model(reading.text(name), name)
    if not reading.has("--global-batch-size"):
        reading.stand_in("--global-batch-size", _SAMPLES, "--micro-batch-size")
        reading.assume(f"a global batch of {_SAMPLES}, {_OWN}", "--accumulate N")
    megatron.derive(reading)
    reading.take("seq", reading.whole("--max-length"), "--max-length")
    if reading.is_default("dtype"):
        held = reading.choice(DTYPES, "--torch-dtype")
        reading.forget("dtype")
        reading.default("dtype", "bf16", "bf16, the type of most checkpoints", "--dtype NAME")
        reading.take("dtype", held, "--torch-dtype")
        reading.default("precision", "megatron", "the recipe of precision megatron", "--precision NAME")
    if reading.is_default("sharding") and reading.flag("--use-distributed-optimizer", default=True):
        reading.forget("sharding")
        reading.default("sharding", "zero1", f"the distributed optimizer, {_OWN}", "--sharding none")
    if not reading.has("--recompute-granularity"):
        reading.default("checkpointing", "selective", f"recomputation of attention, {_OWN}", "--checkpointing none")
    if reading.flag("--packing"):
        reading.take("real_tokens", 1, "--packing")
    _adapters(reading, "full", autocast=True, prefix="--")
    if "lora" in reading.options:
        reading.forget("precision")
        fused_kernels(reading)
    kind = reading.text("--rlhf-type").lower()
    if kind:
        take_loss(reading, kind, "--rlhf-type")


_OF_MEGATRON = frozenset(("micro_batch_size", "global_batch_size", "tensor_model_parallel_size"))


def _names(values: Values) -> set[str]:
    """Return the names of ms-swift's fields; none if these are of another trainer."""
    names = set(as_fields(values)[0])
    own = {*_TUNERS, "rlhf_type", "model_author", "split_dataset_ratio", "load_from_cache_file", "save_safetensors"}
    is_started = str(values.get(PROGRAM, "")).partition(" ")[0] in ("swift", "megatron")
    is_own = names & {*_MODELS, "load", "mcore_model"} and names & own and "num_layers" not in names
    return names if is_started or is_own else set()


MS_SWIFT = Trainer(
    "ms-swift",
    lambda values: (
        bool(_names(values))
        and not _names(values) & _OF_MEGATRON
        and not str(values.get(PROGRAM, "")).startswith("megatron ")
    ),
    _derive,
    tables=("ms-swift", "transformers"),
    translate=as_fields,
)
MEGATRON_SWIFT = Trainer(
    "ms-swift",
    lambda values: (
        any(one.startswith("--") for one in values)
        and bool(_names(values))
        and (bool(_names(values) & _OF_MEGATRON) or str(values.get(PROGRAM, "")).startswith("megatron "))
    ),
    _derive_megatron,
    tables=("ms-swift", "megatron"),
    prefix="--",
    lacks={**NO_BITSANDBYTES, "checkpointing": ("offload",)},
)
