"""The actors: a worker runs the driver's functions as one rank of a job; a server reduces."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._core import __version__
from paceline._internal.netif import address_of
from paceline.errors import InvalidArgumentError
from paceline.launch.checks import Ports, machine
from paceline.launch.variables import stale

SIGNATURE = "paceline_actor"
"""Attribute of an exception with the name of the actor that raised it, kept by all actors that need the result."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an actor runs, according to itself."""

    actor: str
    """Ray's id of the actor."""
    node: str
    """Ray's id of the node."""
    address: str
    """Address of the node, as Ray knows it."""
    host: str
    pid: int
    machine: str
    """Identifier of the machine and its network."""
    gpus: Sequence[str] = ()
    version: str = field(default=__version__)

    def __str__(self) -> str:
        """Return the place in the form that the runtime's messages use for processes."""
        return f"host {self.host}, pid {self.pid}"


class Actor:
    """Common base of workers and servers. Ray turns it into an actor, with its own process."""

    def place(self) -> Place:
        """Return where this actor runs."""
        import ray

        context = ray.get_runtime_context()
        gpus = tuple(str(one) for one in context.get_accelerator_ids().get("GPU", ()))
        address = ray.util.get_node_ip_address()
        return Place(
            actor=context.get_actor_id(),
            node=context.get_node_id(),
            address=address,
            host=socket.gethostname(),
            pid=os.getpid(),
            machine=machine(),
            gpus=gpus,
        )

    def interface(self, wanted: str) -> str:
        """Return this host's address for an interface, a network or an address. Raises InvalidArgumentError."""
        return address_of(wanted, "interface")

    def ports(self, wanted: int | None = None) -> tuple[int, int]:
        """Return two free ports, for the rendezvous and for torch's store. Raises InvalidArgumentError."""
        from paceline.launch.checks import Problem

        try:
            ports = Ports(wanted)
        except Problem as problem:
            raise InvalidArgumentError(str(problem)) from None
        ports.release()
        return ports.rendezvous, ports.master

    def enter(self, variables: Mapping[str, str]) -> None:
        """Take a place in a job, without variables of another job or of the driver."""
        for name in [name for name in os.environ if stale(name) or name.startswith("PACELINE_")]:
            del os.environ[name]
        os.environ.update(variables)

    @contextlib.contextmanager
    def signed(self) -> Iterator[None]:
        """Add this actor's name to exceptions that leave the block."""
        import ray

        try:
            yield
        except Exception as error:
            with contextlib.suppress(AttributeError):  # Classes without a dictionary.
                setattr(error, SIGNATURE, ray.get_runtime_context().get_actor_id())
            raise

    def leave(self) -> None:
        """Leave every job of this process, so that other ranks notice at once; write timelines."""
        leave()


class Worker(Actor):
    """A rank."""

    def __init__(self) -> None:
        """Start without an executable object."""
        self.executable: Any = None

    def make(self, kind: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Create the object that `execute` passes to functions."""
        self.executable = kind(*args, **kwargs)

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return the function's result. Raises its exceptions, and RuntimeError if it calls `sys.exit`."""
        try:
            return self.attempt(function, args, kwargs)
        except SystemExit as leaving:  # Ray would take it for the end of the process.
            raise RuntimeError(f"the function called sys.exit({leaving.code!r:.80}); return instead") from None

    def attempt(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return the function's result; if it raises, leave this rank's jobs, so that others do not wait for it."""
        try:
            return function(*args, **kwargs)
        except BaseException:
            leave()
            raise

    def execute(self, function: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Do as `call`, with the executable as the only argument."""
        return self.call(function, (self.executable,), {})


class Server(Actor):
    """A parameter server."""

    def serve(self) -> None:
        """Serve until this actor is killed. Raises JobError, InvalidArgumentError."""
        from paceline.job.server import serve

        serve()


def leave() -> None:
    """Leave all jobs of this process: Horovod's, those of torch.distributed and those of `paceline.job`."""
    import sys

    from paceline.job import job

    # A module that has not been imported has joined nothing.
    if "paceline.torch" in sys.modules:
        import torch.distributed

        from paceline.torch import hvd

        hvd.shutdown()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    for joined in list(job._jobs):
        joined.close()


@dataclass(frozen=True)
class Left:
    """A worker of an elastic job has left before the end, on request or with its own exit code."""

    code: int


class Member(Worker):
    """A worker of an elastic job, whose rank the driver decides for each world."""

    def join(self, variables: Mapping[str, str], interface: str | None) -> None:
        """Like `enter`; the driver assigns the rank later. `interface`: None for the node's address."""
        import ray

        own = ray.util.get_node_ip_address() if interface is None else self.interface(interface)
        self.enter({**variables, "PACELINE_INTERFACE": own})

    def run(self, call: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]) -> tuple[int, Any] | Left:
        """Return the final rank, and the function's result."""
        from paceline.job.elastic_member import membership

        try:
            result = self.attempt(*call)
        except SystemExit as leaving:
            return Left(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))
        member = membership()
        place = member.place if member is not None else None
        return (place.rank if place is not None else 0), result
