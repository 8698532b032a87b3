"""YAML of NeMo, Megatron Bridge, Primus and Megatron-LM's own tests, whose fields are Megatron-LM's arguments.

NeMo 1: `model.tensor_model_parallel_size`, `trainer.num_nodes`. Megatron Bridge: `model.…`, `train.micro_batch_size`.
NeMo 2 (`nemo llm`, recipes as YAML): `trainer.strategy.…`, `data.micro_batch_size`. Megatron-LM: `MODEL_ARGS.--…`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.interop.trainers import megatron
from paceline.interop.trainers.document import TWICE, Values
from paceline.interop.trainers.reading import Direct, Reading, Trainer
from paceline.interop.trainers.words import NO_BITSANDBYTES, fused_kernels, known_modules, take_dropout

_OF_PRIMUS = re.compile(r"modules\.(?:pre|post|sft)_trainer\.")
"""Primus's sections, of which `overrides` has arguments: primus/configs of AMD-AGI/Primus."""
_SECTIONS = (
    *(
        "model",
        "model.config",
        "train",
        "training",
        "trainer",
        "trainer.strategy",
        "data",
        "dataset",
        "ddp",
        "optimizer",
        "mixed_precision",
    ),
    *("resume", "model.data", "model.optim", "optim", "optim.config", "trainer.plugins", "log", "recipe", "cfg.model"),
)
"""Mappings of a file whose fields are arguments."""
_NAMES = {
    "encoder_seq_length": "seq-length",
    "sequence_length": "seq-length",
    "num_moe_experts": "num-experts",
    "add_bias_linear": "",
    "gated_linear_unit": "swiglu",
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "virtual_pipeline_model_parallel_size": "virtual-pipeline-model-parallel-size",
    "num_gpus_per_node": "nproc-per-node",
    "devices": "nproc-per-node",
    "num_nodes": "nnodes",
    "moe_router_topk": "moe-router-topk",
    "add_qkv_bias": "add-qkv-bias",
    "share_embeddings_and_output_weights": "",
    "use_flash_attention": "use-flash-attn",
    "grad_reduce_in_fp32": "",
    "qk_layernorm": "qk-layernorm",
    "global_batch_size": "global-batch-size",
    "micro_batch_size": "micro-batch-size",
}
"""Fields whose argument has another name; empty: read here."""


def arguments(values: Values) -> tuple[Values, dict[str, str]]:
    """Return the values as arguments of Megatron-LM, and the field of each."""
    filled: Values = {}
    fields: dict[str, str] = {}
    for field, value in values.items():
        if field == TWICE:
            filled[field] = value
            continue
        plain = _OF_PRIMUS.sub("", field)
        section, _, name = plain.removeprefix("MODEL_ARGS.").removeprefix("overrides.").rpartition(".")
        if plain != field and not plain.startswith("overrides."):
            option = plain if plain == _PRIMUS_MODEL else field
        elif name.startswith("--"):
            option = f"--{name[2:].replace('_', '-')}"
        elif section in _SECTIONS or (not section and name.islower()):
            plain = _NAMES.get(name, name.replace("_", "-"))
            option = f"--{plain}" if plain else field
        else:
            option = field
        if name == "name" or filled.get(option) is not None:
            # Of the run or the optimizer; or a second field of one name, which keeps its own.
            option = field
        elif option in filled:
            # One without a value gives way.
            filled[fields[option]], fields[fields[option]] = filled[option], fields[option]
        filled[option], fields[option] = value, field
    return filled, fields


_PRIMUS_MODEL = "model"


def _derive_primus(reading: Reading) -> None:
    """Derive the options of Primus's files, whose defaults are in primus/configs/modules/megatron/pre_trainer.yaml."""
    reading.name_model(reading.text(_PRIMUS_MODEL).removesuffix(".yaml"), _PRIMUS_MODEL)
    _derive(reading)
    if reading.is_default("dtype"):
        reading.forget("dtype")
        reading.default("dtype", "bf16", "bf16, Primus's default", "--dtype NAME")
        reading.default("precision", "megatron", "the recipe of precision megatron", "--precision NAME")
    if reading.is_default("sharding") and reading.flag("--use-distributed-optimizer", default=True):
        reading.forget("sharding")
        reading.default("sharding", "zero1", "the distributed optimizer, Primus's default", "--sharding none")
    if reading.degree("expert_parallel") > 1 and reading.flag("--use-turbo-deepep"):
        reading.take("expert_dispatch", "deepep", "--use-turbo-deepep")


def _derive(reading: Reading) -> None:
    _translate(reading)
    megatron.derive(reading)
    if reading.flag("--fsdp"):
        strategy = "--fsdp-sharding-strategy"
        sharding, kept = reading.choice(_STRATEGIES, strategy) or ("zero3", None)
        reading.take("sharding", sharding, "--fsdp", strategy)
        reading.take("reshard_after_forward", kept, strategy)
    _adapter(reading)


_STRATEGIES = {"full": ("zero3", None), "grad": ("zero3", "no")}
"""Of `model.fsdp_sharding_strategy`: nemo/collections/nlp/parts/nlp_overrides.py (`NLPFSDPStrategy`)."""
_QKV = ("q_proj", "k_proj", "v_proj", "c_attn", "query_key_value", "qkv_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_DENSE = ("o_proj", "dense")
_FC1 = ("gate_proj", "up_proj", "gate_up_proj", "c_fc", "dense_h_to_4h", "experts.gate_up_proj")
_FC2 = ("down_proj", "c_proj", "dense_4h_to_h", "experts.down_proj")
_TARGETS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("attention_qkv", "linear_qkv"), _QKV),
    **dict.fromkeys(("attention_dense", "linear_proj"), _DENSE),
    **dict.fromkeys(("mlp_fc1", "linear_fc1"), _FC1),
    **dict.fromkeys(("mlp_fc2", "linear_fc2"), _FC2),
    **{"attention": ("attention",), "mlp": ("mlp", "experts"), "all": ("all-linear",)},
}
"""Targets of NeMo's and Megatron Bridge's adapters, as modules of `--lora` in all families."""
_OF_LLAMA = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "attention",
    "mlp",
    "all-linear",
)
"""Modules where the model is not known."""


def modules_of(reading: Reading, targets: Sequence[str]) -> list[str]:
    """Return the modules of the model that targets of Megatron Core stand for, without those that are not known."""
    known = known_modules(reading) or _OF_LLAMA
    return list(dict.fromkeys(name for one in targets for name in _TARGETS.get(one, ()) if name in known))


def _adapter(reading: Reading) -> None:
    """Take LoRA of NeMo 1 (`model.peft`) or Megatron Bridge (`peft`)."""
    scheme, rank = "model.peft.peft_scheme", "model.peft.lora_tuning.adapter_dim"
    targets = "model.peft.lora_tuning.target_modules"
    word = reading.text(scheme).lower()
    if word not in ("lora", "qlora"):
        rank, targets = "peft.dim", "peft.target_modules"
        if not reading.has(rank):
            return
    words = reading.words(targets) or ["attention_qkv" if rank.startswith("model") else "all"]
    unknown = [one for one in words if one not in _TARGETS]
    if unknown:
        reading.leave(targets, f"adapters of {', '.join(unknown)[:60]}; --lora RANK:MODULES says which")
    modules = ",".join(modules_of(reading, words)) or "all-linear"
    reading.take("lora", f"{reading.whole(rank) or 32}:{modules}", scheme, rank, targets)
    if word == "qlora":
        reading.take("quantize", "nf4", scheme)
    reading.forget("precision")
    fused_kernels(reading)
    take_dropout(reading, "model.peft.lora_tuning.adapter_dropout" if word else "peft.dropout")


_DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim")
"""NeMo 1's names of Apex's and Megatron-LM's distributed optimizers."""
_OF_EIGHT_BITS = ("--fp8-hybrid", "--fp8-e4m3", "--fp8-format")


def _translate(reading: Reading) -> None:
    """Say in Megatron-LM's arguments what these files say otherwise."""
    for name in ("model.share_embeddings_and_output_weights", "model.config.share_embeddings_and_output_weights"):
        if reading.has(name):
            reading.stand_in("--untie-embeddings-and-output-weights", not reading.flag(name), name)
    activation = reading.text("--activation").lower()
    if activation:
        reading.known("--activation", "of the model")
        if "swiglu" in activation or "geglu" in activation:
            reading.stand_in("--swiglu", True, "--activation")
    precision = str(reading.value("--precision") or "").lower()
    if precision:
        reading.known("--precision", "of the trainer")
        kind = next(
            (one for one in ("bf16", "fp16") if one in precision or (one == "fp16" and precision.startswith("16"))), ""
        )
        if kind:
            reading.stand_in(f"--{kind}", True, "--precision")
    for name in ("--mixed-precision", "mixed_precision", "--recipe"):
        word = str(reading.values.get(name, "")).lower()
        for one in ("fp8", "bf16", "fp16"):
            if one in word:
                reading.known(name, "of the trainer")
                reading.stand_in("--bf16" if one == "fp8" else f"--{one}", True, name)
                if one == "fp8":
                    reading.stand_in("--fp8-format", "hybrid", name)
                break
    if reading.has("--fp8"):
        reading.known("--fp8", "of the model")
        if reading.values["--fp8"] is False:
            # Transformer Engine's products are off, whatever their format is.
            for name in _OF_EIGHT_BITS:
                if name in reading.values:
                    label = reading.label(name)
                    reading.values[label] = reading.values.pop(name)
                    reading.idle(label, "fp8 is off")
        else:
            reading.stand_in("--fp8-format", "hybrid", "--fp8")
    for name in ("model.optim.name", "optim.name", "optim.config.name", "optimizer.name"):
        if any(one in str(reading.values.get(name, "")) for one in _DISTRIBUTED):
            reading.known(name, "of the optimizer")
            reading.stand_in("--use-distributed-optimizer", True, name)
    for name in ("--grad-reduce-in-fp32", "ddp.grad_reduce_in_fp32", "model.grad_reduce_in_fp32"):
        if name in reading.values:
            reading.known(name, "of gradients")
            if reading.flag(name, default=True) is False:
                reading.stand_in("--grad-reduce-in-bf16", True, name)


def _recognizes(values: Values) -> bool:
    names = {field.rpartition(".")[2].lstrip("-").replace("-", "_") for field in values}
    return bool(
        names & {"tensor_model_parallel_size", "pipeline_model_parallel_size"}
        or (
            {"micro_batch_size", "global_batch_size"} <= names
            and names & {"seq_length", "encoder_seq_length", "num_layers", "train_iters", "use_distributed_optimizer"}
        )
    )


NEMO = Trainer(
    "NeMo",
    _recognizes,
    _derive,
    direct={"--seq-length": Direct("seq")},
    tables=("nemo", "megatron"),
    prefix="--",
    lacks={**NO_BITSANDBYTES, "checkpointing": ("offload",)},
    translate=arguments,
)
PRIMUS = replace(
    NEMO,
    name="Primus",
    recognizes=lambda values: any(map(_OF_PRIMUS.match, values)) and _recognizes(values),
    derive=_derive_primus,
    tables=("primus", *NEMO.tables),
)
