"""The exceptions that Paceline raises; `PacelineError` is the base of all of them."""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors that Paceline raises on purpose."""


class InvalidArgumentError(PacelineError, ValueError):
    """The request cannot be carried out as given; the message names the argument, file or field, and the remedy.

    Raised for unknown names, values out of range, malformed files, and options that have no effect.
    """


class JobError(PacelineError, RuntimeError):
    """A job failed; the message names the ranks and hosts that caused it."""


class InternalError(PacelineError):
    """A defect of Paceline itself: please report it."""
