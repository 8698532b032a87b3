"""Selects the Ray cluster: this process's, that of RAY_ADDRESS, or a new one on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline._core import __version__
from paceline._internal.extras import install
from paceline.cli.usage import CommandError
from paceline.errors import InvalidArgumentError, JobError

ADDRESS = "RAY_ADDRESS"
_ANSWER_S = 10.0
"""Time for a connection to an address."""
_SMALLEST_STORE = 80_000_000  # Bytes; Ray refuses less than 75 MiB.


class MissingRayError(CommandError):
    """Ray is not installed; the message says how to install it."""

    exit_code = 77


def library() -> Any:  # noqa: ANN401 - Ray's types are not there where Ray is not
    """Return the module `ray`. Raises MissingRayError, which says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingRayError(f"Ray cannot be imported ({error})", remedy=install("ray")) from None
    return ray


@dataclass(frozen=True)
class Cluster:
    """A connection to a Ray cluster."""

    ray: Any
    own: bool
    """Whether `connect` started it: it then gets no more nodes, and `disconnect` ends it."""
    joined: bool
    """Whether `connect` made the connection; the script's own connection stays open."""

    def disconnect(self) -> None:
        """Stop the cluster or connection that `connect` started. Idempotent."""
        if self.joined and self.ray.is_initialized():
            self.ray.shutdown()


def connect(*, num_cpus: int | None = None, object_store_bytes: int | None = None, output: bool = True) -> Cluster:
    """Use the script's own connection (`ray.init`) or RAY_ADDRESS, or start a cluster on this machine.

    Args:
        num_cpus: CPUs of a cluster started here; by default all cores.
        object_store_bytes: Object store of a cluster started here; by default a share of the memory.
        output: Whether to print the workers' output.

    Returns:
        The connection.

    Raises:
        InvalidArgumentError: RAY_ADDRESS is invalid.
        JobError: No cluster answers there, or none can be started.
        MissingRayError: Ray is not installed.
    """
    ray = library()
    if ray.is_initialized():
        return Cluster(ray, own=False, joined=False)
    address = os.environ.get(ADDRESS) or "local"
    options: dict[str, Any] = {}
    if address == "local":
        # A cluster for this job alone sends no usage reports.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Otherwise Ray's workers have niceness 15 and, on a busy machine, would wait for everything else.
        os.environ.setdefault("RAY_worker_niceness", "0")
        store = None if object_store_bytes is None else max(object_store_bytes, _SMALLEST_STORE)
        options = {"include_dashboard": False, "num_cpus": num_cpus, "object_store_memory": store}
    else:
        _refuse_silent(address)
    try:
        ray.init(address=address, log_to_driver=output, logging_level="ERROR", **options)
    except ValueError as error:
        raise InvalidArgumentError(
            f"{ADDRESS}={address[:80]}: {_first_line(error)}", remedy=f"{ADDRESS}=auto (or host:6379, or local)"
        ) from None
    except (OSError, RuntimeError) as error:  # ConnectionError is an OSError
        if address == "local":
            raise JobError(
                f"Ray cannot be started on this machine: {_first_line(error)}", remedy="ray start --head"
            ) from None
        raise _silent(address, error) from None
    return Cluster(ray, own=address == "local", joined=True)


@contextlib.contextmanager
def connected(**options: Any) -> Iterator[Cluster]:  # noqa: ANN401
    """Connect for the duration of a `with` block."""
    cluster = connect(**options)
    try:
        yield cluster
    finally:
        cluster.disconnect()


def check_version(version: str, where: str) -> None:
    """Refuse a version of Paceline other than this one. Raises InvalidArgumentError."""
    if version != __version__:
        raise InvalidArgumentError(
            f"{where} has paceline {version}, and this is {__version__}", remedy="one version everywhere"
        )


def _refuse_silent(address: str) -> None:
    """Raise JobError if nothing listens at host:port; Ray would end this process after a while without an error."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdecimal():
        return  # For auto and ray://… Ray reports errors itself.
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise _silent(address, error) from None


def _silent(address: str, error: Exception) -> JobError:
    why = _first_line(error)
    return JobError(
        f"{ADDRESS}={address[:80]}: no Ray cluster answers there ({why})",
        remedy=f"ray start --head, or unset {ADDRESS}",
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300].rstrip(". ")
