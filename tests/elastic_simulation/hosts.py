"""Virtual hosts: the launcher's side of an agent, and a model of the agent behind it."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator
from typing import Any

from paceline._core import __version__
from paceline.launch.frames import Frame, FrameKind, encode

from elastic_simulation.network import File
from elastic_simulation.ranks import Here, Process
from elastic_simulation.world import World

_LOST_S = 45.0
"""After this the remote shell's keep-alives end a connection that is partitioned."""


class Pipe(File):
    """Frames that an agent has sent."""

    def __init__(self, world: World) -> None:
        """Nothing was sent."""
        super().__init__(world)
        self.frames: list[Frame] = []
        self.end = False

    def ready(self) -> int:
        return selectors.EVENT_READ if self.frames or self.end else 0


class Inbox:
    """The launcher's messages are accepted at once."""

    descriptor = -1

    def __len__(self) -> int:
        return 0


class Host:
    """What `AgentHost` is for a real host."""

    def __init__(self, here: Here, place: Any, *, remote: bool) -> None:
        """Its agent is about to start."""
        self.here, self.world, self.place, self.remote = here, here.world, place, remote
        self.ready: dict[str, Any] | None = None
        self.done = self.over = False
        self.pids: dict[int, int] = {}
        self.ended: set[int] = set()
        self.stdout, self.stderr = Pipe(self.world), Pipe(self.world)
        self.inbox = Inbox()
        self.running: dict[int, Process] = {}
        self.dead = False
        self.blocked_until = 0.0
        self.faults: set[str] = set()
        self.killing: Callable[[Process], None] = lambda process: None
        """Called when the launcher has a process killed."""
        self._stopping = False
        self._sent = self._answer = 0.0

    @property
    def name(self) -> str:
        return str(self.place.host.name)

    # Between launcher and agent

    def tell(self, order: dict[str, Any]) -> None:
        if "kill" in order and order["kill"] in self.running:
            self.killing(self.running[order["kill"]])
        self._answer = max(self._answer, max(self.blocked_until, self.world.now) + self.world.delay())
        self._at(self._answer, lambda: self._obey(order))

    def _at(self, when: float, do: Callable[[], None]) -> None:
        def arrive() -> None:
            if self.blocked_until > self.world.now:
                self.world.after(self.blocked_until - self.world.now, arrive)
            else:
                do()

        self.world.after(when - self.world.now, arrive)

    def send(self, kind: FrameKind, rank: int = 0, fields: dict[str, Any] | None = None) -> None:
        """Send a frame."""
        if self.dead:
            return
        payload = encode(kind, rank, fields or {})[9:]
        self._sent = max(self._sent, max(self.blocked_until, self.world.now) + self.world.delay())

        def arrive() -> None:
            self.world.note(f"{self.name} says {kind.name} of {rank}")
            self.stdout.frames.append(Frame(kind, rank, payload))
            self.stdout.changed()

        self._at(self._sent, arrive)

    def frames(self) -> Iterator[Frame] | None:
        if self.stdout.frames:
            some, self.stdout.frames = self.stdout.frames, []
            return iter(some)
        return None if self.stdout.end else iter(())

    def complaints(self) -> None:
        return None

    def why_lost(self) -> str:
        return f"host {self.name}: its agent was killed by signal 9"

    def kill(self) -> None:
        self.world.after(0.0, self.die)

    def close(self) -> None:
        self.kill()

    # The agent

    def _obey(self, order: dict[str, Any]) -> None:
        if self.dead:
            return
        self.world.note(f"{self.name} is told {next(iter(order))}")
        if "job" in order:
            ready = {"version": __version__, "interface": "10.0.0.1", "machine": self.name}
            self.send(FrameKind.READY, 0, {**ready, "master_port": 1, "port": 2, "pid": 1})
        elif "start" in order and not self._stopping:
            self._start(order["start"]["slot"], order["start"]["environment"])
        elif "kill" in order and order["kill"] in self.running:
            self.running[order["kill"]].end(-9)
        elif "stop" in order:
            self._stopping = True
            grace, kill = order["stop"]["grace_s"], order["stop"]["kill_s"]
            self.world.after(grace, lambda: self._signal(-15))
            self.world.after(grace + kill, lambda: self._signal(-9))
            self._finish()

    def _start(self, slot: int, environment: dict[str, str]) -> None:
        assert slot not in self.running
        process = Process(self.here, f"slot {slot - self.place.first} of {self.name}", environment, self._ended)
        self.here.processes[process.number] = process
        self.running[slot] = process
        self.world.note(f"{process.name} starts")
        self.send(FrameKind.STARTED, slot, {"pid": process.pid})

    def _signal(self, code: int) -> None:
        for process in list(self.running.values()):
            if code == -9 or not process.task.stopped:
                process.end(code)

    def _ended(self, process: Process) -> None:
        slot = next(slot for slot, each in self.running.items() if each is process)
        del self.running[slot]
        report = {"reason": process.reason, "follows": process.follows}
        fields = {"code": process.code, "stopped": self._stopping, "report": report}
        self.send(FrameKind.EXITED, slot, fields)
        self._finish()

    def _finish(self) -> None:
        if self._stopping and not self.running and not self.dead:
            self.send(FrameKind.DONE)
            self._at(self._sent, self.die)

    def die(self) -> None:
        """The agent, or its host, is gone with all that runs there."""
        if not self.dead:
            self.dead = True
            for process in list(self.running.values()):
                process.end(-9)
            self.stdout.end = self.stderr.end = True
            self.stdout.changed()
            self.stderr.changed()

    def partition(self, seconds: float) -> None:
        """The launcher does not reach it for so long."""
        self.blocked_until = max(self.blocked_until, self.world.now + seconds)
        if seconds > _LOST_S:
            self.world.after(_LOST_S, self.die)
