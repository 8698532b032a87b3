"""Command-line options: those of the table of settings, and types for options that only one command has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from paceline import _core
from paceline.cli.completion import complete
from paceline.errors import InvalidArgumentError, Source
from paceline.settings import kinds
from paceline.settings.kinds import Kind
from paceline.settings.table import SETTINGS, of_place

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

if TYPE_CHECKING:
    _ParamType = click.ParamType[object]
    _Choice = click.Choice[str]
else:  # before click 8.4 it is not generic
    _ParamType = click.ParamType
    _Choice = click.Choice


class Value(_ParamType):
    """A value that a function converts from text; its InvalidArgumentError names the option."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        """`name` is the placeholder in --help."""
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Text to value."""
        return _converted(self._parse, value, param) if isinstance(value, str) else value


class Name(_Choice):
    """One of several names, which the shell completes."""

    def __init__(self, kind: Kind, check: Callable[[Any], object] | None = None) -> None:
        """Of a kind that has choices; `check` replaces the kind's."""
        super().__init__(kind.choices)
        self._check = check or kind.check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Text to name."""
        return _converted(self._check, value, param)


def _converted(check: Callable[[Any], object], value: object, param: click.Parameter | None) -> object:
    try:
        return check(value)
    except InvalidArgumentError as error:
        if param is None or not param.name:
            raise
        raise error.at(param.name, Source("flag", param.opts[0])) from None


def of_kind(kind: Kind) -> Value | Name:
    """The type of an option whose values are of this kind."""
    return Name(kind) if kind.choices else Value(kind.words, kind.check)


def option(place: str, name: str, *, checked: bool = True, filled: bool = False) -> Decorator:
    """The option of a command (`place`) for a setting of the table.

    Args:
        place: The command, as the table calls it.
        name: The setting.
        checked: Whether the text is converted here; otherwise it is checked with the other settings of the job.
        filled: Whether the command gets the default if the option is not given; otherwise it gets None.
    """
    setting = SETTINGS[name]
    kind, default = setting.kind_of(place), setting.default_of(place) if filled else None
    words = setting.default_text(place)
    if kind.is_switch and "/" not in setting.flag:
        return click.option(setting.flag, name, is_flag=True, default=None, help=setting.help_of(place))
    text = f"{setting.help_of(place)}{f'  [default: {words}]' if words else ''}"
    if kind.is_switch:
        return click.option(setting.flag, name, default=default, help=text)

    def check(value: object) -> object:
        return setting.check(value, None, place)

    type_ = Name(kind, check) if kind.choices else Value(kind.words, check if checked else lambda text: text)
    shown = None if kind.choices else kind.words
    given = ",".join(map(str, default)) if isinstance(default, tuple) else default
    completed = None if kind.choices else complete
    made = click.option(
        setting.flag, name, type=type_, metavar=shown, default=given, help=text, shell_complete=completed
    )
    if not setting.also:
        return made
    # `by_current_names` of the table refuses both.
    also = click.option(
        f"--{setting.also}", type=type_, metavar=shown, help=f"The same as {setting.flag}.", shell_complete=completed
    )
    return together(made, also)


def options(place: str, *names: str, checked: bool = True, filled: bool = False) -> Decorator:
    """The options of a command for several settings, listed in this order by --help."""
    return together(*(option(place, name, checked=checked, filled=filled) for name in names))


def together(*several: Decorator) -> Decorator:
    """Combine several decorators, listed in this order by --help."""
    return lambda command: reduce(lambda done, one: one(done), reversed(several), command)


def flags(place: str, values: Mapping[str, object]) -> dict[str, Source]:
    """The names of a command's settings in messages: their flags, as typed for these values."""
    return {setting.name: setting.source("flag", values.get(setting.name)) for setting in of_place(place)}


@contextmanager
def naming_option(flag: str) -> Iterator[None]:
    """Make errors that leave the block, and are about no setting yet, name this option."""
    try:
        yield
    except InvalidArgumentError as error:
        raise error.at(flag.removeprefix("--"), Source("flag", flag)) from None


def _of(kind: Kind) -> Value:
    return Value(kind.words, kind.check)


def whole(least: int, most: int, words: str = "N") -> Value:
    """Whole numbers in a range."""
    return _of(kinds.whole(least, most, words))


def several(value: Kind) -> Value:
    """Lists of values, separated by commas."""
    return _of(kinds.several(value))


def or_auto(kind: Kind) -> Value:
    """A factor, or None for `auto`."""
    return Value(f"auto|{kind.words}", lambda text: None if text == "auto" else kind.check(text))


def words(text: str) -> list[str]:
    """Names, at least one; the caller decides whether duplicates are allowed."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise InvalidArgumentError(f"'{text[:80]}' names nothing; leave the option out for its default")
    return found


COUNT = whole(1, 100_000)
COUNT_OR_NONE = whole(0, 100_000)
SCALE = kinds.factor("4 means four times as long")
SHRINK = kinds.factor("4 means a quarter of the bytes")
WORDS = Value("NAME,…", words)
SECONDS = Value("TIME", _core.parse_time)
POSITIVE = _of(kinds.POSITIVE)
SIZE = Value("SIZE", _core.parse_size)
BUCKET_SIZE = _of(kinds.BUCKET_SIZE)
