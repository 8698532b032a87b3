"""torchtitan's TOML, of the old layout and the present one: torchtitan/config/job_config.py."""

from __future__ import annotations

import re
from collections.abc import Mapping

from paceline.interop.trainers.reading import Direct, Reading, Trainer
from paceline.interop.trainers.words import AUTOCAST, DTYPES, NO_BITSANDBYTES, as_fields, take_gpus, take_optimizer

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
    ("llama4", "17bx16e"): "llama-4-scout-text",
    ("flux", "flux-dev"): "flux-1-dev",
    ("flux", "flux-schnell"): "flux-1-dev",
}
"""Built-in models, by `model.name` and `model.flavor`; the names of the flavors are those of torchtitan/models."""
_P = "parallelism."


def _derive(reading: Reading) -> None:
    _model(reading)
    take_gpus(reading)
    _degrees(reading)
    _batch(reading)
    _precision(reading)
    _recomputation(reading)
    _kernels(reading)
    take_optimizer(reading, "optimizer.name")
    if "optimizer_impl" not in reading.options:
        _default(reading, "optimizer_impl", "fused", "the fused optimizer")
    if reading.text("parallelism.context_parallel_rotate_method"):
        reading.known("parallelism.context_parallel_rotate_method", "keys and values are forecast to be passed around")
    if reading.flag("training.enable_cpu_offload", "parallelism.enable_cpu_offload"):
        reading.take(
            "offload", "cpu:parameters,states", "training.enable_cpu_offload", "parallelism.enable_cpu_offload"
        )


_MODULE, _CONFIG = "module", "config"
"""Arguments of versions whose configurations are in Python: `--module llama3 --config llama3_8b`."""


def _model(reading: Reading) -> None:
    if _CONFIG in reading.values:
        module, config = reading.text(_MODULE), reading.text(_CONFIG)
        flavor = config.removeprefix(f"{module}_").replace("_", "-")
        reading.name_model(_FAMILIES.get((module.lower(), flavor.lower())) or f"{module}-{flavor}", _MODULE)
        reading.leave(_CONFIG, "a configuration in Python, of which only the model is read")
        return
    name, flavor = reading.text("model.name"), reading.text("model.flavor")
    if not name and not flavor:
        return
    kind, size = name.lower(), _KERNELS.sub("", flavor.lower())
    if (kind, size) in _DEBUG:
        reading.build_model("llama", _DEBUG[kind, size], "model.name", "model.flavor")
        return
    known = _FAMILIES.get((kind, size))
    # Of an older version: `deepseek-ai/DeepSeek-V2-Lite`.
    reading.name_model(known or (flavor if "/" in flavor else f"{name}-{size}"), "model.name", "model.flavor")


_KERNELS = re.compile(r"_(?:flex|varlen)(?:_attn)?$")
"""Kernels of attention at the end of a flavor."""
_DEBUG: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("llama3", "debugmodel"): {
        **{"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 16},
        **{"vocab_size": 2048, "max_position_embeddings": 131_072},
    }
}
"""Sizes of flavors of its own: torchtitan/models/llama3/__init__.py."""


def _degrees(reading: Reading) -> None:
    replicas = reading.whole(f"{_P}data_parallel_replicate_degree", "training.data_parallel_replicate_degree") or 1
    shards = (f"{_P}data_parallel_shard_degree", "training.data_parallel_shard_degree", "training.data_parallel_degree")
    shard = reading.whole(*shards, least=-1)
    shard = -1 if shard is None else shard
    product = replicas * shard
    for setting, names in _PARALLEL.items():
        degree = reading.whole(*names)
        reading.take(setting, degree, *names, unless=1)
        product *= degree or 1
    if shard > 0 and reading.gpus is None:
        own = (
            f"{_P}data_parallel_replicate_degree",
            *shards,
            *(name for names in _PARALLEL.values() for name in names[:1]),
        )
        reading.take("workers", product, *own)
    reading.take(
        "expert_parallel", reading.whole(f"{_P}expert_parallel_degree"), f"{_P}expert_parallel_degree", unless=1
    )
    if reading.degree("expert_parallel") > 1:
        backend = f"{_P}expert_parallel_comm_backend"
        kinds = {"standard": "alltoall", "deepep": "deepep", "hybridep": "deepep"}
        reading.take("expert_dispatch", reading.choice(kinds, backend), backend)
    tensor = reading.whole(f"{_P}expert_tensor_parallel_degree")
    if tensor == reading.degree("tensor_parallel") and reading.degree("expert_parallel") == 1:
        reading.known(f"{_P}expert_tensor_parallel_degree", "as a forecast has it")
    elif tensor not in (None, 1):
        reading.leave(f"{_P}expert_tensor_parallel_degree", "tensor parallelism within experts")
    if shard == 1 and reading.degree("context_parallel") == 1:
        reading.take("sharding", "none", *shards)
        return
    if replicas > 1:
        size = shard
        if shard == -1:
            if reading.gpus is None:
                reading.take("sharding", "hsdp", f"{_P}data_parallel_replicate_degree", *shards)
                return
            size = (reading.replicas or 1) // replicas
        # Ranks that share samples hold parts of the same shards (torchtitan's mesh `dp_shard_cp`).
        size *= reading.degree("context_parallel")
        reading.take("sharding", f"hsdp:{size}" if size > 1 else "none", f"{_P}data_parallel_replicate_degree", *shards)
    else:
        _default(reading, "sharding", "zero3", "FSDP over all GPUs", *shards)
    kept = f"{_P}fsdp_reshard_after_forward"
    reading.take(
        "reshard_after_forward", reading.choice({"default": "", "always": "yes", "never": "no"}, kept) or None, kept
    )


_PARALLEL = {
    "tensor_parallel": (f"{_P}tensor_parallel_degree", "training.tensor_parallel_degree"),
    "pipeline_parallel": (f"{_P}pipeline_parallel_degree", "experimental.pipeline_parallel_degree"),
    "context_parallel": (f"{_P}context_parallel_degree", "experimental.context_parallel_degree"),
}


def _batch(reading: Reading) -> None:
    length, tokens = "training.max_context_length", "training.num_tokens_per_microbatch_per_dp_rank"
    reading.take("seq", reading.whole(length), length)
    is_read = _CONFIG not in reading.values
    pixels = reading.whole("training.img_size")
    if pixels is not None:
        # Latents are an eighth as wide, and packed two by two.
        reading.take("seq", max(1, pixels // 16) ** 2, "training.img_size")
    elif is_read and reading.whole("training.seq_len") is None:
        reading.default("seq", 2048, "sequences of 2,048 tokens, torchtitan's default", "--seq N")
    count = reading.whole(tokens)
    if count is not None and "seq" in reading.options:
        reading.take("batch", max(1, count // reading.options["seq"]), tokens, length)
    names = ("training.local_batch_size", "training.batch_size")
    batch, total = reading.whole(*names), reading.whole("training.global_batch_size", least=-1)
    stages = reading.degree("pipeline_parallel")
    if stages > 1:
        size = reading.whole(f"{_P}pipeline_parallel_microbatch_size") or 1
        _default(reading, "batch", size, "microbatches of 1 sequence", f"{_P}pipeline_parallel_microbatch_size")
        counts = (
            *(f"{_P}pipeline_parallel_microbatches", "experimental.pipeline_parallel_microbatches"),
            f"{_P}num_pp_microbatches",
        )
        micro = reading.whole(*counts)
        if micro is None and is_read:
            steps = _accumulation(reading, batch or 8, total)
            count = max(1, (batch or 8) // size) * steps
            _default(reading, "microbatches", count, "batch 8 per GPU", *names, "training.global_batch_size")
        else:
            reading.passes(micro, *counts)
        _schedule(reading)
        return
    if is_read:
        _default(reading, "batch", batch or 8, "batch 8 per GPU", *names)
    else:
        reading.take("batch", batch, *names)
    if total is not None and total > 0:
        reading.passes_of_global("training.global_batch_size", total, *names)
    else:
        reading.passes(reading.whole("training.gradient_accumulation_steps"), "training.gradient_accumulation_steps")


def _accumulation(reading: Reading, batch: int, total: int | None) -> int:
    """Return the passes of a pipeline that make a global batch. Raises InvalidArgumentError if they are not whole."""
    if total is None or total <= 0 or reading.replicas is None:
        return 1
    each = batch * reading.replicas
    if total % each:
        problem = f"{total} samples are not a multiple of {each}, those of {reading.replicas} data-parallel ranks"
        raise reading.wrong("training.global_batch_size", problem, str(max(1, round(total / each)) * each))
    if total > each:
        reading.assume(f"the microbatches of {total // each} accumulation steps in one pass of the pipeline")
    return total // each


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


_PARAM, _REDUCE = "training.mixed_precision_param", "training.mixed_precision_reduce"


def _precision(reading: Reading) -> None:
    dtype = reading.choice(DTYPES, _PARAM) or "bf16"
    reduced = reading.choice(DTYPES, _REDUCE) or "fp32"
    _default(reading, "dtype", dtype, "bfloat16 parameters", _PARAM)
    held = reading.choice(DTYPES, "training.dtype")
    if held == "bf16" and dtype == "bf16":
        reading.take("precision", "bf16", "training.dtype")
    elif dtype in AUTOCAST:
        recipe = "fsdp-mixed" if reduced == "fp32" else "mixed"
        if reading.effective("sharding") in ("none", None):
            # torchtitan/distributed/utils.py (maybe_enable_amp): autocast without FSDP.
            recipe = AUTOCAST[dtype]
        _default(reading, "precision", recipe, "bfloat16 parameters and FP32 reduction", _PARAM, _REDUCE)
    _float8(reading)


def _default(reading: Reading, setting: str, value: object, words: str, *names: str) -> None:
    """Take an option of fields; where the file has none of them, it is torchtitan's default."""
    flag = f"--{setting.replace('_', '-')}"
    reading.default(setting, value, f"{words}, torchtitan's default", f"{flag} VALUE")
    reading.take(setting, value, *names)


_CONVERTERS = "model.converters"
_OLD_FLOAT8 = "float8.enable_float8_linear"
"""The switch of versions without converters."""


def _float8(reading: Reading) -> None:
    """Take products in 8 bits, which a converter switches on: a section `[float8]` alone says only how."""
    names = [one for one in reading.words(_CONVERTERS) if "float8" in one]
    if not names and not reading.flag(_OLD_FLOAT8):
        for name in reading.values:
            if name.startswith(("float8.", "quantize.linear.float8.")):
                reading.idle(name, f"no float8 in {_CONVERTERS}")
        return
    reading.take("dtype", "fp8", _CONVERTERS, _OLD_FLOAT8)
    for name in reading.values:
        if name.endswith("float8.filter_fqns") and set(reading.words(name)) <= {"output", "lm_head"}:
            reading.idle(name, "logits are computed in 16 bits in a forecast, too")
    if reading.options.get("precision") not in ("fsdp-mixed", None):
        reading.drop("precision")


def _recomputation(reading: Reading) -> None:
    name, option_name = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    mode = reading.choice({"none": "none", "selective": "selective", "full": "full", "memory_budget": "budget"}, name)
    option = reading.text(option_name)
    if mode == "budget":
        reading.leave(name, "a budget of memory for torch.compile; --checkpointing says what is recomputed")
        return
    if mode is None:
        _default(reading, "checkpointing", "selective", "selective checkpointing of every second block")
        option = option or "2"
    reading.take("checkpointing", mode, name)
    if reading.options["checkpointing"] != "selective":
        return
    is_count = re.fullmatch(r"[0-9]{1,9}", option) is not None
    if is_count and int(option) == 1:
        reading.take("checkpointing", "full", name, option_name)
    elif is_count:
        reading.assume(
            f"of every {option} blocks one is recomputed; forecast is recomputation per operator",
            "--checkpointing full, or none",
        )
    if option:
        reading.take("checkpointing", reading.options["checkpointing"], name, option_name)


def _kernels(reading: Reading) -> None:
    names = ("compile.enable", "training.compile")
    if not reading.flag(*names):
        _default(reading, "kernels", "eager", "no compilation", *names)
        return
    parts = "compile.components"
    components = reading.words(parts) or ["model", "loss"]
    reading.take("kernels", "compiled" if "model" in components else "eager", *names, parts)
    if "loss" in components:
        reading.take("loss_chunks", 1, *names, parts)


TORCHTITAN = Trainer(
    "torchtitan",
    lambda values: (
        "model.flavor" in values
        or (any(key.startswith(_P + "data_parallel") for key in values))
        or ("training.seq_len" in values and ("training.batch_size" in values or "training.local_batch_size" in values))
        or ("--module" in values and "--config" in values)
    ),
    _derive,
    direct={
        "training.seq_len": Direct("seq"),
        "optimizer.implementation": Direct("optimizer_impl", _UPDATES),
    },
    tables=("torchtitan",),
    lacks={**NO_BITSANDBYTES, "sharding": ("zero1", "zero2"), "checkpointing": ("offload",)},
    translate=as_fields,
)
