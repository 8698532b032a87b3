"""The constants of libraries and interconnects: constants.json, each with its unit and where it is from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_FILE = Path(__file__).parent / "constants.json"


@dataclass(frozen=True)
class Constant:
    """One of them. `calibrated` names the rows that it was fitted to, if it was."""

    name: str
    value: float
    unit: str
    source: str
    calibrated: str = ""


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """By name, in the order of the file."""
    return {entry["name"]: Constant(**entry) for entry in json.loads(_FILE.read_text(encoding="utf-8"))}


def constant(name: str) -> float:
    """In SI units: seconds, bits per second, or a share."""
    return all_constants()[name].value


def as_rate(bits_per_s: float) -> str:
    """As cluster files have it."""
    return f"{bits_per_s:.0f}bps"


def as_time(seconds: float) -> str:
    """As cluster files have it."""
    return f"{seconds * 1e6:g}us"
