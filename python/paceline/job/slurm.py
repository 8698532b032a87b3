"""Slurm's compressed lists: of nodes (`node[01-03,07],gpu5`) and of tasks per node (`2(x3),1`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from paceline.errors import InvalidArgumentError

_MOST_NODES = 100_000
_WORD = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)


def nodes(text: str, source: str) -> list[str]:
    """Return the hosts of a node list, in order; several brackets in a name give their product.

    Raises InvalidArgumentError.
    """
    names: list[str] = []
    rest = text
    while True:
        match = _WORD.match(rest)
        if match is None:
            raise _garbled(text, source)
        names += itertools.islice(_expand(match[0], text, source), _MOST_NODES - len(names) + 1)
        if len(names) > _MOST_NODES:
            raise InvalidArgumentError(
                f"{source}: '{text[:80]}' names more than {_MOST_NODES} nodes", remedy="MASTER_ADDR=node1"
            )
        rest = rest[match.end() :]
        if not rest:
            return names
        if not rest.startswith(","):
            raise _garbled(text, source)
        rest = rest[1:]


def _expand(word: str, text: str, source: str) -> Iterator[str]:
    parts = re.split(r"\[([^\]]*)\]", word)  # plain, inside brackets, plain, …
    choices = [[part] if number % 2 == 0 else _numbers(part, text, source) for number, part in enumerate(parts)]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(ranges: str, text: str, source: str) -> list[str]:
    """Expand `01-03,07` to 01, 02, 03, 07, with leading zeros."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _garbled(text, source)
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < _MOST_NODES:
            raise _garbled(text, source)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def tasks_per_node(text: str, source: str) -> list[int]:
    """Expand `2(x3),1` to 2, 2, 2, 1. Raises InvalidArgumentError."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None or int(match[2] or 1) > _MOST_NODES:
            raise InvalidArgumentError(
                f"{source}: '{text[:80]}' is not a list of counts such as 2(x3),1",
                remedy=f"unset {source}, or srun python train.py",
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _garbled(text: str, source: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{source}: '{text[:80]}' is not a list of nodes such as node[01-03,07],gpu5", remedy="MASTER_ADDR=node1"
    )
