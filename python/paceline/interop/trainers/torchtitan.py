"""torchtitan's TOML, of the old layout and the present one: torchtitan/config/job_config.py."""

from __future__ import annotations

from paceline.interop.trainers.reading import Direct, Reading, Trainer
from paceline.interop.trainers.words import AUTOCAST, DTYPES, take_optimizer

_UPDATES = {"for-loop": "loop", "foreach": "foreach", "fused": "fused", "fused_opt_states_bf16": "fused"}
_FAMILIES = {
    ("llama3", "8b"): "llama-3-8b",
    ("llama3", "70b"): "llama-3-70b",
    ("llama3", "405b"): "llama-3.1-405b",
    ("llama2", "7b"): "llama-2-7b",
    ("llama2", "13b"): "llama-2-13b",
    ("llama2", "70b"): "llama-2-70b",
    ("qwen3", "8b"): "qwen3-8b",
    ("qwen3", "32b"): "qwen3-32b",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
    ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
    ("deepseek_v3", "16b"): "deepseek-v2-lite",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
"""Built-in models, by `model.name` and `model.flavor`; the names of the flavors are those of torchtitan/models."""
_P = "parallelism."


def _first(reading: Reading, *names: str) -> str:
    return reading.present(*names)


def _derive(reading: Reading) -> None:
    _model(reading)
    shard, replicas = _degrees(reading)
    _batch(reading)
    _precision(reading, shard, replicas)
    _recomputation(reading)
    _kernels(reading)
    take_optimizer(reading, "optimizer.name")
    if reading.text("parallelism.context_parallel_rotate_method"):
        reading.known("parallelism.context_parallel_rotate_method", "keys and values are forecast to be passed around")
    if reading.flag("training.enable_cpu_offload", "parallelism.enable_cpu_offload"):
        reading.take(
            "offload", "cpu:parameters,states", "training.enable_cpu_offload", "parallelism.enable_cpu_offload"
        )


def _model(reading: Reading) -> None:
    name, flavor = reading.text("model.name"), reading.text("model.flavor")
    if not name and not flavor:
        return
    known = _FAMILIES.get((name.lower(), flavor.lower()))
    reading.name_model(known or f"{name}-{flavor}", "model.name", "model.flavor")


def _degrees(reading: Reading) -> tuple[int, int]:
    replicas = reading.whole(f"{_P}data_parallel_replicate_degree", "training.data_parallel_replicate_degree") or 1
    shards = (f"{_P}data_parallel_shard_degree", "training.data_parallel_shard_degree", "training.data_parallel_degree")
    shard = reading.whole(*shards, least=-1)
    shard = -1 if shard is None else shard
    product = replicas * shard
    for setting, names in _PARALLEL.items():
        degree = reading.whole(*names)
        reading.take(setting, degree, *names, unless=1)
        product *= degree or 1
    if shard > 0:
        own = (
            f"{_P}data_parallel_replicate_degree",
            *shards,
            *(name for names in _PARALLEL.values() for name in names[:1]),
        )
        reading.take("workers", product, *own)
    reading.take(
        "expert_parallel", reading.whole(f"{_P}expert_parallel_degree"), f"{_P}expert_parallel_degree", unless=1
    )
    tensor = reading.whole(f"{_P}expert_tensor_parallel_degree")
    if tensor not in (None, 1):
        reading.leave(f"{_P}expert_tensor_parallel_degree", "tensor parallelism within experts")
    if shard == 1 and reading.degree("context_parallel") == 1:
        reading.take("sharding", "none", *shards)
        return shard, replicas
    if replicas > 1:
        size = shard
        if shard == -1:
            if reading.gpus is None:
                reading.take("sharding", "hsdp", f"{_P}data_parallel_replicate_degree", *shards)
                return shard, replicas
            size = (reading.replicas or 1) // replicas
        # Ranks that share samples hold parts of the same shards (torchtitan's mesh `dp_shard_cp`).
        size *= reading.degree("context_parallel")
        reading.take("sharding", f"hsdp:{size}" if size > 1 else "none", f"{_P}data_parallel_replicate_degree", *shards)
    else:
        reading.take("sharding", "zero3", *shards)
    kept = f"{_P}fsdp_reshard_after_forward"
    reading.take(
        "reshard_after_forward", reading.choice({"default": "", "always": "yes", "never": "no"}, kept) or None, kept
    )
    return shard, replicas


_PARALLEL = {
    "tensor_parallel": (f"{_P}tensor_parallel_degree", "training.tensor_parallel_degree"),
    "pipeline_parallel": (f"{_P}pipeline_parallel_degree", "experimental.pipeline_parallel_degree"),
    "context_parallel": (f"{_P}context_parallel_degree", "experimental.context_parallel_degree"),
}


def _batch(reading: Reading) -> None:
    names = ("training.local_batch_size", "training.batch_size")
    batch, total = reading.whole(*names), reading.whole("training.global_batch_size", least=-1)
    stages = reading.degree("pipeline_parallel")
    if stages > 1:
        size = reading.whole(f"{_P}pipeline_parallel_microbatch_size") or 1
        reading.take("batch", size, f"{_P}pipeline_parallel_microbatch_size")
        micro = reading.whole(f"{_P}pipeline_parallel_microbatches", "experimental.pipeline_parallel_microbatches")
        reading.passes(micro or (max(1, batch // size) if batch else None), *names)
        _schedule(reading)
        return
    reading.take("batch", batch, *names)
    if total is not None and total > 0:
        reading.passes_of_global("training.global_batch_size", total, *names)
    else:
        reading.passes(reading.whole("training.gradient_accumulation_steps"), "training.gradient_accumulation_steps")


def _schedule(reading: Reading) -> None:
    name = reading.present(f"{_P}pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule")
    schedule = reading.text(name).lower()
    if schedule in ("", "1f1b"):
        return
    if schedule == "interleaved1f1b":
        layers = reading.whole(f"{_P}pipeline_parallel_layers_per_stage")
        blocks = reading.blocks
        own = blocks // (layers * reading.degree("pipeline_parallel")) if layers and blocks else 2
        reading.take("virtual_stages", max(2, own), name, f"{_P}pipeline_parallel_layers_per_stage")
        if layers is None:
            reading.assume("two virtual stages on each rank", "--virtual-stages N")
    else:
        reading.leave(name, "the schedule 1F1B is forecast")


def _precision(reading: Reading, shard: int, replicas: int) -> None:
    held = reading.choice(DTYPES, "training.dtype")
    param, reduce = "training.mixed_precision_param", "training.mixed_precision_reduce"
    dtype = reading.choice(DTYPES, param) or "bf16"
    reduced = reading.choice(DTYPES, reduce) or "fp32"
    reading.take("dtype", dtype, param)
    if held == "bf16" and dtype == "bf16":
        reading.take("precision", "bf16", "training.dtype")
    elif dtype in AUTOCAST:
        sharded = reading.effective("sharding") not in ("none", None)
        recipe = "fsdp-mixed" if reduced == "fp32" else "mixed"
        if not sharded:
            # torchtitan/distributed/utils.py (maybe_enable_amp): autocast without FSDP.
            recipe = AUTOCAST[dtype]
        reading.take("precision", recipe, param, reduce)
    for name in ("float8.*", "quantize.*float8*", "quantize.linear.float8.*"):
        if reading.has(name):
            _float8(reading)
            return
    if "float8" in str(reading.value("model.converters") or ""):
        _float8(reading)


def _float8(reading: Reading) -> None:
    if "float8" in str(reading.value("model.converters") or "") or reading.flag(
        "float8.enable_float8_linear", "float8.enable_fsdp_float8_all_gather"
    ):
        reading.take("dtype", "fp8", "model.converters", "float8.enable_float8_linear")
        if reading.options.get("precision") not in ("fsdp-mixed", None):
            reading.drop("precision")


def _recomputation(reading: Reading) -> None:
    mode = reading.choice(
        {"none": "none", "selective": "selective", "full": "full", "memory_budget": "budget"},
        "activation_checkpoint.mode",
    )
    option = reading.text("activation_checkpoint.selective_ac_option")
    if mode == "budget":
        reading.leave(
            "activation_checkpoint.mode",
            "a budget of memory for torch.compile; --checkpointing says what is recomputed",
        )
        return
    reading.take("checkpointing", mode, "activation_checkpoint.mode")
    name = "activation_checkpoint.selective_ac_option"
    if mode == "selective" and option.isdigit():
        reading.take("checkpointing", "full" if int(option) == 1 else "selective", "activation_checkpoint.mode", name)
        if int(option) > 1:
            reading.assume(
                f"of every {option} blocks one is recomputed; forecast is recomputation per operator",
                "--checkpointing full, or none",
            )
    elif mode == "selective" and option:
        reading.take("checkpointing", mode, "activation_checkpoint.mode", name)


def _kernels(reading: Reading) -> None:
    names = ("compile.enable", "training.compile")
    if not reading.flag(*names):
        reading.take("kernels", "eager", *names)
        return
    components = reading.words("compile.components") or ["model", "loss"]
    reading.take("kernels", "compiled" if "model" in components else "eager", *names, "compile.components")
    if "loss" in components:
        reading.take("loss_chunks", 1, "compile.components")


TORCHTITAN = Trainer(
    "torchtitan",
    lambda values: (
        "model.flavor" in values
        or (any(key.startswith(_P + "data_parallel") for key in values))
        or ("training.seq_len" in values and ("training.batch_size" in values or "training.local_batch_size" in values))
    ),
    _derive,
    direct={
        "training.seq_len": Direct("seq"),
        "optimizer.implementation": Direct("optimizer_impl", _UPDATES),
    },
    tables=("torchtitan",),
)
