"""Recipes of precision: the types of parameters, products, gradients and optimizer states in training.

| recipe | who trains so |
| --- | --- |
| `mixed` | `o2`; where units are gathered (FSDP2) `fsdp-mixed`, reduced in 16 bits |
| `o2` | Apex's O2 and DeepSpeed: 16-bit parameters and gradients, FP32 masters and moments |
| `megatron` | Megatron: as `o2`, with gradients accumulated and reduced in FP32 (`main_grad`) |
| `fp8` | Transformer Engine: as `mixed`, with products in 8 bits |
| `fsdp-mixed` | FSDP2's MixedPrecisionPolicy as torchtitan sets it: FP32 shards, gathered in 16 bits, reduced in FP32 |
| `bf16` | trainers' pure bfloat16: parameters, gradients and moments, without masters |
| `amp-bf16`, `amp-fp16` | torch.autocast over FP32 parameters: weights are converted at each use |
| `upcast-bf16`, `upcast-fp16` | the same beside adapters: frozen parameters that are not quantized are FP32, too |
| `fp32` | FP32 throughout; products may be TF32 |

Sources: P. Micikevicius et al., "Mixed Precision Training", 2018; S. Rajbhandari et al., "ZeRO", 2020, section 3.1;
torch/distributed/fsdp/_fully_shard/_fsdp_api.py (`MixedPrecisionPolicy`); torch/amp/autocast_mode.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.catalog import names
from paceline.catalog.gpus import Hardware
from paceline.errors import InvalidArgumentError

_DTYPES = {"fp8": "float8_e4m3fn", "bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "fp32": "float32"}
"""torch's dtype of a product's operands, by the precision of the computation."""
_BYTES = {"float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4}
_SIXTEEN_BITS = ("bf16", "fp16")
COMPUTED: dict[str, Sequence[str]] = {
    "mixed": _SIXTEEN_BITS,
    "o2": (*_SIXTEEN_BITS, "fp8"),
    "megatron": (*_SIXTEEN_BITS, "fp8"),
    "fp8": ("fp8",),
    "fsdp-mixed": (*_SIXTEEN_BITS, "fp8"),
    "bf16": ("bf16",),
    "amp-bf16": ("bf16",),
    "amp-fp16": ("fp16",),
    "upcast-bf16": ("bf16",),
    "upcast-fp16": ("fp16",),
    "fp32": ("fp32", "tf32"),
}
"""Precisions in which each recipe computes; the first that the GPU has is the default."""


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of an element of one of torch's floating-point types."""
    return _BYTES[dtype]


@dataclass(frozen=True)
class Recipe:
    """The types of a training step, by torch's names."""

    name: names.Recipe
    parameters: str
    """Of parameters as they are held; of sharded ones, of the shards."""
    computation: str
    """Of operands of matrix products."""
    autocast: bool
    """Whether `torch.autocast` converts parameters at each use."""
    gradients: str
    """Of gradients as they accumulate; of sharded ones, of the shards."""
    reduction: str
    """Of gradients on the wire."""
    states: str
    """Of the optimizer's moments."""
    masters: bool
    """Whether the optimizer keeps FP32 copies of the parameters."""
    is_sharded_wide: bool = True
    """Whether units that are gathered before they compute have FP32 shards, if it is `mixed` or `fp8`."""

    @property
    def is_usual(self) -> bool:
        """Whether it is the recipe that its computation has by default."""
        return self.name in ("mixed", "fp8", "fp32")

    @property
    def is_upcast(self) -> bool:
        """Whether frozen parameters that are not quantized are FP32, too.

        PEFT's `prepare_model_for_kbit_training` converts them (peft/utils/other.py).
        """
        return self.name.startswith("upcast-")

    @property
    def sharded(self) -> Recipe:
        """The types where units are gathered before they compute, as by FSDP2."""
        if self.name not in ("mixed", "fp8") or not self.is_sharded_wide:
            return self
        return replace(self, parameters="float32", gradients="float32", masters=False)

    def with_moments(self, precision: names.MomentDtype) -> Recipe:
        """Return the types with moments in another one: Megatron's `--exp-avg-dtype`, DeepSeek-V3's bfloat16."""
        return replace(self, states=_DTYPES[precision])

    @property
    def of_adapters(self) -> Recipe:
        """The types of adapters beside weights that are not trained.

        PEFT holds them in FP32 and multiplies by them in FP32, with autocast in 16 bits (`autocast_adapter_dtype`).
        """
        own = replace(self, is_sharded_wide=False)
        if self.name != "mixed":
            return own
        full = "float32"
        return replace(
            own, parameters=full, computation=full, gradients=full, reduction=full, states=full, masters=False
        )

    @property
    def gathered(self) -> str:
        """The type of whole parameters: that of the products or of what surrounds those in 8 bits; FP32 in autocast."""
        if self.autocast:
            return self.parameters
        return "bfloat16" if dtype_bytes(self.computation) == 1 else self.computation


def precision_of(name: str, precision: str | None, hardware: Hardware) -> str:
    """Return the precision in which a recipe computes.

    Args:
        name: The recipe.
        precision: That asked for; None for the recipe's own.
        hardware: The GPU.

    Raises:
        InvalidArgumentError: The recipe computes in another one, or the GPU cannot compute in any of its.
    """
    able, known = COMPUTED[name], hardware.peak_flops
    computes = " or ".join(able)
    if not any(one in known for one in able):
        others = [recipe for recipe, those in COMPUTED.items() if any(one in known for one in those)]
        raise InvalidArgumentError(
            f"{name} computes in {computes}, which {hardware.title} lacks",
            setting="precision",
            remedy=f"{{this={others[0]}}} (or {', '.join(others[1:])})",
        )
    if precision is None:
        return next(one for one in able if one in known)
    if precision not in able:
        raise InvalidArgumentError(
            f"{precision} contradicts {name}, which computes in {computes}",
            setting="dtype",
            remedy=f"{{precision={recipe_of(None, precision).name}}}, or drop {{dtype}}",
        )
    return precision


def recipe_of(name: names.Recipe | None, precision: str) -> Recipe:
    """Return a recipe.

    Args:
        name: Its name; None for the usual one of the precision: `mixed` in 16 bits, `fp8`, or `fp32`.
        precision: That of the computation, one that the recipe has.
    """
    computation = _DTYPES[precision]
    if name is None:
        name = "fp8" if precision == "fp8" else "mixed" if precision in _SIXTEEN_BITS else "fp32"
    full, half = "float32", "bfloat16" if precision == "fp8" else computation
    if name in ("mixed", "o2", "fp8"):
        return Recipe(name, half, computation, False, half, half, full, True)
    if name == "megatron":
        return Recipe(name, half, computation, False, full, full, full, True)
    if name == "bf16":
        return Recipe(name, half, computation, False, half, half, half, False)
    return Recipe(name, full, computation, name.startswith(("amp-", "upcast-")), full, full, full, False)
