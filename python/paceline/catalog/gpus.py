"""GPUs by their data sheets: peaks by precision, memory, NVLink and launch cost, from gpus/*.json.

Files that `paceline calibrate` writes hold measured operators as well, and may describe a CPU.

`paceline.catalog.rates` holds measured training rates of the recorded models; this module holds what the hardware can
do, for models that were not recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from paceline._core import Trace
from paceline._internal.nearest import like_gpu, named_gpus
from paceline.catalog import channels, names
from paceline.catalog.calibration import Calibration, read_calibration
from paceline.catalog.constants import is_number, read_document
from paceline.catalog.offload import LINKS
from paceline.errors import InvalidArgumentError

_FOLDER = Path(__file__).parent / "gpus"
_RATES = Path(__file__).parent / "rates.json"
PRECISIONS = get_args(names.Precision)
"""Precisions of matrix products that a device may have a peak for."""
_PLAUSIBLE = {
    "peak_flops": (1e9, 1e21, "FLOP/s"),
    "memory_bandwidth": (1e6, 1e18, "bytes per second"),
    "memory_bytes": (1e6, 1e18, "bytes"),
    "link_bandwidth": (1e6, 1e18, "bytes per second"),
    "bus_bandwidth": (1e6, 1e18, "bytes per second"),
    "launch_s": (1e-12, 1.0, "seconds"),
    "multiprocessors": (1, 1e5, "streaming multiprocessors"),
    "clock_hz": (1e6, 1e11, "hertz"),
    "boost_hz": (1e6, 1e11, "hertz"),
    "power_w": (1, 1e5, "watts"),
    "power_limit_w": (1, 1e5, "watts"),
    "l2_bytes": (1e3, 1e12, "bytes"),
}
"""Least, most and unit of a device's numbers: far beyond any hardware's, so that what is outside is a wrong unit."""
_LINKS = {
    "maxwell": ("pcie", "nvlink-p100"),
    "pascal": ("pcie", "nvlink-p100"),
    "volta": ("pcie", "nvlink-v100"),
    "turing": ("pcie", "nvlink-v100"),
    "ampere": ("pcie-4", "nvlink-a100"),
    "ada": ("pcie-4", "nvlink-a100"),
    "hopper": ("pcie-5", "nvlink-h100"),
    "blackwell": ("pcie-5", "nvlink-b200"),
    "blackwell-rtx": ("pcie-5", "nvlink-b200"),
    "cdna2": ("pcie-4", "xgmi-mi250x"),
    "cdna3": ("pcie-5", "xgmi-mi300x"),
    "cdna4": ("pcie-5", "xgmi-mi355x"),
    "cpu": ("pcie", "pcie"),
}
"""By architecture, the link of a file that names none: without and with NVLink."""


_CLOCK_HZ, _L2_BYTES = 1.7e9, 6e6
"""Of a file that names none; they are assumed."""
FLOPS_PER_CLOCK = {
    "maxwell": 256,
    "pascal": 256,
    "volta": 1024,
    "turing": 1024,
    "ampere": 2048,
    "ada": 1024,
    "hopper": 4096,
    "blackwell": 8192,
    "blackwell-rtx": 1024,
    "cdna2": 1024,
    "cdna3": 2048,
    "cdna4": 4096,
    "cpu": 64,
}
"""Dense FLOPs of a multiprocessor in a clock at the largest 16-bit peak (NVIDIA's architecture whitepapers; of an AMD
compute unit, AMD's); of a CPU's core, two fused multiply-adds of 512 bits in FP32."""
_NETWORKS: tuple[set[str], ...] = (set(), {"like"}, {"gpus_per_node", "bandwidth"})
"""Fields that a `network` may have."""
_TITLES = {"blackwell-rtx": "RTX Blackwell", "cdna2": "CDNA 2", "cdna3": "CDNA 3", "cdna4": "CDNA 4"}


def architecture_title(name: str) -> str:
    """Return an architecture's name for prose: `Hopper`, `CDNA 3`."""
    return _TITLES.get(name, name.capitalize())


@dataclass(frozen=True)
class Hardware:
    """One GPU. Rates are per second, sizes in bytes."""

    name: str
    title: str
    architecture: str
    """`maxwell`, …, `blackwell`, `cdna3`, between which efficiencies differ; or `cpu`."""
    link: str
    """The links between the GPUs of a node, a path of `channels.inside()`: `nvlink-v100`, `pcie-4`."""
    peak_flops: Mapping[str, float]
    """Dense peak of matrix products by precision, in FLOP/s."""
    memory_bandwidth: float
    """Bytes per second."""
    memory_bytes: int
    link_bandwidth: float | None
    """NVLink or Infinity Fabric of one GPU in bytes per second, each way; None without."""
    bus_bandwidth: float | None
    """NCCL's bus bandwidth for large messages among the GPUs of a node, in bytes per second."""
    launch_s: float
    """Host time to launch one kernel, in seconds."""
    multiprocessors: int
    """Among which the blocks of a kernel are spread."""
    clock_hz: float
    """The clock at which the peaks are stated."""
    l2_bytes: int
    boost_hz: float
    """The clock that it reaches where power does not limit it: at least `clock_hz`."""
    sources: tuple[str, ...]
    host_link: str = "pcie"
    """The link to the host's memory, of `paceline.catalog.offload.LINKS`."""
    power_w: float | None = None
    """Watts that the board may draw; None: not known."""
    power_limit_w: float | None = None
    """A lower limit that is set; None: the board's own."""
    peer_access: bool = True
    """Whether GPUs of a node reach each other's memory over PCI Express; drivers of GeForce cards refuse it."""
    node: str | None = None
    """The cluster whose nodes are assumed if none is named: a built-in name."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """Of a GPU without such a cluster, what its nodes usually have: `like`, the cluster or instance whose network it
    is; or `gpus_per_node` and `bandwidth`. Empty: not known."""
    aliases: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    """GPUs that are not among the known ones and that it resembles most: the error about them suggests it."""
    calibration: Calibration | None = None
    """Measured operators (`paceline calibrate`); None for data sheets."""

    @property
    def is_cpu(self) -> bool:
        """Whether it is a machine's CPU, whose operators run one after the other in the thread that calls them."""
        return self.architecture == "cpu"

    @property
    def is_amd(self) -> bool:
        """Whether it is one of AMD's GPUs, whose kernels are ROCm's and whose collectives are RCCL's."""
        return self.architecture.startswith("cdna")

    @property
    def limit_w(self) -> float | None:
        """The watts that limit its clock; None: not known."""
        return self.power_w if self.power_limit_w is None else self.power_limit_w

    @property
    def under_limit(self) -> str:
        """The title and the power limit that is set, for prose."""
        limit = None if self.power_limit_w is None else f"{self.power_limit_w:g} W"
        return self.title if limit is None or self.title.endswith(limit) else f"{self.title} limited to {limit}"

    @property
    def half_peak(self) -> float:
        """The peak in 16 bits, or the next one."""
        peaks = self.peak_flops
        return peaks.get("bf16") or peaks.get("fp16") or peaks.get("fp32") or max(peaks.values())

    @property
    def label(self) -> str:
        """The name for headlines: `H100`, `A100-80GB`, `RTX A6000`."""
        return self.name.upper().replace("RTX-", "RTX ")

    def document(self) -> dict[str, Any]:
        """Return the device file, which `--gpu` takes."""
        fields = {"format": "paceline-device", "version": 1, **vars(self)}
        fields |= {
            "peak_flops": dict(self.peak_flops),
            "sources": list(self.sources),
            "aliases": list(self.aliases),
            "like": list(self.like),
            "calibration": None if self.calibration is None else self.calibration.document(),
        }
        if self.peer_access:
            del fields["peer_access"]
        return {key: value for key, value in fields.items() if value not in (None, [], {})}

    def peak(self, precision: str) -> float:
        """Return the peak in FLOP/s. Raises InvalidArgumentError if the device lacks the precision."""
        if precision not in self.peak_flops:
            default = next(name for name in (*_DEFAULTS, *self.peak_flops) if name in self.peak_flops)
            raise InvalidArgumentError(
                f"{self.title} has no {precision} matrix products",
                setting="dtype",
                remedy=f"{{dtype={default}}} (it has {', '.join(self.peak_flops)})",
            )
        return self.peak_flops[precision]


_DEFAULTS = ("bf16", "fp16", "fp32")
"""Precisions to propose where another is lacking, the most usual first."""


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


@lru_cache(maxsize=1)
def all_hardware() -> tuple[Hardware, ...]:
    """Return all devices by name."""
    return tuple(read_hardware(path) for path in sorted(_FOLDER.glob("*.json")))


def find_hardware(name: str) -> Hardware:
    """Return a device by its name, an alias, its full name as nvidia-smi prints it, or a file of the same format.

    Raises InvalidArgumentError.
    """
    for device in all_hardware():
        if _key(name) in map(_key, (device.name, *device.aliases)):
            return device
    own = {device.name: (device.name, device.title, *device.aliases) for device in all_hardware()}
    if len(meant := named_gpus(name, own)) == 1:
        return next(device for device in all_hardware() if device.name == meant[0])
    if name.endswith(".json"):
        try:
            return read_hardware(Path(name))
        except InvalidArgumentError as error:
            raise error.at("gpu") from None
    if "," in name:
        raise InvalidArgumentError(
            f"'{name:.80}' is a list, and one GPU is expected",
            setting="gpu",
            remedy=f"{{this={name.partition(',')[0]:.80}}}",
        )
    if (rated := _rated(name)) is not None:
        raise InvalidArgumentError(
            f"{rated[0]} has no data sheet here, only published rates of traces",
            setting="gpu",
            remedy=f"paceline list traces {rated[1]} (its rates), or paceline list gpus (data sheets)",
        )
    near = like_gpu(name, {device.name: (*own[device.name], *device.like) for device in all_hardware()})
    raise InvalidArgumentError(
        f"unknown GPU '{name[:80]}'",
        setting="gpu",
        remedy=f"{near} (list: paceline list gpus)"
        if near
        else "paceline list gpus (or a file: paceline list gpus NAME --json, or rates: paceline list traces NAME)",
    )


def _rated(name: str) -> tuple[str, str] | None:
    """Return a GPU of this name with a published rate, and a trace that has it; None if there is none."""
    rates: list[dict[str, Any]] = json.loads(_RATES.read_text(encoding="utf-8"))
    return next(((rate["device"], rate["model"]) for rate in rates if _key(rate["device"]) == _key(name)), None)


def titled(title: str) -> Hardware | None:
    """Return the device of this title, as traces computed for one have it; None for others."""
    return next((device for device in all_hardware() if device.title == title), None)


def on_cpu(trace: Trace) -> bool:
    """Return whether a CPU computes, as its device file or a recording's provenance says (`on AMD EPYC, 2 threads`)."""
    if (known := titled(trace.device)) is not None:
        return known.is_cpu
    return bool(trace.device) and re.search(rf" on {re.escape(trace.device)}, \d+ thread", trace.provenance) is not None


def read_hardware(path: Path) -> Hardware:
    """Read a device file. Raises InvalidArgumentError, which names the file and the field."""
    document = read_document(path, "device")

    def wrong(field: str, problem: str, remedy: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{path}: {field}: {problem}", setting="gpu", remedy=remedy)

    def plausible(field: str, value: object) -> float:
        least, most, unit = _PLAUSIBLE[field.partition(".")[0]]
        if not (is_number(value) and least <= value <= most):
            raise wrong(
                field,
                f"{json.dumps(value):.40} is not a number from {least:g} to {most:g}",
                remedy=f"{unit}, without prefix",
            )
        return float(value)

    def number(field: str) -> float:
        return plausible(field, document.pop(field, None))

    def optional(field: str) -> float | None:
        value = document.pop(field, None)
        return None if value is None else plausible(field, value)

    def words(field: str) -> tuple[str, ...]:
        value = document.pop(field, [])
        if not (isinstance(value, list) and all(isinstance(word, str) and word for word in value)):
            raise wrong(field, "is not a list of texts", f'"{field}": []')
        return tuple(value)

    name, title = document.pop("name", None), document.pop("title", None)
    if not (isinstance(name, str) and name and name.isprintable()):
        raise wrong("name", "is not the name of a device", '"name": "my-gpu"')
    if title is not None and not (isinstance(title, str) and title.isprintable()):
        raise wrong("title", "is not text in one line", 'drop "title"')
    architecture = document.pop("architecture", None)
    if not (isinstance(architecture, str) and architecture in _LINKS):
        raise wrong("architecture", "is not a known architecture", f"one of {', '.join(_LINKS)}")
    peaks = document.pop("peak_flops", None)
    if not (isinstance(peaks, dict) and peaks):
        raise wrong("peak_flops", "is not FLOP/s by precision", '"peak_flops": {"bf16": 312e12}')
    if unknown := [precision for precision in peaks if precision not in PRECISIONS]:
        raise wrong(f"peak_flops.{unknown[0]}", "unknown precision", remedy=f"{', '.join(PRECISIONS)}")
    peak_flops = {key: plausible(f"peak_flops.{key}", value) for key, value in peaks.items()}
    bandwidth, memory, launch = number("memory_bandwidth"), number("memory_bytes"), number("launch_s")
    calibration = document.pop("calibration", None)
    if calibration is not None:
        calibration = read_calibration(calibration, f"{path}: calibration")
    elif architecture == "cpu":
        raise wrong("calibration", "is missing, and a CPU has no data sheet", "paceline calibrate --device cpu -o FILE")
    link, bus = optional("link_bandwidth"), optional("bus_bandwidth")
    peak = max(peak_flops.get(name, 0.0) for name in ("bf16", "fp16", "fp32")) or max(peak_flops.values())
    clock = optional("clock_hz") or _CLOCK_HZ
    # FLOPs of a multiprocessor in a clock, by which a file that names none has as many as its peak needs.
    multiprocessors = optional("multiprocessors") or max(1.0, round(peak / clock / FLOPS_PER_CLOCK[architecture]))
    l2 = optional("l2_bytes") or _L2_BYTES
    boost, power, limit = optional("boost_hz") or clock, optional("power_w"), optional("power_limit_w")
    if boost < clock:
        raise wrong("boost_hz", "is below clock_hz", 'drop "boost_hz"')
    if limit is not None and (power is None or limit > power):
        raise wrong("power_limit_w", "needs power_w, the watts of the board, which is no less", f'"power_w": {limit:g}')
    has_nvlink = link is not None and bus is not None
    inside = document.pop("link", _LINKS[architecture][has_nvlink])
    if not (isinstance(inside, str) and inside in channels.inside()):
        raise wrong("link", "is not a known link", f"one of {', '.join(channels.inside())}")
    if inside.startswith(("nvlink", "xgmi")) and not has_nvlink:
        raise wrong("link", f"{inside} needs link_bandwidth and bus_bandwidth", '"link_bandwidth": 4.5e11')
    peer_access = document.pop("peer_access", True)
    if not isinstance(peer_access, bool):
        raise wrong("peer_access", "is not true or false", '"peer_access": false')
    host_link = document.pop("host_link", _LINKS[architecture][0])
    if host_link not in LINKS:
        raise wrong("host_link", "is no link to a host's memory", f'"host_link": "pcie-5", of {", ".join(LINKS)}')
    node = document.pop("node", None)
    if node is not None and not (isinstance(node, str) and node):
        raise wrong(
            "node", "is not the name of a cluster", '"node": "dgx-h100", or drop it (list: paceline list clusters)'
        )
    network = document.pop("network", {})
    if not (isinstance(network, dict) and (network.keys() in _NETWORKS)):
        raise wrong("network", "does not say what is between nodes", '"network": {"like": "dgx-h100"}')
    if node is not None and network:
        raise wrong("network", "is that of node", 'drop "network"')
    aliases, like, sources = words("aliases"), words("like"), words("sources")
    if not sources:
        raise wrong("sources", "is empty", '"sources": where the figures come from')
    if document:
        raise wrong(next(iter(document)), "unknown field", f'drop "{next(iter(document))}"')
    return Hardware(
        name=name,
        title=title or name,
        architecture=architecture,
        link=inside,
        peak_flops=peak_flops,
        memory_bandwidth=bandwidth,
        memory_bytes=int(memory),
        link_bandwidth=link,
        bus_bandwidth=bus,
        launch_s=launch,
        multiprocessors=int(multiprocessors),
        clock_hz=clock,
        l2_bytes=int(l2),
        boost_hz=boost,
        power_w=power,
        power_limit_w=limit,
        sources=sources,
        peer_access=peer_access,
        host_link=host_link,
        node=node,
        network=network,
        aliases=aliases,
        like=like,
        calibration=calibration,
    )
