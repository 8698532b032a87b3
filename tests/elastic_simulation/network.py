"""Virtual sockets with latency, finite buffers, partial writes, resets and partitions; and selectors for them."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any

from elastic_simulation.world import Task, World

BUFFER = 300
"""Bytes in flight on a connection, few enough that writes are partial."""
KEEP_ALIVE_S = 30.0


class File:
    """Something that becomes readable or writable."""

    def __init__(self, world: World) -> None:
        """Nobody watches it yet."""
        self.world = world
        self.watchers: list[Selector] = []
        self.number = world.descriptor(self)

    def fileno(self) -> int:
        """Return its descriptor."""
        return self.number

    def ready(self) -> int:
        """Return the events that are true now."""
        raise NotImplementedError

    def changed(self) -> None:
        """Tell whoever waits."""
        for watcher in list(self.watchers):
            if watcher.any_ready():
                watcher.wake()


class Selector(File):
    """What `selectors.DefaultSelector` is for real files. One task waits for it."""

    def __init__(self, world: World, task: Task) -> None:
        """`task` is the one that waits."""
        super().__init__(world)
        self.task = task
        self._keys: dict[File, selectors.SelectorKey] = {}

    def _file(self, what: Any) -> File:
        return what if isinstance(what, File) else self.world.files[what if isinstance(what, int) else what.fileno()]

    def register(self, what: Any, events: int, data: Any = None) -> None:
        file = self._file(what)
        assert file not in self._keys
        self._keys[file] = selectors.SelectorKey(what, file.number, events, data)
        file.watchers.append(self)

    def modify(self, what: Any, events: int, data: Any = None) -> None:
        file = self._file(what)
        self._keys[file] = selectors.SelectorKey(what, file.number, events, data)
        if self.any_ready():
            self.wake()

    def unregister(self, what: Any) -> None:
        file = self._file(what)
        del self._keys[file]
        file.watchers.remove(self)

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return {key.fileobj: key for key in self._keys.values()}

    def ready(self) -> int:
        return selectors.EVENT_READ if self.any_ready() else 0

    def any_ready(self) -> bool:
        return any(file.ready() & key.events for file, key in self._keys.items())

    def wake(self) -> None:
        self.task.wake()
        self.changed()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # A clock that stands still would not get over a rounding error, as a real one does.
        until = None if timeout is None else self.world.now + (max(timeout, 1e-6) if timeout > 0 else 0.0)
        while True:
            values = [(key, events) for file, key in self._keys.items() if (events := file.ready() & key.events)]
            if values or (until is not None and self.world.now >= until):
                self.task.spun()
                if not self.world.calm and len(values) > 1:
                    self.world.random.shuffle(values)
                return values
            self.task.wait(until)

    def close(self) -> None:
        for file in list(self._keys):
            file.watchers.remove(self)
        self._keys.clear()


class Link:
    """What a connection runs over, both ways: it may be partitioned for a while, or cut."""

    def __init__(self, world: World) -> None:
        """A link without trouble."""
        self.world = world
        self.blocked_until = 0.0

    def block(self, seconds: float) -> None:
        """Hold everything back for so long."""
        self.blocked_until = max(self.blocked_until, self.world.now + seconds)

    def arrival(self) -> float:
        """Return when something that is sent now arrives."""
        return max(self.world.now, self.blocked_until) + self.world.delay()


class Connection(File):
    """One end of a TCP connection."""

    def __init__(self, world: World, link: Link, task: Task | None) -> None:
        """`task` waits in blocking calls; None for an end that does not block."""
        super().__init__(world)
        self.link, self.task = link, task
        self.peer: Connection | None = None
        self.inbox = bytearray()
        self.flying = 0
        self.end = False
        self.error: OSError | None = None
        self.closed = False
        self._arrived = 0.0

    def setblocking(self, _blocks: bool) -> None:
        """The service's ends never block; a member's have a task."""

    def settimeout(self, _seconds: float) -> None:
        """A member waits for writable buffers as long as its caller says."""

    def setsockopt(self, *_option: Any) -> None:
        """Keep-alives are always on."""

    def ready(self) -> int:
        readable = selectors.EVENT_READ if self.inbox or self.end or self.error else 0
        return readable | (selectors.EVENT_WRITE if self.error or self.flying < BUFFER else 0)

    def recv(self, most: int) -> bytes:
        self._check()
        if self.inbox:
            some = most if self.world.calm else self.world.random.randint(1, max(1, min(most, 2 * len(self.inbox))))
            data = bytes(self.inbox[:some])
            del self.inbox[:some]
            return data
        if self.error is not None:
            raise self.error
        if self.end:
            return b""
        raise BlockingIOError

    def send(self, data: Any) -> int:
        self._check()
        if self.error is not None:
            raise self.error
        room = BUFFER - self.flying
        if room <= 0:
            raise BlockingIOError
        some = bytes(data[:room])
        self.flying += len(some)
        self._carry(lambda peer: peer._take(some))
        return len(some)

    def sendall(self, data: bytes) -> None:
        assert self.task is not None
        view, until = memoryview(data), self.world.now + 60.0
        while view:
            try:
                view = view[self.send(view) :]
            except BlockingIOError:
                if self.world.now >= until:
                    raise TimeoutError("timed out") from None
                self.task.wait(min(until, self.world.now + 0.5))

    def _check(self) -> None:
        if self.closed:
            raise OSError(9, "Bad file descriptor")

    def _carry(self, do: Callable[[Connection], None]) -> None:
        """Do something at the other end, in order."""
        peer = self.peer
        assert peer is not None
        self._arrived = max(self._arrived, self.link.arrival())

        def arrive() -> None:
            if self.link.blocked_until > self.world.now:  # since it was sent
                self._arrived = max(self._arrived, self.link.arrival())
                self.world.after(self._arrived - self.world.now, arrive)
            else:
                do(peer)

        self.world.after(self._arrived - self.world.now, arrive)

    def _take(self, data: bytes) -> None:
        assert self.peer is not None
        self.peer.flying -= len(data)
        self.peer.changed()
        if self.closed:
            self.peer.fail(ConnectionResetError("Connection reset by peer"))
        elif self.error is None:
            self.world.note(f"{self.number} gets {bytes(data)!r}")
            self.inbox += data
            self.changed()

    def fail(self, error: OSError) -> None:
        """End the connection as seen from here."""
        if not self.closed and self.error is None:
            self.error = error
            self.changed()

    def _finish(self) -> None:
        self.end = True
        self.changed()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.error is None:
                self._carry(Connection._finish)

    def cut(self) -> None:
        """Something in between resets the connection."""
        assert self.peer is not None
        for end in (self, self.peer):
            end.fail(ConnectionResetError("Connection reset by peer"))

    def partition(self, seconds: float) -> None:
        """Nothing passes for so long; keep-alives end a connection that is blocked for longer than they wait."""
        self.link.block(seconds)
        if seconds > KEEP_ALIVE_S:
            self.world.after(KEEP_ALIVE_S, self.cut)


class Listener(File):
    """A listening socket."""

    def __init__(self, world: World, address: str, port: int) -> None:
        """`port` is taken as it is."""
        super().__init__(world)
        self.address = (address, port)
        self.waiting: list[Connection] = []
        self.closed = False

    def setblocking(self, _blocks: bool) -> None:
        """It never blocks."""

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def ready(self) -> int:
        return selectors.EVENT_READ if self.waiting else 0

    def accept(self) -> tuple[Connection, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.pop(0), ("10.0.0.9", 1)

    def close(self) -> None:
        self.closed = True
        for connection in self.waiting:
            connection.close()
