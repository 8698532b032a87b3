"""The options of `paceline simulate` that a trainer's values stand for.

The names of the values are those of the trainers' references: https://www.deepspeed.ai/docs/config-json,
https://huggingface.co/docs/accelerate (`accelerate config`), torchtitan's torchtitan/config,
https://docs.axolotl.ai/docs/config-reference.html, LLaMA-Factory's src/llamafactory/hparams, Megatron-LM's
megatron/training/arguments.py and nanotron's src/nanotron/config.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from paceline._internal.documents import read_small
from paceline.interop.trainers.text import Value, Values, values

_SHARDINGS = {
    "FULL_SHARD": "zero3", "SHARD_GRAD_OP": "zero2", "NO_SHARD": "none", "HYBRID_SHARD": "hsdp", "1": "zero3",
    "2": "zero2", "3": "none", "4": "hsdp",
}  # fmt: skip
_DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8", "no": "fp32"}
_UPDATES = {"for-loop": "loop", "foreach": "foreach", "fused": "fused"}
_RECOMPUTED = {"none": "none", "selective": "selective", "full": "full"}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass
class Meaning:
    """A trainer's file as options."""

    trainer: str
    model: str = ""
    """The name of a built-in model; empty if the file does not name one."""
    options: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Entries without an option."""

    @property
    def filled_in(self) -> list[str]:
        """The words of the command that stand for what the file does not say."""
        return [word for word in ("MODEL", "GPU", "N") if word in self.command.split()]

    @property
    def command(self) -> str:
        """The command that says the same."""
        options = {"gpu": "GPU", "gpus": "N", **self.options}
        words = " ".join(f"--{name} {value}" for name, value in options.items())
        return f"paceline simulate {self.model or 'MODEL'} {words}"

    def take(self, option: str, value: object, *, unless: object = None) -> None:
        """Take an option, unless its value is unknown or the default."""
        if value not in (None, "", "auto", unless):
            self.options[option] = str(value)


def meaning(found: Values, path: Path) -> Meaning | None:
    """Return what the values of a file mean; None if they are no trainer's."""
    for recognized, read in _TRAINERS:
        if recognized(found):
            return read(found, path)
    return None


def _has(*names: str) -> Callable[[Values], bool]:
    return lambda found: all(any(key == name or key.startswith(f"{name}.") for key in found) for name in names)


def _any(*tests: Callable[[Values], bool]) -> Callable[[Values], bool]:
    return lambda found: any(test(found) for test in tests)


def _whole(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else None


def _product(factors: Iterable[int | None]) -> int | None:
    result = 1
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result


def _dtype(found: Values, *prefixes: str) -> str | None:
    for prefix in prefixes:
        for name in ("bf16", "fp16", "fp8"):
            if found.get(f"{prefix}{name}") in (True, "auto", "full"):
                return name
    return None


def _named(name: Value) -> str:
    """Return the built-in model of a name on the hub; empty if there is none."""
    from paceline.catalog.models.config import find_config

    plain = str(name or "").rstrip("/")
    last = re.sub(r"^(?:meta|mistralai)-", "", plain.rsplit("/", 1)[-1], flags=re.IGNORECASE)
    bare = re.sub(r"(?:-(?:instruct|chat|it|hf|base|v0\.\d))+$", "", last, flags=re.IGNORECASE)
    config = next((config for word in (plain, last, bare) if word and (config := find_config(word))), None)
    return "" if config is None else config.name


def _sized(sizes: dict[str, Value]) -> str:
    """Return the only built-in model of these sizes; empty if there is none."""
    from paceline.catalog.models.config import built_in_configs

    known = {name: value for name, value in sizes.items() if value is not None}
    if len(known) < 3:
        return ""
    names = [
        name
        for name, config in built_in_configs().items()
        if all(config.fields.get(size) == value for size, value in known.items())
    ]
    # Models that differ in their contexts alone are the same here.
    return names[0] if len({built_in_configs()[name].parameters for name in names}) == 1 else ""


def _deepspeed(found: Values, path: Path) -> Meaning:
    result = Meaning("DeepSpeed")
    batch = _whole(found.get("train_micro_batch_size_per_gpu"))
    passes = _whole(found.get("gradient_accumulation_steps"))
    total = _whole(found.get("train_batch_size"))
    each = _product((batch, passes or 1))
    if total and each and total % each == 0:
        result.take("gpus", total // each)
    stage = found.get("zero_optimization.stage", 0)
    result.take("sharding", f"zero{stage}" if stage in (1, 2, 3) else "none" if stage == 0 else None)
    result.take("batch", batch)
    result.take("accumulate", passes, unless=1)
    dtype = _dtype({key.removesuffix(".enabled"): value for key, value in found.items()}, "")
    result.take("dtype", dtype)
    result.take("precision", "o2" if dtype in ("bf16", "fp16") else None)
    for state in ("optimizer", "param"):
        device = found.get(f"zero_optimization.offload_{state}.device")
        if device in ("cpu", "nvme"):
            what = "optimizer's states" if state == "optimizer" else "parameters"
            result.left_out.append(f"the {what} in the memory of the {str(device).replace('cpu', 'CPU')}")
    return result


def _beside(found: Value, path: Path, result: Meaning) -> None:
    """Take what a file of DeepSpeed says that another file names and does not say itself."""
    if not isinstance(found, str):
        return
    other = path.parent / found
    try:
        said = _deepspeed(values(read_small(other)), other)
    except (OSError, ValueError):
        result.left_out.append(f"what {other} says, which cannot be read")
        return
    for name, value in said.options.items():
        result.options.setdefault(name, value)
    result.left_out += said.left_out


def _accelerate(found: Values, path: Path) -> Meaning:
    result = Meaning("accelerate")
    result.take("gpus", _whole(found.get("num_processes")))
    kind = found.get("distributed_type")
    if kind == "FSDP":
        strategy = str(found.get("fsdp_config.fsdp_sharding_strategy", "FULL_SHARD")).upper()
        sharding = _SHARDINGS.get(strategy, "zero3")
        keep = found.get("fsdp_config.fsdp_reshard_after_forward")
        result.take("sharding", _SHARDINGS.get(str(keep).upper(), sharding))
        if keep is False:
            result.take("reshard-after-forward", "no")
        if found.get("fsdp_config.fsdp_activation_checkpointing") is True:
            result.take("checkpointing", "full")
        if found.get("fsdp_config.fsdp_offload_params") is True:
            result.left_out.append("parameters in the memory of the CPU")
    elif kind == "DEEPSPEED":
        stage = _whole(found.get("deepspeed_config.zero_stage"))
        result.take("sharding", f"zero{stage}" if stage else None)
        result.take("accumulate", _whole(found.get("deepspeed_config.gradient_accumulation_steps")), unless=1)
        if found.get("deepspeed_config.offload_optimizer_device") in ("cpu", "nvme"):
            result.left_out.append("the optimizer's states in the memory of the CPU")
        _beside(found.get("deepspeed_config.deepspeed_config_file"), path, result)
    elif kind == "MULTI_GPU":
        result.take("sharding", "none")
    mixed = found.get("mixed_precision")
    result.take("dtype", _DTYPES.get("no" if mixed is False else str(mixed)))
    return result


def _torchtitan(found: Values, path: Path) -> Meaning:
    result = Meaning("torchtitan", _named(f"{found.get('model.name')}-{found.get('model.flavor')}"))
    degrees = {
        name: found.get(f"parallelism.{name}_degree", 1)
        for name in ("data_parallel_replicate", "tensor_parallel", "pipeline_parallel", "context_parallel")
    }
    shard = found.get("parallelism.data_parallel_shard_degree", -1)
    replicas = _whole(degrees["data_parallel_replicate"]) or 1
    gpus = _product([_whole(shard), *map(_whole, degrees.values())])
    result.take("gpus", gpus)
    group = "hsdp" if shard == -1 else f"hsdp:{shard}"
    result.take("sharding", "none" if shard == 1 else group if replicas > 1 else "zero3")
    kept = found.get("parallelism.fsdp_reshard_after_forward")
    result.take("reshard-after-forward", {"always": "yes", "never": "no"}.get(str(kept)))
    for name in ("tensor", "pipeline", "context"):
        result.take(f"{name}-parallel", _whole(degrees[f"{name}_parallel"]), unless=1)
    batch = found.get("training.local_batch_size", found.get("training.batch_size"))
    micro = _whole(found.get("parallelism.pipeline_parallel_microbatch_size")) or 1
    if (stages := _whole(degrees["pipeline_parallel"]) or 1) > 1:
        result.take("microbatches", max(1, (_whole(batch) or 4 * stages) // micro))
        batch = micro
    result.take("batch", _whole(batch))
    result.take("seq", _whole(found.get("training.seq_len")))
    dtype = _DTYPES.get(str(found.get("training.mixed_precision_param", "bfloat16")))
    result.take("dtype", dtype)
    if str(found.get("training.mixed_precision_reduce", "float32")) == "float32" and shard != 1 and dtype == "bf16":
        result.take("precision", "fsdp-mixed")
    result.take("optimizer-impl", _UPDATES.get(str(found.get("optimizer.implementation", "fused"))))
    result.take("checkpointing", _RECOMPUTED.get(str(found.get("activation_checkpoint.mode"))))
    compiled = found.get("compile.enable", found.get("training.compile"))
    result.take("kernels", "compiled" if compiled is True else None)
    if compiled is True and "loss" in str(found.get("compile.components", "model, loss")):
        result.take("loss-chunks", 1)
    return result


def _adapter(result: Meaning, kind: object, *, quantized: bool) -> None:
    if str(kind) in ("lora", "qlora", "oft", "freeze"):
        result.left_out.append(f"{kind}, since a forecast trains all weights")
    if quantized:
        result.left_out.append("quantized weights")


def _axolotl(found: Values, path: Path) -> Meaning:
    result = Meaning("axolotl", _named(found.get("base_model")))
    fsdp = any(key == "fsdp" or key.startswith(("fsdp_config.", "fsdp.")) for key in found)
    strategy = str(found.get("fsdp_config.sharding_strategy", found.get("fsdp_config.fsdp_sharding_strategy", "")))
    result.take("sharding", _SHARDINGS.get(strategy.upper(), "zero3") if fsdp else None)
    result.take("batch", _whole(found.get("micro_batch_size")))
    result.take("accumulate", _whole(found.get("gradient_accumulation_steps")), unless=1)
    result.take("seq", _whole(found.get("sequence_len")))
    result.take("dtype", _dtype(found, ""))
    result.take("checkpointing", "full" if found.get("gradient_checkpointing") not in (None, False) else None)
    result.take("tensor-parallel", _whole(found.get("tensor_parallel_size")), unless=1)
    result.take("context-parallel", _whole(found.get("context_parallel_size")), unless=1)
    _beside(found.get("deepspeed"), path, result)
    result.options.setdefault("sharding", "none")
    _adapter(result, found.get("adapter"), quantized=True in (found.get("load_in_4bit"), found.get("load_in_8bit")))
    if "8bit" in str(found.get("optimizer")):
        result.left_out.append(f"the optimizer {found['optimizer']}")
    return result


def _llamafactory(found: Values, path: Path) -> Meaning:
    result = Meaning("LLaMA-Factory", _named(found.get("model_name_or_path")))
    result.take("batch", _whole(found.get("per_device_train_batch_size")))
    result.take("accumulate", _whole(found.get("gradient_accumulation_steps")), unless=1)
    result.take("seq", _whole(found.get("cutoff_len")))
    result.take("dtype", _dtype(found, ""))
    recomputed = found.get("disable_gradient_checkpointing") is not True
    result.take("checkpointing", "full" if recomputed else None)  # on by default
    _beside(found.get("deepspeed"), path, result)
    result.options.setdefault("sharding", "zero3" if found.get("fsdp") else "none")
    _adapter(result, found.get("finetuning_type"), quantized=found.get("quantization_bit") is not None)
    return result


def _megatron(found: Values, path: Path) -> Meaning:
    sizes = {
        "hidden_size": found.get("--hidden-size"),
        "num_hidden_layers": found.get("--num-layers"),
        "num_attention_heads": found.get("--num-attention-heads"),
        "intermediate_size": found.get("--ffn-hidden-size"),
        "vocab_size": found.get("--vocab-size"),
    }
    result = Meaning("Megatron-LM", _sized(sizes))
    gpus = _product(_whole(found.get(name)) for name in ("--nproc-per-node", "--nnodes"))
    result.take("gpus", gpus)
    short = {"tensor": "tensor-model", "pipeline": "pipeline-model", "context": "context", "expert": "expert-model"}
    degrees = {name: _whole(found.get(f"--{flag}-parallel-size")) or 1 for name, flag in short.items()}
    for name, degree in degrees.items():
        result.take(f"{name}-parallel", degree, unless=1)
    layers, part = _whole(found.get("--num-layers")), _whole(found.get("--num-layers-per-virtual-pipeline-stage"))
    if layers and part and degrees["pipeline"] > 1:
        result.take("virtual-stages", layers // degrees["pipeline"] // part, unless=1)
    result.take("sharding", "zero1" if found.get("--use-distributed-optimizer") else "none")
    batch, total = _whole(found.get("--micro-batch-size")), _whole(found.get("--global-batch-size"))
    result.take("batch", batch)
    replicas = gpus // (degrees["tensor"] * degrees["pipeline"] * degrees["context"]) if gpus else 0
    passes = total // (batch * replicas) if batch and total and replicas else None
    if degrees["pipeline"] > 1:
        result.take("microbatches", passes or 4 * degrees["pipeline"])
    else:
        result.take("accumulate", passes, unless=1)
    result.take("seq", _whole(found.get("--seq-length")))
    dtype = _dtype(found, "--")
    result.take("dtype", dtype)
    result.take("precision", "megatron" if dtype == "bf16" and not found.get("--grad-reduce-in-bf16") else None)
    granularity = "selective" if found.get("--recompute-activations") else found.get("--recompute-granularity")
    result.take("checkpointing", _RECOMPUTED.get(str(granularity)))
    return result


def _nanotron(found: Values, path: Path) -> Meaning:
    result = Meaning("nanotron", _sized({size: found.get(f"model.model_config.{size}") for size in _SIZES}))
    degrees = {name: _whole(found.get(f"parallelism.{name}")) for name in ("dp", "tp", "pp")}
    result.take("gpus", _product(degrees.values()))
    result.take("tensor-parallel", degrees["tp"], unless=1)
    result.take("pipeline-parallel", degrees["pp"], unless=1)
    stage = found.get("optimizer.zero_stage", 0)
    result.take("sharding", f"zero{stage}" if _whole(stage) else "none")
    result.take("batch", _whole(found.get("tokens.micro_batch_size")))
    passes = _whole(found.get("tokens.batch_accumulation_per_replica"))
    if (degrees["pp"] or 1) > 1:
        result.take("microbatches", passes or 4 * (degrees["pp"] or 1))
    else:
        result.take("accumulate", passes, unless=1)
    result.take("seq", _whole(found.get("tokens.sequence_length")))
    result.take("dtype", _DTYPES.get(str(found.get("model.dtype"))))
    return result


_TRAINERS: tuple[tuple[Callable[[Values], bool], Callable[[Values, Path], Meaning]], ...] = (
    (_any(_has("zero_optimization"), _has("train_micro_batch_size_per_gpu")), _deepspeed),
    (_any(_has("distributed_type", "num_processes"), _has("fsdp_config", "compute_environment")), _accelerate),
    (_any(_has("parallelism", "training"), _has("model.flavor")), _torchtitan),
    (_any(_has("parallelism.dp"), _has("tokens.micro_batch_size")), _nanotron),
    (_has("base_model"), _axolotl),
    (_any(_has("model_name_or_path", "finetuning_type"), _has("model_name_or_path", "stage")), _llamafactory),
    (_any(_has("--tensor-model-parallel-size"), _has("--micro-batch-size", "--num-layers")), _megatron),
)
