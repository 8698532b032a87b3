"""JSON of nccl-tests (`-J FILE`, nccl-tests' src/util.cu) and of rccl-tests (`-x FILE`, a line for each result).

Out-of-place results are read where there are both, as from logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from paceline.interop.logs.contents import Read, ReadError, Size, finite

_OF_NCCL = re.compile(r'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"')
_OF_RCCL = re.compile(r'\s*\{(?=[^\n]*"algBw")(?=[^\n]*"inPlace")')
_PERF = re.compile(r"(\w+?)_perf(?:_mpi)?(?:\.exe)?")
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_COLUMNS = {"time": "time", "algBw": "alg_bw", "busBw": "bus_bw", "#wrong": "nwrong"}
"""Of rccl-tests, and as nccl-tests calls them."""
_US, _GB = 1e-6, 1e9
_REMEDY = "the file as the benchmark wrote it"


def recognized(text: str) -> bool:
    """Recognize it by how it begins."""
    return _OF_NCCL.match(text) is not None or _OF_RCCL.match(text) is not None


def read(text: str) -> list[Read]:
    """Read sizes, times and bandwidths of each test. Raises ReadError."""
    return _of_nccl(text) if _OF_NCCL.match(text) else _of_rccl(text)


def _of_nccl(text: str) -> list[Read]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ReadError(1, "the JSON of nccl-tests ends early or is damaged", remedy=_REMEDY) from None
    program = next((str(word) for word in _listed(document.get("args"))), "")
    match = _PERF.fullmatch(PurePath(program.replace("\\", "/")).name)
    config = document.get("config")
    devices = len(_listed(config.get("devices"))) if isinstance(config, Mapping) else 0
    results = [one for one in _listed(document.get("results")) if isinstance(one, Mapping)]
    return _reads(match[1] if match else "unknown", devices, [(one, _side(one)) for one in results])


def _side(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the result out of place, or else the one in place, with this file's names of columns."""
    sides = [result.get(name) for name in ("out_of_place", "in_place")]
    side = next((one for one in sides if isinstance(one, Mapping)), {})
    return {
        "time": side.get("time"),
        "algBw": side.get("alg_bw"),
        "busBw": side.get("bus_bw"),
        "#wrong": side.get("nwrong"),
    }


def _of_rccl(text: str) -> list[Read]:
    results = []
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            raise ReadError(at, "the JSON of rccl-tests ends early or is damaged", remedy=_REMEDY) from None
        if isinstance(one, Mapping) and not one.get("inPlace"):
            results.append(one)
    first = results[0] if results else {}
    name, gpus = first.get("name"), first.get("gpus")
    what = _WORDS.sub("_", name).lower() if isinstance(name, str) else "unknown"
    return _reads(what, gpus if isinstance(gpus, int) else 0, [(one, one) for one in results])


def _reads(what: str, devices: int, results: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Read]:
    """Return a test for each type and operation; a result has a size, and a side with times and bandwidths."""
    reads: dict[tuple[str, str], Read] = {}
    for result, side in results:
        size = result.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ReadError(1, f"size: '{size!s:.40}' is not a whole number", remedy=_REMEDY)
        kind = (str(result.get("type")), str(result.get("redop")))
        one = reads.setdefault(kind, Read("nccl-tests", what, devices=devices or None))
        values = (_number(side, name) for name in ("time", "algBw", "busBw"))
        seconds, *bandwidths = (
            None if value is None else value * unit for value, unit in zip(values, (_US, _GB, _GB), strict=True)
        )
        one.sizes.append(Size(size, seconds, *bandwidths))
        if _number(side, "#wrong"):
            one.notes.append(f"{size} bytes had wrong results")
    if not reads:
        raise ReadError(1, "has no results", remedy="the file of a benchmark that did not fail")
    for (type_name, operation), one in reads.items():
        one.sizes.sort(key=lambda it: it.size_bytes)
        if len(reads) > 1:
            one.what += f" ({type_name}, {operation})"
    return list(reads.values())


def _number(side: Mapping[str, Any], name: str) -> float | None:
    """Return a finite number that is not negative; None if there is none."""
    value = side.get(name)
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    return None if number is None or number < 0 else finite(number)


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
