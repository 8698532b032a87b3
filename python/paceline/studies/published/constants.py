"""The constants of libraries and interconnects, from constants.json, each with unit and source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_FILE = Path(__file__).parent / "constants.json"


@dataclass(frozen=True)
class Constant:
    """One constant. `calibrated` names the rows that it was fitted to, if any."""

    name: str
    value: float
    unit: str
    source: str
    calibrated: str = ""


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """Return the constants by name, in the order of the file."""
    return {entry["name"]: Constant(**entry) for entry in json.loads(_FILE.read_text(encoding="utf-8"))}


def constant(name: str) -> float:
    """Return a constant in SI units: seconds, bits per second, or a share."""
    return all_constants()[name].value


def as_rate(bits_per_s: float) -> str:
    """Return the value as cluster files spell it."""
    return f"{bits_per_s:.0f}bps"


def as_time(seconds: float) -> str:
    """Return the value as cluster files spell it."""
    return f"{seconds * 1e6:g}us"
