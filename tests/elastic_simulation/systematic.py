"""Small worlds, systematically: a death before every event, and a replacement that asks at every moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from elastic_simulation.scenario import Fault, Scenario, run

_PHASES = 24
"""Moments at which the replacement may ask, from before the survivor knows of the death to after the end."""


def two_ranks() -> Iterator[Scenario]:
    """Two ranks of which one dies or says no more, and its replacement comes late; events come in causal order."""
    for least in (1, 2):
        base = Scenario(
            seed=0, hosts=(2,), least=least, most=2, calm=True, steps=2, step_s=0.1, start_s=0.1, after_s=1.0
        )
        turns = int(run(base, coverage=False).log[-1].split()[0])
        for kind in ("kill", "cut", "raise", "leave"):
            for at in range(2, turns + 1):
                for victim in (0, 1):
                    for phase in range(_PHASES if kind == "kill" else 1):
                        faults = (Fault(at, kind, victim),)
                        yield dataclasses.replace(base, late=((2, 0.05 + 0.1 * phase),), faults=faults)
