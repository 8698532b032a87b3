"""Prices of a GPU-hour on the machines of a question: those that were given, else those of clouds' instances."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from paceline._internal.units import shown
from paceline.catalog.gpus import find_hardware
from paceline.catalog.instances import Instance, all_instances, find_instance
from paceline.errors import InvalidArgumentError
from paceline.forecast.request import Sweep

GIVEN = "currency of --price"


@dataclass(frozen=True)
class Price:
    """Of a GPU for an hour."""

    amount: float
    source: str
    """Where it is from, with its currency."""


@dataclass(frozen=True)
class Prices:
    """Prices by machine, which is a GPU and a cluster."""

    given: Mapping[str, float]
    """By the name of a GPU or cluster; with an empty name, of all."""
    compares: bool = False
    """Whether costs were asked for, so that a GPU without a cluster has the lowest price of clouds."""

    @classmethod
    def of(cls, given: Mapping[str, float], machines: Sequence[Sweep], *, compares: bool = False) -> Prices:
        """Check the prices that were given. Raises InvalidArgumentError for one of no machine."""
        known = {name: None for machine in machines for name in _names(machine)}
        for name in given:
            if name and _priced(name, known) not in known:
                raise InvalidArgumentError(
                    f"'{shown(name)}' is none of the machines",
                    setting="price",
                    remedy="{price=" + ",".join(f"{one}:2.50" for one in list(known)[:2] or ["h100"]) + "}",
                )
        return cls({_priced(name, known): amount for name, amount in given.items()}, compares)

    def price(self, machine: Sweep) -> Price | None:
        """Return the price on a machine; None if it is not known."""
        for name in (*_names(machine), ""):
            if name in self.given:
                return Price(self.given[name], GIVEN)
        cluster = machine.get("cluster")
        if cluster is None:
            return _lowest(find_hardware(machine.get("gpu")).name) if self.compares and machine.get("gpu") else None
        instance = find_instance(cluster) if isinstance(cluster, str) else None
        return None if instance is None else _listed(instance)


def _listed(instance: Instance) -> Price | None:
    own = instance.price
    if own is None:
        return None
    return Price(own.usd_per_gpu_hour, f"${own.usd_per_gpu_hour:.2f} a GPU-hour, {instance.cloud}, {own.date}")


def _lowest(gpu: str) -> Price | None:
    """Return the lowest price of clouds' instances with a GPU."""
    priced = [one for one in all_instances() if one.hardware.name == gpu and one.price is not None]
    best = min(priced, key=lambda one: one.price.usd_per_gpu_hour if one.price else 0.0, default=None)
    price = None if best is None else _listed(best)
    return None if price is None or best is None else Price(price.amount, f"{price.source}: {best.name}")


def _names(machine: Sweep) -> list[str]:
    """Return the names of a machine: its cluster, its GPU as typed, and as the catalog has it."""
    cluster, gpu = machine.get("cluster"), machine.get("gpu")
    names = [cluster] if isinstance(cluster, str) else []
    if names and (instance := find_instance(names[0])) is not None:
        names += [instance.name, *instance.aliases, instance.hardware.name]
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
