"""Fields that give no option, by trainer: without effect on a forecast, or with one that no option says.

`fields.json` has patterns of their names, by why they have no effect or by what they do. Those of `all` are names that
several trainers share; patterns of arguments are without their `--`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "fields.json"


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    tables: dict[str, dict[str, dict[str, Any]]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return tables


@lru_cache
def idle(tables: tuple[str, ...]) -> Sequence[tuple[str, Sequence[str]]]:
    """Return why fields have no effect, with their patterns; those of `all` are the last."""
    return [pair for name in (*tables, "all") for pair in _tables()[name]["idle"].items()]


@lru_cache
def unforecast(tables: tuple[str, ...]) -> Mapping[str, str]:
    """Return what fields do that no option says, by pattern."""
    return {pattern: why for name in tables for pattern, why in _tables()[name]["unforecast"].items()}
