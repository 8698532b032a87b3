"""Measured operators of a device, as `paceline calibrate` writes them, with their seconds and the conditions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.catalog.constants import is_number
from paceline.errors import InvalidArgumentError
from paceline.operators.forms import problem_of
from paceline.operators.operator import ITEM_BYTES, Operator, Tensor
from paceline.operators.rows import described, operator_of, row_of, tensor_of

_SHORTEST_S, _LONGEST_S = 1e-9, 3600.0
"""Of an operator: what takes less or more is in a wrong unit."""


@dataclass(frozen=True)
class Calibration:
    """Measured operators of one device."""

    conditions: Mapping[str, Any]
    """Date, versions, threads, clocks, power, load and spread, for people."""
    dispatch_s: Mapping[str, float]
    """Host time for each operator by phase, in seconds, besides that of its kernels."""
    operators: tuple[tuple[Operator, float], ...]
    """Operators and their seconds, medians."""

    @property
    def accuracy(self) -> str:
        """The spread of times from step to step, in words: `±3%`."""
        return f"±{self.spread:.0%}" if is_number(self.conditions.get("spread")) else "spread unknown"

    @property
    def spread(self) -> float:
        """How far times differed from step to step, as a share; 0 if the file does not say."""
        spread = self.conditions.get("spread")
        return float(spread) if is_number(spread) and 0 <= spread < 1 else 0.0

    def document(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        tensors: dict[Tensor, int] = {}
        rows = [
            row_of(operator, 0, tensors, sourced=False) | {"seconds": seconds} for operator, seconds in self.operators
        ]
        return {
            "conditions": dict(self.conditions),
            "dispatch_s": dict(self.dispatch_s),
            "tensors": [described(tensor) for tensor in tensors],
            "operators": rows,
        }


def read_calibration(document: object, where: str) -> Calibration:
    """Return the calibration of a device file.

    Args:
        document: The field's value.
        where: The file and the field, for errors.

    Raises:
        InvalidArgumentError: A field is missing or wrong; it names the file and the field.
    """

    def wrong(field: str, problem: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{where}{field}: {problem}", setting="gpu", remedy="paceline calibrate -o FILE (a new one)"
        )

    def checked(value: object, field: str, least: float) -> float:
        if not (is_number(value) and least <= value <= _LONGEST_S):
            raise wrong(field, f"{json.dumps(value):.40} is not a number of seconds from {least:g} to {_LONGEST_S:g}")
        return float(value)

    def part(field: str, kind: type[Any], word: str) -> Any:  # noqa: ANN401
        value = fields.get(field)
        if not isinstance(value, kind):
            raise wrong(f".{field}", f"is not {word}")
        return value

    if not isinstance(document, dict):
        raise wrong("", "is not an object")
    fields: dict[str, Any] = document
    if unknown := fields.keys() - {"conditions", "dispatch_s", "tensors", "operators"}:
        raise wrong(f".{min(unknown)}", "unknown field")
    conditions, dispatch = part("conditions", dict, "an object"), part("dispatch_s", dict, "an object")
    entries, rows = part("tensors", list, "a list"), part("operators", list, "a list")
    if not rows:
        raise wrong(".operators", "is empty")
    host_s = {phase: checked(seconds, f".dispatch_s.{phase}", 0.0) for phase, seconds in dispatch.items()}
    tensors = [_tensor(entry) for entry in entries]
    if None in tensors:
        at = f".tensors[{tensors.index(None)}]"
        raise wrong(at, 'is not a tensor such as {"dtype": "float32", "shape": [8, 64]}')
    operators = []
    for place, row in enumerate(rows):
        at = f".operators[{place}]"
        operator = _operator(row, tensors)
        if operator is None:
            raise wrong(at, 'is not an operator such as {"name": "mm", "inputs": [0, 1], "outputs": [2]}')
        if (problem := problem_of(operator)) is not None:
            raise wrong(at, problem)
        operators.append((operator, checked(row.get("seconds"), f"{at}.seconds", _SHORTEST_S)))
    return Calibration(conditions, host_s, tuple(operators))


def _tensor(entry: object) -> Tensor | None:
    """Return the tensor of an entry; None if it is none."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in ITEM_BYTES:
        return None
    shape: Any = entry.get("shape")
    strides: Any = entry.get("strides", shape)
    if not all(isinstance(numbers, list) and all(_is_size(it) for it in numbers) for numbers in (shape, strides)):
        return None
    return tensor_of(entry) if len(shape) == len(strides) else None


def _operator(row: object, tensors: Sequence[Any]) -> Operator | None:
    """Return the operator of a row; None if it is none."""
    if not isinstance(row, dict) or not (isinstance(row.get("name"), str) and row["name"]):
        return None
    indices = [row.get("inputs", []), row.get("outputs", [])]
    if not all(isinstance(each, list) and all(_is_size(it) and it < len(tensors) for it in each) for each in indices):
        return None
    attributes, phase = row.get("attributes", {}), row.get("phase", "forward")
    if not isinstance(attributes, dict) or not isinstance(phase, str) or "sources" in row:
        return None
    return operator_of(row, tensors)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
