"""Published training rates of single devices on the built-in models, from rates.json, each with its source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from paceline._core import Trace
from paceline._internal.nearest import like_gpu
from paceline.catalog.dtypes import SHORT_DTYPES
from paceline.catalog.gpus import find_hardware
from paceline.errors import InvalidArgumentError

_RATES = Path(__file__).parent / "rates.json"


@dataclass(frozen=True)
class Rate:
    """A published rate of one device, without communication."""

    model: str
    device: str
    samples_per_s: float
    batch: int
    measured_on: str
    source: str
    note: str
    sequence_length: int | None = None

    @property
    def cited(self) -> str:
        """The rate in words, with its source."""
        length = f" of {self.sequence_length} tokens" if self.sequence_length else ""
        return (
            f"{self.samples_per_s:g} samples/s at batch {self.batch}{length} on one {self.measured_on} "
            f"({self.source}; {self.note})"
        )


@lru_cache(maxsize=1)
def all_rates() -> tuple[Rate, ...]:
    """Return all rates, in the order of the file."""
    return tuple(Rate(**row) for row in json.loads(_RATES.read_text(encoding="utf-8")))


def rates_of(model: str) -> dict[str, Rate]:
    """Return the rates of a built-in model by device."""
    return {rate.device: rate for rate in all_rates() if rate.model == model}


def published(model: str, device: str) -> Rate | None:
    """Return the rate of a built-in model on a device, whose name may be in small letters; None if there is none."""
    return next((rate for name, rate in rates_of(model).items() if name.lower() == device.lower()), None)


WITHOUT_TENSOR_CORES = ("maxwell", "pascal")
"""Architectures that compute FP32 as the V100 of the recordings does: in CUDA cores."""
_REFERENCE = "v100"
_AT_REFERENCE = "V100 (by its rate)"


def derived(trace: Trace, device: str) -> Rate | None:
    """Return the rate of a recording by data sheets: the V100's, by which peak in FP32 is higher; None for others.

    Only for GPUs without Tensor Cores, for which no rate is published.
    """
    if trace.device != _AT_REFERENCE or not trace.computes:
        return None
    try:
        hardware = find_hardware(device)
    except InvalidArgumentError:
        return None
    if hardware.architecture not in WITHOUT_TENSOR_CORES:
        return None
    own, reference = hardware.peak("fp32"), find_hardware(_REFERENCE)
    share = own / reference.peak("fp32")
    rate = trace.batch / (trace.forward_s + trace.backward_s + trace.optimizer_s)
    peaks = f"{own / 1e12:.4g} over {reference.peak('fp32') / 1e12:.4g} TFLOPS in FP32"
    return Rate(
        model=trace.name,
        device=hardware.name,
        samples_per_s=float(f"{rate * share:.4g}"),
        batch=trace.batch,
        measured_on=hardware.title,
        source="derived from data sheets",
        note=f"the rate of a {reference.title} times {peaks}",
    )


def rate_on(trace: Trace, device: str) -> Rate | None:
    """Return the published rate of a trace's model on a device, or else that by data sheets; None without either."""
    return published(trace.name, device) or derived(trace, device)


def adjusted(
    trace: Trace,
    *,
    device: str | None = None,
    samples_per_s: float | None = None,
    batch: int | None = None,
    dtype: str | None = None,
) -> Trace:
    """Return the trace with another element type, another batch, or the rate of another device.

    Raises InvalidArgumentError.
    """
    if dtype is not None:
        trace = trace.with_dtype(_on_wire(dtype))
    if device is not None:
        given = {"samples_per_s": samples_per_s, "batch": batch}
        if beside := [f"{{{name}}}" for name, value in given.items() if value is not None]:
            raise InvalidArgumentError(
                "sets samples/s and batch to the published values",
                setting="device",
                remedy=f"drop {' and '.join(beside)}, or drop {{this}}",
            )
        return on_device(trace, device)
    if batch is not None:
        trace = trace.with_batch(batch)
    return trace if samples_per_s is None else trace.scaled_to_rate(samples_per_s)


def _on_wire(dtype: str) -> str:
    """Return the element type on the wire that a precision stands for. Raises InvalidArgumentError."""
    if dtype in ("fp8", "tf32"):
        raise InvalidArgumentError(
            f"{dtype} is a precision of computation, and this is a recorded trace",
            setting="dtype",
            remedy="{dtype=float16}, bfloat16, float32 or float64",
        )
    return SHORT_DTYPES.get(dtype, dtype)


def on_device(trace: Trace, device: str) -> Trace:
    """Return the trace at the published rate of a device, with that rate's batch.

    Raises InvalidArgumentError, which lists the known devices.
    """
    rate = device_rate(trace, device)
    return trace.with_batch(rate.batch).scaled_to_rate(rate.samples_per_s)


def device_rate(trace: Trace, device: str) -> Rate:
    """Return the published rate of the trace's model on a device. Raises InvalidArgumentError listing known devices."""
    model = trace.name
    known, rate = rates_of(model), rate_on(trace, device)
    if rate is None:
        if not known:
            raise InvalidArgumentError(
                f"no published rate of {model} is known", setting="device", remedy="{samples_per_s=400}"
            )
        near = like_gpu(device, {name: (name,) for name in known})
        raise InvalidArgumentError(
            f"no published rate of {model} on '{device[:80]}'",
            setting="device",
            remedy=f"{{this={near or next(iter(known))}}} (known: {', '.join(known)}), or {{samples_per_s=400}}",
        )
    return rate
