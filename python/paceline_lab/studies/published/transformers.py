"""Published training rates of transformers as workloads: what a row says about model, GPU, batch and software.

The rows have the columns of docs/results/published.md. Only what determines the computation of one GPU is read here;
rows on one node are compared with it, and constants of operators are calibrated on them.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paceline.catalog.builtin import load_cluster
from paceline.catalog.gpus import Hardware, find_hardware
from paceline.catalog.models.config import Config, built_in_configs, find_config
from paceline.catalog.models.exchanges import Links, element_bytes
from paceline.catalog.models.families import with_context
from paceline.catalog.models.memory import Checkpointing
from paceline.catalog.models.spec import workload_of
from paceline.catalog.models.workload import Workload
from paceline.catalog.names import Attention as AttentionKind
from paceline.catalog.names import Kernels, Recipe
from paceline.catalog.nccl import overlap_slowdown
from paceline.catalog.recipes import COMPUTED
from paceline.errors import InvalidArgumentError

from paceline_lab.studies.published.data import SHARDED, read_cells

_EXPOSED = 0.24
"""Share of an all-reduce's time that no backward pass hides: DDP's and ZeRO-1's last buckets, in the rows of InternEvo
and DLPerf on one node."""
ONE_NODE = 8
"""GPUs; rows with more are not compared: their network counts."""


@dataclass(frozen=True)
class Case:
    """A row as a workload."""

    name: str
    group: str
    """The source, for leaving one out."""
    workload: Workload
    gpus: int
    accumulate: int
    sharding: str
    measured: float
    """Samples per second and GPU."""
    parameter_bytes: float
    """Bytes per parameter that collectives move in a microbatch or a step."""
    bucket_size: str | None = None
    """Of gradients; None: DDP's."""
    by_owner: bool = False
    """Whether a bucket holds tensors that one rank updates."""
    overlap: bool = True
    """Whether gradients are exchanged during the backward pass."""
    assumed: str = ""
    """Assumptions on software and model where the row is silent."""
    has_shape: bool = True
    """Whether the model's layers are published, not only the number of its parameters."""

    @property
    def step_s(self) -> float:
        """Seconds of one iteration: microbatches, update, and what a node's collectives cost."""
        one, ranks = self.workload, self.gpus
        is_sharded = self.sharding != "none" and ranks > 1
        update = one.optimizer_s / (ranks if is_sharded else 1)
        step = self.accumulate * (one.forward_s + one.backward_s) + update
        if ranks == 1 or one.hardware.bus_bandwidth is None:
            return step
        volume = one.model.parameters * self.parameter_bytes * (ranks - 1) / ranks / one.hardware.bus_bandwidth
        if self.sharding in ("zero2", "zero3"):
            return step + self.accumulate * volume * overlap_slowdown()
        exposed = _EXPOSED if self.overlap else 1.0
        return step + volume * (exposed + (1 - exposed) * overlap_slowdown())

    @property
    def forecast(self) -> float:
        """Samples per second and GPU."""
        return self.workload.batch * self.accumulate / self.workload.context / self.step_s

    @property
    def error(self) -> float:
        """Forecast over measured, minus 1."""
        return self.forecast / self.measured - 1


@dataclass(frozen=True)
class _Software:
    """The software of a row's system; the first whose words are in system or source."""

    words: str
    kernels: Kernels
    attention: AttentionKind
    bucket_size: str | None = None
    """Of gradients: Horovod's fusion threshold, InternEvo's and DeepSpeed's reduce_bucket_size; None: DDP's."""
    by_owner: bool = False
    """Whether ZeRO gives whole tensors to ranks, so that a bucket holds those of one rank at most. InternEvo's
    hybrid_zero_optim reduces gradients to the rank that updates them, and broadcasts each rank's parameters."""
    overlap: bool = True
    """False: gradients are exchanged after the backward pass. Megatron's local DDP and NVIDIA's BERT in PyTorch
    (`allreduce_post_accumulation`) and TensorFlow (accumulated gradients) do so."""
    flash: Literal[0, 1, 2] = 0
    """The version of FlashAttention; 0: the kernel that torch chooses today."""
    recipe: Recipe | None = None
    """Types of parameters and states; None: the usual ones."""
    predictions: bool = False
    """Whether BERT's head sees the masked positions only, 20 of 128 tokens or 80 of 512."""


_SOFTWARE = (
    _Software("Composer", "fused", "flash", flash=1),
    _Software("InternEvo", "eager", "flash", "512MiB", by_owner=True, flash=2),
    _Software("torch.compile", "compiled", "flash", flash=2),
    _Software("FMS", "compiled", "flash", flash=2),
    _Software("torchtitan", "eager", "flash", flash=2),
    _Software("Megatron-Core", "transformer-engine", "flash"),
    _Software("Megatron-Bridge", "transformer-engine", "flash"),
    _Software("NeMo", "transformer-engine", "flash"),
    # Before its version 2.3, fused kernels of softmax were an option.
    _Software("Megatron-LM (torch DDP)", "eager", "unfused", overlap=False),
    _Software("Megatron", "fused", "unfused", overlap=False),
    _Software("DeepSpeed", "eager", "unfused", "500MB"),
    _Software("TF1", "eager", "unfused", "64MiB", overlap=False, predictions=True, recipe="amp-fp16"),
    _Software("TF2", "eager", "unfused", "64MiB", overlap=False, predictions=True, recipe="amp-fp16"),
    _Software("NGC PyTorch", "eager", "unfused", overlap=False),
    _Software("Transformer-XL", "eager", "unfused"),
    # A container of NVIDIA, with PyTorch 1.13.
    _Software("PyTorch 22.08", "eager", "unfused"),
    _Software("PyTorch 2", "fused", "unfused"),
    _Software("PyTorch", "eager", "unfused"),
)
_GPUS = (
    # The first whose words are all there: the name of the GPU, and what it or the notes say of memory and power.
    ("a100 40gb", "a100-40gb"),
    ("a100", "a100-80gb"),
    ("h100 500w", "h100-96gb-500w"),
    ("h100 96gb", "h100-96gb"),
    ("h100 94gb", "h100-96gb"),
    ("h100 95gb", "h100-96gb"),
    ("h100 hbm2e", "h100-96gb"),
    ("h100", "h100"),
    ("h200", "h200"),
    ("b200", "b200"),
    ("v100-sxm2 16gb", "v100-16gb"),
    ("v100 450w", "v100-sxm3-450w"),
    ("v100", "v100-32gb"),
)
_BINARY = {"K": 2**10, "M": 2**20}
"""Batches of tokens are powers of two: "0.125M tokens" are 2^17."""
_TENSOR = re.compile(r"(?:tensor[- ]parallel(?:ism)?(?: size)?|\btp)[ =]?(\d+)", re.IGNORECASE)
_PIPELINE = re.compile(r"(?:pipeline[- ]parallel(?:ism)?(?: size)?|\bpp)[ =]?(\d+)", re.IGNORECASE)
_VIRTUAL = re.compile(r"(?:virtual(?: pipeline)?(?: stages| size)?|\bvp)[ =]?(\d+)", re.IGNORECASE)
_CONTEXT = re.compile(r"(?:context[- ]parallel(?:ism)?(?: size)?|\bcp)[ =]?(\d+)", re.IGNORECASE)
_EXPERT = re.compile(r"(?:expert[- ]parallel(?:ism)?(?: size)?|\bep)[ =]?(\d+)", re.IGNORECASE)
_LANGUAGE_MODELS = re.compile(
    r"gpt|llama|bert|\bopt\b|bloom|nemotron|palm|internlm|qwen|gemma|falcon|olmo|megatron|turing|mistral|baichuan"
)
"""Of which a published number of parameters says enough: transformers whose layers are all alike."""
_HEAD = 128
_SMALLEST, _LARGEST = 50e6, 2e12
_FULL_CHECKPOINTING = re.compile(
    r"activation checkpointing true|layer-wise activation checkpoint"
    r"|\bfull (?:ac\b|activation (?:checkpoint|recomput)|checkpoint|recomput)",
    re.IGNORECASE,
)
_MODELS = {
    "internlm-7b": "internlm-7b",
    "llama-2-like 7b": "llama-2-7b",
    "llama-2-like 34b": "codellama-34b",
    "bert-large": "bert-large",
    "bert-base": "bert-base",
    "bert-base pretrain": "bert-base",
    "bart-large (pre-training)": "bart-large",
}


_OF_COLLECTIVES = frozenset({"params", "global_batch_or_tokens", "gpus_per_node", "intra_bw", "inter_bw", "metric"})
"""Columns that training may do without."""


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file, each with an id of its own. Raises InvalidArgumentError."""
    cells = read_cells(path, SHARDED, _OF_COLLECTIVES)
    rows = [{name: row.text(name) for name in SHARDED} for row in cells]
    given = Counter(row["id"] for row in rows)
    for number, row in enumerate(rows, start=1):
        # Results are listed by id.
        if given[row["id"]] > 1 or not row["id"]:
            row["id"] = f"{row['id']} (row {number})".strip()
    return rows


def cases(rows: Sequence[Mapping[str, str]], most: int = ONE_NODE) -> tuple[list[Case], dict[str, str]]:
    """Return the rows with up to `most` GPUs as workloads, and why the others are left out, by id."""
    listed: list[Case] = []
    left_out: dict[str, str] = {}
    for row in rows:
        try:
            listed.append(_case(row, most))
        except (_CannotCompareError, InvalidArgumentError) as error:
            left_out[row["id"]] = str(error)
    return listed, left_out


class _CannotCompareError(Exception):
    pass


def _case(row: Mapping[str, str], most: int) -> Case:
    gpus = int(row["gpus"]) if row["gpus"].isdigit() else 0
    if "all-reduce" in row["model"] or "bus bandwidth" in row.get("metric", ""):
        raise _CannotCompareError("a collective, not training")
    if not 1 <= gpus <= most:
        raise _CannotCompareError(f"{row['gpus']} GPUs: more than one node of {ONE_NODE}")
    hardware = _hardware(row)
    config, assumed = _config(row)
    has_shape = not assumed
    software = next((it for it in _SOFTWARE if it.words.lower() in f"{row['system']} {row['source']}".lower()), None)
    if software is None:
        if most <= ONE_NODE:
            raise _CannotCompareError(f"unknown software: {row['system']}")
        is_old = hardware.architecture in ("volta", "turing")
        software = _Software("", "eager" if is_old else "fused", "unfused" if is_old else "flash")
        assumed.append(f"{software.kernels} kernels and {software.attention} attention")
    compiles = re.search(r"(no |without |not )?(torch\.)?compiled?\b", f"{row['strategy']} {row['notes']}".lower())
    if compiles is not None and not compiles[1]:
        software = replace(software, kernels="compiled")
    # A Transformer-XL's configuration says how many tokens it predicts.
    sequence = _number(row["seq_len"]) or config.fields.get("tgt_len")
    if sequence is None:
        raise _CannotCompareError("no sequence length")
    notes = row["notes"].lower()
    words = f"{row['strategy']}; {row['notes']}"
    tensor, pipeline, virtual, context, expert = (
        int(match[1]) if (match := pattern.search(words)) is not None else 1
        for pattern in (_TENSOR, _PIPELINE, _VIRTUAL, _CONTEXT, _EXPERT)
    )
    if expert > 1:
        raise _CannotCompareError("expert parallelism")
    own = tensor * pipeline * context
    if own < 1 or gpus % own or (own > 1 and most <= ONE_NODE):
        raise _CannotCompareError(
            f"{tensor} tensor-parallel and {context} context-parallel GPUs in {pipeline} stages, of {gpus} GPUs"
        )
    batch, accumulate = _batch(row, gpus // own, int(sequence))
    if pipeline > 1 and accumulate == 1:
        # A pipeline cuts its batch; torchtitan's microbatches have one sample unless it is told otherwise.
        batch, accumulate = 1, batch
    precision = _precision(row["precision"], hardware)
    if software.predictions and config.kind == "bert":
        masked = 20 if sequence <= 128 else 80
        config = replace(config, fields={**config.fields, "max_predictions_per_seq": masked})
    is_full = _FULL_CHECKPOINTING.search(words) is not None
    checkpointing: Checkpointing = "full" if is_full else "selective" if "selective" in notes else "none"
    workload = workload_of(
        with_context(config, int(sequence)),
        hardware,
        int(sequence),
        batch,
        precision,
        checkpointing,
        software.attention,
        software.kernels,
        precision=software.recipe if software.recipe and precision in COMPUTED[software.recipe] else None,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        microbatches=accumulate if pipeline > 1 else None,
        virtual_stages=virtual,
        context_parallel=context,
        links=Links.of(load_cluster(hardware.node)) if context > 1 else None,
    )
    sharding = _sharding(row["strategy"])
    fsdp: Literal[1, 2] = 1 if "fsdp1" in row["system"].lower() else 2
    workload = replace(workload, flash=software.flash, gathered=fsdp if sharding == "zero3" and gpus > own else 0)
    if "mp mode default" in notes:
        workload = replace(workload, recipe=replace(workload.recipe, reduction="float32"))
    if software.recipe is not None:
        # Horovod's compression: gradients are exchanged in 16 bits.
        workload = replace(workload, recipe=replace(workload.recipe, reduction=workload.recipe.computation))
    size = element_bytes(precision)
    # FSDP gathers twice and scatters once, in FP32 under autocast; others all-reduce once a step, which is two halves.
    gradient = 4 if "mp mode default" in notes else size
    moved = 2.0 * size + gradient if sharding == "zero3" else size + gradient if sharding == "zero2" else 2.0 * size
    return Case(
        row["id"],
        row["source"],
        workload,
        gpus,
        1 if pipeline > 1 else accumulate,
        sharding,
        _rate(row, workload, gpus),
        moved,
        software.bucket_size,
        software.by_owner,
        software.overlap,
        "; ".join(assumed),
        has_shape,
    )


def _hardware(row: Mapping[str, str]) -> Hardware:
    name, more = (re.sub(r"(\d) (gb|w)\b", r"\1\2", row[column].lower()) for column in ("gpu", "notes"))
    for words, device in _GPUS:
        model, *variant = words.split()
        if model in name and all(word in f"{name} {more}" for word in variant):
            return find_hardware(device)
    raise _CannotCompareError(f"unknown GPU {row['gpu']}")


def _config(row: Mapping[str, str]) -> tuple[Config, list[str]]:
    """Return the model's configuration, and what is assumed of its shape."""
    name = row["model"].lower()
    plain = re.sub(r"\([^)]*\)|^meta[- ]|[- ]like\b", " ", name).strip()
    # Llama 3.1 has the shapes of Llama 3.
    for word in (_MODELS.get(name, name), plain, re.sub(r"llama[- ]?3\.1", "llama-3", plain)):
        if (config := find_config(word)) is not None:
            return config, []
    fields = dict(built_in_configs()["gpt2-small"].fields)
    # `GPT 1536x16`: hidden size and layers; the notes have the vocabulary.
    if shape := re.fullmatch(r"gpt (\d+)x(\d+)", name):
        hidden, layers = int(shape[1]), int(shape[2])
        vocabulary = re.search(r"vocabulary ([\d,]+)", row["notes"])
        fields |= {"n_embd": hidden, "n_layer": layers, "n_head": hidden // 96, "n_positions": 2048}
        fields["vocab_size"] = int(vocabulary[1].replace(",", "")) if vocabulary else 50257
        return Config(row["model"], row["id"], fields), []
    size = re.match(r"\s*(\d+(?:\.\d+)?)\s*([BM]?)(?![\w.])", row.get("params", ""))
    parameters = 0.0 if size is None else float(size[1]) * {"B": 1e9, "M": 1e6, "": 1.0}[size[2]]
    if not (_SMALLEST <= parameters <= _LARGEST and _LANGUAGE_MODELS.search(name)):
        raise _CannotCompareError(f"unknown model {row['model']}")
    hidden, layers = _shape(parameters, fields["vocab_size"])
    assumed = [f"{layers} layers of {hidden}, as a GPT-3 with so many parameters has"]
    if "bert" in name:
        fields = dict(built_in_configs()["bert-large"].fields)
        fields |= {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 4 * hidden}
        return Config(row["model"], row["id"], fields | {"num_attention_heads": hidden // _HEAD}), assumed
    fields |= {"n_embd": hidden, "n_layer": layers, "n_head": hidden // _HEAD}
    return Config(row["model"], row["id"], fields), assumed


def _shape(parameters: float, vocabulary: int) -> tuple[int, int]:
    """Return hidden size and layers of a GPT with so many parameters: on the line through GPT-3's sizes."""
    sizes = [config for name, config in built_in_configs().items() if name.startswith("gpt3-")]
    line = statistics.linear_regression(
        [math.log(config.parameters or 1) for config in sizes], [math.log(config.whole("n_embd")) for config in sizes]
    )
    hidden = math.exp(line.intercept + line.slope * math.log(parameters))
    # Large models have heads that tensor-parallel GPUs can share.
    step = 8 * _HEAD if hidden > 16 * _HEAD else _HEAD
    rounded = max(step, round(hidden / step) * step)
    return rounded, max(1, round((parameters - vocabulary * rounded) / (12 * rounded**2)))


def _precision(words: str, hardware: Hardware) -> str:
    word = words.lower().replace("float8", "fp8").replace("bfloat16", "bf16").replace("float16", "fp16")
    for name in ("fp8", "bf16", "fp16", "tf32", "fp32"):
        if name in word:
            return name if name in hardware.peak_flops else next(iter(hardware.peak_flops))
    raise _CannotCompareError(f"unknown precision {words}")


def _batch(row: Mapping[str, str], replicas: int, sequence: int) -> tuple[int, int]:
    """Return the samples of a microbatch, and microbatches of a step."""
    notes = row["notes"].lower()
    for pattern in (
        r"micro_bsz (\d+) x micro_num (\d+)",
        r"batch (\d+) per gpu, accumulation (\d+)",
        r"microbatch (\d+); grad accum (\d+)",
        r"(?:local batch|per-gpu batch)(?: size)? (\d+)()",
        r"(?<!micro)(?<!micro[ -])batch(?: size)? (\d+) per gpu()",
    ):
        if match := re.search(pattern, notes):
            return int(match[1]), int(match[2] or 1)
    text = row["global_batch_or_tokens"]
    if match := re.search(r"(\d+) per gpu", text.lower()):
        return int(match[1]), 1
    total = _number(text)
    if total is not None:
        total *= next((scale for unit, scale in _BINARY.items() if re.match(rf"\s*[\d.]+{unit} tok", text)), 1)
        total /= replicas * (sequence if "token" in text else 1)
    if match := re.search(r"(?:micro[- ]?batch(?: size)?|\bmbs) (\d+)", notes):
        one = int(match[1])
        return one, 1 if total is None else max(1, round(total / one))
    if total is None:
        raise _CannotCompareError("no batch")
    return max(1, round(total)), 1


def _sharding(words: str) -> str:
    text = words.lower()
    for name, pattern in (
        ("zero2", r"zero-2|shard_grad_op"),
        ("zero1", r"zero-?1|distributed optimizer"),
        ("zero3", r"zero-3|fsdp|hsdp"),
    ):
        if re.search(pattern, text):
            return name
    return "none"


def _rate(row: Mapping[str, str], workload: Workload, gpus: int) -> float:
    """Return the measured samples per second and GPU."""
    try:
        value = float(row["value"])
    except ValueError:
        raise _CannotCompareError("no measured value") from None
    if not (math.isfinite(value) and value > 0):
        raise _CannotCompareError("its value is not above 0")
    unit = row["unit"].lower()
    if "mfu" in f"{row.get('metric', '')} {unit}".lower():
        return value / (100 if value > 1 else 1) * workload.hardware.peak(workload.precision) / workload.model.flops
    if not re.match(r"tflop|token|seq|sample|sentence|example", unit):
        raise _CannotCompareError(f"unit '{row['unit'][:40]}' is none of tokens/s, samples/s and TFLOPS/GPU")
    if unit.startswith("tflop"):
        counts_all = re.search(
            r"\b(?:hfu|hardware flop|(?:with|includ\w+|count\w+) recompu)", row["notes"], re.IGNORECASE
        )
        flops = workload.model.flops if counts_all is None else workload.hardware_flops
        return value * 1e12 / (1 if "gpu" in unit else gpus) / flops
    per_gpu = value if "gpu" in unit else value / gpus
    return per_gpu / workload.tokens if unit.startswith("token") else per_gpu


def _number(text: str) -> float | None:
    match = re.match(r"\s*(\d+(?:\.\d+)?)", text)
    return float(match[1]) if match else None


def spread(errors: Sequence[float]) -> tuple[float, float]:
    """Return mean and worst size of errors; zeros without any."""
    sizes = [abs(error) for error in errors]
    return (math.fsum(sizes) / len(sizes), max(sizes)) if sizes else (0.0, 0.0)
