"""A GPU as its kernels see it: multiprocessors, clocks, L2, and the rates that classes of kernels reach.

Every constant stands for a mechanism (operators/constants.json, with sources). What differs between GPUs is in their
files: the peaks, multiprocessors, clock and L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from paceline.catalog.constants import Constant, checked_constants, read_document, value_of
from paceline.catalog.gpus import Hardware

_FILE = Path(__file__).parent / "constants.json"
_PEAK, _PLAIN = "share of the peak", "share of the plain rate"
_ATTENTION = {
    f"attention.{kernel}.{phase}.{size}": _PEAK
    for kernel in ("cudnn", "flash")
    for phase in ("forward", "backward")
    for size in (64, 128)
}
_UNITS = {
    **dict.fromkeys(
        (f"product.{kind}" for kind in ("hopper", "blackwell", "ampere", "volta", "consumer", "cores", "tf32")), _PEAK
    ),
    "product.tile": "seconds",
    "product.feed": "bytes per clock and multiprocessor",
    "product.unaligned": _PEAK,
    "product.implicit": "share of a product's rate",
    "depthwise": "share of the FP32 peak",
    "memory.plain": "share of the bandwidth",
    "memory.reduction": _PLAIN,
    "memory.batch-norm": _PLAIN,
    "memory.optimizer": _PLAIN,
    "memory.l2": "times the plain rate",
    "lanes": "share of the lanes' peak",
    "row": "seconds per row",
    "kernel": "seconds",
    **_ATTENTION,
    "attention.flash.later": "times the share on Ampere",
    "attention.efficient": "times flash attention's rate",
    "attention.dropout": "times",
}
_LANES = 128
"""FP32 lanes of a multiprocessor."""
_CONSUMER = ("turing", "ada")
_LATER = ("hopper", "blackwell")


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """Return the constants by name, in the order of the file."""
    return checked_constants(read_document(_FILE, "operators").get("constants"), _FILE.name, _UNITS)


def constant(name: str) -> float:
    """Return a constant of the file."""
    return value_of(all_constants()[name])


@dataclass(frozen=True, eq=False)
class Machine:
    """A GPU: rates in FLOP, bytes or instructions per second."""

    hardware: Hardware

    @property
    def multiprocessors(self) -> int:
        """Streaming multiprocessors, among which a kernel's blocks are spread."""
        return self.hardware.multiprocessors

    @property
    def clock_hz(self) -> float:
        """The clock at which peaks are stated."""
        return self.hardware.clock_hz

    def product_rate(self, dtype: str, *, tf32: bool = False) -> float:
        """Return the FLOP/s that large products of this dtype sustain.

        Args:
            dtype: torch's name.
            tf32: Whether products in FP32 may use TF32.
        """
        peaks, architecture = self.hardware.peak_flops, self.hardware.architecture
        precision = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}.get(dtype)
        if precision is None or precision not in peaks:
            if dtype == "float32" and tf32 and "tf32" in peaks:
                return peaks["tf32"] * constant("product.tf32")
            return peaks.get("fp32", min(peaks.values())) * constant("product.cores")
        if architecture in _CONSUMER or self.hardware.link.startswith("pcie"):
            return peaks[precision] * constant("product.consumer")
        kind = architecture if f"product.{architecture}" in _UNITS else "cores"
        return peaks[precision] * constant(f"product.{kind}")

    @cached_property
    def half_peak(self) -> float:
        """The peak in 16 bits."""
        peaks = self.hardware.peak_flops
        return peaks.get("bf16") or peaks.get("fp16") or peaks.get("fp32") or max(peaks.values())

    @cached_property
    def plain_rate(self) -> float:
        """Bytes per second of element-wise kernels."""
        return self.hardware.memory_bandwidth * constant("memory.plain")

    @cached_property
    def feed_rate(self) -> float:
        """Bytes per second of operands from L2 to all multiprocessors."""
        return constant("product.feed") * self.clock_hz * self.multiprocessors

    @cached_property
    def lane_rate(self) -> float:
        """Instructions per second of all lanes, in kernels that they limit."""
        return constant("lanes") * self.multiprocessors * _LANES * self.clock_hz

    @cached_property
    def depthwise_rate(self) -> float:
        """FLOP/s of depthwise convolutions."""
        return constant("depthwise") * self.hardware.peak_flops.get("fp32", self.half_peak / 16)

    def attention_rate(self, kernel: str, phase: str, size: int) -> float:
        """Return the FLOP/s of attention on long sequences.

        Args:
            kernel: `cudnn`, `flash` or `efficient`.
            phase: `forward` or `backward`.
            size: Of a head.
        """
        name = "flash" if kernel == "efficient" else kernel
        small, large = (constant(f"attention.{name}.{phase}.{width}") for width in (64, 128))
        share = small + (large - small) * min(max((size - 64) / 64, 0.0), 1.0)
        if name == "flash" and self.hardware.architecture in _LATER:
            share *= constant("attention.flash.later")
        if kernel == "efficient":
            share *= constant("attention.efficient")
        return share * self.half_peak
