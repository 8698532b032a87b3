"""Errors under the names that scripts for Horovod catch."""

from __future__ import annotations

from paceline._core import JobError

HorovodInternalError = JobError
"""A rank died, left, is silent or asked for something else: `except hvd.HorovodInternalError` catches it."""


class NotInitializedError(ValueError):
    """`hvd.init()` has not been called, or `hvd.shutdown()` has."""

    def __init__(self) -> None:
        """Say what to do."""
        super().__init__("Paceline has not been initialized; use hvd.init().")
