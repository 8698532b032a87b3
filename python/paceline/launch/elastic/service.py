"""The driver's socket, where workers request their places and exchange their addresses.

It has no thread. The caller, which starts processes, waits until `fileno` is readable or `patience` is over, and calls
`pump`, which returns what only the caller can do: start and kill processes, tell the user, and end the job.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable, Iterable
from dataclasses import asdict

from paceline._internal.netif import endpoint
from paceline._internal.operating_system import LIVE, OperatingSystem, keep_alive
from paceline.job.elastic_protocol import MOST_BLOB, MOST_UNPROVED, Decoder, Message, encode, proof, proves
from paceline.launch.elastic.driver import Driver
from paceline.launch.elastic.roster import (
    Action,
    End,
    Exit,
    Give,
    Kill,
    Limits,
    Notify,
    Release,
    Retire,
    Say,
    Slot,
    Start,
)

_PROVE_S = 10.0
"""Time for a connection to prove that it is a worker's."""
_BEAT_S = 5.0
"""Interval of keep-alive messages to waiting workers."""
_MOST_STRANGERS = 256
"""Most unauthenticated connections at once. Beyond this, the oldest gives way to the next."""
_KEPT_S = 0.5
"""Even so, a connection is kept this long, while new ones wait in the kernel's queue: a worker must be able to answer,
whatever the rate at which strangers come."""


class _Line:
    """A connection."""

    def __init__(self, connection: socket.socket, nonce: str, now: float) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.decoder = Decoder(MOST_UNPROVED)
        self.waiting = bytearray()
        self.nonce = nonce
        self.worker: int | None = None
        """None until it is authenticated."""
        self.waits = False
        """The deadline for an answer."""
        self.opened = now


class Service:
    """Carries out the decisions of a `Driver` that concern workers."""

    def __init__(
        self,
        limits: Limits,
        *,
        secret: str,
        job: str,
        address: str = "127.0.0.1",
        port: int = 0,
        system: OperatingSystem = LIVE,
    ) -> None:
        """Listen. `secret` is the job's, `job` its name (PACELINE_RUN_ID). Raises OSError."""
        self.driver = Driver(limits)
        self.secret, self.job = secret, job
        self._system = system
        self._listener = system.listen(address, port)
        self._listener.setblocking(False)
        self.endpoint = endpoint(address, self._listener.getsockname()[1])
        """host:port for workers."""
        self._selector = system.selector()
        self._lines: dict[socket.socket, _Line] = {}
        """Oldest first."""
        self._accepting = False
        self._accept_again()
        self._by_worker: dict[int, _Line] = {}
        self._rounds: dict[int, dict[int, str]] = {}
        """Blobs of this round of the last world's exchange, by worker."""
        self._world: list[int] = []
        """Workers of the last world, by rank."""
        self._beat_at = 0.0
        self._left: list[Action] = []

    def environment(self, worker: int) -> dict[str, str]:
        """Return the environment variables of a worker's process, other than PACELINE_SECRET."""
        return {
            "PACELINE_RUN_ELASTIC": self.endpoint,
            "PACELINE_RUN_WORKER": str(worker),
            "PACELINE_RUN_ID": self.job,
        }

    def fileno(self) -> int:
        """Return a descriptor that is readable when `pump` has something to do."""
        return self._selector.fileno()

    def patience(self) -> float | None:
        """Return the seconds until `pump` is due in any case."""
        due = [at for at in (self.driver.patience(),) if at is not None]
        if any(line.waits for line in self._lines.values()):
            due.append(self._beat_at)
        strangers = self._strangers()
        due += [line.opened + _PROVE_S for line in strangers[:1]]
        if not self._accepting:
            due += [line.opened + _KEPT_S for line in strangers[:1]]
        return max(0.0, min(due) - self._system.now()) if due else None

    # Calls of whoever starts processes

    def offer(self, slots: Iterable[Slot]) -> list[Action]:
        """Allow processes in these slots only."""
        self._carry_out(self.driver.offer(slots, self._system.now()))
        return self._take()

    def exited(self, worker: int, how: Exit) -> list[Action]:
        """Handle the end of a worker's process."""
        line = self._by_worker.get(worker)
        while line is not None and line.connection in self._lines:  # what it said before it ended counts
            if not self._serve(line):
                self._drop(line)
        self._carry_out(self.driver.exited(worker, how, self._system.now()))
        return self._take()

    def lost(self, host: str, why: str) -> list[Action]:
        """Handle a host on which nothing can be started any more. Its workers have `exited` before."""
        self._carry_out(self.driver.lost(host, why, self._system.now()))
        return self._take()

    def abandon(self, reason: str) -> list[Action]:
        """End the job."""
        self._carry_out(self.driver.abandon(reason))
        return self._take()

    def pump(self) -> list[Action]:
        """Handle messages and deadlines; return `Start`, `Kill`, `Say` and `End` for the caller to carry out."""
        # Who has said something is heard before others may take its place.
        for key, _ in sorted(self._selector.select(0), key=lambda event: event[0].fileobj is self._listener):
            key.data()
        now = self._system.now()
        for line in self._strangers():
            if now < line.opened + _PROVE_S:
                break
            self._drop(line)
        self._accept_again()
        if now >= self._beat_at:
            self._beat_at = now + _BEAT_S
            for line in list(self._lines.values()):
                if line.waits:
                    self._tell(line, {"wait": True})
        self._carry_out(self.driver.tick(now))
        return self._take()

    def close(self) -> None:
        """Close all connections."""
        for line in list(self._lines.values()):
            self._drop(line)
        if self._accepting:
            self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.close()

    # Connections

    def _strangers(self) -> list[_Line]:
        """Return the connections that are not authenticated, oldest first."""
        return [line for line in self._lines.values() if line.worker is None]

    def _accept(self) -> None:
        strangers = self._strangers()
        if len(strangers) >= _MOST_STRANGERS:
            if self._system.now() < strangers[0].opened + _KEPT_S:
                self._selector.unregister(self._listener)
                self._accepting = False
                return
            self._drop(strangers[0])
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            keep_alive(connection)
            line = _Line(connection, self._system.token(), self._system.now())
            self._lines[connection] = line
            self._selector.register(connection, selectors.EVENT_READ, self._reader(line))
            self._tell(line, {"driver": line.nonce})

    def _accept_again(self) -> None:
        """Accept connections, if there is room for another or the oldest stranger has had its time."""
        if self._accepting:
            return
        strangers = self._strangers()
        if len(strangers) < _MOST_STRANGERS or self._system.now() >= strangers[0].opened + _KEPT_S:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._accepting = True

    def _reader(self, line: _Line) -> Callable[[], object]:
        return lambda: self._serve(line)

    def _serve(self, line: _Line) -> bool:
        """Handle what has arrived; return whether anything had. Drop a connection that is at its end or misused."""
        try:
            self._flush(line)
            try:
                data = line.connection.recv(1 << 16)
            except BlockingIOError:
                return False
            if not data:
                raise ConnectionResetError
            for message in line.decoder.feed(data):
                self._hear(line, message)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self._drop(line)
        return True

    def _drop(self, line: _Line) -> None:
        """Close a connection. That says nothing about the process, which its starter observes."""
        if self._lines.pop(line.connection, None) is not None:
            self._selector.unregister(line.connection)
            line.connection.close()
            if line.worker is not None and self._by_worker.get(line.worker) is line:
                del self._by_worker[line.worker]
                self._carry_out(self.driver.disconnected(line.worker, self._system.now()))

    def _tell(self, line: _Line, message: Message) -> None:
        line.waiting += encode(message)
        with contextlib.suppress(OSError):  # the end of a connection is seen by its reader
            self._flush(line)
        self._watch(line)

    def _flush(self, line: _Line) -> None:
        try:
            while line.waiting:
                del line.waiting[: line.connection.send(line.waiting)]
        except BlockingIOError:
            pass
        self._watch(line)

    def _watch(self, line: _Line) -> None:
        if line.connection in self._lines:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.waiting else 0)
            self._selector.modify(line.connection, events, self._reader(line))

    # Messages of workers. Invalid ones raise ValueError, KeyError or TypeError.

    def _hear(self, line: _Line, message: Message) -> None:
        if line.worker is None:
            self._prove(line, message)
        elif "ask" in message:
            commits = [int(number) for number in message["ask"]]
            line.waits = True
            self._carry_out(
                self.driver.requests_place(
                    line.worker, commits, str(message["why"])[:500], self._system.now(), done=bool(message["done"])
                )
            )
        elif "blob" in message:
            self._blob(line, int(message["generation"]), str(message["blob"]))
        elif "synced" in message:
            self._carry_out(self.driver.synced(line.worker))
            self._tell(line, {"heard": True})
        elif "finished" in message:
            self._carry_out(self.driver.finished(line.worker, self._system.now()))
            self._tell(line, {"heard": True})
        else:
            raise ValueError("an unknown message")

    def _prove(self, line: _Line, message: Message) -> None:
        worker, nonce = message["worker"], str(message["nonce"])
        known = isinstance(worker, int) and worker in self.driver.workers
        if not known or not proves(message["proof"], proof(self.secret, f"worker {worker}", line.nonce, nonce)):
            raise ValueError("a stranger")
        if worker in self._by_worker:  # its other end was cut, which has not been noticed here
            self._drop(self._by_worker[worker])
        line.worker = worker
        line.decoder.most = MOST_BLOB
        self._by_worker[worker] = line
        self._tell(line, {"proof": proof(self.secret, "driver", line.nonce, nonce)})

    def _blob(self, line: _Line, generation: int, blob: str) -> None:
        """Handle a blob of an exchange: when all have sent theirs, each gets all, or none if the world has ended."""
        worker = line.worker
        if worker is None or generation != self.driver.generation or not self.driver.intact:
            self._tell(line, {"void": generation})
            return
        if worker not in self._world:
            raise ValueError("no rank of this world")
        line.waits = True
        self._carry_out(self.driver.gave(worker, self._system.now()))
        given = self._rounds.setdefault(generation, {})
        given[worker] = blob
        if len(given) == len(self._world):
            del self._rounds[generation]
            message = {"blobs": [given[each] for each in self._world], "of": generation}
            for each in self._world:
                self._answer(each, message)

    def _void(self) -> None:
        """Abandon the round of a world that has ended."""
        for generation, given in self._rounds.items():
            for worker in given:
                self._answer(worker, {"void": generation})
        self._rounds.clear()

    def _answer(self, worker: int, message: Message) -> None:
        line = self._by_worker.get(worker)
        if line is not None:
            line.waits = False
            self._tell(line, message)

    def _take(self) -> list[Action]:
        """Return what is left for the caller, in the order in which it was decided."""
        left, self._left = self._left, []
        return left

    def _carry_out(self, actions: Iterable[Action]) -> None:
        """Tell the workers what concerns them; keep the rest for the caller."""
        given = [action for action in actions if isinstance(action, Give)]
        if not self.driver.intact or given:
            self._void()
        if given:
            self._world = [action.worker for action in given]
        for action in actions:
            match action:
                case Give(worker, place):
                    self._answer(worker, {"place": asdict(place)})
                case Notify(worker) if worker in self._by_worker:
                    self._tell(self._by_worker[worker], {"updated": True})
                case Retire(worker) if worker in self._by_worker:
                    self._answer(worker, {"retire": True})
                case Release(worker):
                    self._answer(worker, {"release": True})
                case Retire(worker):
                    self._left.append(Kill(worker))  # it has not connected yet
                case Start() | Kill() | Say() | End():
                    self._left.append(action)
                case _:
                    pass
