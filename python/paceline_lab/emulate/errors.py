"""Failures of an emulated cluster, other than invalid input (`InvalidArgumentError`)."""

from __future__ import annotations

import click


class CannotEmulateError(click.ClickException):
    """This machine does not permit network namespaces, or lacks what they need; the message says which."""

    exit_code = 77


class ClusterError(click.ClickException):
    """A cluster did not come up, or does not answer."""
