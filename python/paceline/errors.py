"""The exceptions that Paceline raises; `PacelineError` is the base class of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from paceline._internal.lazy import public_names

__all__ = ["InternalError", "InvalidArgumentError", "JobError", "PacelineError", "Source"]

__dir__ = public_names(__name__)


Kind = Literal["flag", "variable", "keyword", "key"]
TRY = "  try: "
"""Begins the line below an error: what to type instead."""
_SETTING = re.compile(r"\{([a-z][a-z_]*)(?:=([^{}]*))?\}")
"""A setting in a remedy, with or without a value: `{sharding=zero3}`, `{cluster}`."""
_DROPPED = re.compile(r"drop (\{[a-z][a-z_]*\}(?: and \{[a-z][a-z_]*\})*)")
"""Settings to drop, in a remedy."""
_THIS = "this"
"""Stands for the setting that an error is about."""


class PacelineError(Exception):
    """Base class of every error that Paceline raises on purpose.

    `str()` is one line that says what is wrong. The remedy is a note (PEP 678), so that a traceback ends with both:

        paceline.errors.InvalidArgumentError: unknown trace 'resnet-5'
          try: resnet-50

    Args:
        args: The message.
        remedy: What to type instead, in a few words that can be pasted: an option, a keyword, a command. Settings in
            braces, `{sharding=zero3}`, are spelled as the caller spells settings; `{this=8}` is the one that the error
            is about.
    """

    _remedy: str | None = None
    _sources: Mapping[str, Source] = {}

    def __init__(self, *args: object, remedy: str | None = None) -> None:
        """See the class."""
        super().__init__(*args)
        self._remedy = remedy
        self._show_remedy()

    @property
    def remedy(self) -> str | None:
        """Text to type instead, as the caller spells it; None: nothing is known."""
        return self.remedy_as(self._caller())

    def remedy_as(self, kind: Kind) -> str | None:
        """Return the remedy as a certain kind of caller spells it.

        Args:
            kind: How settings are given: by a `flag`, a `variable`, a `keyword` or a `key`.

        Returns:
            One line without the word `try`; None if no remedy is known.
        """
        if self._remedy is None:
            return None
        remedy = _DROPPED.sub(lambda match: self._dropped(match[1]), self._remedy)
        return _SETTING.sub(lambda match: self._spelled(kind, match[1], match[2]), remedy)

    def _dropped(self, names: str) -> str:
        """Return what drops settings: what a trainer's file says can only be switched off, or changed there."""
        from paceline.settings.table import OFF

        parts = []
        for name in _SETTING.findall(names):
            source = self._source_of(name[0])
            setting = self._setting_of(name[0])
            if source is None or source.of_file is None:
                parts.append(f"drop {{{name[0]}}}")
            elif setting in OFF:
                parts.append(f"{{{name[0]}={OFF[setting]}}}")
            else:
                parts.append(f"drop {source.of_file}" if source.of_file else f"another {{{name[0]}}}")
        is_plain = all(one.startswith("drop {") for one in parts)
        return f"drop {names}" if is_plain else " and ".join(parts)

    def _setting_of(self, name: str) -> str:
        """Return the setting that a name in braces stands for."""
        return name

    def _source_of(self, name: str) -> Source | None:
        """Return where the value of a setting in braces came from; None if it is not known."""
        return self._sources.get(name)

    def _spelled(self, kind: Kind, name: str, value: str | None) -> str:
        if name == _THIS:
            return value or ""
        source = self._sources.get(name)
        typed = source.name if source is not None and source.kind == kind else _name_of(kind, name)
        return _spelled(kind, typed, value)

    def _set_remedy(self, remedy: str) -> None:
        """Give the error a remedy, unless it has one."""
        if self._remedy is None:
            self._remedy = remedy
            self._show_remedy()

    def _caller(self) -> Kind:
        return "keyword"

    def _show_remedy(self) -> None:
        """Make the remedy the last note."""
        notes = [note for note in getattr(self, "__notes__", ()) if not note.startswith(TRY)]
        if (remedy := self.remedy) is not None:
            notes.append(f"{TRY}{remedy}")
        if notes:
            self.__notes__ = notes


def _name_of(kind: Kind, name: str) -> str:
    """Return a setting's name on the command line, in the environment, in Python or TOML."""
    from paceline.settings.table import SETTINGS

    setting = SETTINGS.get(name)
    if setting is not None:
        return setting.source(kind).name or name
    return f"--{name.replace('_', '-')}" if kind == "flag" else name


def _spelled(kind: Kind, name: str, value: str | None) -> str:
    """Return a name, and a value of it, as they are written on the command line, in the environment, Python or TOML."""
    if value is None:
        return name
    if kind == "flag":
        return f"{name} {value}"
    if kind == "variable":
        return f"{name}={value}"
    is_bare = re.fullmatch(r"[A-Z]+|[\d.]+|True|False", value) is not None
    quoted = value if is_bare else f"'{value}'" if kind == "keyword" else f'"{value}"'
    return f"{name}={quoted}" if kind == "keyword" else f"{name} = {quoted}"


@dataclass(frozen=True)
class Source:
    """Where the value of a setting came from, spelled as the user spelled it."""

    kind: Kind
    """A command-line flag, an environment variable, a Python keyword, or a key in a file."""
    name: str
    """`--chunk`, `PACELINE_CHUNK` or `chunk`."""
    where: str = ""
    """For a key, and for a value from a trainer's file: the file and the place in it."""
    of_file: str | None = None
    """Of a value from a trainer's file: its field and the file, empty for the trainer's default; None: it was typed."""
    words: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Words of such a value, each with the place of the field that has it, where several fields make the value."""

    def __str__(self) -> str:
        """Its name in messages."""
        return f"{self.where}: {self.name}" if self.where else self.name

    def about(self, reason: str) -> str:
        """Return its name in a message.

        Args:
            reason: What is wrong, which may quote a word of one of its fields.
        """
        where = next((place for word, place in self.words if f"'{word}'" in reason), "")
        return f"{where}: {self.name}" if where else str(self)


class InvalidArgumentError(PacelineError, ValueError):
    """A request cannot be carried out as given; the message names the argument, file or field.

    Raised for unknown names, values out of range, malformed files, and options that would have no effect. It is a
    `ValueError`, so code that does not know Paceline can catch it.

    Args:
        reason: What is wrong, in a few words, without the name of the setting.
        setting: The setting's name in `paceline.settings.table`, if the error is about one.
        source: Where its value came from. Without it, messages name the setting itself.
        place: The place in a document that is wrong, such as `workers[0].gradients[2].bytes`, which the reason names,
            too.
        remedy: What to type instead, as in `PacelineError`.

    Example:
        >>> import paceline
        >>> try:
        ...     paceline.load_trace("resnet5")
        ... except paceline.InvalidArgumentError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        unknown trace 'resnet5'...
    """

    def __init__(
        self,
        reason: str,
        *,
        setting: str | None = None,
        source: Source | None = None,
        place: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """See the class."""
        self.setting = setting
        self.source = source
        self.place = place
        self.context: tuple[str, ...] = ()
        super().__init__(reason, remedy=remedy)

    def _caller(self) -> Kind:
        return "keyword" if self.source is None else self.source.kind

    def _spelled(self, kind: Kind, name: str, value: str | None) -> str:
        if name != _THIS or self.setting is None:
            return super()._spelled(kind, name, value)
        typed = self.source is not None and self.source.kind == kind
        own = self.source.name if self.source is not None and typed else _name_of(kind, self.setting)
        return _spelled(kind, own, value)

    def _setting_of(self, name: str) -> str:
        return self.setting or name if name == _THIS else name

    def _source_of(self, name: str) -> Source | None:
        return self.source if name == _THIS else super()._source_of(name)

    @property
    def reason(self) -> str:
        """The message without the name of the setting and its source."""
        return str(self.args[0])

    def at(self, setting: str, source: Source | None = None) -> InvalidArgumentError:
        """Record which setting this error is about, unless that is already known.

        Args:
            setting: The setting's name.
            source: Where its value came from.

        Returns:
            The error itself.
        """
        if self.setting is None:
            self.setting = setting
        if self.source is None and self.setting == setting:
            self.source = source
        self._show_remedy()
        return self

    def know(self, sources: Mapping[str, Source]) -> None:
        """Spell the settings of the remedy as they were given: `--gpus`, not `--workers`.

        Args:
            sources: Where the values of settings came from, by the setting's name.
        """
        self._sources = {**sources, **self._sources}
        self._show_remedy()

    def within(self, context: str) -> InvalidArgumentError:
        """Put a context before the message.

        Args:
            context: Where the error happened, such as the scenario of a sweep.

        Returns:
            The error itself.
        """
        self.context = (context, *self.context)
        return self

    def __str__(self) -> str:
        """Context, source or setting, and reason."""
        name = self.source.about(self.reason) if self.source is not None else self.setting
        return ": ".join([*self.context, *([name] if name else []), self.reason])


@contextmanager
def naming(sources: Mapping[str, Source]) -> Iterator[None]:
    """Make errors about a setting that leave the block name its source."""
    try:
        yield
    except InvalidArgumentError as error:
        if error.setting is not None and error.setting in sources:
            error.at(error.setting, sources[error.setting])
        error.know(sources)
        raise


class JobError(PacelineError, RuntimeError):
    """A job failed; the message names the ranks and hosts that caused it."""


class InternalError(PacelineError):
    """A bug in Paceline itself. Please report it."""
