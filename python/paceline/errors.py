"""The exceptions that Paceline raises; `PacelineError` is the base class of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from paceline._internal.lazy import public_names

__all__ = ["InternalError", "InvalidArgumentError", "JobError", "PacelineError", "Source"]

__dir__ = public_names(__name__)


class PacelineError(Exception):
    """Base class of every error that Paceline raises on purpose."""


@dataclass(frozen=True)
class Source:
    """Where the value of a setting came from, spelled as the user spelled it."""

    kind: Literal["flag", "variable", "keyword", "key"]
    """A command-line flag, an environment variable, a Python keyword, or a key in a file."""
    name: str
    """`--chunk`, `PACELINE_CHUNK` or `chunk`."""
    where: str = ""
    """For a key: the file and the place in it."""

    def __str__(self) -> str:
        """Its name in messages."""
        return f"{self.where}: {self.name}" if self.where else self.name


class InvalidArgumentError(PacelineError, ValueError):
    """A request cannot be carried out as given; the message names the argument, file or field, and the remedy.

    Raised for unknown names, values out of range, malformed files, and options that would have no effect. It is a
    `ValueError`, so code that does not know Paceline can catch it.

    Args:
        reason: What is wrong and what to do about it, without the name of the setting.
        setting: The setting's name in `paceline.settings.table`, if the error is about one.
        source: Where its value came from. Without it, messages name the setting itself.
        place: The place in a document that is wrong, such as `workers[0].gradients[2].bytes`, which the reason names,
            too.

    Example:
        >>> import paceline
        >>> try:
        ...     paceline.load_trace("resnet5")
        ... except paceline.InvalidArgumentError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        unknown trace 'resnet5' (did you mean 'resnet-50'?)...
    """

    def __init__(
        self, reason: str, *, setting: str | None = None, source: Source | None = None, place: str | None = None
    ) -> None:
        """See the class."""
        super().__init__(reason)
        self.setting = setting
        self.source = source
        self.place = place
        self.context: tuple[str, ...] = ()

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
        return self

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
        name = str(self.source) if self.source is not None else self.setting
        return ": ".join([*self.context, *([name] if name else []), self.reason])


@contextmanager
def naming(sources: Mapping[str, Source]) -> Iterator[None]:
    """Make errors about a setting that leave the block name its source."""
    try:
        yield
    except InvalidArgumentError as error:
        if error.setting is not None and error.setting in sources:
            error.at(error.setting, sources[error.setting])
        raise


class JobError(PacelineError, RuntimeError):
    """A job failed; the message names the ranks and hosts that caused it."""


class InternalError(PacelineError):
    """A bug in Paceline itself. Please report it."""
