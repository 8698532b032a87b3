"""Published training rates of transformers as workloads: what a row says about model, GPU, batch and software.

The rows have the columns of docs/results/published.md. Only what determines the computation of one GPU is read here;
rows on one node are compared with it, and the constants of efficiency.json are calibrated on them.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.catalog.efficiency import efficiency
from paceline.catalog.hardware import Hardware, find_hardware
from paceline.catalog.models.config import Config, built_in_configs, find_config
from paceline.catalog.models.families import model_of
from paceline.catalog.models.memory import Checkpointing
from paceline.catalog.models.roofline import AttentionKind, Kernels, element_bytes
from paceline.catalog.models.workload import Workload
from paceline.catalog.nccl import overlap_slowdown
from paceline.errors import InvalidArgumentError

ONE_NODE = 8
"""GPUs; rows with more are not compared: their network counts."""
_COLUMNS = (
    "id",
    "source",
    "system",
    "strategy",
    "model",
    "seq_len",
    "precision",
    "gpu",
    "gpus",
    "value",
    "unit",
    "notes",
)


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
    overlap: bool = True
    """Whether gradients are exchanged during the backward pass."""
    assumed: str = ""
    """What the row does not say of the software."""

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
        exposed = efficiency("overlap.exposed") if self.overlap else 1.0
        return step + volume * (exposed + (1 - exposed) * overlap_slowdown())

    @property
    def forecast(self) -> float:
        """Samples per second and GPU."""
        return self.workload.batch * self.accumulate / self.step_s

    @property
    def error(self) -> float:
        """Forecast over measured, minus 1."""
        return self.forecast / self.measured - 1


@dataclass(frozen=True)
class _Software:
    """What the system of a row runs; the first whose words are in system or source."""

    words: str
    kernels: Kernels
    attention: AttentionKind
    bucket_size: str | None = None
    """Of gradients: Horovod's fusion threshold, InternEvo's and DeepSpeed's reduce_bucket_size; None: DDP's."""
    overlap: bool = True
    """False: gradients are exchanged after the backward pass. Megatron's local DDP and NVIDIA's BERT in PyTorch
    (`allreduce_post_accumulation`) and TensorFlow (accumulated gradients) do so."""
    predictions: bool = False
    """Whether BERT's head sees the masked positions only, 20 of 128 tokens or 80 of 512."""


_SOFTWARE = (
    _Software("Composer", "fused", "flash"),
    _Software("InternEvo", "eager", "flash", "512MiB"),
    _Software("torch.compile", "compiled", "flash"),
    _Software("FMS", "compiled", "flash"),
    _Software("torchtitan", "eager", "flash"),
    _Software("Megatron-Core", "fused", "flash"),
    _Software("NeMo", "fused", "flash"),
    _Software("Megatron", "fused", "unfused", overlap=False),
    _Software("DeepSpeed", "fused", "unfused", "500MB"),
    _Software("TF1", "eager", "unfused", "64MiB", overlap=False, predictions=True),
    _Software("TF2", "eager", "unfused", "64MiB", overlap=False, predictions=True),
    _Software("NGC PyTorch", "eager", "unfused", overlap=False),
    _Software("PyTorch 2", "fused", "unfused"),
    _Software("PyTorch", "eager", "unfused"),
)
_GPUS = (
    ("a100 40gb", "a100-40gb"),
    ("a100", "a100-80gb"),
    ("h100", "h100"),
    ("h200", "h200"),
    ("b200", "b200"),
    ("v100-sxm2 16gb", "v100-16gb"),
    ("450w", "v100-sxm3-450w"),
    ("v100", "v100-32gb"),
)
_BINARY = {"K": 2**10, "M": 2**20}
"""Batches of tokens are powers of two: "0.125M tokens" are 2^17."""
_TENSOR = re.compile(r"(?:tensor[- ]parallel(?:ism)?(?: size)?|\btp)[ =]?(\d+)", re.IGNORECASE)
_PIPELINE = re.compile(r"(?:pipeline[- ]parallel(?:ism)?(?: size)?|\bpp)[ =]?([2-9]|[1-9]\d+)\b", re.IGNORECASE)
_MODELS = {
    "internlm-7b": "internlm-7b",
    "llama-2-like 7b": "llama-2-7b",
    "llama-2-like 34b": "codellama-34b",
    "bert-large": "bert-large",
    "bert-base": "bert-base",
    "bert-base pretrain": "bert-base",
    "bart-large (pre-training)": "bart-large",
}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file. Raises InvalidArgumentError, which names the missing column."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
                raise InvalidArgumentError(f"{path}: has no column '{missing[0]}'; it needs {', '.join(_COLUMNS)}")
            rows = [{key: value or "" for key, value in row.items() if key} for row in reader]
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidArgumentError(f"{path}: not CSV ({error})") from None
    given = Counter(row["id"] for row in rows)
    for number, row in enumerate(rows, start=1):
        # Results are listed by id.
        if given[row["id"]] > 1 or not row["id"]:
            row["id"] = f"{row['id']} (row {number})".strip()
    return rows


def cases(rows: Sequence[Mapping[str, str]], most: int = ONE_NODE) -> tuple[list[Case], dict[str, str]]:
    """Return the rows with up to `most` GPUs as workloads, and why the others are left out, by id."""
    found: list[Case] = []
    left_out: dict[str, str] = {}
    for row in rows:
        try:
            found.append(_case(row, most))
        except _CannotCompareError as error:
            left_out[row["id"]] = str(error)
    return found, left_out


class _CannotCompareError(Exception):
    pass


def _case(row: Mapping[str, str], most: int) -> Case:
    gpus = int(row["gpus"]) if row["gpus"].isdigit() else 0
    if "all-reduce" in row["model"] or "bus bandwidth" in row.get("metric", ""):
        raise _CannotCompareError("a collective, not training")
    if not 1 <= gpus <= most:
        raise _CannotCompareError(f"{row['gpus']} GPUs: more than one node of {ONE_NODE}")
    hardware, config = _hardware(row), _config(row)
    software = next((it for it in _SOFTWARE if it.words.lower() in f"{row['system']} {row['source']}".lower()), None)
    assumed = ""
    if software is None:
        if most <= ONE_NODE:
            raise _CannotCompareError(f"unknown software: {row['system']}")
        is_old = hardware.architecture in ("volta", "turing")
        software = _Software("", "eager" if is_old else "fused", "unfused" if is_old else "flash")
        assumed = f"{software.kernels} kernels and {software.attention} attention"
    compiles = re.search(r"(no |without |not )?(torch\.)?compiled?\b", f"{row['strategy']} {row['notes']}".lower())
    if compiles is not None and not compiles[1]:
        software = replace(software, kernels="compiled")
    sequence = _number(row["seq_len"])
    if sequence is None:
        raise _CannotCompareError("no sequence length")
    notes = row["notes"].lower()
    words = f"{row['strategy']}; {row['notes']}"
    if _PIPELINE.search(words):
        raise _CannotCompareError("pipeline parallelism")
    parallel = _TENSOR.search(words)
    tensor = int(parallel[1]) if parallel is not None else 1
    if tensor < 1 or gpus % tensor or (tensor > 1 and most <= ONE_NODE):
        raise _CannotCompareError(f"tensor parallelism over {tensor} of {gpus} GPUs")
    batch, accumulate = _batch(row, gpus // tensor, int(sequence))
    precision = _precision(row["precision"], hardware)
    if software.predictions and config.kind == "bert":
        masked = 20 if sequence <= 128 else 80
        config = replace(config, fields={**config.fields, "max_predictions_per_seq": masked})
    is_full = bool(re.search(r"activation checkpointing true|layer-wise activation checkpoint", notes))
    checkpointing: Checkpointing = "full" if is_full else "selective" if "selective" in notes else "none"
    model = model_of(config, int(sequence))
    workload = Workload(
        model, hardware, batch, precision, software.attention, checkpointing, software.kernels, tensor=tensor
    )
    sharding = _sharding(row["strategy"])
    size = element_bytes(precision)
    # FSDP gathers twice and scatters once, in FP32 under autocast; others all-reduce once a step, which is two halves.
    gradient = 4 if "mp mode default" in notes else size
    moved = 2.0 * size + gradient if sharding == "zero3" else size + gradient if sharding == "zero2" else 2.0 * size
    return Case(
        row["id"],
        row["source"],
        workload,
        gpus,
        accumulate,
        sharding,
        _rate(row, workload, gpus),
        moved,
        software.bucket_size,
        software.overlap,
        assumed,
    )


def _hardware(row: Mapping[str, str]) -> Hardware:
    name = row["gpu"].lower()
    known = next((device for words, device in _GPUS if words in name), None)
    if known is None:
        raise _CannotCompareError(f"unknown GPU {row['gpu']}")
    return find_hardware(known)


def _config(row: Mapping[str, str]) -> Config:
    name = row["model"].lower()
    plain = re.sub(r"\([^)]*\)|^meta[- ]|[- ]like\b", " ", name).strip()
    # Llama 3.1 has the shapes of Llama 3.
    for word in (_MODELS.get(name, name), plain, re.sub(r"llama[- ]?3\.1", "llama-3", plain)):
        if (found := find_config(word)) is not None:
            return found
    # `GPT 1536x16`: hidden size and layers; the notes have the vocabulary.
    if shape := re.fullmatch(r"gpt (\d+)x(\d+)", name):
        hidden, layers = int(shape[1]), int(shape[2])
        vocabulary = re.search(r"vocabulary ([\d,]+)", row["notes"])
        fields = dict(built_in_configs()["gpt2-small"].fields)
        fields |= {"n_embd": hidden, "n_layer": layers, "n_head": hidden // 96, "n_positions": 2048}
        fields["vocab_size"] = int(vocabulary[1].replace(",", "")) if vocabulary else 50257
        return Config(row["model"], row["id"], fields)
    raise _CannotCompareError(f"unknown model {row['model']}")


def _precision(words: str, hardware: Hardware) -> str:
    word = words.lower().replace("float8", "fp8").replace("bfloat16", "bf16").replace("float16", "fp16")
    for name in ("fp8", "bf16", "fp16", "tf32", "fp32"):
        if name in word:
            return name if name in hardware.peak_flops else next(iter(hardware.peak_flops))
    raise _CannotCompareError(f"unknown precision {words}")


def _batch(row: Mapping[str, str], gpus: int, sequence: int) -> tuple[int, int]:
    """Return the samples of a microbatch, and microbatches of a step."""
    notes = row["notes"].lower()
    for pattern in (
        r"micro_bsz (\d+) x micro_num (\d+)",
        r"batch (\d+) per gpu, accumulation (\d+)",
        r"microbatch (\d+); grad accum (\d+)",
        r"micro[- ]?batch(?: size)? (\d+)()",
        r"(?:local batch|per-gpu batch)(?: size)? (\d+)()",
        r"batch(?: size)? (\d+) per gpu()",
    ):
        if found := re.search(pattern, notes):
            return int(found[1]), int(found[2] or 1)
    if found := re.search(r"(\d+) per gpu", row["global_batch_or_tokens"].lower()):
        return int(found[1]), 1
    text = row["global_batch_or_tokens"]
    total = _number(text)
    if total is None:
        raise _CannotCompareError("no batch")
    total *= next((scale for unit, scale in _BINARY.items() if re.match(rf"\s*[\d.]+{unit} tok", text)), 1)
    return max(1, round(total / gpus / (sequence if "token" in row["global_batch_or_tokens"] else 1))), 1


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
    if "tflops" in unit:
        return value * 1e12 / (1 if "gpu" in unit else gpus) / workload.model.flops
    per_gpu = value if "gpu" in unit else value / gpus
    return per_gpu / workload.tokens if unit.startswith("token") else per_gpu


def _number(text: str) -> float | None:
    found = re.match(r"\s*([\d.]+)", text)
    return float(found[1]) if found else None


def spread(errors: Sequence[float]) -> tuple[float, float]:
    """Return mean and worst size of errors; zeros without any."""
    sizes = [abs(error) for error in errors]
    return (math.fsum(sizes) / len(sizes), max(sizes)) if sizes else (0.0, 0.0)
