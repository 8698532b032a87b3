"""Failures of an emulated cluster, other than invalid input (`InvalidArgumentError`)."""

from __future__ import annotations

from paceline.cli.usage import CommandError


class CannotEmulateError(CommandError):
    """This machine does not permit network namespaces, or lacks what they need; the message says which."""

    exit_code = 77


class ClusterError(CommandError):
    """A cluster did not come up, or does not answer."""
