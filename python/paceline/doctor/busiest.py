"""The role through which most bytes go: a server that all ranks send to moves many times what a rank does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from paceline import human
from paceline.doctor.parts import median
from paceline.doctor.recorded import Recording

_MORE = 1.5


@dataclass(frozen=True, slots=True)
class Busiest:
    """A server or switch that moves more than ranks do."""

    role: str
    times: float

    @property
    def words(self) -> str:
        """To be said after the figures."""
        return f"; {self.role} moves {human.short(self.times)} times what a rank does"


def busiest(recording: Recording) -> Busiest | None:
    """That role, if there is one: by the bytes of its messages, out of it or into it, whichever are more."""
    moved: dict[tuple[str, bool], int] = defaultdict(int)
    for rank in (*recording.ranks, *recording.servers):
        for (_, role, out), size in rank.moved.items():
            moved[role, out] += size
    most: dict[str, int] = {}
    for (role, _), size in moved.items():
        most[role] = max(most.get(role, 0), size)
    workers = [size for role, size in most.items() if role.startswith("worker")]
    helpers = {role: size for role, size in most.items() if not role.startswith("worker")}
    if not workers or not helpers or not median(workers):
        return None
    role = min(helpers, key=lambda name: (-helpers[name], name))
    times = helpers[role] / median(workers)
    return Busiest(role, times) if times >= _MORE else None
