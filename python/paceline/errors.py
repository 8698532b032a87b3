"""The exceptions that Paceline raises; `PacelineError` is the base class of all of them."""

from __future__ import annotations

from paceline._internal.lazy import public_names

__all__ = ["InternalError", "InvalidArgumentError", "JobError", "PacelineError"]

__dir__ = public_names(__name__)


class PacelineError(Exception):
    """Base class of every error that Paceline raises on purpose."""


class InvalidArgumentError(PacelineError, ValueError):
    """A request cannot be carried out as given; the message names the argument, file or field, and the remedy.

    Raised for unknown names, values out of range, malformed files, and options that would have no effect. It is a
    `ValueError`, so code that knows nothing of Paceline can catch it.

    Example:
        >>> import paceline
        >>> try:
        ...     paceline.load_trace("resnet5")
        ... except paceline.InvalidArgumentError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        unknown trace 'resnet5' (did you mean 'resnet-50'?)...
    """


class JobError(PacelineError, RuntimeError):
    """A job failed; the message names the ranks and hosts that caused it."""


class InternalError(PacelineError):
    """A defect in Paceline itself. Please report it."""
