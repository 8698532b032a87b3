"""A worker's side of asynchronous training: messages to the servers of its job."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline._core import Communicator, Engine, Operation
from paceline.async_ps.protocol import (
    CONTROL,
    DATA,
    GROUP,
    REPLY,
    REPLY_BYTES,
    TEXT,
    WEIGHTS,
    Kind,
    ModelSpec,
    Reply,
    Request,
    State,
)
from paceline.async_ps.report import ANSWER
from paceline.errors import JobError
from paceline.job.arrays import Region, memory

if TYPE_CHECKING:
    from paceline.job.settings import Settings

_PATIENCE = 3
"""A worker waits so many time limits for an answer, as a server may wait one for other workers."""


@dataclass(frozen=True)
class Chunk:
    """Memory of the worker that holds one server's data, and its owner."""

    regions: Sequence[Region]
    """Addresses and bytes."""
    owner: object


class Servers:
    """The servers of a job, as one worker sees them. One thread at a time waits for their answers."""

    def __init__(self, engine: Engine, workers: int, settings: Settings) -> None:
        """Waits for nobody. `workers`: ranks that train."""
        self.count = settings.server_processes
        self.staleness = settings.bound
        self._workers = workers
        self._engine = engine
        self._limit_s = _PATIENCE * settings.timeout_s
        self._start_limit_s = max(self._limit_s, settings.start_limit_s)
        self._group: Communicator | None = engine.with_servers(GROUP)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._models = 0

    def new_model(self) -> int:
        """Return the number of another model of this worker."""
        self._models += 1
        return self._models - 1

    def describe(
        self,
        model: int,
        specs: Sequence[ModelSpec],
        digests: Sequence[str],
        states: Sequence[Sequence[State]],
        data: Sequence[Chunk | None],
    ) -> None:
        """Take part in the training of a model; arguments by server. Returns once the servers have its parameters.

        Args:
            model: Number of the model.
            specs: What each server is to hold.
            digests: Of this worker's parameters at each server.
            states: Of the optimizer, as they follow the parameters.
            data: Parameters and states, from worker 0.

        Raises:
            JobError: The model differs from that of another worker; a process is gone.
        """
        with self._turn():
            for server, spec in enumerate(specs):
                text = bytearray(spec.packed(states[server], digests[server]))
                self._request(server, Request(kind=Kind.MODEL, model=model, size=len(text)))
                self._send(server, DATA, _chunk(text), "the description of a model")
                chunk = data[server]
                if chunk is not None:
                    self._send(server, DATA, chunk, "the first parameters")
            for server in range(len(specs)):
                # A server that has just been started still imports torch.
                self._text(server, "the first parameters", self._start_limit_s)

    def push(self, server: int, request: Request, chunk: Chunk, name: str) -> None:
        """Send a gradient, without waiting. Its memory must not change before the next `pull` has returned."""
        with self._turn():
            self._request(server, request)
            self._send(server, DATA, chunk, f"the gradient of '{name}'")

    def pull(self, requests: Sequence[Request], targets: Sequence[Chunk]) -> None:
        """Receive all parameters, once the next iteration may start. Arguments by server.

        Raises JobError: another worker is missing for too long; a process is gone.
        """
        self.begin_pull(requests, targets).wait()

    def begin_pull(self, requests: Sequence[Request], targets: Sequence[Chunk]) -> Pull:
        """Request all parameters without waiting for them. Arguments by server."""
        with self._turn():
            for server, request in enumerate(requests):
                self._request(server, request)
            replies = [self._receive_reply(server, ANSWER) for server in range(len(requests))]
            # Posted at once, so that nothing has to be copied on its way.
            weights = [
                self._receive(server, WEIGHTS, target, "the parameters")
                for server, target in enumerate(targets)
                if target.regions
            ]
        return Pull(self, replies, weights)

    def complete(self, replies: Sequence[tuple[bytearray, Operation]], weights: Sequence[Operation]) -> None:
        """Wait for a pull. Raises JobError."""
        with self._turn():
            for server, (reply, operation) in enumerate(replies):
                operation.wait()
                self._check(server, reply)
            for each in weights:
                each.wait()

    def states(self, server: int, model: int) -> list[State]:
        """Request the optimizer's states and return their description; `values` receives them."""
        with self._turn():
            self._request(server, Request(kind=Kind.STATES, model=model))
            return [State(*entry) for entry in self._text(server, "the optimizer's states")]

    def values(self, server: int, chunk: Chunk) -> None:
        """Receive the tensors among states."""
        with self._turn():
            self._receive(server, WEIGHTS, chunk, "the optimizer's states").wait()

    def report(self, server: int, model: int, *, order: bool) -> dict[str, Any]:
        """Return what a server has applied."""
        with self._turn():
            self._request(server, Request(kind=Kind.REPORT, model=model, size=int(order)))
            report: dict[str, Any] = self._text(server, "the report of a server")
            return report

    def finish(self) -> None:
        """Tell the servers that this worker pushes nothing more, so that no worker waits for it."""
        with self._turn():
            for server in range(self.count):
                self._request(server, Request(kind=Kind.FINISH))

    def leave(self) -> None:
        """Tell the servers that this worker requests nothing more. Idempotent; a forked process tells nothing."""
        if os.getpid() != self._process:
            return
        with self._turn():
            if self._group is None:
                return
            try:
                sent = [self._request(server, Request(kind=Kind.LEAVE)) for server in range(self.count)]
                for each in sent:
                    each.wait(self._limit_s)
            finally:
                self._group = None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for other threads. In a forked process, whoever holds the lock may not exist."""
        if os.getpid() != self._process:
            raise JobError(
                "this process was forked from a rank, and is not itself one", remedy="the spawn or forkserver method"
            )
        with self._lock:
            yield

    def _live(self) -> Communicator:
        if self._group is None:
            raise JobError("the job has been closed", remedy="hvd.init()")
        return self._group

    def _request(self, server: int, request: Request) -> Operation:
        return self._send(server, CONTROL, _chunk(request.packed()), "a request")

    def _send(self, server: int, tag: int, chunk: Chunk, label: str) -> Operation:
        return self._live().submit(
            "send",
            inputs=chunk.regions,
            root=self._workers + server,
            tag=tag,
            label=label,
            # A description may have to wait for a server's start, and everything behind it.
            timeout_s=self._start_limit_s,
            keep=chunk.owner,
        )

    def _receive(self, server: int, tag: int, chunk: Chunk, label: str, limit_s: float | None = None) -> Operation:
        return self._live().submit(
            "recv",
            outputs=chunk.regions,
            root=self._workers + server,
            tag=tag,
            label=label,
            timeout_s=limit_s or self._limit_s,
            keep=chunk.owner,
        )

    def _receive_reply(self, server: int, label: str, limit_s: float | None = None) -> tuple[bytearray, Operation]:
        reply = bytearray(REPLY_BYTES)
        return reply, self._receive(server, REPLY, _chunk(reply), label, limit_s)

    def _check(self, server: int, message: bytearray) -> Any:  # noqa: ANN401 - JSON
        """Return the text of an answer. Raises JobError if the server refused the request."""
        reply = Reply.parsed(message)
        if not reply.size:
            return None
        text = bytearray(reply.size)
        self._receive(server, TEXT, _chunk(text), "the text of an answer").wait()
        if reply.failed:
            end = reply.size - reply.remedy
            # If this rank leaves because of that, the others learn it.
            self._engine.note_cause(text[:end].decode(errors="replace"))
            raise JobError(text[:end].decode(errors="replace"), remedy=text[end:].decode(errors="replace") or None)
        try:
            return json.loads(bytes(text))
        except (ValueError, RecursionError) as error:
            raise JobError(f"an answer that no server sends: {error}") from None

    def _text(self, server: int, label: str, limit_s: float | None = None) -> Any:  # noqa: ANN401 - JSON
        reply, operation = self._receive_reply(server, label, limit_s)
        operation.wait()
        return self._check(server, reply)


class Pull:
    """Parameters that a worker has requested."""

    def __init__(
        self, servers: Servers, replies: Sequence[tuple[bytearray, Operation]], weights: Sequence[Operation]
    ) -> None:
        """Messages that have been posted: the answers by server, and the parameters."""
        self._servers, self._replies, self._weights = servers, replies, weights

    def done(self) -> bool:
        """Return whether `wait` returns at once, or raises."""
        if not all(operation.done() for _, operation in self._replies):
            return False
        refused = any(Reply.parsed(reply).failed for reply, _ in self._replies)
        return refused or all(each.done() for each in self._weights)

    def wait(self) -> None:
        """Return once all parameters are here. Raises JobError: a server refused; a process is gone."""
        self._servers.complete(self._replies, self._weights)


def _chunk(message: bytearray) -> Chunk:
    return Chunk(memory(message, "message").regions, message)
