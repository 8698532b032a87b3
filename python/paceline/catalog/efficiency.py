"""How much of a device's peaks kernels of a class reach, from efficiency.json: constants with sources.

Every constant stands for a mechanism. `calibrated` names the measured rows that one was fitted to; without them it has
its `prior`. `paceline list models --constants` prints them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from paceline.catalog import names
from paceline.catalog.constants import Constant, checked_constants, read_document, value_of

TRANSFORMER_ENGINE: names.Kernels = "transformer-engine"
MEGATRON: tuple[names.Kernels, ...] = ("fused", TRANSFORMER_ENGINE)
"""Kernels of Megatron-LM, whose pipelines, losses and gathered activations are its own; others are PyTorch's."""
_FILE = Path(__file__).parent / "efficiency.json"
_PEAK = "share of the peak"
_UNITS = {
    "matmul.volta.fp16": _PEAK,
    "matmul.volta.fp32": _PEAK,
    "matmul.ampere.bf16": _PEAK,
    "matmul.ampere.tf32": _PEAK,
    "matmul.hopper.bf16": _PEAK,
    "matmul.blackwell.bf16": _PEAK,
    "matmul.fp8": "share of the 16-bit share",
    "matmul.fp8.transformer-engine": "share of the 16-bit share",
    "matmul.fp32": _PEAK,
    "matmul.consumer": _PEAK,
    "matmul.fill": "elements of the hidden size",
    "attention.flash": "share of the rate of matrix products",
    "attention.cudnn": "share of the rate of 16-bit matrix products",
    "attention.score": "bytes per score",
    "memory.share": "share of the bandwidth",
    "traffic.hidden": "bytes per hidden element, layer and token",
    "traffic.logit": "bytes per logit",
    "traffic.weight": "bytes per parameter and microbatch",
    "traffic.weight.gathered": "bytes per parameter and iteration",
    "traffic.weight.written": "bytes per parameter and microbatch",
    "traffic.eager": "times the fused traffic",
    "traffic.compiled": "times the fused traffic",
    "traffic.transformer-engine": "times the fused traffic",
    "traffic.weight.fp8": "bytes per parameter and microbatch",
    "update.fused": "times the bytes of the optimizer's states",
    "update.eager": "times the bytes of the optimizer's states",
    "overlap.exposed": "share of an all-reduce's time",
    "kernels.layer": "kernels per layer and forward pass",
}


@lru_cache(maxsize=1)
def all_efficiencies() -> dict[str, Constant]:
    """Return the constants by name, in the order of the file."""
    document = read_document(_FILE, "efficiency")
    return checked_constants(document.get("constants"), _FILE.name, _UNITS)


def efficiency(name: str) -> float:
    """Return a constant of the file."""
    return value_of(all_efficiencies()[name])


def matmul_share(architecture: str, precision: str, kernels: names.Kernels = "fused") -> float:
    """Return the share of the peak that large matrix products reach."""
    if precision == "fp8":
        casts = "matmul.fp8.transformer-engine" if kernels == TRANSFORMER_ENGINE else "matmul.fp8"
        return matmul_share(architecture, "bf16") * efficiency(casts)
    if precision == "fp32":
        return efficiency("matmul.volta.fp32" if architecture == "volta" else "matmul.fp32")
    if architecture in ("turing", "ada"):
        return efficiency("matmul.consumer")
    if architecture == "volta":
        return efficiency("matmul.volta.fp16")
    if precision == "tf32" and architecture == "ampere":
        return efficiency("matmul.ampere.tf32")
    # 16-bit products of both kinds, and TF32 of later architectures, use the same units at the same clocks.
    return efficiency(f"matmul.{architecture}.bf16")
