"""Named constants with unit, source and uncertainty, and the checks of the files that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from paceline._internal.documents import MB, read_json
from paceline._internal.nearest import nearest
from paceline.errors import InvalidArgumentError


@dataclass(frozen=True)
class Constant:
    """One constant, in SI units: seconds, bits per second, bytes, or a share.

    `uncertainty` is relative: 0.3 means that up to 30 % more or less is plausible. `calibrated` names the measurements
    that it was fitted to, if any; `prior` is what would be assumed without them.
    """

    name: str
    value: float
    unit: str
    uncertainty: float
    source: str
    calibrated: str = ""
    prior: float | None = None


_LARGEST_FILE = 16 * MB
_ASSUMED: ContextVar[Mapping[Constant, float]] = ContextVar("assumed", default={})  # noqa: B039 - never changed


@contextmanager
def assuming(values: Mapping[Constant, float]) -> Iterator[None]:
    """In this block and thread, constants have other values: for cross-validation."""
    token = _ASSUMED.set(values)
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def assumed() -> Mapping[Constant, float]:
    """Return the constants with other values in this block (`assuming`)."""
    return _ASSUMED.get()


def value_of(constant: Constant) -> float:
    """Return the value that forecasts use."""
    return _ASSUMED.get().get(constant, constant.value)


def read_document(path: Path, kind: str) -> dict[str, Any]:
    """Return a JSON document of this kind without `format` and `version`. Raises InvalidArgumentError."""
    document = read_json(path, _LARGEST_FILE)
    if not isinstance(document, dict) or document.pop("format", None) != f"paceline-{kind}":
        raise InvalidArgumentError(f'{path}: format: must be "paceline-{kind}"', remedy=f'"format": "paceline-{kind}"')
    if document.pop("version", None) != 1:
        raise InvalidArgumentError(f"{path}: version: must be 1", remedy='"version": 1')
    return document


def checked_constants(entries: object, where: str, units: Mapping[str, str]) -> dict[str, Constant]:
    """Return constants by name; `units` has the unit of every possible one. Raises InvalidArgumentError."""
    if not isinstance(entries, list):
        raise InvalidArgumentError(f"{where}: constants: is not a list", remedy='"constants": []')
    constants: dict[str, Constant] = {}
    for place, entry in enumerate(entries):
        at = f"{where}: constants[{place}]"
        try:
            constant = Constant(**entry)
        except TypeError:
            raise InvalidArgumentError(
                f"{at}: needs name, value, unit, uncertainty and source",
                remedy='{"name": …, "value": …, "unit": …, "uncertainty": …, "source": …}',
            ) from None
        if constant.name not in units:
            near = nearest(str(constant.name), list(units))
            hint = f'"name": "{near}"' if near else f"one of {', '.join(units)}"
            raise InvalidArgumentError(f"{at}.name: unknown constant '{constant.name!s:.80}'", remedy=hint)
        at = f"{where}: {constant.name}"
        if constant.name in constants:
            raise InvalidArgumentError(f"{at}: is listed twice", remedy="one of the two")
        if not (is_number(constant.value) and constant.value > 0):
            raise InvalidArgumentError(f"{at}.value: must be above 0, not {constant.value!r:.80}", remedy='"value": 1')
        if constant.unit != units[constant.name]:
            raise InvalidArgumentError(
                f"{at}.unit: must be '{units[constant.name]}', not '{constant.unit!s:.80}'",
                remedy=f'"unit": "{units[constant.name]}"',
            )
        if not (is_number(constant.uncertainty) and 0 <= constant.uncertainty <= 10):
            raise InvalidArgumentError(
                f"{at}.uncertainty: must be 0-10, not {constant.uncertainty!r:.80}", remedy='"uncertainty": 0.5'
            )
        if constant.calibrated and not (is_number(constant.prior) and (constant.prior or 0) > 0):
            raise InvalidArgumentError(
                f"{at}.prior: is missing", remedy='"prior": the value assumed without the measurements'
            )
        if not constant.source:
            raise InvalidArgumentError(f"{at}.source: is empty", remedy='"source": where the value comes from')
        constants[constant.name] = constant
    return constants


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a JSON value is a finite number that fits into a double; JSON's integers have any size."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def as_rate(bits_per_s: float) -> str:
    """Return the value as cluster files spell it."""
    return f"{bits_per_s!r}bps"
