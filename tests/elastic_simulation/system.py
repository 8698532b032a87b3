"""The operating system as the launcher and the workers of a virtual world see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline._internal.operating_system import OperatingSystem

from elastic_simulation.network import Connection, Link, Listener, Selector
from elastic_simulation.world import Task, World


class Network:
    """What listens where, and all connections."""

    def __init__(self, world: World) -> None:
        """Nothing listens."""
        self.world = world
        self.listeners: dict[int, Listener] = {}

    def connect(self, task: Task, port: int, limit_s: float, blocked_until: float) -> Connection:
        """Connect as a task. Raises OSError."""
        world, link = self.world, Link(self.world)
        link.blocked_until = blocked_until
        until = world.now + limit_s
        arrival = link.arrival()
        world.after(min(arrival, until) - world.now, task.wake)
        while world.now < min(arrival, until):
            task.wait(min(arrival, until))
        if arrival > until:
            raise TimeoutError("timed out")
        listener = self.listeners.get(port)
        if listener is None or listener.closed:
            raise ConnectionRefusedError(111, "Connection refused")
        here, there = Connection(world, link, task), Connection(world, link, None)
        here.peer, there.peer = there, here
        listener.waiting.append(there)
        listener.changed()
        return here


class Virtual(OperatingSystem):
    """What one process sees."""

    def __init__(self, world: World, network: Network, task: Callable[[], Task]) -> None:
        """`task`: the process's only thread."""
        self.world, self.network = world, network
        self._task = task
        self.connections: list[Connection] = []
        self.blocked_until = 0.0
        """Nothing of this process passes the network before."""
        self.script: Callable[[], str] = str
        """What a discovery script prints."""

    def now(self) -> float:
        return self.world.now

    def sleep(self, seconds: float) -> None:
        until = self.world.now + seconds
        while self.world.now < until:
            self._task().wait(until)

    def token(self) -> str:
        return f"{self.world.random.getrandbits(128):032x}"

    def selector(self) -> Any:
        return Selector(self.world, self._task())

    def listen(self, address: str, port: int) -> Any:
        listener = Listener(self.world, address, port or 40000)
        self.network.listeners[listener.address[1]] = listener
        return listener

    def connect(self, host: str, port: int, limit_s: float) -> Any:
        connection = self.network.connect(self._task(), port, limit_s, self.blocked_until)
        self.connections.append(connection)
        return connection

    def popen(self, words: Any, output: Any, environment: Any) -> Any:
        return Script(self.world, output, self.script())

    def kill(self, process: Any) -> int:
        process.code = -9
        return -9

    @contextmanager
    def signals(self, handler: Any) -> Iterator[None]:
        yield None

    def partition(self, seconds: float) -> None:
        """Cut this process off for so long."""
        self.blocked_until = max(self.blocked_until, self.world.now + seconds)
        for connection in self.connections:
            if not connection.closed:
                connection.partition(seconds)

    def cut(self) -> None:
        """Reset its connections."""
        for connection in self.connections:
            if not connection.closed:
                connection.cut()

    def close(self) -> None:
        """The process has ended."""
        for connection in self.connections:
            connection.close()


class Script:
    """A run of a discovery script."""

    pid = 1

    def __init__(self, world: World, output: Any, text: str) -> None:
        """It prints the text after a while."""
        self.code: int | None = None

        def end() -> None:
            if self.code is None:
                output.write(text.encode())
                output.flush()
                self.code = 0

        world.after(world.delay(), end)

    def poll(self) -> int | None:
        return self.code
