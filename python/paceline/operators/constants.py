"""The constants of the model of operators, from constants.json, each with unit, source and uncertainty."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from paceline.catalog.constants import Constant, checked_constants, read_document, value_of

_FILE = Path(__file__).parent / "constants.json"
_PEAK, _PLAIN, _PRODUCT = "share of the peak", "share of the plain rate", "share of a product's rate"
_ATTENTION = {
    f"attention.{kernel}.{phase}.{size}": _PRODUCT
    for kernel in ("cudnn", "flash")
    for phase in ("forward", "backward")
    for size in (64, 128)
}
_PROCESSES = (
    "hopper",
    "blackwell",
    "blackwell-rtx",
    "ampere",
    "ampere.small",
    "ada",
    "volta",
    "cdna2",
    "cdna3",
    "cdna4",
)
_UNITS = {
    **dict.fromkeys(
        (f"power.{kind}" for kind in _PROCESSES),
        "picojoules per FLOP at 1 GHz",
    ),
    "power.static": "share of the power that products need at the stated clock",
    "power.floor": "share of the stated clock",
    "product.issue": _PEAK,
    "product.cores": _PEAK,
    "product.cores.shared": _PEAK,
    "product.cores.hopper": _PEAK,
    "product.cores.slot": _PEAK,
    "product.volta": "share of the rate at its clock",
    "product.cdna": "share of the rate at its clock",
    "product.fp8": "share of the 16-bit share",
    "product.tf32": "share of the 16-bit share",
    "product.tile": "seconds",
    "product.feed": "bytes per clock and multiprocessor",
    "product.unaligned": _PEAK,
    "product.cores.narrow": "share of a product's rate",
    "product.implicit": _PRODUCT,
    "depthwise": "share of the FP32 peak",
    "memory.plain": "share of the bandwidth",
    "memory.plain.cdna": "share of the bandwidth",
    "memory.reduction": _PLAIN,
    "memory.batch-norm": _PLAIN,
    "memory.optimizer": _PLAIN,
    "memory.l2": "times the plain rate",
    "lanes": "share of the lanes' peak",
    "row": "seconds per row",
    "kernel": "seconds",
    **_ATTENTION,
    "attention.flash.later": "times the share on Ampere",
    "attention.flash.first": "times FlashAttention-2's rate",
    "attention.flash.cdna": "times the share on Ampere",
    "attention.efficient.forward": "times flash attention's rate",
    "attention.efficient.backward": "times flash attention's rate",
    "attention.efficient.wide": "times the rate of heads of 128",
    "attention.float": "times the rate in 16 bits",
    "attention.dropout": "times",
    "experts.imbalance": "times the mean",
    "experts.kernels": "kernels",
    "host.operator": "seconds",
    "host.grace": "times the time of an x86 host",
    "host.engine": "times the time of torch's operator",
}


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """Return the constants by name, in the order of the file."""
    return checked_constants(read_document(_FILE, "operators").get("constants"), _FILE.name, _UNITS)


def constant(name: str) -> float:
    """Return a constant of the file."""
    return value_of(all_constants()[name])
