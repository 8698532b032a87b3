"""Reports of servers: the staleness of the gradients they have applied and, if it is recorded, their order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.errors import JobError

ANSWER = "the answer to a pull"
"""Label of the message with which a server answers a worker that pulls."""

_APPLIED = re.compile(r".* of rank \d{1,9}, staleness (\d{1,9})", re.DOTALL)


def applied_label(part: str, worker: int, staleness: int) -> str:
    """Return the name of a timeline's event: a server has applied a gradient."""
    return f"{part} of rank {worker}, staleness {staleness}"


def staleness_in(label: str) -> int:
    """Return the staleness in updates from the name of such an event. Raises ValueError if it is another's."""
    match = _APPLIED.fullmatch(label)
    if match is None:
        raise ValueError
    return int(match[1])


class Applied(NamedTuple):
    """One gradient that a server has applied."""

    tensor: str
    part: int
    """First element of the part; 0 unless the placement is `even`."""
    worker: int
    iteration: int
    """The worker's iteration, from 0."""
    version: int
    """Updates that had been applied to the tensor before."""
    pulled: int
    """Those of them that the worker's parameters contained when it computed the gradient."""

    @property
    def staleness(self) -> int:
        """Number of other updates between pull and application."""
        return self.version - self.pulled


@dataclass(frozen=True)
class Staleness:
    """The distribution of staleness: how many other updates of its tensor came between a gradient's pull and itself."""

    counts: Mapping[int, int]
    """Gradients by staleness, ascending."""
    by_worker: Mapping[int, Mapping[int, int]]
    """The same for each worker."""

    @property
    def gradients(self) -> int:
        """Number of gradients that were applied."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Mean staleness in updates; 0 if there are none."""
        return sum(staleness * count for staleness, count in self.counts.items()) / max(1, self.gradients)

    @property
    def most(self) -> int:
        """Largest staleness in updates; 0 if there are none."""
        return max(self.counts, default=0)

    def __str__(self) -> str:
        """Return mean, largest and shares, `mean 1.9, at most 4: 0 12 %, 1 20 %, …`."""
        shares = ", ".join(f"{staleness} {count / self.gradients:.0%}" for staleness, count in self.counts.items())
        return f"mean {self.mean:.2f}, at most {self.most}: {shares}" if self.counts else "no gradients yet"


def staleness_of(by_worker: Iterable[Mapping[int, Mapping[int, int]]]) -> Staleness:
    """Return the distribution over all servers, from each server's counts by worker and staleness."""
    total: Counter[int] = Counter()
    each: dict[int, Counter[int]] = {}
    for counts in by_worker:
        for worker, own in counts.items():
            each.setdefault(worker, Counter()).update(own)
            total.update(own)
    return Staleness(
        dict(sorted(total.items())), {worker: dict(sorted(own.items())) for worker, own in sorted(each.items())}
    )


def parsed(document: dict[str, Any]) -> tuple[dict[int, dict[int, int]], list[list[int]]]:
    """Return counts and order from a server's report. Raises JobError for one that no server sends."""
    try:
        counts = {
            int(worker): {int(staleness): int(count) for staleness, count in own.items()}
            for worker, own in document["staleness"].items()
        }
        order = [[int(number) for number in entry] for entry in document["order"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JobError(f"a report that no server sends: {error}", remedy="the same version of paceline") from None
    return counts, order
