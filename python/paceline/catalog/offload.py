"""Which parts of training are in the memory of the host, or on its drives, and the rates at which they move.

DeepSpeed calls it ZeRO-Offload and ZeRO-Infinity, PyTorch `CPUOffloadPolicy` of FSDP2 and `save_on_cpu`, torchtune
`OffloadActivations`, torchao `CPUOffloadOptimizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from paceline._internal.nearest import nearest
from paceline.catalog.constants import Constant, checked_constants, read_document, value_of
from paceline.errors import InvalidArgumentError

TARGETS = ("cpu", "nvme")
PARTS = (PARAMETERS, STATES, ACTIVATIONS) = ("parameters", "states", "activations")
LINKS = ("pcie", "pcie-4", "pcie-5", "c2c")
"""Links between a GPU and the memory of its host."""
_FILE = Path(__file__).parent / "host.json"
_RATES = (*(f"host.{link}" for link in LINKS), "host.memory", "host.memory.loop", "host.nvme")


@dataclass(frozen=True)
class Offload:
    """Parts that are not in the GPU's memory."""

    target: str = "cpu"
    """`cpu` or `nvme`."""
    named: tuple[str, ...] = ()
    """Parts by name; none: states, and parameters where units are gathered."""

    def parts(self, *, gathers: bool) -> tuple[str, ...]:
        """Return the parts. `gathers`: whether units are gathered before they compute."""
        wanted = self.named or (PARAMETERS, STATES)
        return tuple(part for part in wanted if part != PARAMETERS or gathers)

    @property
    def text(self) -> str:
        """As it is given: `cpu:states,activations`."""
        return f"{self.target}:{','.join(self.named)}" if self.named else self.target

    @property
    def words(self) -> str:
        """For prose."""
        where = "CPU" if self.target == "cpu" else "NVMe"
        return f"{' and '.join(self.named)} on the {where}" if self.named else f"offloaded to the {where}"


@dataclass(frozen=True)
class Faster:
    """Factors by which a host is faster than its rates: the link to a GPU, the CPUs' step, and the drives."""

    link: float = 1.0
    cpu: float = 1.0
    drive: float = 1.0


def parse_offload(text: str) -> Offload:
    """Return what `cpu`, `nvme` or `cpu:states,activations` stands for, with commas or plus signs between parts.

    Raises InvalidArgumentError for another word, and for activations on a drive.
    """
    target, colon, rest = text.lower().partition(":")
    if target not in TARGETS:
        raise InvalidArgumentError(
            f"'{target[:40]}' is no place of a host",
            remedy="{this=cpu} (or nvme, none, cpu:parameters, cpu:states, cpu:activations)",
        )
    parts = tuple(dict.fromkeys(part.strip() for part in rest.replace("+", ",").split(","))) if colon else ()
    for part in parts:
        if part not in PARTS:
            near = nearest(part, list(PARTS)) or STATES
            raise InvalidArgumentError(
                f"'{part[:40]}' is no part of training", remedy=f"{{this={target}:{near}}} (of {', '.join(PARTS)})"
            )
    if target == "nvme" and ACTIVATIONS in parts:
        raise InvalidArgumentError(
            "activations are kept in the host's memory, not on a drive", remedy="{this=cpu:activations}"
        )
    return Offload(target, tuple(part for part in PARTS if part in parts))


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """Return the rates by name, in the order of the file."""
    units = dict.fromkeys(_RATES, "bytes per second")
    return checked_constants(read_document(_FILE, "host").get("constants"), _FILE.name, units)


def rate(name: str) -> float:
    """Return a rate in bytes per second: `memory`, `nvme`, or that of a link."""
    return value_of(all_constants()[f"host.{name}"])


def slowest(names: Sequence[str], ranks: int) -> float:
    """Return the rate of one rank's copies over links, and over drives that all ranks of a node share."""
    return min(rate(name) / (ranks if name == "nvme" else 1) for name in names)
