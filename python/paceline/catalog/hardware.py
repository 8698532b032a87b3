"""GPUs as a roofline sees them: peaks by precision, memory, NVLink and launch cost, from devices/*.json.

`paceline.catalog.devices` holds measured training rates of the recorded models; this module holds what the hardware can
do, for models that were not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline._internal.nearest import nearest
from paceline.catalog import names
from paceline.catalog.constants import read_document
from paceline.errors import InvalidArgumentError

_FOLDER = Path(__file__).parent / "devices"
PRECISIONS = names.members(names.Precision)
"""Precisions of matrix products that a device may have a peak for."""
_ARCHITECTURES = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")


@dataclass(frozen=True)
class Hardware:
    """One GPU. Rates are per second, sizes in bytes."""

    name: str
    title: str
    architecture: str
    """`volta`, …, `blackwell`: efficiencies differ between architectures."""
    peak_flops: Mapping[str, float]
    """Dense peak of matrix products by precision, in FLOP/s."""
    memory_bandwidth: float
    """Bytes per second."""
    memory_bytes: int
    link_bandwidth: float | None
    """NVLink of one GPU in bytes per second, each way; None without NVLink."""
    bus_bandwidth: float | None
    """NCCL's bus bandwidth for large messages among the GPUs of a node, in bytes per second."""
    launch_s: float
    """Host time to launch one kernel, in seconds."""
    sources: tuple[str, ...]
    node: str | None = None
    """The cluster whose nodes are assumed if none is named: a built-in name."""
    aliases: tuple[str, ...] = ()

    def peak(self, precision: str) -> float:
        """Return the peak in FLOP/s. Raises InvalidArgumentError if the device lacks the precision."""
        if precision not in self.peak_flops:
            raise InvalidArgumentError(
                f"{self.title} has no {precision} matrix products; it has {', '.join(self.peak_flops)}", setting="dtype"
            )
        return self.peak_flops[precision]


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


@lru_cache(maxsize=1)
def all_hardware() -> tuple[Hardware, ...]:
    """Return all devices by name."""
    return tuple(read_hardware(path) for path in sorted(_FOLDER.glob("*.json")))


def find_hardware(name: str) -> Hardware:
    """Return a device by its name, an alias, or a file of the same format. Raises InvalidArgumentError."""
    for device in all_hardware():
        if _key(name) in map(_key, (device.name, *device.aliases)):
            return device
    if name.endswith(".json"):
        return read_hardware(Path(name))
    known = [device.name for device in all_hardware()]
    near = nearest(name, known)
    hint = f" (did you mean '{near}'?)" if near else ""
    raise InvalidArgumentError(
        f"unknown GPU '{name[:80]}'{hint}; known are {', '.join(known)}; or give a file (`paceline gpus NAME --json`)",
        setting="gpu",
    )


def titled(title: str) -> Hardware | None:
    """Return the device of this title, as traces computed for one have it; None for others."""
    return next((device for device in all_hardware() if device.title == title), None)


def read_hardware(path: Path) -> Hardware:
    """Read a device file. Raises InvalidArgumentError, which names the file and the field."""
    document = read_document(path, "device")

    def wrong(field: str, problem: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{path}: {field}: {problem}", setting="gpu")

    def positive(field: str, *, required: bool = True) -> float | None:
        value = document.pop(field, None)
        if value is None and not required:
            return None
        if not _is_positive(value):
            raise wrong(field, "give a number above 0, in SI units without prefix")
        return float(value)

    def words(field: str) -> tuple[str, ...]:
        value = document.pop(field, [])
        if not (isinstance(value, list) and all(isinstance(word, str) and word for word in value)):
            raise wrong(field, "give a list of texts")
        return tuple(value)

    name, title = document.pop("name", None), document.pop("title", None)
    if not (isinstance(name, str) and name):
        raise wrong("name", "give the device's name, in quotes")
    architecture = document.pop("architecture", None)
    if architecture not in _ARCHITECTURES:
        raise wrong("architecture", f"give one of {', '.join(_ARCHITECTURES)}")
    peaks = document.pop("peak_flops", None)
    if not (isinstance(peaks, dict) and peaks and all(map(_is_positive, peaks.values()))):
        raise wrong("peak_flops", 'give FLOP/s by precision, such as {"bf16": 312e12}')
    if unknown := [precision for precision in peaks if precision not in PRECISIONS]:
        raise wrong(f"peak_flops.{unknown[0]}", f"unknown precision; there are {', '.join(PRECISIONS)}")
    bandwidth, memory, launch = positive("memory_bandwidth"), positive("memory_bytes"), positive("launch_s")
    link = positive("link_bandwidth", required=False)
    bus = positive("bus_bandwidth", required=False)
    node = document.pop("node", None)
    if node is not None and not (isinstance(node, str) and node):
        raise wrong("node", "give the name of a cluster, such as dgx-h100, or leave it out")
    aliases, sources = words("aliases"), words("sources")
    if not sources:
        raise wrong("sources", "say where the figures come from")
    if document:
        raise wrong(next(iter(document)), "unknown field")
    assert bandwidth is not None and memory is not None and launch is not None
    return Hardware(
        name=name,
        title=title if isinstance(title, str) and title else name,
        architecture=architecture,
        peak_flops={key: float(value) for key, value in peaks.items()},
        memory_bandwidth=bandwidth,
        memory_bytes=int(memory),
        link_bandwidth=link,
        bus_bandwidth=bus,
        launch_s=launch,
        sources=sources,
        node=node,
        aliases=aliases,
    )


def _is_positive(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
