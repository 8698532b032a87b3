"""Tests of the everyday tier run in parallel: none starts its own ranks, which would compete for the cores."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = {"mpirun", "mpiexec", "torchrun", "srun", "horovodrun"}
# The running test, if it has neither marker.
everyday: list[str] = []


def some(values: Iterable[Any], of: int) -> list[Any]:
    """Return values as parameters: one in so many is of the everyday tier, the others are slow."""
    return [pytest.param(one, marks=pytest.mark.slow if place % of else ()) for place, one in enumerate(values)]


def starts(ranks: int, command: object = "") -> None:
    """Fail if a test of the everyday tier starts several ranks."""
    if everyday and ranks > 1:
        raise AssertionError(f"{everyday[0]} starts ranks of its own: mark it with pytest.mark.process {command}")


def starts_ranks(command: list[str]) -> bool:
    """Whether the command starts several ranks."""
    names = [Path(word).name for word in command]
    if LAUNCHERS & set(names[:3]):
        return True
    if "paceline" not in names[:4]:
        return False
    after = names[names.index("paceline") + 1 :]
    several = any(flag == "-np" and count not in {"0", "1"} for flag, count in pairwise(after))
    return after[:1] == ["run"] and several


def audit(event: str, arguments: tuple[object, ...]) -> None:
    """Watch which processes a test starts, as an audit hook (PEP 578)."""
    if event != "subprocess.Popen" or not everyday:
        return
    command = arguments[1]
    words = [str(word) for word in command] if isinstance(command, (list, tuple)) else str(command).split()
    if starts_ranks(words):
        starts(2, words)
