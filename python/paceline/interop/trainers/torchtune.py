"""torchtune's YAML: recipes/configs and recipes/*_distributed.py of pytorch/torchtune.

Components are named by their path in Python: `torchtune.models.llama3_1.lora_llama3_1_8b`. Parameters, gradients and
moments are all in `dtype`, without masters. Several GPUs are FSDP2, which gathers and reduces in that type.
"""

from __future__ import annotations

import re

from paceline.interop.trainers import hf_trainer
from paceline.interop.trainers.document import Values
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.words import DTYPES, take_gpus, take_lora, take_loss, take_optimizer

_MODEL, _OPTIMIZER, _LOSS = "model._component_", "optimizer._component_", "loss._component_"
_MODELS = "torchtune.models."
_HALVES = re.compile(r"^(\d+)_(\d+)b")
_TRAINED = re.compile(r"_(?:instruct|base)$")
_ADAPTERS = re.compile(r"^(q?(?:lora|dora))_")
_PARTS = {"output_proj": "o_proj"}
"""Modules that torchtune calls otherwise than transformers."""
_MLP = ("gate_proj", "up_proj", "down_proj")
_OWN = {"phi4-14b": "phi-4", "llama4-scout-17b-16e": "llama-4-scout-text", "llama3.3-70b": "llama-3.1-70b"}
_CHUNKS = 8
"""Of its losses over chunks: torchtune/modules/loss (`num_output_chunks`)."""


def _derive(reading: Reading) -> None:
    family, _, builder = reading.text(_MODEL).removeprefix(_MODELS).rpartition(".")
    adapter = match[1] if (match := _ADAPTERS.match(builder)) else ""
    reading.name_model(_name_of(family, builder.removeprefix(f"{adapter}_")), _MODEL)
    take_gpus(reading)
    if "workers" not in reading.options and "single_device" in f"{reading.path.name} {reading.text('output_dir')}":
        reading.default("workers", 1, "one GPU, by the name of the recipe", "--gpus N")
    reading.take("batch", reading.whole("batch_size"), "batch_size")
    reading.take("seq", reading.whole("tokenizer.max_seq_len"), "tokenizer.max_seq_len")
    reading.passes(reading.whole("gradient_accumulation_steps"), "gradient_accumulation_steps")
    reading.take("tensor_parallel", reading.whole("tensor_parallel_dim"), "tensor_parallel_dim", unless=1)
    _sharding(reading)
    dtype = reading.choice(DTYPES, "dtype") or "fp32"
    reading.take("dtype", dtype, "dtype")
    reading.take("precision", "bf16" if dtype == "bf16" else None, "dtype")
    if reading.flag("enable_activation_checkpointing"):
        reading.take("checkpointing", "full", "enable_activation_checkpointing")
    if reading.flag("enable_activation_offloading"):
        hf_trainer.offload_activations(reading, "enable_activation_offloading")
    _optimizer(reading)
    if adapter:
        _adapters(reading, adapter)
    if reading.flag("compile"):
        reading.take("kernels", "compiled", "compile")
    else:
        reading.default("kernels", "eager", "no compilation", "--kernels compiled")
    loss = reading.text(_LOSS).rpartition(".")[2]
    if "DPO" in loss:
        take_loss(reading, "dpo", _LOSS)
    elif "Chunked" in loss or "Linear" in loss:
        reading.take("loss_chunks", reading.whole("loss.num_output_chunks") or _CHUNKS, _LOSS, "loss.num_output_chunks")
    elif loss:
        reading.leave(_LOSS, f"the loss {loss:.40}")
    if reading.flag("dataset.packed"):
        reading.take("real_tokens", 1, "dataset.packed")
    else:
        reading.assume("all samples as long as the sequence, without padding", "--real-tokens SHARE")


def _name_of(family: str, builder: str) -> str:
    """Return the model of a builder: of `qwen2_5.qwen2_5_1_5b_instruct`, qwen2.5-1.5b."""
    size = _HALVES.sub(r"\1.\2b", builder.removeprefix(f"{family}_"))
    name = f"{family.replace('_', '.')}-{_TRAINED.sub('', size).replace('_', '-')}"
    return _OWN.get(name, name)


def _sharding(reading: Reading) -> None:
    shard, replicas = reading.whole("data_parallel_shard_dim", least=-1), reading.whole("data_parallel_replicate_dim")
    if (replicas or 1) > 1:
        own = ("data_parallel_shard_dim", "data_parallel_replicate_dim")
        reading.take("sharding", f"hsdp:{shard}" if (shard or -1) > 0 else "hsdp", *own)
    elif reading.gpus == 1:
        reading.default("sharding", "none", "one GPU", "--sharding zero3")
    else:
        reading.default("sharding", "zero3", "FSDP2, as of its recipes for several GPUs", "--sharding none")
    reading.lack({"sharding": ("zero1", "zero2")})
    names = ("fsdp_cpu_offload", "fsdp.cpu_offload")
    if reading.flag(*names):
        reading.take("offload", "cpu:parameters,states", *names)


def _optimizer(reading: Reading) -> None:
    word = reading.text(_OPTIMIZER).rpartition(".")[2]
    if word.lower() == "pagedadamw":
        reading.take("optimizer", "paged-adamw", _OPTIMIZER)
        return
    reading.stand_in("(optimizer)", word, _OPTIMIZER)
    take_optimizer(reading, "(optimizer)")
    if reading.options.get("optimizer") == "adamw":
        is_fused = reading.flag("optimizer.fused")
        reading.take("optimizer_impl", "fused" if is_fused else "foreach", "optimizer.fused", _OPTIMIZER)
    if reading.flag("optimizer_in_bwd"):
        reading.take("optimizer_impl", "in-backward", "optimizer_in_bwd")


def _adapters(reading: Reading, adapter: str) -> None:
    words = [_PARTS.get(one, one) for one in reading.words("model.lora_attn_modules")]
    mlp = "model.apply_lora_to_mlp"
    if reading.flag(mlp):
        words += _MLP
    reading.stand_in("(modules)", ",".join(words), "model.lora_attn_modules")
    if reading.flag("model.apply_lora_to_output"):
        reading.leave("model.apply_lora_to_output", "adapters of the output")
    take_lora(
        reading,
        ("model.lora_rank",),
        ("(modules)",),
        *(_MODEL, mlp),
        default_rank=(8, "torchtune's default"),
        dropout="model.lora_dropout",
    )
    if adapter.endswith("dora") or reading.flag("model.use_dora"):
        reading.take("dora", True, _MODEL, "model.use_dora")
    if adapter.startswith("q") or reading.flag("model.quantize_base"):
        # torchtune/modules/low_precision: NF4 with scales in 8 bits.
        reading.take("quantize", "nf4-double", _MODEL, "model.quantize_base")


def _recognizes(values: Values) -> bool:
    return str(values.get(_MODEL, "")).startswith(_MODELS) and _OPTIMIZER in values


TORCHTUNE = Trainer(
    "torchtune",
    _recognizes,
    _derive,
    tables=("torchtune",),
    # bitsandbytes' optimizers are named in its files.
    lacks={"checkpointing": ("selective", "offload")},
)
