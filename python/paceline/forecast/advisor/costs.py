"""Prices of a GPU-hour on the machines of a question: those that were given, else those of clouds' instances."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from paceline._core import Cluster, parse_rate
from paceline._internal import units
from paceline.catalog.builtin import load_cluster
from paceline.catalog.gpus import find_hardware
from paceline.catalog.instances import Instance, all_instances, find_instance
from paceline.errors import InvalidArgumentError
from paceline.forecast.advisor.job import fixed_values
from paceline.forecast.request import Sweep

GIVEN = "currency of --price"


@dataclass(frozen=True)
class Price:
    """Of a GPU for an hour."""

    amount: float
    source: str
    """Where it is from, with its currency."""
    together: int = 1
    """GPUs that are rented together, those of an instance."""

    def rented(self, gpus: int) -> int:
        """Return how many GPUs are paid for where a job has so many: those of whole instances."""
        return -(-gpus // self.together) * self.together

    def of_hour(self, gpus: int) -> float:
        """Return what an hour of a job with so many GPUs costs."""
        return self.rented(gpus) * self.amount


@dataclass(frozen=True)
class Prices:
    """Prices by machine, which is a GPU and a cluster."""

    given: Mapping[str, float]
    """By the name of a GPU or cluster; with an empty name, of all."""
    compares: bool = False
    """Whether costs were asked for, so that a GPU without a cluster has the lowest price of clouds' instances."""

    @classmethod
    def of(cls, given: Mapping[str, float], machines: Sequence[Sweep], *, compares: bool = False) -> Prices:
        """Check the prices that were given. Raises InvalidArgumentError for one of no machine."""
        known = {name: None for machine in machines for name in _names(machine)}
        for name in given:
            if name and _priced(name, known) not in known:
                raise InvalidArgumentError(
                    f"'{units.shown(name)}' is none of the machines",
                    setting="price",
                    remedy="{price=" + ",".join(f"{one}:2.50" for one in list(known)[:2] or ["h100"]) + "}",
                )
        return cls({_priced(name, known): amount for name, amount in given.items()}, compares)

    def price(self, machine: Sweep, gpus: int) -> Price | None:
        """Return the price on so many GPUs of a machine; None if it is not known."""
        for name in (*_names(machine), ""):
            if name in self.given:
                return Price(self.given[name], GIVEN)
        cluster = machine.get("cluster")
        if cluster is not None:
            instance = find_instance(cluster) if isinstance(cluster, str) else None
            return _listed(instance, gpus) if instance is not None and _computes(instance, machine) else None
        if not self.compares or not machine.get("gpu"):
            return None
        prices = [_listed(one, gpus, named=True) for one in _suitable(machine, gpus)]
        return min(filter(None, prices), key=lambda price: price.of_hour(gpus), default=None)

    def note(self, machine: Sweep, gpus: int) -> str:
        """Return why no listed price is that of the nodes that are assumed, and the cheapest instance; or nothing."""
        if not self.compares or self.price(machine, gpus) is not None:
            return ""
        if (cluster := machine.get("cluster")) is not None:
            instance = find_instance(cluster) if isinstance(cluster, str) else None
            if instance is None or instance.price is None or _computes(instance, machine):
                return ""
            gpu = find_hardware(machine.get("gpu"))
            return f"{instance.name}'s price is that of its {instance.hardware.label}: --price {gpu.name}:AMOUNT"
        gpu = find_hardware(machine.get("gpu"))
        if (cheapest := min(_priced_instances(gpu.name), key=_amount, default=None)) is None:
            return ""
        rate = units.rate(load_cluster(cheapest.name).bandwidth_bps)
        has = f"has {rate}" if cheapest.states_network else f"states no network ({rate} is assumed)"
        nodes = f"{min(gpus, _gpus_per_node(machine))} {gpu.label}"
        nodes += f" and {units.rate(_bandwidth_bps(machine))}" if gpus > _gpus_per_node(machine) else ""
        return (
            f"No instance with {nodes} has a listed price; the cheapest, {cheapest.name}, {has}: "
            f"--cluster {cheapest.name}"
        )


def _computes(instance: Instance, machine: Sweep) -> bool:
    """Return whether a machine computes on the GPUs of an instance, and not only by its links."""
    gpu = machine.get("gpu")
    return gpu is None or find_hardware(gpu).name == instance.hardware.name


def _listed(instance: Instance, gpus: int, *, named: bool = False) -> Price | None:
    own = instance.price
    if own is None:
        return None
    price = Price(own.usd_per_gpu_hour, "", instance.gpus)
    source = f"${own.usd_per_gpu_hour:.2f} a GPU-hour, {instance.cloud}, {own.date}"
    source += f": {instance.name}" if named else ""
    rented = price.rented(gpus)
    return replace(price, source=source if rented == gpus else f"{source}, rented whole: {rented} GPUs")


def _priced_instances(gpu: str) -> list[Instance]:
    return [one for one in all_instances() if one.hardware.name == gpu and one.price is not None]


def _amount(instance: Instance) -> float:
    return math.inf if instance.price is None else instance.price.usd_per_gpu_hour


def _nodes(machine: Sweep) -> Cluster:
    """Return the nodes that are assumed. Raises InvalidArgumentError."""
    return replace(machine, values=fixed_values(machine)).machine()


def _suitable(machine: Sweep, gpus: int) -> Iterator[Instance]:
    """Return the instances whose nodes are those that are assumed for so many GPUs, or better."""
    try:
        own, rate_bps = _nodes(machine), _bandwidth_bps(machine)
    except InvalidArgumentError:
        # The search raises it, too.
        return iter(())
    shared, is_alone = min(_gpus_per_node(machine), gpus), gpus <= _gpus_per_node(machine)

    def suits(instance: Instance) -> bool:
        cluster = load_cluster(instance.name)
        # Of one GPU and one kind of link: rates that were measured and those of data sheets differ a little.
        inside = shared == 1 or (
            cluster.intra_link == own.intra_link and (own.mesh is not None or cluster.mesh is None)
        )
        between = cluster.bandwidth_bps >= rate_bps and (cluster.channel != "tcp" or own.channel == "tcp")
        return instance.gpus >= shared and inside and (is_alone or between)

    return filter(suits, _priced_instances(find_hardware(machine.get("gpu")).name))


def _gpus_per_node(machine: Sweep) -> int:
    given: int | None = machine.get("gpus_per_node")
    return given or _nodes(machine).gpus_per_node


def _bandwidth_bps(machine: Sweep) -> float:
    """Return the rate of a node, each way."""
    given = machine.get("bandwidth")
    return parse_rate(given[0]) if given else _nodes(machine).bandwidth_bps


def _names(machine: Sweep) -> list[str]:
    """Return the names of a machine: its cluster, its GPU as typed, and as the catalog has it."""
    cluster, gpu = machine.get("cluster"), machine.get("gpu")
    names = [cluster] if isinstance(cluster, str) else []
    if names and (instance := find_instance(names[0])) is not None:
        names += [instance.name, *instance.aliases, *([instance.hardware.name] if _computes(instance, machine) else [])]
    if gpu is not None:
        names += [gpu, find_hardware(gpu).name]
    return list(dict.fromkeys(map(_plain, names)))


def _priced(name: str, known: Collection[str]) -> str:
    """Return the name by which a machine is known: its own, or that of the GPU or instance that a name stands for."""
    plain = _plain(name)
    if not plain or plain in known:
        return plain
    with suppress(InvalidArgumentError):
        return find_hardware(plain).name
    instance = find_instance(plain)
    return plain if instance is None else instance.name


def _plain(name: str) -> str:
    return name.strip().lower()
