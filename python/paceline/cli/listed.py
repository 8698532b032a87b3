"""Words after `paceline list KIND`: the name of one, or parts of the names of those that are listed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import click

from paceline.catalog.builtin_names import key
from paceline.cli.completion import complete
from paceline.cli.usage import called
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

    Raises InvalidArgumentError, for one word that of `find`, if it is no name and nothing has all words.
    """
    if not name:
        return list(every()), False
    try:
        return [find(" ".join(name))], True
    except InvalidArgumentError as unknown:
        if not (matching := having(name, every(), names)):
            if len(name) > 1:
                raise _nothing(name, every(), names, unknown) from None
            raise
        return matching, False


def having(name: Sequence[str], every: Iterable[T], names: Callable[[T], Iterable[str]]) -> list[T]:
    """Return those of which each word is a part of a name; case, hyphens and spaces aside."""
    wanted = [_plain(word) for word in name]
    return [one for one in every if all(any(word in _plain(own) for own in names(one)) for word in wanted)]


def _nothing(
    name: Sequence[str], every: Iterable[T], names: Callable[[T], Iterable[str]], unknown: InvalidArgumentError
) -> InvalidArgumentError:
    """Return the error about words that no name has all of.

    Its remedy has those of the words that one name has, and the nearest name, which `unknown`, the error about all as
    one name, has.
    """
    some, kept = list(every), list[str]()
    for word in name:
        if having([*kept, word], some, names):
            kept.append(word)
    near, listed, _ = (unknown.remedy or "").partition(" (list: ")
    ways = [shlex.join([*called(click.get_current_context()).split(), *kept]), *([near] if listed else [])]
    return InvalidArgumentError(f"nothing has all of '{' '.join(name):.80}' in its name", remedy=", or ".join(ways))


def _plain(text: str) -> str:
    return key(text).replace(" ", "")
