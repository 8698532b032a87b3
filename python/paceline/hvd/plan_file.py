"""Reads a plan that was made from the graph before the run, as `paceline plan --json` prints it, for `graph`.

docs/reference/coordinator-plan.md describes the file. Of a tensor only name, dtype and size matter, and of a bucket its
tensors, in the order in which they lie in memory.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal.documents import MB, read_json
from paceline.errors import InvalidArgumentError

FORMAT, VERSION = "paceline-plan", 1
_LARGEST = 256 * MB
_MOST_BYTES = 1 << 63
_MAKE = "paceline plan GRAPH --json > plan.json"


@dataclass(frozen=True)
class PlanFile:
    """The buckets of a plan, in the order in which they begin."""

    source: str
    """The option and the file, for messages."""
    buckets: tuple[tuple[tuple[str, str, int], ...], ...]
    """Of each tensor: name, dtype, bytes."""

    @property
    def digest(self) -> str:
        """Return what tells the plan from others, wherever the file is."""
        return hashlib.blake2s(json.dumps(self.buckets).encode(), digest_size=6).hexdigest()

    def native(self) -> tuple[str, list[list[tuple[str, str, int]]]]:
        """Return it in the form of the native module."""
        return self.source, [list(bucket) for bucket in self.buckets]


def read_plan(path: Path) -> PlanFile:
    """Read a plan. Raises InvalidArgumentError naming the file and the field."""
    where = f"--coordinator-plan {path}"
    document = read_json(path, _LARGEST, where)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        kind = document.get("format") if isinstance(document, dict) else None
        graph = f"is a graph, not a plan: {path}" if kind == "paceline-graph" else "is not a plan"
        remedy = f"paceline plan {path} --json > plan.json" if kind == "paceline-graph" else _MAKE
        raise InvalidArgumentError(f"{where}: {graph}", remedy=remedy)
    if document.get("version") != VERSION:
        raise InvalidArgumentError(
            f"{where}: version: must be {VERSION}, not {document.get('version')!r:.40}", remedy=_MAKE
        )
    tensors = [_tensor(where, place, one) for place, one in enumerate(_list(where, "tensors", document))]
    names: dict[str, int] = {}
    for place, (name, _, _) in enumerate(tensors):
        if names.setdefault(name, place) != place:
            raise _wrong(where, f"tensors[{place}].name", f"'{name[:80]}' is that of tensors[{names[name]}], too")
    placed: set[int] = set()
    buckets = []
    for place, one in enumerate(_list(where, "buckets", document)):
        field = f"buckets[{place}].tensors"
        ids = one.get("tensors") if isinstance(one, dict) else None
        if not isinstance(ids, list) or not ids:
            raise _wrong(where, field, "must be a list of ids of tensors, of one at least")
        for number in ids:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(tensors):
                raise _wrong(where, field, f"{str(number)[:40]} is no id of {len(tensors)} tensors")
            if number in placed:
                raise _wrong(where, field, f"tensor {number} is in a bucket already")
            placed.add(number)
        if len({tensors[number][1] for number in ids}) > 1:
            raise _wrong(where, field, "has tensors of several dtypes")
        buckets.append(tuple(tensors[number] for number in ids))
    if left := sorted(set(range(len(tensors))) - placed):
        raise _wrong(where, "buckets", f"none has tensor {left[0]}, '{tensors[left[0]][0][:80]}'")
    if not buckets:
        raise InvalidArgumentError(f"{where}: has no all-reduces", remedy="the plan of a step on several ranks")
    return PlanFile(where, tuple(buckets))


def _tensor(where: str, place: int, one: Any) -> tuple[str, str, int]:  # noqa: ANN401 - checked here
    if not isinstance(one, dict):
        raise _wrong(where, f"tensors[{place}]", "must be an object")
    name, dtype, size = one.get("name"), one.get("dtype"), one.get("bytes")
    if not isinstance(name, str) or not name:
        raise _wrong(where, f"tensors[{place}].name", "must be a name")
    if not isinstance(dtype, str) or not dtype:
        raise _wrong(where, f"tensors[{place}].dtype", f"must be a dtype, not {dtype!r:.40}")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < _MOST_BYTES:
        raise _wrong(where, f"tensors[{place}].bytes", f"must be a number of bytes, not {size!r:.40}")
    return name, dtype, size


def _list(where: str, name: str, document: dict[str, Any]) -> list[Any]:
    items = document.get(name)
    if not isinstance(items, list):
        raise _wrong(where, name, "must be a list")
    return items


def _wrong(where: str, field: str, how: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{where}: {field}: {how}", remedy=_MAKE)
