"""Clocks under a power limit: the share of a GPU's stated clock at which large products run.

A board draws static power, and dynamic power that grows with clock x voltage^2. Voltage follows the clock down to a
floor, so dynamic power grows with the cube of the clock above it, and with the clock itself below. Large products on
Tensor Cores need more than most boards may draw at their stated clock. The driver then lowers the clock until the
board draws what it may. Kernels that wait for memory keep the memory's own clock, which no power limit touches.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.catalog.gpus import FLOPS_PER_CLOCK, Hardware, find_hardware
from paceline.errors import InvalidArgumentError
from paceline.operators.constants import constant

_TYPICAL = {
    "volta": "v100-32gb",
    "turing": "v100-32gb",
    "ampere": "a100-80gb",
    "ada": "l40s",
    "hopper": "h100",
    "blackwell": "b200",
    "blackwell-rtx": "rtx-pro-6000",
    "cdna2": "mi250x",
    "cdna3": "mi300x",
    "cdna4": "mi355x",
}
"""The board of each architecture at which shares of products were measured, which a board of unknown power resembles.
Turing has Volta's process and Tensor Cores."""
_LEAST_CLOCK = 0.1
"""Of the stated clock, which no limit lowers further: drivers let nobody set one that leaves less."""


def product_clock(hardware: Hardware) -> float:
    """Return the clock of large products in 16 bits on Tensor Cores, as a share of the stated one."""
    limit, architecture = hardware.limit_w, hardware.architecture
    if architecture not in _TYPICAL:
        return cores_clock(hardware)
    if limit is None:
        return product_clock(find_hardware(_TYPICAL[architecture]))
    return min(_clock(limit / _needed_w(hardware)), hardware.boost_hz / hardware.clock_hz)


def cores_clock(hardware: Hardware) -> float:
    """Return the clock of kernels that keep the CUDA cores busy, as a share of the stated one.

    Assumed: they need the board's power at the stated clock, by which vendors rate a board.
    """
    if hardware.power_w is None or hardware.limit_w is None:
        return 1.0
    return min(_clock(hardware.limit_w / hardware.power_w), 1.0)


def is_idle(hardware: Hardware) -> bool:
    """Whether a power limit below the board's own is set that does not lower the clock of products."""
    limit, most = hardware.power_limit_w, hardware.power_w
    if limit is None or most is None or limit >= most:
        return False
    return product_clock(hardware) == product_clock(replace(hardware, power_limit_w=None))


def limited(hardware: Hardware, watts: float) -> Hardware:
    """Return the GPU under a power limit in watts.

    Raises InvalidArgumentError if the board's power is unknown or less, or if the limit leaves no clock.
    """
    most = hardware.power_w
    if most is None:
        raise InvalidArgumentError(
            f"the power of {hardware.title} is not known",
            setting="power_limit",
            remedy='"power_w": 700 in a device file (paceline list gpus NAME --json), or drop {this}',
        )
    if watts > most:
        raise InvalidArgumentError(
            f"{watts:g} W is more than {hardware.title} may draw, {most:g} W",
            setting="power_limit",
            remedy=f"{{this={most:g}W}}, or drop {{this}}",
        )
    under = replace(hardware, power_limit_w=watts)
    if min(product_clock(under), cores_clock(under)) <= _LEAST_CLOCK:
        raise InvalidArgumentError(
            f"{watts:g} W leave {hardware.title} no clock above what it draws idle",
            setting="power_limit",
            remedy=f"{{this={most / 2:g}W}}",
        )
    return under


def _needed_w(hardware: Hardware) -> float:
    """Return the watts that large products would draw at the stated clock."""
    gigahertz = hardware.clock_hz / 1e9
    return hardware.half_peak * 1e-12 * constant(f"power.{process_of(hardware)}") * gigahertz**2


def process_of(hardware: Hardware) -> str:
    """Return what chips of one process and one kind of multiprocessor are called among the constants."""
    architecture = hardware.architecture
    # Chips for workstations and games: another process, and at most half the Tensor Cores of an A100 a multiprocessor.
    large = 0.75 * FLOPS_PER_CLOCK["ampere"] * hardware.multiprocessors * hardware.clock_hz
    if architecture == "ampere" and hardware.half_peak < large:
        return "ampere.small"
    return {"turing": "volta"}.get(architecture, architecture)


def _clock(share: float) -> float:
    """Return the clock that a share of the power needed at the stated clock allows, as a share of that clock."""
    static, floor = constant("power.static"), constant("power.floor")
    dynamic = (share - static) / (1 - static)
    return max(dynamic ** (1 / 3) if dynamic > floor**3 else dynamic / floor**2, _LEAST_CLOCK)
