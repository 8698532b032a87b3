"""A GPU as its kernels see it: multiprocessors, clocks, L2, and the rates that classes of kernels reach.

Every constant stands for a mechanism (operators/constants.json, with sources). What differs between GPUs is in their
files: the peaks, multiprocessors, clock, L2 cache and power.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from paceline.catalog.gpus import FLOPS_PER_CLOCK, Hardware
from paceline.operators.constants import all_constants, constant
from paceline.operators.power import cores_clock, process_of, product_clock

__all__ = ["Machine", "all_constants", "constant"]

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}
"""Of peaks, by torch's name of the dtype."""
_LANES = 128
"""FP32 lanes of a multiprocessor."""
_SHARED = ("ampere.small", "ada")
"""Chips half of whose FP32 lanes compute integers, too."""
_SLOT_W = 75
"""Power that a board gets from a PCI Express slot alone (PCI Express Card Electromechanical Specification)."""
_EMULATING = 3
"""Products in TF32 for one in FP32: of the large parts of both operands, and of either's small part (CUTLASS)."""
_LATER = ("hopper", "blackwell")
_WIDE = 128
"""Elements of a head above which CUTLASS's attention adds up in memory (`kMaxK` of its kernels)."""


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

    def dispatch_s(self, phase: str) -> float:
        """Return the host's time of an operator that it dispatches: torch's dispatcher, autograd and the launch.

        Args:
            phase: `forward`, `backward` or `update`, by which it was measured if the device was calibrated.
        """
        calibration = self.hardware.calibration
        if calibration is not None and phase in calibration.dispatch_s:
            return calibration.dispatch_s[phase]
        return constant("host.operator") * (constant("host.grace") if self.hardware.host_link == "c2c" else 1.0)

    def product_rate(self, dtype: str, *, tf32: bool = False) -> float:
        """Return the FLOP/s that large products of this dtype sustain.

        Args:
            dtype: torch's name.
            tf32: Whether products in FP32 may use TF32.
        """
        peaks = self.hardware.peak_flops
        precision = _PRECISIONS.get(dtype)
        if precision is not None and precision in peaks:
            return peaks[precision] * self._product_share * (constant("product.fp8") if precision == "fp8" else 1.0)
        if dtype == "float32" and tf32 and "tf32" in peaks:
            return peaks["tf32"] * self._product_share * constant("product.tf32")
        return peaks.get("fp32", min(peaks.values())) * self._cores_share

    @cached_property
    def _cores_share(self) -> float:
        """The share of the peak that large products on CUDA cores sustain."""
        hardware = self.hardware
        kind = "product.cores.hopper" if hardware.architecture == "hopper" else "product.cores"
        if process_of(hardware) in _SHARED:
            kind = "product.cores.shared"
        share = constant(kind) * self._cores_clock
        is_powered_by_slot = hardware.power_w is not None and hardware.power_w <= _SLOT_W
        return share * (constant("product.cores.slot") if is_powered_by_slot else 1.0)

    @cached_property
    def _product_share(self) -> float:
        """The share of the peak that large products on Tensor Cores sustain under the power limit."""
        share = constant("product.issue") * product_clock(self.hardware)
        kind = "product.cdna" if self._is_cdna else f"product.{self.hardware.architecture}"
        return share * (constant(kind) if kind in ("product.volta", "product.cdna") else 1.0)

    @cached_property
    def _cores_clock(self) -> float:
        """The clock of kernels that keep the CUDA cores busy, as a share of the stated one."""
        return cores_clock(self.hardware)

    def roofline_s(self, flops: float, moved: float, dtype: str) -> float:
        """Return the seconds of an operator at the peak or at the bandwidth of memory, and of its start.

        Args:
            flops: Of the operator.
            moved: Bytes that it reads and writes.
            dtype: torch's name.
        """
        peaks = self.hardware.peak_flops
        peak = peaks.get(_PRECISIONS.get(dtype, "fp32")) or peaks.get("fp32") or max(peaks.values())
        return max(flops / peak, moved / self.hardware.memory_bandwidth) + self.hardware.launch_s

    @property
    def _is_cdna(self) -> bool:
        """Whether it is one of AMD's GPUs, whose kernels are ROCm's."""
        return self.hardware.is_amd

    @cached_property
    def half_peak(self) -> float:
        """The peak in 16 bits."""
        return self.hardware.half_peak

    @cached_property
    def _whole_peak(self) -> float:
        """The peak in 16 bits of as many whole multiprocessors; those of an H20 lack most of their Tensor Cores."""
        return self.multiprocessors * self.clock_hz * FLOPS_PER_CLOCK[self.hardware.architecture]

    @cached_property
    def plain_rate(self) -> float:
        """Bytes per second of element-wise kernels."""
        kind = "memory.plain.cdna" if self._is_cdna else "memory.plain"
        return self.hardware.memory_bandwidth * constant(kind)

    @cached_property
    def feed_rate(self) -> float:
        """Bytes per second of operands from L2 to all multiprocessors."""
        return constant("product.feed") * self.clock_hz * self.multiprocessors

    @cached_property
    def lane_rate(self) -> float:
        """Instructions per second of all lanes, in kernels that they limit."""
        return constant("lanes") * self.multiprocessors * _LANES * self.clock_hz * self._cores_clock

    @cached_property
    def depthwise_rate(self) -> float:
        """FLOP/s of depthwise convolutions."""
        return constant("depthwise") * self.hardware.peak_flops.get("fp32", self.half_peak / 16) * self._cores_clock

    def attention_rate(self, kernel: str, phase: str, size: int, dtype: str = "bfloat16") -> float:
        """Return the FLOP/s of attention on long sequences.

        Args:
            kernel: `cudnn`, `flash` or `efficient`, the only one of a GPU that takes FP32.
            phase: `forward` or `backward`.
            size: Of a head.
            dtype: torch's name.
        """
        name = "flash" if kernel == "efficient" else kernel
        small, large = (constant(f"attention.{name}.{phase}.{width}") for width in (64, 128))
        share = small + (large - small) * min(max((size - 64) / 64, 0.0), 1.0)
        if name == "flash" and self.hardware.architecture in _LATER:
            share *= min(1.0, constant("attention.flash.later") * self._whole_peak / self.half_peak)
        if self._is_cdna:
            share *= constant("attention.flash.cdna")
        if kernel == "efficient":
            share *= constant(f"attention.efficient.{phase}")
            if size > _WIDE and phase == "backward" and dtype != "float32":
                share *= constant("attention.efficient.wide")
        if kernel == "efficient" and dtype == "float32":
            if not self._emulates_float:
                return share * self.product_rate(dtype)
            share *= constant("attention.float")
        return share * self._product_share * self.half_peak

    @property
    def float_attention_peak(self) -> float:
        """FLOP/s of CUTLASS's attention in FP32 at the peak: three products in TF32 for each, or on CUDA cores."""
        peaks = self.hardware.peak_flops
        return peaks["tf32"] / _EMULATING if self._emulates_float else peaks.get("fp32", min(peaks.values()))

    @property
    def _emulates_float(self) -> bool:
        """Whether CUTLASS's attention in FP32 computes on Tensor Cores, by `OpMultiplyAddFastF32`.

        From compute capability 8.0 on (aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h).
        """
        return "tf32" in self.hardware.peak_flops and not self._is_cdna
