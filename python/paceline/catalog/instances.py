"""Clouds' instances by name: GPUs, network, host memory and the price of a GPU-hour, from instances/*.json.

An instance that is also a built-in cluster has its network there; of the others, a cluster is made here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline._core import parse_size
from paceline._internal.nearest import alike
from paceline._internal.units import listed
from paceline.catalog.builtin_names import CLUSTERS, key
from paceline.catalog.channels import constant
from paceline.catalog.constants import as_rate, is_number, read_document
from paceline.catalog.gpus import Hardware, find_hardware
from paceline.errors import InvalidArgumentError

_FOLDER = Path(__file__).parent / "instances"
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
_UNSTATED_BPS = 25e9
"""Between nodes where a cloud states no network: that of the default cluster."""
_MOST_USD = 1000.0
"""A GPU-hour above this is a wrong unit."""


@dataclass(frozen=True)
class Price:
    """The cost of a GPU for an hour, on demand, and who said so when."""

    usd_per_gpu_hour: float
    date: str
    """`2026-11-09`, or as much of it as is known."""
    source: str
    region: str | None = None


@dataclass(frozen=True)
class Instance:
    """A virtual or bare machine that a cloud rents out."""

    name: str
    cloud: str
    hardware: Hardware
    gpus: int
    source: str
    """The cloud's page on it."""
    price: Price | None = None
    aliases: tuple[str, ...] = ()
    network: Mapping[str, Any] | None = None
    """Fields of a cluster's file that say what is between nodes; None: the built-in cluster of this name has them."""
    inside: Mapping[str, Any] | None = None
    """Those inside of a node, where they differ from what the GPU usually has."""
    host_memory_bytes: int | None = None
    nvme_bytes: int | None = None
    assumed: str = ""
    """Of the network or the slots; empty if nothing is assumed."""

    @property
    def is_cluster(self) -> bool:
        """Whether a built-in cluster of this name describes it."""
        return self.network is None

    @property
    def states_network(self) -> bool:
        """Whether the network between such machines is known."""
        return self.network is None or "bandwidth" in self.network

    def document(self) -> dict[str, Any]:
        """Return the file of a cluster of such instances (docs/reference/cluster-format.md)."""
        from paceline.catalog.nodes import inside_fields

        assert self.network is not None, f"{self.name} is a built-in cluster"
        network = dict(self.network)
        said = [f"{self.cloud} {self.name}: {self.gpus} {self.hardware.title} ({self.source})"]
        if self.assumed:
            said.append(f"Assumed: {self.assumed}")
        if not self.states_network:
            network |= {"bandwidth": as_rate(_UNSTATED_BPS), "channel": "tcp"}
            said.append("Assumed: 25 Gbit/s between instances, because the cloud's page states no network for training")
        if "latency" not in network:
            network["latency"] = f"{constant(network['channel'] + '.latency')!r}s"
            said.append(f"Latency: that of {network['channel'].upper()} (paceline list libraries channels)")
        said.append("Inside the node: as of the GPU's data sheet. Assumed: full bisection, no multicast, no SHARP")
        return {
            "format": "paceline-cluster",
            "version": 1,
            "name": self.name,
            "provenance": ". ".join(said),
            "gpus_per_node": self.gpus,
            "gpu": self.hardware.title,
            **network,
            **({"intra_link": "nvswitch", **inside_fields(self.hardware)} if self.gpus > 1 else {}),
            **(self.inside or {}),
            "switch": {"multicast": False, "aggregation": False},
        }


@lru_cache(maxsize=1)
def all_instances() -> tuple[Instance, ...]:
    """Return all instances, cloud by cloud."""
    return tuple(one for path in sorted(_FOLDER.glob("*.json")) for one in read_instances(path))


def find_instance(name: str) -> Instance | None:
    """Return the instance of a name or an alias, case and hyphens aside (`p5`, `ND-H100-v5`); None if there is none."""
    return _by_key().get(key(name))


def named_instance(name: str) -> Instance:
    """Return the instance of a name or an alias. Raises InvalidArgumentError, which suggests the nearest."""
    if (instance := find_instance(name)) is not None:
        return instance
    near = alike(name, [word for one in all_instances() for word in (one.name, *one.aliases)])
    raise InvalidArgumentError(
        f"unknown instance '{name:.80}'",
        remedy=f"{listed(near, 'or')} (list: paceline list instances)" if near else "paceline list instances",
    )


def instance_names() -> list[str]:
    """Return the names of all instances, without their aliases."""
    return [one.name for one in all_instances()]


@lru_cache(maxsize=1)
def _by_key() -> dict[str, Instance]:
    return {key(name): one for one in all_instances() for name in (one.name, *one.aliases)}


def price_of(name: str) -> Price | None:
    """Return the price of an instance, or of the cluster of that name; None if none was found."""
    instance = find_instance(name)
    return None if instance is None else instance.price


def read_instances(path: Path) -> list[Instance]:
    """Read a cloud's file. Raises InvalidArgumentError, which names the file, the instance and the field."""
    document = read_document(path, "instances")
    cloud, source, entries = (document.get(name) for name in ("cloud", "source", "instances"))
    for name, value in (("cloud", cloud), ("source", source)):
        if not (isinstance(value, str) and value):
            raise InvalidArgumentError(f"{path}: {name}: is not text", remedy=f'"{name}": "…"')
    if not isinstance(entries, list):
        raise InvalidArgumentError(f"{path}: instances: is not a list", remedy='"instances": []')
    instances = [_instance(path, str(cloud), str(source), place, entry) for place, entry in enumerate(entries)]
    names = [key(name) for one in instances for name in (one.name, *one.aliases)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidArgumentError(f"{path}: {twice}: is the name of two instances", remedy="another name")
    return instances


_NETWORK = {
    "bandwidth": "bandwidth",
    "channel": "channel",
    "latency": "latency",
    "nics": "nics_per_node",
    "nccl_plugin": "nccl_plugin",
    "nccl_sockets": "nccl_sockets",
}
"""Fields of an instance that are a cluster's, and what they are called there."""
_INSIDE = ("intra_link", "intra_bandwidth", "mesh", "sockets", "peer_access")


def _instance(path: Path, cloud: str, source: str, place: int, entry: object) -> Instance:
    at = f"{path}: instances[{place}]"

    def checked(field: str, is_right: Callable[[Any], bool], remedy: str) -> Any:  # noqa: ANN401
        assert isinstance(entry, dict)
        value = entry.get(field)
        if not is_right(value):
            raise InvalidArgumentError(f"{at}.{field}: is wrong: {value!r:.80}", remedy=f'"{field}": {remedy}')
        return value

    if not isinstance(entry, dict):
        raise InvalidArgumentError(f"{at}: is not an object", remedy='{"name": "p5.48xlarge", …}')
    name = checked("name", lambda it: isinstance(it, str) and bool(it), '"p5.48xlarge"')
    at = f"{path}: {name}"
    gpus = checked("gpus", lambda it: isinstance(it, int) and 0 < it <= 1024, "8")
    gpu = checked("gpu", lambda it: isinstance(it, str), '"h100"')
    aliases = checked("aliases", lambda it: it is None or isinstance(it, list), '["p5"]')
    known = {"name", "aliases", "gpu", "gpus", "host_memory", "nvme", "assumed", "price", *_NETWORK, *_INSIDE}
    if unknown := set(entry) - known:
        field = sorted(unknown)[0]
        raise InvalidArgumentError(f"{at}: {field}: unknown field", remedy=f'drop "{field}"')
    is_cluster = (CLUSTERS / f"{name}.json").is_file()
    return Instance(
        name=name,
        cloud=cloud,
        hardware=find_hardware(gpu),
        gpus=gpus,
        source=source,
        price=_price(at, entry.get("price")),
        aliases=tuple(aliases or ()),
        network=None if is_cluster else {own: entry[field] for field, own in _NETWORK.items() if field in entry},
        inside={field: entry[field] for field in _INSIDE if field in entry},
        host_memory_bytes=parse_size(entry["host_memory"]) if "host_memory" in entry else None,
        nvme_bytes=parse_size(entry["nvme"]) if "nvme" in entry else None,
        assumed=entry.get("assumed", ""),
    )


def _price(at: str, entry: object) -> Price | None:
    if entry is None:
        return None
    try:
        price = Price(**entry)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError(
            f"{at}: price: needs usd_per_gpu_hour, date and source",
            remedy='"price": {"usd_per_gpu_hour": 6.88, "date": "2026-11-09", "source": "…"}, or null',
        ) from None
    if not (is_number(price.usd_per_gpu_hour) and 0 < price.usd_per_gpu_hour <= _MOST_USD):
        raise InvalidArgumentError(f"{at}: price.usd_per_gpu_hour: is not in dollars", remedy="6.88")
    if not _DATE.fullmatch(price.date):
        raise InvalidArgumentError(f"{at}: price.date: is no date", remedy='"date": "2026-11-09"')
    if not price.source:
        raise InvalidArgumentError(f"{at}: price.source: is empty", remedy='"source": where the price is from')
    return price
