"""Arguments of transformers' Trainer and TRL's trainers, as JSON or YAML: transformers/training_args.py, trl/trainer.

axolotl and LLaMA-Factory share much of it. The recipe of precision follows the type in which parameters are held:
`from_pretrained` keeps FP32 unless a type is named, over which `bf16` is torch.autocast.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.interop.trainers import deepspeed, fsdp
from paceline.interop.trainers.document import Values
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.words import (
    AUTOCAST,
    DTYPES,
    eager_kernels,
    lora_modules,
    take_lora,
    take_loss,
    take_optimizer,
)

ATTENTION: Mapping[object, str] = {
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flash_attention": "flash",
    "xformers": "flash",
    "kernels-community/flash-attn": "flash",
    "kernels-community/flash-attn2": "flash",
    "kernels-community/flash-attn3": "flash",
    "kernels-community/vllm-flash-attn3": "flash",
    "sdpa": "flash",
    "flex_attention": "flash",
    "eager": "unfused",
}
QUANTIZED = {"nf4": ("nf4", "nf4-double"), "fp4": ("nf4", "nf4-double")}
LOSSES: Mapping[object, str] = {
    "sigmoid": "dpo",
    "hinge": "dpo",
    "ipo": "dpo",
    "robust": "dpo",
    "sigmoid_norm": "dpo",
    "simpo": "simpo",
    "orpo": "orpo",
}


def batch(reading: Reading) -> None:
    """Take the batch of a pass and the passes of an iteration."""
    name = "per_device_train_batch_size"
    reading.take("batch", reading.whole(name, "per_gpu_train_batch_size"), name, "per_gpu_train_batch_size")
    reading.passes(reading.whole("gradient_accumulation_steps"), "gradient_accumulation_steps")


def precision(reading: Reading, held: str | None, *fields: str) -> None:
    """Take the type of products, and the recipe that the type of the held parameters makes.

    `held`: of parameters; None: FP32. `fields`: those that say it. Call it after sharding is taken.
    """
    found = next((one for one in ("bf16", "fp16") if _is_on(reading, one)), None)
    if found is None:
        if held is not None:
            reading.take("dtype", held, *fields)
            reading.take("precision", "bf16" if held == "bf16" else None, *fields)
        elif "dtype" not in reading.options:
            reading.take("dtype", "tf32" if reading.flag("tf32") else "fp32", "bf16", "fp16", "tf32")
        return
    reading.take("dtype", found, found)
    if "precision" in reading.options:
        return
    sharding = str(reading.effective("sharding", "none"))
    if sharding.startswith(("zero3", "hsdp")):
        # accelerate casts what is trained to FP32 under FSDP (fsdp.py).
        reading.take("precision", "mixed", found)
    elif held == "bf16":
        reading.take("precision", "bf16", found, *fields)
    else:
        reading.take("precision", AUTOCAST[found], found, *fields)


def _is_on(reading: Reading, name: str) -> bool:
    # `auto` of axolotl takes bfloat16 where the GPU has it.
    return (
        reading.values.get(name) in ("auto", "full")
        if isinstance(reading.values.get(name), str) and reading.values[name] in ("auto", "full")
        else reading.flag(name)
    )


def sharding(reading: Reading) -> None:
    """Take FSDP or DeepSpeed; DDP otherwise."""
    words = [word for one in reading.words("fsdp") for word in one.split()]
    # A dump of all arguments has `fsdp_config` even where `fsdp` is empty.
    is_named = bool(words) and words[0].lower() not in ("false", "")
    if is_named or ("fsdp" not in reading.values and reading.has("fsdp_config.*")):
        fsdp.take(reading, words)
        return
    deepspeed.include(reading, "deepspeed", "deepspeed_config")
    if "sharding" not in reading.options:
        reading.take("sharding", "none")
        reading.assume("DDP, as neither FSDP nor DeepSpeed is named", "--sharding zero3")


def recomputation(reading: Reading, *names: str) -> None:
    """Take full checkpointing."""
    if reading.flag(*names):
        reading.take("checkpointing", "full", *names)


def kernels(reading: Reading) -> None:
    """Take Liger's or torch.compile's kernels; those of transformers' models are eager."""
    if reading.flag("torch_compile") or reading.text("torch_compile_backend"):
        reading.take("kernels", "compiled", "torch_compile", "torch_compile_backend")
    elif reading.flag("use_liger_kernel", "use_liger", "enable_liger_kernel", "liger"):
        liger(reading, "use_liger_kernel", "use_liger", "enable_liger_kernel", "liger")
    else:
        eager_kernels(reading)


def liger(reading: Reading, *names: str) -> None:
    """Take Liger's fused kernels and its loss, computed over chunks of tokens.

    Chunks are as many as the vocabulary is wider than the hidden layers, to a power of 2 of tokens:
    liger_kernel/ops/fused_linear_cross_entropy.py.
    """
    reading.take("kernels", "fused", *names)
    chunks = reading.liger_chunks()
    reading.take("loss_chunks", chunks, *names)


def lora(
    reading: Reading, *, is_on: bool, rank: tuple[str, ...], targets: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """Take LoRA's rank and modules."""
    if not is_on:
        return
    found = reading.whole(*rank)
    modules = lora_modules(reading.words(*targets))
    if found is None:
        found = 8
        reading.assume("rank 8, PEFT's default", "--lora RANK")
    if not modules:
        # PEFT's default for most families (peft/utils/constants.py).
        modules = "q_proj,v_proj"
        reading.assume("q_proj and v_proj, PEFT's default modules", "--lora RANK:MODULES")
    take_lora(reading, found, modules, *names, *rank, *targets)


def quantized(reading: Reading) -> None:
    """Take the type in which bitsandbytes holds the base weights."""
    if reading.flag("load_in_4bit"):
        double = reading.flag("use_bnb_nested_quant", "bnb_4bit_use_double_quant")
        kind = reading.text("bnb_4bit_quant_type") or "nf4"
        one, two = QUANTIZED.get(kind, QUANTIZED["nf4"])
        own = ("load_in_4bit", "use_bnb_nested_quant", "bnb_4bit_use_double_quant", "bnb_4bit_quant_type")
        reading.take("quantize", two if double else one, *own)
    elif reading.flag("load_in_8bit"):
        reading.take("quantize", "int8", "load_in_8bit")


def _derive(reading: Reading) -> None:
    model = reading.text("model_name_or_path", "model_id", "model_name")
    if model:
        reading.name_model(model, "model_name_or_path", "model_id", "model_name")
    gpus(reading)
    batch(reading)
    sharding(reading)
    held = reading.choice(DTYPES, "torch_dtype", "dtype") if reading.value("torch_dtype", "dtype") else None
    if held is None and "precision" not in reading.options:
        reading.assume("parameters in FP32, as from_pretrained holds them before transformers 5", "--precision bf16")
    precision(reading, held if held != "fp32" else None, "torch_dtype", "dtype")
    recomputation(reading, "gradient_checkpointing", "activation_checkpointing")
    kernels(reading)
    take_optimizer(reading, "optim")
    attention(reading)
    reading.take(
        "seq",
        reading.whole("max_length", "max_seq_length", "block_size", "model_max_length"),
        "max_length",
        "max_seq_length",
        "block_size",
        "model_max_length",
    )
    is_lora = reading.flag("use_peft") or reading.has("lora_r", "lora_target_modules")
    lora(reading, is_on=is_lora, rank=("lora_r",), targets=("lora_target_modules",), names=("use_peft",))
    quantized(reading)
    buckets(reading)
    loss(reading)
    packing(reading, "packing")


def attention(reading: Reading) -> None:
    """Take the kernel of attention; one that is not known is named."""
    name = "attn_implementation"
    word = reading.text(name)
    if word and word not in ATTENTION:
        reading.leave(name, "an implementation of attention that is not known; --attention says it")
    elif word:
        reading.take("attention", ATTENTION[word], name, unless="flash")
        reading.known(name, "as a forecast's attention")


def buckets(reading: Reading) -> None:
    """Take the size of DDP's buckets, in MB of 2**20 bytes."""
    size = reading.whole("ddp_bucket_cap_mb")
    if size is not None and reading.effective("sharding") == "none":
        reading.take("bucket_size", f"{size}MiB", "ddp_bucket_cap_mb")


_GENERATING = ("num_generations", "max_completion_length", "use_vllm", "vllm_mode", "lmbda")
"""Arguments of TRL's trainers that sample completions (GRPO, RLOO, GKD)."""


def loss(reading: Reading) -> None:
    """Take DPO, where its own arguments say that it is; what generates samples is not modeled."""
    generating = [name for name in _GENERATING if reading.has(name)]
    for name in generating:
        reading.leave(name, "generation of samples, as in GRPO")
    if not generating and reading.has("beta", "max_prompt_length", "ref_model*", "rpo_alpha"):
        if not reading.has("loss_type", "max_prompt_length", "ref_model*", "rpo_alpha"):
            reading.assume("DPO, of whose arguments beta is one", "--loss NAME")
        kind = reading.value("loss_type")
        found = LOSSES.get(str(kind[0] if isinstance(kind, list) and kind else kind or "sigmoid").lower())
        take_loss(reading, found or "dpo", "beta", "loss_type", "max_prompt_length", "rpo_alpha")


def packing(reading: Reading, *names: str) -> None:
    """Take that all tokens are real ones. Without packing some are padding, and the file does not say how many."""
    if reading.flag(*names):
        reading.take("real_tokens", 1, *names)
    elif "seq" in reading.options:
        reading.assume("all samples as long as the sequence, without padding", "--real-tokens SHARE")


def as_fields(values: Values) -> tuple[Values, dict[str, str]]:
    """Return the arguments of a script as fields of a file: `--per-device-train-batch-size 4`, and their spelling."""
    labels = {name[2:].replace("-", "_"): name for name in values if name.startswith("--")}
    return {
        (name[2:].replace("-", "_") if name.startswith("--") else name): one for name, one in values.items()
    }, labels


def gpus(reading: Reading) -> None:
    """Take the number of GPUs from the launcher of a script: torchrun, accelerate or deepspeed."""
    nodes, each = reading.whole("nnodes", "num_machines", "num_nodes"), reading.whole("nproc_per_node", "num_gpus")
    every = reading.whole("num_processes")
    if each is not None:
        reading.take("workers", each * (nodes or 1), "nproc_per_node", "num_gpus", "nnodes", "num_nodes")
    else:
        reading.take("workers", every, "num_processes", "num_machines")


def _recognizes(values: Values) -> bool:
    names = set(as_fields(values)[0])
    trained = {"num_train_epochs", "max_steps", "lr_scheduler_type", "optim", "logging_steps", "save_strategy"}
    return bool(
        names & {"per_device_train_batch_size", "per_gpu_train_batch_size"}
        or ({"gradient_accumulation_steps", "output_dir"} <= names and names & trained)
    )


HF_TRAINER = Trainer(
    "transformers' Trainer",
    _recognizes,
    _derive,
    tables=("transformers",),
    translate=as_fields,
)
