"""Words that several trainers share: names of optimizers, types and shardings, and what they are here."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.catalog.losses import LOSSES
from paceline.interop.trainers.reading import Reading

SHARDINGS: Mapping[object, tuple[str, str | None]] = {
    "full_shard": ("zero3", None),
    "shard_grad_op": ("zero3", "no"),
    "no_shard": ("none", None),
    "hybrid_shard": ("hsdp", None),
    "hybrid_shard_zero2": ("hsdp", "no"),
    1: ("zero3", None),
    2: ("zero3", "no"),
    3: ("none", None),
    4: ("hsdp", None),
    5: ("hsdp", "no"),
}
"""FSDP's strategies: the sharding, and `--reshard-after-forward` where it is not FSDP's default.

`SHARD_GRAD_OP` keeps units gathered between the passes: torch/distributed/fsdp/api.py (`ShardingStrategy`).
"""
DTYPES: Mapping[object, str] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "torch.float16": "fp16",
    "half": "fp16",
    "fp8": "fp8",
    "no": "fp32",
    "fp32": "fp32",
    "float32": "fp32",
    "torch.float32": "fp32",
    "float": "fp32",
    False: "fp32",
}
AUTOCAST: Mapping[str, str] = {"bf16": "amp-bf16", "fp16": "amp-fp16"}
"""The recipe of torch.autocast over FP32 parameters, by the type of products."""
_ADAMW = ("adamw", "adam")
OPTIMIZERS: Mapping[str, tuple[str, str | None]] = {
    **dict.fromkeys(("adamw", "adam", "adamw_torch", "adamw_hf", "adamw_anyprecision"), ("adamw", None)),
    **dict.fromkeys(("adamw_torch_fused", "adamw_apex_fused", "fusedadam"), ("adamw", "fused")),
    "deepspeedcpuadam": ("adamw", None),
    **dict.fromkeys(
        ("adamw_8bit", "adamw_bnb_8bit", "adam8bit", "adamw8bit", "adamw_torch_8bit"), ("adamw-8bit", None)
    ),
    **dict.fromkeys(("paged_adamw_8bit", "pagedadamw8bit"), ("paged-adamw-8bit", None)),
    **dict.fromkeys(("paged_adamw_32bit", "paged_adamw", "pagedadamw32bit"), ("paged-adamw", None)),
    "adafactor": ("adafactor", None),
    **dict.fromkeys(("lion", "lion_32bit", "fusedlion"), ("lion", None)),
    **dict.fromkeys(("muon", "dist_muon", "distributedmuon"), ("muon", None)),
    "sgd": ("sgd", None),
}
"""Optimizers of transformers' `optim`, DeepSpeed, Megatron and torchtitan; and the implementation that they imply."""
MODULES: Mapping[str, str] = {"all-linear": "all-linear", "all_linear": "all-linear", "all": "all-linear"}
_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def take_optimizer(reading: Reading, *names: str) -> None:
    """Take the optimizer of a field; one that is not known here is named, and AdamW's memory is assumed."""
    word = reading.text(*names)
    if not word:
        return
    name = reading.present(*names)
    known = OPTIMIZERS.get(word.lower())
    if known is None:
        reading.leave(name, f"the optimizer {word:.40}; forecast is AdamW")
        return
    optimizer, implementation = known
    reading.take("optimizer", optimizer, name)
    if "optimizer_impl" not in reading.options:
        reading.take("optimizer_impl", implementation, name)


def take_dtype(reading: Reading, dtype: str | None, recipe: str | None, *names: str) -> None:
    """Take the type of products and the recipe of precision."""
    reading.take("dtype", dtype, *names)
    reading.take("precision", recipe, *names)


def lora_modules(targets: list[str]) -> str:
    """Return the modules of `--lora` for PEFT's `target_modules`: a name, or the modules by comma."""
    if not targets:
        return ""
    words = {MODULES.get(one.lower(), one) for one in targets}
    if "all-linear" in words or words >= set(_MATRICES):
        return "all-linear"
    return ",".join(one for one in dict.fromkeys(targets))


def take_lora(reading: Reading, rank: int | None, modules: str, *names: str) -> None:
    """Take the rank and the modules of LoRA."""
    if rank is not None:
        reading.take("lora", f"{rank}:{modules}" if modules else str(rank), *names)


def eager_kernels(reading: Reading) -> None:
    """Take the kernels of transformers' models where the file names no others."""
    reading.take("kernels", "eager")
    reading.assume("eager kernels, those of transformers' models", "--kernels fused, or compiled")


def adapters_in_fp32(reading: Reading) -> None:
    """Drop a recipe: adapters beside 16-bit weights are in FP32, whatever it says (PEFT's `autocast_adapter_dtype`)."""
    if reading.options.get("precision") in ("bf16", "mixed", *AUTOCAST.values()):
        reading.forget("precision")


def take_loss(reading: Reading, loss: str, *names: str) -> None:
    """Take the loss; where it compares sequences, a sample of the file's batch is several of them."""
    known = next((one for one in LOSSES.items() if one[0] == _SAME_PASSES.get(loss, loss)), None)
    if known is None:
        for name in names[:1]:
            reading.leave(name, f"the loss {loss}")
        return
    name, passes = known
    reading.take("loss", name, *names, unless="lm")
    if passes.sequences > 1 and "batch" in reading.options:
        reading.options["batch"] *= passes.sequences
        reading.assume(f"a batch in sequences: {passes.sequences} for each sample that {passes.title} compares")


_SAME_PASSES = {"ipo": "dpo"}
"""Losses of as many passes."""
