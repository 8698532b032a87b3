"""Words after `paceline list KIND`: the name of one, or parts of the names of those that are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import click

from paceline.catalog.builtin_names import key
from paceline.cli.completion import complete
from paceline.errors import InvalidArgumentError

T = TypeVar("T")

words = click.argument("name", nargs=-1, metavar="[NAME|WORD…]", shell_complete=complete)


def chosen(
    name: Sequence[str], find: Callable[[str], T], every: Callable[[], Iterable[T]], names: Callable[[T], Iterable[str]]
) -> tuple[list[T], bool]:
    """Return what words stand for, and whether that is one by its name.

    Args:
        name: The words; none stands for all.
        find: Returns the one of a name. Raises InvalidArgumentError.
        every: Returns all.
        names: Returns what one is called by, of which each word may be a part.

    Raises InvalidArgumentError, which is that of `find`, if it is no name and nothing has all words.
    """
    if not name:
        return list(every()), False
    try:
        return [find(" ".join(name))], True
    except InvalidArgumentError:
        if not (matching := having(name, every(), names)):
            raise
        return matching, False


def having(name: Sequence[str], every: Iterable[T], names: Callable[[T], Iterable[str]]) -> list[T]:
    """Return those of which each word is a part of a name; case, hyphens and spaces aside."""
    wanted = [_plain(word) for word in name]
    return [one for one in every if all(any(word in _plain(own) for own in names(one)) for word in wanted)]


def _plain(text: str) -> str:
    return key(text).replace(" ", "")
