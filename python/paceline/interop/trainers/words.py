"""Words that several trainers share: names of optimizers, types and shardings, and what they are here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.catalog.adapters import EXPERTS, modules_of
from paceline.catalog.losses import LOSSES
from paceline.catalog.models.families import model_of
from paceline.errors import InvalidArgumentError
from paceline.interop.trainers import shell
from paceline.interop.trainers.document import Values
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
NO_BITSANDBYTES: Mapping[str, tuple[str, ...]] = {
    "optimizer": ("adamw-8bit", "paged-adamw-8bit"),
    "quantize": (),
    "loss_chunks": (),
}
"""Options that trainers lack which have neither bitsandbytes' optimizers nor Liger's loss."""


def recipe_of(reading: Reading, dtype: str | None) -> str | None:
    """Return the recipe of accelerate's mixed precision in a type, by the sharding; None without autocast's types.

    accelerate casts what is trained to FP32 under FSDP (fsdp.py). Only DeepSpeed shards states alone.
    """
    if dtype is None or dtype not in AUTOCAST:
        return None
    sharding = str(reading.effective("sharding", "none")).partition(":")[0]
    return {"none": AUTOCAST[dtype], "zero1": "o2", "zero2": "o2"}.get(sharding, "mixed")


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


def take_optimizer(reading: Reading, *names: str, default: str = "") -> None:
    """Take the optimizer of a field; one that is not known here is named, and AdamW's memory is assumed.

    `default`: whose default fused AdamW is, where the file names none.
    """
    word = reading.text(*names)
    if not word:
        if default:
            default_optimizer(reading, default)
        return
    name = reading.present(*names)
    if (of_file := reading.source("optimizer")) and "optimizer" not in reading.fields_of:
        # transformers/integrations/deepspeed.py (`deepspeed_optim_sched`): that of DeepSpeed's file is used.
        reading.idle(name, f"{of_file[0]} says the optimizer")
        return
    known = OPTIMIZERS.get(word.lower())
    if known is None:
        reading.leave(name, f"the optimizer {word:.40}; forecast is AdamW")
        return
    optimizer, implementation = known
    if optimizer in NO_BITSANDBYTES["optimizer"] and "states" in str(reading.effective("offload", "")):
        reading.leave(name, f"{word:.40} on the CPU; forecast is AdamW there")
        return
    reading.take("optimizer", optimizer, name)
    if not reading.source("optimizer_impl"):
        reading.forget("optimizer_impl")
        reading.take("optimizer_impl", implementation, name)


def default_optimizer(reading: Reading, whose: str) -> None:
    """Take fused AdamW, which is `whose` default, where nothing names the optimizer."""
    if "optimizer" not in reading.options:
        for setting, value in (("optimizer", "adamw"), ("optimizer_impl", "fused")):
            reading.default(setting, value, f"fused AdamW, {whose}", "--optimizer and --optimizer-impl")


_PATTERN = re.compile(r"[\\^$*+?|()\[\]{}]|\\.\\*")
"""Characters that PEFT's regular expressions have, and names of modules have not."""
_GROUP = re.compile(r"\(([\w|]+)\)(\w*)")
_NAME = re.compile(r"[A-Za-z]\w*")
_PEFT_MODULES: Mapping[str, str] = {
    **{"gpt2": "c_attn", "mpt": "Wqkv", "t5": "q,v", "mt5": "q,v", "phi": "q_proj,v_proj,fc1,fc2"},
    **dict.fromkeys(("gpt_neox", "falcon", "bloom", "chatglm"), "query_key_value"),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), "query,value"),
    "nemotron_h": "q_proj,k_proj,v_proj,o_proj",
}
"""Modules that PEFT adapts by default, by family; of others q_proj and v_proj (peft/utils/constants.py)."""


def take_lora(
    reading: Reading,
    rank: tuple[str, ...],
    targets: tuple[str, ...],
    *names: str,
    default_rank: tuple[int, str] = (8, "PEFT's default"),
    default_modules: tuple[str, str] | None = None,
    parameters: str = "lora_target_parameters",
    beside: str = "",
    dropout: str = "lora_dropout",
    default_dropout: tuple[float, str] = (0.0, ""),
) -> None:
    """Take the rank, the modules and the dropout of LoRA.

    Args:
        reading: The file.
        rank: Fields of the rank.
        targets: Fields of PEFT's `target_modules`: a list of names, or a regular expression.
        names: Other fields that say it.
        default_rank: The trainer's default, and whose it is.
        default_modules: The trainer's default; None: PEFT's, by the model's family.
        parameters: The field of PEFT's `target_parameters`, of experts.
        beside: The field of a switch that joins all linear layers to those that are named.
        dropout: The field of the share of inputs that is dropped.
        default_dropout: The trainer's default, and whose it is.
    """
    size = reading.whole(*rank)
    if size is None:
        size = default_rank[0]
        reading.assume(f"rank {size}, {default_rank[1]}", "--lora RANK:MODULES")
    modules = _modules(reading, *targets) if targets else ""
    if beside and reading.flag(beside):
        modules, names = _joined(reading, ["all-linear", *modules.split(",")]), (*names, beside)
    experts = _experts(reading, parameters)
    if not modules and not experts:
        family = "" if reading.config is None else reading.config.kind
        modules, whose = default_modules or (_PEFT_MODULES.get(family, "q_proj,v_proj"), "PEFT's default modules")
        reading.assume(f"{modules.replace(',', ' and ')}, {whose}", "--lora RANK:MODULES")
    own = (_of_model(reading, modules), *experts)
    reading.take("lora", f"{size}:{','.join(filter(None, own))}", *names, *rank, *targets, parameters)
    take_dropout(reading, dropout, *default_dropout)


def take_dropout(reading: Reading, name: str, default: float = 0.0, whose: str = "") -> None:
    """Take the dropout before adapters, or the trainer's default."""
    value = reading.value(name)
    if value is None and default:
        reading.default("lora_dropout", default, f"dropout of {default:g} before adapters, {whose}", "--lora-dropout 0")
        return
    try:
        share = float(value or 0.0)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise reading.wrong(name, "is no share of 0 to 1", "0.05")
    reading.take("lora_dropout", share or None, name)


def known_modules(reading: Reading) -> list[str] | None:
    """Return the modules that the model has; None if it is not known."""
    try:
        return None if reading.config is None else modules_of(model_of(reading.config))
    except InvalidArgumentError:  # of a family that is not modeled
        return None


def _experts(reading: Reading, name: str) -> list[str]:
    """Return the products of experts of PEFT's `target_parameters`, by their names in `--lora`."""
    words = [".".join(one.split(".")[-2:]) for one in reading.words(name)]
    known = known_modules(reading) or []
    if any(one not in known for one in words):
        reading.leave(name, "adapters on parameters that are no products of experts")
        return []
    return list(dict.fromkeys(words))


def _of_model(reading: Reading, modules: str) -> str:
    """Return the modules that the model has: PEFT adapts those that it finds, if there are any."""
    words = modules.split(",")
    known = known_modules(reading) or words
    missing = [one for one in words if one not in known]
    if not missing or len(missing) == len(words):
        return modules
    reading.assume(f"no adapters of {', '.join(missing)[:80]}: no linear layer of the model's blocks is called so")
    return ",".join(one for one in words if one in known)


def _modules(reading: Reading, *names: str) -> str:
    """Return the modules of `--lora` for PEFT's `target_modules`; empty if there are none that it says."""
    words = reading.words(*names)
    name = reading.present(*names)
    if isinstance(pattern := reading.value(*names), str) and _PATTERN.search(pattern):
        # What a pattern matches is the model's to say; its names say it where they are written out.
        spelled = _GROUP.sub(lambda one: " ".join(f"{part}{one[2]}" for part in one[1].split("|")), pattern)
        words = [one for one in dict.fromkeys(_NAME.findall(spelled)) if one.endswith("_proj") or one in _FUSED]
        if not words:
            reading.leave(name, "a pattern of modules; --lora RANK:MODULES says which")
            return ""
        reading.assume(f"the modules that a pattern names: {', '.join(words)[:80]}", "--lora RANK:MODULES")
    plain = {MODULES.get(one.lower(), one) for one in words}
    if "all-linear" in plain or plain >= set(_MATRICES):
        return _joined(reading, ["all-linear", *words])
    return ",".join(dict.fromkeys(one.rpartition(".")[2] for one in words))


def _joined(reading: Reading, words: Sequence[str]) -> str:
    """Return all linear layers with those of the words that name none of them: experts, or what the model has not."""
    linear = {one for one in known_modules(reading) or words if one.partition(".")[0] != EXPERTS}
    others = (one.rpartition(".")[2] for one in words if MODULES.get(one.lower(), one) != "all-linear")
    return ",".join(dict.fromkeys(["all-linear", *(one for one in others if one and one not in linear)]))


_FUSED = (
    *("query_key_value", "c_attn", "c_proj", "c_fc", "Wqkv", "dense", "fc1", "fc2"),
    *("dense_h_to_4h", "dense_4h_to_h"),
)
"""Names of modules that do not end in `_proj`."""


def take_whole_modules(reading: Reading, *names: str) -> None:
    """Take modules that are trained whole beside the adapters: PEFT's `modules_to_save`."""
    words = [one.strip("^$").removesuffix(".weight").rpartition(".")[2] for one in reading.words(*names)]
    if not words:
        return
    if all(_NAME.fullmatch(one) for one in words):
        reading.take("modules_to_save", ",".join(dict.fromkeys(words)), *names)
    else:
        reading.leave(reading.present(*names), "modules that are trained whole; --modules-to-save says which")


def eager_kernels(reading: Reading) -> None:
    """Take the kernels of transformers' models where the file names no others."""
    reading.default("kernels", "eager", "eager kernels, those of transformers' models", "--kernels fused, or compiled")


def fused_kernels(reading: Reading) -> None:
    """Take Megatron-LM's kernels, which adapters do not change."""
    reading.default("kernels", "fused", "Megatron-LM's fused kernels", "--kernels eager")


def adapters_in_fp32(reading: Reading, *, autocast: bool = True) -> None:
    """Drop a recipe: adapters beside 16-bit weights are in FP32, whatever it says (PEFT's `autocast_adapter_dtype`).

    `autocast`: whether it converts their operands; else products with them are in FP32, too, which is the recipe mixed.
    """
    if reading.given.get("lora") == "none":
        return
    fields = reading.fields_of.get("precision") or reading.fields_of.get("dtype", ())
    if reading.options.get("precision") in ("bf16", "mixed", *AUTOCAST.values()):
        reading.forget("precision")
    if not autocast and reading.effective("dtype") in AUTOCAST and "precision" not in reading.options:
        reading.take("precision", "mixed", *fields)


def take_loss(reading: Reading, loss: str, *names: str) -> None:
    """Take the loss; where it compares sequences, a sample of the file's batch is several of them."""
    known = next((one for one in LOSSES.items() if one[0] == _SAME_PASSES.get(loss, loss)), None)
    if loss == "rm" and "batch" in reading.options:
        reading.options["batch"] *= 2
        reading.known(names[0], "pairs of a reward model, as sequences with logits")
        reading.assume("a batch in sequences: 2 for each pair that a reward model compares")
        return
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


@dataclass(frozen=True)
class Nodes:
    """The nodes of a job and the GPUs of each, as its script has them."""

    count: int | None
    """None: nothing says."""
    gpus: int | None
    """Of a node. None: nothing says."""
    fields: tuple[str, ...]
    """Those that say it."""
    of_gpus: tuple[str, ...]
    """Those that say the GPUs of a node."""
    is_of_launcher: bool
    """Whether arguments of the launcher say the GPUs: what its file says wins over variables and `#SBATCH` lines."""


def nodes_of(reading: Reading, of_nodes: Sequence[str], of_each: Sequence[str], of_all: str = "") -> Nodes:
    """Return nodes and GPUs by a script's launcher, else by its variables, else by its `#SBATCH` lines.

    Args:
        reading: The script.
        of_nodes: Arguments that say the number of nodes.
        of_each: Arguments that say the GPUs of a node.
        of_all: The argument that says those of all nodes; empty if there is none.

    Raises:
        InvalidArgumentError: The launcher starts more than Slurm gives.
    """
    slurm_nodes, slurm_each, lines = shell.requested(reading.values)
    count, fields = reading.whole(*of_nodes, *shell.OF_NODES), (*of_nodes, *shell.OF_NODES)
    if count is None and slurm_nodes is not None:
        count, fields = slurm_nodes, lines
    each, own = reading.whole(*of_each, least=0) or None, tuple(of_each)
    total = reading.whole(of_all) if of_all and each is None else None
    if total is not None:
        each, own = (None if total % (count or 1) else total // (count or 1)), (of_all, *fields)
    is_of_launcher = each is not None or total is not None
    if not is_of_launcher:
        each, own = reading.whole(*shell.OF_EACH), shell.OF_EACH
    if each is None and not is_of_launcher:
        each, own = slurm_each, lines
    return Nodes(count, each, tuple(dict.fromkeys((*own, *fields))), own, is_of_launcher)


def compare_with_slurm(reading: Reading, *names: str) -> None:
    """Say of `#SBATCH` lines that give no option why: the launcher starts as many GPUs, or fewer, or they are given.

    `names`: fields that say what the launcher starts. Raises InvalidArgumentError if these are more than Slurm gives.
    """
    nodes, each, lines = shell.requested(reading.values)
    gpus = reading.options.get("workers")
    left = [line for line in lines if not any(line in fields for fields in reading.fields_of.values())]
    if "workers" in reading.given:
        for line in left:
            reading.idle(line, "the number of GPUs is given")
        return
    if gpus is None:
        return
    total = None if each is None else each * (nodes or 1)
    if total is not None and gpus > total:
        said = ", ".join(f"{line} {reading.values[line]}" for line in lines)
        name = next((name for name in names if reading.has(name)), "")
        where = f"{reading.label(name)}: " if name else ""
        raise InvalidArgumentError(
            f"{reading.path!s:.200}: {where}{gpus} GPUs are more than the {total} of {said}",
            remedy=f"as many in both, or {{gpus={gpus}}}",
        )
    for line in left:
        if total in (None, gpus):
            reading.known(line, "as the launcher has it")
        else:
            reading.idle(line, f"the launcher starts {gpus} of the {total} GPUs")


_ARGUMENTS = (("nnodes", "num_machines", "num_nodes"), ("nproc_per_node", "num_gpus", "gpus"), "num_processes")
"""Those of torchrun, accelerate and deepspeed."""


def take_gpus(reading: Reading) -> None:
    """Take the number of GPUs from the launcher of a script: torchrun, accelerate or deepspeed."""
    nodes = nodes_of(reading, *_ARGUMENTS)
    of_all = _ARGUMENTS[-1]
    if nodes.gpus is None:
        reading.take("workers", reading.whole(of_all), of_all, *nodes.fields)
    else:
        reading.take("workers", nodes.gpus * (nodes.count or 1), *nodes.fields)
    take_gpus_per_node(reading, nodes)
    if nodes.gpus is not None and not nodes.is_of_launcher:
        reading.yielding |= {"workers", "gpus_per_node"}
    compare_with_slurm(reading, *nodes.fields)


def take_gpus_per_node(reading: Reading, nodes: Nodes) -> None:
    """Take the GPUs of each of several nodes, unless a cluster is given, which has its own."""
    if nodes.gpus is not None and (nodes.count or 1) > 1 and "cluster" not in reading.given:
        reading.take("gpus_per_node", nodes.gpus, *nodes.of_gpus)


def as_fields(values: Values) -> tuple[Values, dict[str, str]]:
    """Return the arguments of a script as fields of a file: `--per-device-train-batch-size 4`, and their spelling."""
    labels = {name[2:].replace("-", "_"): name for name in values if name.startswith("--")}
    return {
        (name[2:].replace("-", "_") if name.startswith("--") else name): one for name, one in values.items()
    }, labels
