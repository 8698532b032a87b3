"""A measurement as a text: `2.8s`, `1900tokens/s/GPU`, `45%MFU`, `5GB/s`, or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paceline._internal import units
from paceline.errors import InvalidArgumentError
from paceline.forecast.result import Result


class Quantity(StrEnum):
    """The quantity that a number is of."""

    STEP = "s per step"
    STEPS = "steps/s"
    SAMPLES = "samples/s"
    TOKENS = "tokens/s"
    MFU = "MFU"
    FLOPS = "TFLOPS per GPU"
    BUS = "bytes/s of bus bandwidth"


_UNITS: Mapping[str, tuple[Quantity, float, bool]] = {
    # By unit in small letters: the quantity, the factor, and whether it is of one GPU.
    **dict.fromkeys(("s", "sec", "s/it", "s/step", "s/iteration", "s/iter"), (Quantity.STEP, 1.0, False)),
    **dict.fromkeys(("ms", "ms/it", "ms/step", "ms/iteration", "ms/iter"), (Quantity.STEP, 1e-3, False)),
    "us": (Quantity.STEP, 1e-6, False),
    **dict.fromkeys(("it/s", "its/s", "steps/s", "step/s", "iterations/s", "iter/s"), (Quantity.STEPS, 1.0, False)),
    **dict.fromkeys(
        ("samples/s", "sample/s", "images/s", "image/s", "img/s", "imgs/s", "sequences/s", "seq/s"),
        (Quantity.SAMPLES, 1.0, False),
    ),
    **dict.fromkeys(("tokens/s", "token/s", "tok/s", "toks/s"), (Quantity.TOKENS, 1.0, False)),
    # torchtitan's logs: words or tokens per second, of one GPU.
    **dict.fromkeys(("wps", "tps"), (Quantity.TOKENS, 1.0, True)),
    **dict.fromkeys(("%mfu", "%"), (Quantity.MFU, 0.01, True)),
    "mfu": (Quantity.MFU, 1.0, True),
    **dict.fromkeys(("tflops", "tflop/s", "tflops/s", "tflops/gpu", "tflop/s/gpu"), (Quantity.FLOPS, 1e12, True)),
    "gb/s": (Quantity.BUS, 1e9, False),
    "gbps": (Quantity.BUS, 0.125e9, False),
}
_NUMBER = re.compile(r"(?P<number>\d{1,12}(?:,\d{3})*(?:\.\d{1,20})?)(?P<kilo>k(?=[A-Za-z]))?\s*(?P<unit>[A-Za-z%/]*)")
_PER_GPU = re.compile(r"(/|\s|per)*(gpu|device|card)$")
EXAMPLES = "2.8s, 1900tokens/s/GPU, 286samples/s, 45%MFU"


@dataclass(frozen=True)
class Timed:
    """A collective of one size."""

    size: int
    """Bytes."""
    measured_s: float
    forecast_s: float


@dataclass(frozen=True)
class Measured:
    """A measurement. What it does not tell is None, or absent."""

    quantity: Quantity
    value: float
    """In the unit of the quantity."""
    per_gpu: bool
    text: str
    """As it was given."""
    gpus: int | None = None
    """On how many GPUs, if it was said (`@8`)."""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step by part (`paceline.catalog.causes.PARTS`)."""
    ranks: int | None = None
    """The ranks of the run, if the file says so."""
    sizes: tuple[Timed, ...] = ()
    """Of a log of nccl-tests, whose largest size is `value`."""
    notes: tuple[str, ...] = ()

    def seconds(self, result: Result, peak_flops: float | None = None) -> float:
        """Return the time of a step as it was forecast. Raises InvalidArgumentError if that has no such quantity.

        Args:
            result: The forecast, which knows samples, tokens and FLOPs of a step.
            peak_flops: Of a GPU, in the precision of its products.
        """
        if self.quantity is Quantity.STEP:
            return self.value
        if self.quantity is Quantity.STEPS:
            return 1 / self.value
        return result.iteration_s * self._forecast(result, peak_flops) / self.value

    def _forecast(self, result: Result, peak_flops: float | None) -> float:
        """Return the same quantity as it was forecast."""
        gpus = result.gpus
        known: dict[Quantity, float | None] = {
            Quantity.SAMPLES: result.samples_per_s,
            Quantity.TOKENS: None if result.tokens_per_s_per_gpu is None else result.tokens_per_s_per_gpu * gpus,
            Quantity.MFU: None if result.mfu is None else result.mfu * gpus,
            Quantity.FLOPS: None if result.mfu is None or peak_flops is None else result.mfu * peak_flops * gpus,
            Quantity.BUS: None if result.bus_bandwidth_bps is None else result.bus_bandwidth_bps / 8,
        }
        forecast = known[self.quantity]
        if forecast is None:
            raise InvalidArgumentError(
                f"'{self.text:.80}': {result.trace} has no {self.quantity.value}",
                setting="measured",
                remedy="{this=2.8s} (the time of a step)",
            )
        return forecast / gpus if self.per_gpu else forecast


def parse(text: str) -> Measured:
    """Return what a text with a number and a unit means. Raises InvalidArgumentError."""
    plain, at, gpus = text.strip().rpartition("@")
    if not at:
        plain, gpus = text.strip(), ""
    count = _count(text, gpus) if at else None
    match = _NUMBER.fullmatch(plain)
    if match is None:
        raise InvalidArgumentError(
            f"'{text:.80}' is neither a file nor a number with a unit",
            setting="measured",
            remedy=f"{{this}} {EXAMPLES}",
        )
    unit = match["unit"].lower()
    per_gpu = False
    found = _UNITS.get(unit)
    if found is None and (stripped := _PER_GPU.sub("", unit)) != unit:
        found, per_gpu = _UNITS.get(stripped), True
    if found is None:
        what = f"'{text:.80}' has no unit" if not unit else f"'{text:.80}': unknown unit '{match['unit']:.40}'"
        raise InvalidArgumentError(what, setting="measured", remedy=f"{{this}} {EXAMPLES}")
    quantity, factor, own = found
    value = float(match["number"].replace(",", "")) * (1000 if match["kilo"] else 1) * factor
    if value <= 0:
        raise InvalidArgumentError(f"'{text:.80}' must be above 0", setting="measured", remedy=f"{{this}} {EXAMPLES}")
    if quantity is Quantity.MFU and value > 1:
        raise InvalidArgumentError(
            f"'{text:.80}' is above 100%",
            setting="measured",
            remedy=f"{{this={units.short(value) if factor == 1 else 45}%MFU}}",
        )
    return Measured(quantity, value, own or per_gpu, text.strip(), count)


def _count(text: str, gpus: str) -> int:
    if not (gpus.isascii() and gpus.isdigit() and 0 < int(gpus[:9]) < 10**6 and len(gpus) < 8):
        raise InvalidArgumentError(
            f"'{text:.80}': '{gpus:.40}' is no number of GPUs", setting="measured", remedy="{this=2.8s@8}"
        )
    return int(gpus)
