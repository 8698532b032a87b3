"""Measurements, as users give them: `2.8s@8`, `1900tokens/s/GPU`, `286samples/s`, `45%MFU`, `5GB/s`, or a file.

A number may have an exponent, commas between thousands, and a k, M or G; a unit may be written as people say it
(`1.2k tokens per second per GPU`), also before the number (`MFU 40%`). A rate of tokens or samples is that of all GPUs
together, unless it says of each (`/GPU`); `/all` says of all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paceline._internal import units
from paceline._internal.nearest import nearest
from paceline.catalog.gpus import Hardware
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


RATES = (Quantity.SAMPLES, Quantity.TOKENS)
"""Quantities that are of one GPU or of all together."""

_TIMES = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
}
_COUNTED = {
    **dict.fromkeys(("it", "its", "iter", "iters", "iteration", "iterations", "step", "steps"), Quantity.STEPS),
    **dict.fromkeys(("sample", "samples", "image", "images", "img", "imgs"), Quantity.SAMPLES),
    **dict.fromkeys(("sequence", "sequences", "seq", "seqs", "example", "examples"), Quantity.SAMPLES),
    **dict.fromkeys(("token", "tokens", "tok", "toks"), Quantity.TOKENS),
}
_OTHERS: Mapping[str, tuple[Quantity, float, bool]] = {
    # By the words of a unit: the quantity, the factor, and whether it is of one GPU.
    # torchtitan's logs: words or tokens per second, of one GPU.
    **dict.fromkeys(("wps", "tps"), (Quantity.TOKENS, 1.0, True)),
    **dict.fromkeys(("%", "%mfu", "% mfu", "mfu %", "percent mfu"), (Quantity.MFU, 0.01, True)),
    "mfu": (Quantity.MFU, 1.0, True),
    **dict.fromkeys(("tflops", "tflop", "tflops s", "tflop s"), (Quantity.FLOPS, 1e12, True)),
    **dict.fromkeys(("pflops", "pflop", "pflops s", "pflop s"), (Quantity.FLOPS, 1e15, True)),
    "gb s": (Quantity.BUS, 1e9, False),
    "mb s": (Quantity.BUS, 1e6, False),
    **dict.fromkeys(("gbps", "gbit s"), (Quantity.BUS, 0.125e9, False)),
}
_EACH = frozenset({"gpu", "gpus", "device", "card", "rank", "chip", "accelerator"})
_ALL = frozenset({"all", "total", "overall", "together", "aggregate"})
_FILLERS = frozenset({"per", "of", "in", "each", "time", "throughput", "speed", "rate", "train"})
"""Words of a unit that say nothing about the quantity."""
_STEP_WORDS = {word for word, quantity in _COUNTED.items() if quantity is Quantity.STEPS}
_LARGE = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_SUGGESTED = ("s", "ms", "it/s", "s/it", "tokens/s", "tokens/s/GPU", "samples/s", "images/s", "%MFU", "TFLOPS", "GB/s")

_NUMBER = re.compile(
    r"(?P<number>(?:\d{1,12}(?:,\d{3})*(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,2})?)\s*(?P<unit>[A-Za-z%/\s_()*-]*)",
    re.ASCII,
)
_NAMED = re.compile(r"(?P<name>[A-Za-z][A-Za-z/\s_()-]*?)\s*[:=]?\s*(?P<number>[.\d].*)", re.ASCII)
"""The unit before the number: `MFU 40%`, `tokens/s: 1900`."""
_GPUS = re.compile(r"\s*(?P<count>\d{1,6})\s*(?:x\s*)?(?:gpus?)?\s*", re.ASCII | re.IGNORECASE)
_LEAST, _MOST = 1e-12, 1e15
"""Of a number with its unit: beyond are slips."""
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
    is_assumed_of_all: bool = False
    """Whether a rate does not say if it is of each GPU, so that it is taken as that of all."""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step by part (`paceline.catalog.causes.PARTS`)."""
    hidden_s: float | None = None
    """Seconds of communication beside computation, which are in no part."""
    gathered: str = ""
    """The type of most bytes of all-gathers (`bfloat16`), if the file says so."""
    device: str = ""
    """The GPU, if the file names it."""
    ranks: int | None = None
    """The ranks of the run, if the file says so."""
    sizes: tuple[Timed, ...] = ()
    """Of a log of nccl-tests, whose largest size is `value`."""
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """The text without the number of GPUs."""
        return self.text if self.gpus is None else self.text.rpartition("@")[0].strip()

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

    def check_peak(self, seconds: float, result: Result, hardware: Hardware | None) -> None:
        """Refuse a time of a step in which the GPU would compute beyond its peak. Raises InvalidArgumentError."""
        if result.mfu is None or hardware is None:
            return
        mfu = result.mfu * result.iteration_s / seconds
        # The forecast's own may be beyond the peak, as MFU counts scores that a causal mask hides.
        if mfu <= max(1.0, result.mfu) * hardware.boost_hz / hardware.clock_hz:
            return
        number = self.number
        if self.quantity in RATES and self.per_gpu and result.gpus > 1:
            remedy = f"{{this={re.sub(r'[ /]*(per )?gpu$', '', number, flags=re.IGNORECASE)}/all}} (of all GPUs)"
        elif self.quantity in RATES:
            remedy = "the rate of the whole run, with --batch, --seq and --dtype as it has them"
        else:
            remedy = "the time of a whole step, not of a microbatch; --batch, --seq and --dtype as the run has them"
        raise InvalidArgumentError(
            f"'{self.text:.80}' is {units.duration(seconds)} per step, an MFU of {units.percent(mfu, 0)}: beyond the "
            f"peak of the {hardware.title}",
            setting="measured",
            remedy=remedy,
        )

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
    plain = plain.strip()
    count = _count(text, gpus) if at else None
    if named := _NAMED.fullmatch(plain):
        label = {*_words(named["name"])} <= _STEP_WORDS
        plain = named["number"] if label else f"{named['number']} {named['name']}"
    match = _NUMBER.fullmatch(plain)
    if match is None:
        raise _wrong(f"'{text:.80}' is neither a file nor a number with a unit", _with_point(plain))
    typed = match["unit"].strip()
    number, unit = float(match["number"].replace(",", "")), _unit(typed)
    if unit is None and typed[:1] in _LARGE:
        number, unit = number * _LARGE[typed[0]], _unit(typed[1:])
    if unit is None:
        raise _unknown(text, match["number"], typed)
    value = number * unit.factor
    if not value > 0:
        raise _wrong(f"'{text:.80}' must be above 0")
    if not _LEAST <= number <= _MOST:
        raise _wrong(f"'{text:.80}' must be {_LEAST:g} to {_MOST:g}")
    if unit.quantity is Quantity.MFU and value > 1:
        raise InvalidArgumentError(
            f"'{text:.80}' is above 100%",
            setting="measured",
            remedy=f"{{this={units.short(value) if unit.factor == 1 else 45}%MFU}}",
        )
    is_assumed = unit.quantity in RATES and not unit.says_of_which
    return Measured(unit.quantity, value, unit.per_gpu, text.strip(), count, is_assumed)


@dataclass(frozen=True)
class _Unit:
    quantity: Quantity
    factor: float
    per_gpu: bool
    says_of_which: bool = False


def _unit(text: str) -> _Unit | None:
    """Return what a unit means; None if that is unknown."""
    every = _words(text)
    words = [word for word in every if word not in _EACH | _ALL]
    of = [word for word in every if word in _EACH | _ALL]
    if len(of) > 1 and not _ALL & {*of}:
        return None
    per_gpu = None if not of else not _ALL & {*of}
    known = _OTHERS.get(" ".join(words))
    if known is not None:
        quantity, factor, own = known
        if quantity is Quantity.BUS and of:
            return None
        return _Unit(quantity, factor, own if per_gpu is None else per_gpu, own or bool(of))
    first, *rest = words or [""]
    time = _TIMES.get(rest[0] if rest else first)
    if first in _TIMES and not of and (not rest or (len(rest) == 1 and _COUNTED.get(rest[0]) is Quantity.STEPS)):
        return _Unit(Quantity.STEP, _TIMES[first], per_gpu=False)
    if first not in _COUNTED or time is None or len(rest) != 1:
        return None
    quantity = _COUNTED[first]
    if quantity is Quantity.STEPS and of:
        return None
    return _Unit(quantity, 1 / time, bool(per_gpu), bool(of))


def _words(text: str) -> list[str]:
    """Return the words of a unit that count."""
    return [word for word in re.split(r"[\s/_()*-]+", text.lower()) if word and word not in _FILLERS]


def _wrong(what: str, example: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(what, setting="measured", remedy=f"{{this}} {example or EXAMPLES}")


def _unknown(text: str, number: str, unit: str) -> InvalidArgumentError:
    if not unit:
        return _wrong(
            f"'{text:.80}' has no unit", f"{number}s, {number}tokens/s/GPU, {number}samples/s or {number}%MFU"
        )
    if "hfu" in unit.lower():
        return _wrong(f"'{text:.80}': HFU counts recomputation", "45%MFU (without it), or the time of a step")
    like = nearest(re.sub(r"\s*\bper\b\s*|\s+", "/", unit).strip("/"), _SUGGESTED)
    return _wrong(f"'{text:.80}': unknown unit '{unit:.40}'", "" if like is None else f"{number}{like}")


def _with_point(text: str) -> str:
    """Return a number with a decimal comma as it has to be; empty for other texts."""
    return re.sub(r",", ".", text, count=1) if re.fullmatch(r"\d+,\d{1,2}\s*[A-Za-z/%]+", text) else ""


def _count(text: str, gpus: str) -> int:
    match = _GPUS.fullmatch(gpus)
    if match is None or int(match["count"]) == 0:
        raise InvalidArgumentError(
            f"'{text:.80}': '{gpus:.40}' is no number of GPUs", setting="measured", remedy="{this=2.8s@8}"
        )
    return int(match["count"])
