"""How a checkpoint holds its weights: by the end of its name, or by `quantization_config` in its config.json.

Weights that bitsandbytes, GPTQ and AWQ hold in few bits stay so beside adapters. Those in FP8 and MXFP4 are converted
to 16 bits for training: transformers' quantizers of them do not train (`is_trainable` in transformers/quantizers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from paceline.catalog import names
from paceline.catalog.models.config import Config


@dataclass(frozen=True)
class Checkpoint:
    """Weights that are held in few bits."""

    method: str
    """For prose."""
    quantization: names.Quantization | None
    """As which they count; None: in 16 bits."""
    options: tuple[names.Quantization, ...] = ()
    """Values of `--quantize` that say the same."""
    is_named: bool = False
    """Whether a name says so, rather than a file."""

    @property
    def in_16_bits(self) -> str:
        """Why they count in 16 bits, for prose."""
        return "which training converts to 16 bits" if self.method in _CONVERTED else "and count in 16 bits"


_NF4 = Checkpoint("bitsandbytes' 4 bits", "nf4", ("nf4", "nf4-double"))
_NF4_DOUBLE = replace(_NF4, quantization="nf4-double")
_INT8 = Checkpoint("8 bits", "int8", ("int8",))
_GPTQ = Checkpoint("GPTQ's 4 bits", "gptq-int4", ("gptq-int4",))
# As many bits, converted before each product of both passes (`WQLinearMMFunction` in awq/modules/linear/gemm.py).
_AWQ = Checkpoint("AWQ's 4 bits, which count as nf4-double", "nf4-double")
_CONVERTED = ("FP8", "fp8", "fbgemm_fp8", "mxfp4")
"""Methods of which transformers' quantizers do not train."""
_ENDS: tuple[tuple[str, Checkpoint], ...] = (
    # Unsloth's have `bnb_4bit_use_double_quant`.
    (r"bnb-4bit|4bit", _NF4_DOUBLE),
    (r"gptq-int8|int8|8bit", _INT8),
    (r"gptq(?:-int4)?|int4", _GPTQ),
    (r"awq", _AWQ),
    (r"fp8", Checkpoint("FP8", None)),
)
"""By the end of a name."""


def checkpoint_of(config: Config) -> Checkpoint | None:
    """Return how the weights of a configuration are held in few bits; None if they are not.

    Raises InvalidArgumentError for a malformed `quantization_config`.
    """
    if not config.fields.get("quantization_config"):
        return _named(config.called)
    own = config.part("quantization_config")
    method = own.text("quant_method", "bitsandbytes" if _has_bits(own) else "")
    if method == "bitsandbytes":
        is_double = own.flag("bnb_4bit_use_double_quant", default=False)
        return _INT8 if own.flag("load_in_8bit", default=False) else _NF4_DOUBLE if is_double else _NF4
    bits = own.whole("bits", 4) if method in ("gptq", "awq") else 0
    known = {("awq", 4): _AWQ, ("gptq", 4): _GPTQ, ("gptq", 8): _INT8}
    words = f"{method[:40]} of {bits} bits" if bits else method[:40] or "few bits of a method that is not named"
    return known.get((method, bits), Checkpoint(words, None))


def _has_bits(own: Config) -> bool:
    return any(own.fields.get(name) for name in ("load_in_4bit", "load_in_8bit"))


def _named(name: str) -> Checkpoint | None:
    known = (one for end, one in _ENDS if re.search(rf"[-_.](?:{end})$", name, re.IGNORECASE))
    return next((replace(one, is_named=True) for one in known), None)
