"""Two outputs of an entry: which numbers differ, which fields and lines, which words."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_LONGEST_NAME = 3
"""Words: a string of JSON with more is prose, of which only the numbers count."""


@dataclass(frozen=True)
class Difference:
    """One value that is not what it was."""

    where: str
    """A path such as output[3].links[0].busiest_s, or a number's place in a text."""
    before: Any
    now: Any
    is_wording: bool = False
    """Only the words differ."""

    @property
    def relative(self) -> float | None:
        """The relative difference of two numbers."""
        try:
            before, now = float(self.before), float(self.now)
        except (TypeError, ValueError):
            return None
        return (now - before) / abs(before) if before else math.copysign(math.inf, now)

    def __str__(self) -> str:
        change = "" if self.relative is None else f" ({self.relative:+.2e})"
        return f"{self.where}: {_short(self.before)} -> {_short(self.now)}{change}"


@dataclass
class Output:
    """What a run printed and wrote."""

    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Digests of what it wrote, by name."""
    document: Any = None
    """stdout as JSON, where that was asked for and printed; `stdout` is then empty."""


class Missing:
    """What stands for a field or line that one side does not have."""

    def __repr__(self) -> str:
        return "(missing)"


MISSING = Missing()


def differences(before: Output, now: Output) -> Iterator[Difference]:
    """Yield all differences between two outputs."""
    yield from _values("exit code", before.exit_code, now.exit_code)
    yield from texts("stderr", before.stderr, now.stderr)
    yield from texts("stdout", before.stdout, now.stdout)
    yield from _files(before.files, now.files)
    yield from _values("output", before.document, now.document)


def texts(where: str, before: str, now: str) -> Iterator[Difference]:
    """Yield the numbers that differ; if none does, one difference of words."""
    numbers = [NUMBER.findall(text) for text in (before, now)]
    if numbers[0] != numbers[1]:
        for place, (old, new) in enumerate(zip_longest(*numbers, fillvalue=MISSING), 1):
            if old != new:
                yield Difference(f"{where}, number {place} of {len(numbers[0])}", old, new)
    elif before != now:
        pairs = zip_longest(before.splitlines(), now.splitlines(), fillvalue="")
        old, new = next(((old, new) for old, new in pairs if old != new), (before, now))
        yield Difference(where, old, new, is_wording=True)


def _values(where: str, before: Any, now: Any) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from _values(f"{where}.{key}", before.get(key, MISSING), now.get(key, MISSING))
    elif isinstance(before, list) and isinstance(now, list):
        for place, (old, new) in enumerate(zip_longest(before, now, fillvalue=MISSING)):
            yield from _values(f"{where}[{place}]", old, new)
    elif _is_number(before) and _is_number(now):
        if before != now and not (math.isnan(before) and math.isnan(now)):
            yield Difference(where, before, now)
        elif type(before) is not type(now):
            yield Difference(where, before, now, is_wording=True)  # 1 and 1.0
    elif (
        isinstance(before, str) and isinstance(now, str) and min(len(before.split()), len(now.split())) > _LONGEST_NAME
    ):
        yield from texts(where, before, now)
    elif type(before) is not type(now) or before != now:
        yield Difference(where, before, now)


def _files(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> Iterator[Difference]:
    for name in sorted(before | now):
        old, new = before.get(name, MISSING), now.get(name, MISSING)
        if isinstance(old, Missing) or isinstance(new, Missing):
            yield Difference(f"file {name}", old, new)
            continue
        counted = [{key: value for key, value in one.items() if key != "digest"} for one in (old, new)]
        values = list(_values(f"file {name}", *counted))
        yield from values or _wording(f"file {name}, words", old.get("digest"), new.get("digest"))


def _wording(where: str, before: Any, now: Any) -> Iterator[Difference]:
    if before != now:
        yield Difference(where, before, now, is_wording=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, (dict, list)) else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
