"""Command-line options: those of the table of settings, and types for options that only one command has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from paceline import _core
from paceline.cli.completion import complete
from paceline.cli.help_layout import Alias, Sections
from paceline.cli.usage import UsageError
from paceline.errors import InvalidArgumentError, Source
from paceline.settings import kinds
from paceline.settings.kinds import Kind
from paceline.settings.table import REQUIRED, SECTIONS, SETTINGS, Setting, of_place

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    _ParamType = click.ParamType[object]
    _Choice = click.Choice[str]
else:  # before click 8.4 it is not generic
    _ParamType = click.ParamType
    _Choice = click.Choice


class Value(_ParamType):
    """A value that a function converts from text; its InvalidArgumentError names the option."""

    def __init__(self, name: str, parse: Callable[[str], object], *, is_list: bool = False) -> None:
        """`name` says what a value is, as a kind's `words` do; `is_list`: each of several values counts by itself."""
        self.name = name
        self.is_list = is_list
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Text to value."""
        return _converted(self._parse, value, param) if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return what the shell completes."""
        return complete(ctx, param, incomplete)


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
    return Name(kind) if kind.choices else _of(kind)


def option(
    place: str,
    name: str,
    *,
    checked: bool = True,
    filled: bool = False,
    parse: Callable[[str], object] | None = None,
) -> Decorator:
    """The option of a command (`place`) for a setting of the table.

    Args:
        place: The command, as the table calls it.
        name: The setting.
        checked: Whether the text is converted here; otherwise it is checked with the other settings of the job.
        parse: What converts the text instead, where a command accepts less than the table.
        filled: Whether the command gets the default if the option is not given; otherwise it gets None.
    """
    setting = SETTINGS[name]
    use, kind = setting.uses[place], setting.kind_of(place)
    default, words = setting.default_of(place) if filled else None, setting.default_text(place)
    if kind.is_switch and "/" not in setting.flag:
        return click.option(setting.flag, name, is_flag=True, default=None, help=setting.help_of(place))
    text = f"{setting.help_of(place)}{_given_otherwise(words)}"
    if kind.is_switch:
        return click.option(setting.flag, name, default=default, help=text)

    def check(value: object) -> object:
        return setting.check(value, None, place)

    same: dict[str, Any] = {
        "type": Name(kind, check) if kind.choices else _of(kind, parse or (check if checked else str)),
        "metavar": kind.placeholder,
    }
    given = ",".join(map(str, default)) if isinstance(default, tuple) else default
    main = click.option(
        setting.flag,
        name,
        help=text,
        **({"required": True} if use.required else {"default": given}),
        hidden=bool(use.renamed),
        callback=_or_former(setting) if use.former else None,
        **same,
    )
    if use.former:
        takes = _former(setting, use.former)
        former = click.option(use.former, f"former_{name}", hidden=True, expose_value=False, callback=takes, **same)
        return together(main, former)
    if not setting.also_of(place):
        return main
    # `by_current_names` of the table refuses both.
    alias = click.option(f"--{setting.also}", cls=Alias, of=name, help=f"Alias of {setting.flag}.", **same)
    return together(main, alias)


def _given_otherwise(default: str) -> str:
    """Return how the help ends: with the default, or that there is none."""
    if default.startswith(REQUIRED):
        return f"  [{default}]"
    return f"  [default: {default}]" if default else ""


Callback = Callable[[click.Context, click.Parameter, Any], Any]


def _former(setting: Setting, flag: str) -> Callback:
    """Return what takes the value of a former flag, for the option that has taken its place."""

    def call(context: click.Context, _param: click.Parameter, value: object) -> None:
        if value is None:
            return
        if context.params.get(setting.name) is not None:
            raise UsageError(f"{flag} means the same as {setting.flag}", remedy=f"drop {flag}")
        click.echo(f"paceline: warning: {flag} is now called {setting.flag}", err=True)
        context.meta[setting.flag] = flag, value

    return call


def _or_former(setting: Setting) -> Callback:
    """Return what gives an option the value of its former flag. Options that were given are processed first."""

    def call(context: click.Context, _param: click.Parameter, value: object) -> object:
        flag, former = context.meta.get(setting.flag, (None, None))
        if value is not None and flag is not None:
            raise UsageError(f"{flag} means the same as {setting.flag}", remedy=f"drop {flag}")
        return former if value is None else value

    return call


def options(place: str, *names: str, checked: bool = True, filled: bool = False) -> Decorator:
    """The options of a command for several settings, listed in this order by --help."""
    return together(*(option(place, name, checked=checked, filled=filled) for name in names))


def sections(place: str, basic: Sequence[str], others: Sections, notes: Mapping[str, str]) -> Sections:
    """Return the sections of a command that forecasts: `basic` options, and its other settings by their topic.

    Args:
        place: The command.
        basic: Parameters of the first section.
        others: Parameters that stand first in a topic.
        notes: Remarks beside the titles of topics.
    """
    taken = {one.name for one in of_place(place)} - {*basic, *(name for names in others.values() for name in names)}
    topics = {
        title: (*others.get(title, ()), *(name for name in names if name in taken)) for title, names in SECTIONS.items()
    }
    titled = {f"{title} ({notes[title]})" if title in notes else title: names for title, names in topics.items()}
    return {"Basic options": basic, **titled}


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


def _of(kind: Kind, parse: Callable[[str], object] | None = None) -> Value:
    return Value(kind.words, parse or kind.check, is_list=kind.is_list)


def whole(least: int, most: int, words: str = "N") -> Value:
    """Whole numbers in a range."""
    return _of(kinds.whole(least, most, words))


def several(value: Kind) -> Value:
    """Lists of values, separated by commas."""
    return _of(kinds.several(value))


def one_each(value: Kind) -> Value:
    """Lists with a value for each of several things, of which any may be the same."""
    return _of(kinds.several(value, same=lambda _: object()))


def words(text: str) -> list[str]:
    """Names, at least one; the caller decides whether duplicates are allowed."""
    parts = [word.strip() for word in text.split(",") if word.strip()]
    if not parts:
        raise InvalidArgumentError(f"'{text[:80]}' names nothing", remedy="drop {this}")
    return parts


COUNT = whole(1, 100_000)
COUNT_OR_NONE = whole(0, 100_000)
WORDS = Value("NAME,…", words, is_list=True)
POSITIVE = _of(kinds.POSITIVE)
SIZE = Value("SIZE", _core.parse_size)
