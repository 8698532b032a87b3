"""How far a forecast may be off, by how far forecasts in like conditions have been.

A case counts half for each property in which it differs from the question, and not at all from `APART` + 1 on. Sources
differ more than cases of one source do, so each source counts as one, however many cases it has. The source in question
has not been seen: it counts, too, with an error larger than any; how much, `scripts/write_residuals.py` calibrates.
The size of an interval is the one that a share `LEVEL` of all that weight does not exceed, or the largest of all errors
where there are too few sources for that: split conformal prediction for groups (Y. Lee, R. F. Barber, R. Willett,
"Distribution-free Inference with Hierarchical Data", 2023), weighted by likeness (R. J. Tibshirani et al., "Conformal
Prediction Under Covariate Shift", 2019).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any

from paceline._core import Trace
from paceline.catalog.gpus import titled
from paceline.catalog.models.heads import ROBERTAS
from paceline.catalog.models.layers import Model
from paceline.catalog.models.workload import Workload
from paceline.catalog.recipes import dtype_bytes, recipe_of

LEVEL = 0.8
VERDICT_LEVEL = 0.6
"""Of the interval of memory by which a verdict is open: one in five jobs needs more than its upper end."""
QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Deviations of a normal distribution within which a share `LEVEL` is."""
_MEDIAN_SIZE = NormalDist().inv_cdf(0.75)
"""The median size of errors that a normal distribution has, in standard deviations."""
APART = 2
"""Properties in which a case may differ from the question."""
FP32_QUANTIZED = "quantized under FP32 products"
"""Weights that every product dequantizes to FP32: QLoRA without autocast. Its cases are apart from all others."""
_ROUNDING = 1e-9
_FP32_BITS = 32
_ENCODERS = ("bert", *ROBERTAS)
_ENCODER_DECODERS = ("t5", "mt5", "bart", "whisper")
_IMAGES = ("vit",)
SCALES = ("one GPU", "one node", "several nodes")
UNLISTED = "unlisted"
"""The architecture of a GPU whose file is not a built-in one: a recording knows its title only."""
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
"""Operators whose operands say in which precision a step computes."""


@dataclass(frozen=True)
class Conditions:
    """The properties on which the error of computed times depends; empty: unknown, which agrees with anything."""

    architecture: str = ""
    """Of the GPU."""
    model: str = ""
    """`decoder`, `encoder`, `encoder-decoder`, `images` or `experts`."""
    precision: str = ""
    """Of the products: `8 bits`, `16 bits` or `32 bits`."""
    scale: str = ""
    """`one GPU`, `one node` or `several nodes`."""
    split: str = ""
    """How ranks share a model: `data`, `tensor` or `pipeline` parallelism."""
    software: str = ""
    """The kernels."""
    weights: str = ""
    """`trained`, `adapted` (frozen beside adapters), `quantized` beside adapters, or `FP32_QUANTIZED`."""

    def differences(self, other: Conditions) -> list[str]:
        """Return the names of the properties in which they differ."""
        names = [field.name for field in fields(Conditions)]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return [name for name, (own, its) in pairs.items() if own and its and own != its]


@dataclass(frozen=True)
class Like:
    """A case beside a question. `residual`: the logarithm of measured over forecast."""

    source: str
    differences: int
    residual: float


def spread_of(cases: Sequence[Like]) -> float:
    """Return the standard deviation of the errors that are usual, of which half are below their median size.

    Few runs that are much slower than others, whose cause is not known, do not count in it.
    """
    return size_of(cases, level=0.5) / _MEDIAN_SIZE


def size_of(cases: Sequence[Like], unseen: float = 0.0, level: float = LEVEL) -> float:
    """Return the logarithm that a share of the weight does not exceed; there is at least one case.

    Args:
        cases: The cases.
        unseen: The weight of the source in question, over that of the source that is most alike.
        level: The share.
    """
    of_source = Counter(case.source for case in cases)
    weights = dict.fromkeys(of_source, 0.0)
    sizes = []
    for case in cases:
        weight = 0.5**case.differences / of_source[case.source]
        weights[case.source] += weight
        sizes.append((abs(case.residual), weight))
    sizes.sort()
    left = level * (math.fsum(weights.values()) + unseen * max(weights.values()))
    for size, weight in sizes:
        left -= weight
        if left <= _ROUNDING:
            return size
    return sizes[-1][0]


def conditions_of(workload: Workload, gpus: int, nodes: int) -> Conditions:
    """Return the conditions of a model's training on so many GPUs."""
    bits = 8 * dtype_bytes(recipe_of(None, workload.quantized_precision or workload.precision).computation)
    quantized = FP32_QUANTIZED if bits == _FP32_BITS else "quantized"
    return Conditions(
        architecture=workload.hardware.architecture,
        model=_kind_of(workload.model),
        precision=f"{bits} bits",
        scale=scale_of(gpus, nodes),
        split="pipeline" if workload.pipeline > 1 else "tensor" if workload.tensor > 1 else "data",
        software=workload.kernels,
        weights="trained" if workload.adapter is None else quantized if workload.quantization else "adapted",
    )


def _kind_of(model: Model) -> str:
    """Return the kind of a model that evidence knows apart."""
    kinds = {
        **dict.fromkeys(_ENCODERS, "encoder"),
        **dict.fromkeys(_ENCODER_DECODERS, "encoder-decoder"),
        **dict.fromkeys(_IMAGES, "images"),
    }
    if any(layer.form.steps and layer.block for layer in model.layers):
        return "other mixers"
    if any(layer.name.startswith("vision.") for layer in model.layers):
        return "images and text"
    return "experts" if model.has_experts else kinds.get(model.family, "decoder")


def conditions_of_recording(recording: Trace) -> Conditions:
    """Return what the operators of a recording say of its conditions."""
    step = recording.operators()
    assert step is not None
    software = "compiled" if any(kind.get("compiled") for kind in step["kinds"]) else "eager"
    return Conditions(precision=_precision_of(step), split="data", software=software)


def architecture_of(device: str) -> str:
    """Return the architecture of a GPU by its title."""
    hardware = titled(device)
    return UNLISTED if hardware is None else hardware.architecture


def _precision_of(step: Mapping[str, Any]) -> str:
    """Return the precision of most products of a trace's step; empty if it has none."""
    times = Counter(step["order"])
    products: Counter[str] = Counter()
    for place, kind in enumerate(step["kinds"]):
        if kind["name"] in _PRODUCTS and kind.get("inputs"):
            products[step["tensors"][kind["inputs"][-1]]["dtype"]] += times[place]
    return f"{8 * dtype_bytes(products.most_common(1)[0][0])} bits" if products else ""


def scale_of(gpus: int, nodes: int) -> str:
    """Return over what training is spread."""
    return SCALES[0 if gpus == 1 else 1 if nodes == 1 else 2]
