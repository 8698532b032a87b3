"""accelerate's YAML, as `accelerate config` writes it: accelerate/commands/config/config_args.py."""

from __future__ import annotations

from paceline.interop.trainers import deepspeed, fsdp
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.words import AUTOCAST, DTYPES, default_optimizer, eager_kernels, recipe_of

_KINDS = {
    "no": "none",
    "multi_gpu": "none",
    "fsdp": "fsdp",
    "deepspeed": "deepspeed",
    "megatron_lm": "megatron",
}
_DS = "deepspeed_config."


def _derive(reading: Reading) -> None:
    kind = reading.choice(_KINDS, "distributed_type") or ("fsdp" if reading.has("fsdp_config.*") else "none")
    _gpus(reading)
    dtype = reading.choice(DTYPES, "mixed_precision")
    reading.take("dtype", dtype, "mixed_precision")
    _parallelism(reading)
    if kind == "fsdp":
        fsdp.take(reading)
        reading.take("precision", recipe_of(reading, dtype), "mixed_precision")
    elif kind == "deepspeed":
        _deepspeed(reading, dtype)
    elif kind == "megatron":
        _megatron(reading)
    else:
        reading.take("sharding", "none", "distributed_type")
        reading.take("precision", recipe_of(reading, dtype), "mixed_precision")
    if reading.text("dynamo_config.dynamo_backend", "dynamo_backend").lower() not in ("", "no"):
        reading.take("kernels", "compiled", "dynamo_config.dynamo_backend", "dynamo_backend")
        modes = ("dynamo_config.dynamo_mode", "dynamo_mode")
        # torch/_inductor/__init__.py (`list_mode_options`)
        reading.take("cuda_graphs", reading.text(*modes) in ("reduce-overhead", "max-autotune") or None, *modes)
    elif kind != "megatron":
        eager_kernels(reading)
    default_optimizer(reading, "transformers' default")


def _gpus(reading: Reading) -> None:
    gpus, nodes = reading.whole("num_processes"), reading.whole("num_machines")
    reading.take("workers", gpus, "num_processes")
    if gpus is None or nodes is None:
        return
    if gpus % nodes:
        raise reading.wrong(
            "num_processes",
            f"{gpus} processes do not divide among {nodes} machines",
            f"{nodes * max(1, gpus // nodes)}",
        )
    if nodes > 1 and "cluster" not in reading.given:
        reading.take("gpus_per_node", gpus // nodes, "num_machines")


def _parallelism(reading: Reading) -> None:
    prefix = "parallelism_config.parallelism_config_"
    for name, setting in (
        ("tp_size", "tensor_parallel"),
        ("cp_size", "context_parallel"),
        ("sp_size", "context_parallel"),
    ):
        reading.take(setting, reading.whole(f"{prefix}{name}"), f"{prefix}{name}", unless=1)
    replicas, shard = reading.whole(f"{prefix}dp_replicate_size"), reading.whole(f"{prefix}dp_shard_size")
    if shard is not None and shard > 1:
        sharding = f"hsdp:{shard}" if (replicas or 1) > 1 else "zero3"
        reading.take("sharding", sharding, f"{prefix}dp_replicate_size", f"{prefix}dp_shard_size")


def _deepspeed(reading: Reading, dtype: str | None) -> None:
    reading.known("distributed_type", "DeepSpeed")
    reading.take(
        "sharding",
        reading.choice(deepspeed.STAGES, f"{_DS}zero_stage"),
        f"{_DS}zero_stage",
        "distributed_type",
    )
    reading.passes(reading.whole(f"{_DS}gradient_accumulation_steps"), f"{_DS}gradient_accumulation_steps")
    deepspeed.offload(reading, f"{_DS}offload_param_device", f"{_DS}offload_optimizer_device")
    deepspeed.include(reading, f"{_DS}deepspeed_config_file")
    if not reading.included:
        reading.lack(deepspeed.LACKS)
    if "sharding" not in reading.options:
        # accelerate/utils/dataclasses.py (`DeepSpeedPlugin.zero_stage`)
        reading.default("sharding", "zero2", "ZeRO-2, accelerate's default", "--sharding zero3")
    if "precision" not in reading.options:
        reading.take("precision", "o2" if dtype in AUTOCAST else None, "mixed_precision")


def _megatron(reading: Reading) -> None:
    prefix = "megatron_lm_config.megatron_lm_"
    for name, setting in (("tp_degree", "tensor_parallel"), ("pp_degree", "pipeline_parallel")):
        reading.take(setting, reading.whole(f"{prefix}{name}"), f"{prefix}{name}", unless=1)
    reading.passes(reading.whole(f"{prefix}num_micro_batches"), f"{prefix}num_micro_batches")
    sharded = reading.flag(f"{prefix}use_distributed_optimizer")
    reading.take("sharding", "zero1" if sharded else "none", f"{prefix}use_distributed_optimizer")
    reading.take("precision", "megatron" if reading.effective("dtype") == "bf16" else None, "mixed_precision")
    if reading.flag(f"{prefix}recompute_activations"):
        reading.take("checkpointing", "selective", f"{prefix}recompute_activations")
    reading.known(f"{prefix}sequence_parallelism", "as tensor parallelism has it")


ACCELERATE = Trainer(
    "accelerate",
    lambda values: (
        "distributed_type" in values
        or ("compute_environment" in values and any(key.startswith("fsdp_config.") for key in values))
    ),
    _derive,
    tables=("accelerate",),
)
