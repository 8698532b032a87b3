"""The plan of an iteration, as the native module makes it: what each rank computes and exchanges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paceline.catalog import names
from paceline.catalog.dtypes import DTYPE_BYTES

Collective = Literal["all-reduce", "reduce-scatter", "all-gather"]
COMPUTE = "compute"
"""The stream of the model's computation; others exchange, or compress beside it."""
BACKGROUND = "background"
"""The stream whose exchanges begin in order and do not wait for each other."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks of one exchange: those of a block of `size * stride` ranks that are equal modulo `stride`."""

    size: int
    stride: int

    def around(self, rank: int) -> list[int]:
        """Return the ranks of the group in which a rank is, in order."""
        block = rank - rank % (self.size * self.stride)
        first = block + rank % self.stride
        return [first + number * self.stride for number in range(self.size)]


@dataclass(frozen=True)
class Exchanged:
    """What is exchanged in a step: `elements` of the whole, of which each rank has an equal shard."""

    collective: Collective
    group: RankGroup
    elements: int
    dtype: names.Dtype

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class PlanStep:
    """A step. It begins when the step before it on its stream and all of `after` have ended."""

    number: int
    stream: str
    kind: str
    """forward, backward, optimizer, exchange; compress, decompress, outer-optimizer."""
    name: str
    duration_s: float
    """Of computation."""
    exchanged: Exchanged | None
    after: tuple[int, ...]
    after_previous: tuple[int, ...] = ()
    """Steps of the iteration before."""
    unit: int | None = None
    """The unit's number; None: all."""


@dataclass(frozen=True)
class PlanUnit:
    """What is exchanged as one."""

    name: str
    elements: int
    """Those that are trained."""
    frozen: int = 0
    """Others."""
    pull_only: bool = False
    """It has no gradients: servers distribute it and do not add to it."""
    priority: int | None = None
    """Its place in the order in which servers distribute; None: there are no servers."""


@dataclass(frozen=True)
class IterationPlan:
    """What one rank does in one iteration. All ranks have the same plan."""

    trace: str
    sharding: str
    world: int
    steps: tuple[PlanStep, ...]
    units: tuple[PlanUnit, ...] = ()
    ends_with_compute: bool = False
    """Whether the next iteration begins when the computation of this one has ended."""

    @classmethod
    def from_json(cls, text: str) -> IterationPlan:
        """Return a plan that the native module has written."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> IterationPlan:
        """Return the plan from its JSON's values."""
        units = tuple(PlanUnit(**unit) for unit in values["units"])
        names = [unit.name for unit in units]
        steps = tuple(_step(number, step, names) for number, step in enumerate(values["steps"]))
        ends_with_compute = values.get("ends_with_compute", False)
        return cls(values["trace"], values["sharding"], values["world"], steps, units, ends_with_compute)

    @property
    def has_servers(self) -> bool:
        """Whether servers add gradients up."""
        return any(unit.priority is not None for unit in self.units)

    @property
    def exchanges_only(self) -> bool:
        """Whether nothing is computed."""
        return not any(step.duration_s for step in self.steps)

    def streams(self) -> dict[str, list[PlanStep]]:
        """Return the steps of each stream, in order."""
        found: dict[str, list[PlanStep]] = {}
        for step in self.steps:
            found.setdefault(step.stream, []).append(step)
        return found


def _exchanged(work: dict[str, Any]) -> Exchanged:
    group = RankGroup(work["group"]["size"], work["group"]["stride"])
    return Exchanged(work["collective"], group, work["elements"], work["dtype"])


def _step(number: int, step: dict[str, Any], units: list[str]) -> PlanStep:
    work = step["work"]
    exchanged = _exchanged(work) if work["op"] == "exchange" else None
    what = work["op"] if exchanged is None else exchanged.collective
    what = what.replace("-", " ") if exchanged is None else what
    name = step.get("layer") or (what if step["unit"] is None else f"{what} {units[step['unit']]}")
    duration_s = work.get("duration_ps", 0) * 1e-12
    after, after_previous = tuple(step["after"]), tuple(step.get("after_previous", ()))
    return PlanStep(
        number, step["stream"], work["op"], name, duration_s, exchanged, after, after_previous, step["unit"]
    )
