"""The constants of the coordinator model: the native module's defaults, and files that override some of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from paceline._core import coordinator_constants
from paceline._internal.documents import MB, read_text
from paceline._internal.json_objects import loads
from paceline._internal.nearest import nearest
from paceline._internal.units import shown
from paceline.errors import InvalidArgumentError


@dataclass(frozen=True)
class Constant:
    """One constant; `range` is its plausible range."""

    name: str
    unit: str
    default: float
    range: tuple[float, float]
    meaning: str
    source: str


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """Return the constants by name, in the order in which the model uses them."""
    rows = [{**row, "range": tuple(row["range"])} for row in json.loads(coordinator_constants())]
    return {row["name"]: Constant(**row) for row in rows}


def read_constants(path: Path) -> dict[str, float]:
    """Read a JSON object of names and numbers; constants that it does not name keep their defaults.

    Raises InvalidArgumentError.
    """
    where = f"--coordinator-constants {path}"
    text = read_text(path, MB, where)
    try:
        values = loads(text)
    except InvalidArgumentError as error:
        raise error.within(where) from None
    except RecursionError:
        raise InvalidArgumentError(f"{where}: is nested too deeply", remedy='{"cycle_ms": 1}') from None
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: is not JSON ({error})", remedy='{"cycle_ms": 1}') from None
    if not isinstance(values, dict):
        raise InvalidArgumentError(f"{where}: is not an object", remedy='{"cycle_ms": 1}')
    for name, value in values.items():
        constant = all_constants().get(name)
        if name == "fusion_mib":
            raise InvalidArgumentError(
                f"{where}: fusion_mib is not among the constants",
                remedy='drop "fusion_mib" (it is {bucket_size=64MiB})',
            )
        if constant is None:
            near = nearest(name, list(all_constants()))
            hint = f'"{near}"' if near else f"one of {', '.join(all_constants())}"
            raise InvalidArgumentError(f"{where}: unknown constant '{name[:80]}'", remedy=hint)
        least, most = constant.range
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise InvalidArgumentError(
                f"{where}: {name}: must be {least:g}-{most:g}, not {shown(value, repr)}",
                remedy=f'"{name}": {least or most:g}',
            )
    return {name: float(value) for name, value in values.items()}
