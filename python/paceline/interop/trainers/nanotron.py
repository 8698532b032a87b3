"""nanotron's YAML: src/nanotron/config/config.py, src/nanotron/config/parallelism_config.py."""

from __future__ import annotations

from typing import Any

from paceline.interop.trainers.reading import Direct, Reading, Trainer
from paceline.interop.trainers.words import DTYPES, NO_BITSANDBYTES, take_optimizer

_MODEL = "model.model_config."
_P = "parallelism."


def _derive(reading: Reading) -> None:
    _model(reading)
    product = 1
    for name, setting in (
        ("tp", "tensor_parallel"),
        ("pp", "pipeline_parallel"),
        ("context_parallel_size", "context_parallel"),
    ):
        degree = reading.whole(f"{_P}{name}")
        reading.take(setting, degree, f"{_P}{name}", unless=1)
        product *= degree or 1
    replicas = reading.whole(f"{_P}dp")
    if replicas is not None:
        reading.take(
            "workers", replicas * product, *(f"{_P}{name}" for name in ("dp", "tp", "pp", "context_parallel_size"))
        )
    experts = f"{_P}expert_parallel_size"
    if reading.has(f"{_MODEL}moe_num*"):
        reading.leave(experts, "a mixture of experts; --model says which")
    else:
        reading.take("expert_parallel", reading.whole(experts), experts, unless=1)
    stage = reading.whole("optimizer.zero_stage", least=0) or 0
    if stage > 1:
        raise reading.wrong("optimizer.zero_stage", f"nanotron has the stages 0 and 1, not {stage}", "1")
    reading.take("sharding", "zero1" if stage == 1 else "none", "optimizer.zero_stage")
    passes = reading.whole("tokens.batch_accumulation_per_replica")
    reading.passes(passes, "tokens.batch_accumulation_per_replica")
    _precision(reading)
    _recomputation(reading)
    take_optimizer(reading, "optimizer.optimizer_factory.name")
    fused = ("optimizer.optimizer_factory.torch_adam_is_fused", "optimizer.torch_adam_is_fused")
    if reading.flag(*fused):
        reading.take("optimizer_impl", "fused", *fused)
    engine = reading.text(f"{_P}pp_engine").lower()
    if engine == "1f1b":
        reading.known(f"{_P}pp_engine", "as a forecast has it")
    elif engine and reading.degree("pipeline_parallel") > 1:
        reading.leave(f"{_P}pp_engine", "the schedule 1F1B is forecast")
    for name, usual in ((f"{_P}tp_mode", "reduce_scatter"), (f"{_P}tp_linear_async_communication", "true")):
        word = reading.text(name).lower()
        if word and word != usual and reading.degree("tensor_parallel") > 1:
            reading.leave(name, "sequence parallelism beside tensor parallelism is forecast")
        elif word:
            reading.known(name, "as a forecast has it")


def _model(reading: Reading) -> None:
    sizes = {key[len(_MODEL) :]: value for key, value in reading.values.items() if key.startswith(_MODEL)}
    if "hidden_size" not in sizes:
        return
    kind = (
        "qwen2"
        if reading.values.get(f"{_MODEL}is_qwen2_config") is True or sizes.get("attention_bias") is True
        else "llama"
    )
    if reading.values.get(f"{_MODEL}is_starcoder2_config") is True:
        kind = "starcoder2"
    known = {name: sizes[name] for name in _SIZES if sizes.get(name) is not None}
    fields = _experts(reading, known) if reading.has(f"{_MODEL}moe_config.*") else ()
    if fields:
        kind = "qwen2_moe" if known.get("shared_expert_intermediate_size") else "qwen3_moe"
    for name in _SIZES:
        if name in _FLAGS:
            reading.flag(f"{_MODEL}{name}")
        elif name not in _TEXTS:
            reading.whole(f"{_MODEL}{name}")
    reading.build_model(kind, known, *(f"{_MODEL}{name}" for name in known), *fields)


def _experts(reading: Reading, sizes: dict[str, Any]) -> tuple[str, ...]:
    """Take a mixture of experts into the sizes; return its fields. Defaults: nanotron/config/models_config.py."""
    prefix = f"{_MODEL}moe_config."
    fields = {
        "num_experts": ("num_experts", 8),
        "top_k": ("num_experts_per_tok", 2),
        "moe_intermediate_size": ("moe_intermediate_size", 1408),
    }
    if reading.flag(f"{prefix}enable_shared_expert"):
        fields["shared_expert_intermediate_size"] = ("shared_expert_intermediate_size", 5632)
    for name, (own, default) in fields.items():
        sizes[own] = reading.whole(f"{prefix}{name}") or default
        if not reading.has(f"{prefix}{name}"):
            reading.assume(f"{name} of {default:,}, nanotron's default", "--model config.json")
    if reading.has(f"{prefix}layers") and reading.values.get(f"{prefix}layers") != [-1]:
        reading.leave(f"{prefix}layers", "layers without experts among the others")
    kind = reading.choice({"alltoall": "alltoall", "allgather": "allgather"}, f"{prefix}token_dispatcher_type")
    if kind == "allgather":
        reading.leave(f"{prefix}token_dispatcher_type", "all-gathers of tokens; forecast as all-to-alls")
    else:
        reading.known(f"{prefix}token_dispatcher_type", "as a forecast has it")
    reading.known(f"{prefix}enable_shared_expert", "of the model")
    return tuple(f"{prefix}{name}" for name in fields)


_TEXTS = ("hidden_act",)
_FLAGS = ("tie_word_embeddings",)
_SIZES = (
    *(
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    ),
    *("tie_word_embeddings", "hidden_act", "max_position_embeddings"),
)


def _precision(reading: Reading) -> None:
    dtype = reading.choice(DTYPES, "model.dtype")
    reading.take("dtype", dtype, "model.dtype")
    if dtype == "bf16":
        # FP32 masters and, unless it is switched off, gradients accumulated in FP32, as in Megatron.
        name = "optimizer.accumulate_grad_in_fp32"
        reading.take("precision", "megatron" if reading.flag(name, default=True) else "o2", "model.dtype", name)


def _recomputation(reading: Reading) -> None:
    if reading.flag(f"{_P}recompute_layer"):
        reading.take("checkpointing", "full", f"{_P}recompute_layer")
        return
    word = reading.text(f"{_P}recompute_granularity").lower()
    kinds = {"full": "full", "selective": "selective", "": None, "none": None}
    if word not in kinds:
        raise reading.wrong(
            f"{_P}recompute_granularity", f"{word:.40} is not known", "selective (one of full, selective)"
        )
    reading.take("checkpointing", kinds[word], f"{_P}recompute_granularity")


NANOTRON = Trainer(
    "nanotron",
    lambda values: (
        ("parallelism.dp" in values and ("parallelism.tp" in values or "tokens.micro_batch_size" in values))
        or ("tokens.micro_batch_size" in values and "model.model_config.hidden_size" in values)
    ),
    _derive,
    direct={"tokens.micro_batch_size": Direct("batch"), "tokens.sequence_length": Direct("seq")},
    tables=("nanotron",),
    # nanotron/config/config.py (`OptimizerArgs.zero_stage`): 0 or 1.
    lacks={
        **NO_BITSANDBYTES,
        "sharding": ("zero2", "zero3", "hsdp"),
        "checkpointing": ("selective", "offload"),
        "offload": (),
    },
)
