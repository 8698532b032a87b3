"""The agent, which runs the ranks of one host: `python -m paceline.launch.agent`, started by the launcher.

Standard input carries three kinds of lines, each JSON: the job, then `go`, then perhaps `stop`; end of file means that
the launcher is gone, and stops all ranks. Standard output carries frames (see `frames`). There is one thread and one
selector; nothing blocks, and the output of ranks is read only as fast as the launcher takes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import IO, Any

from paceline._core import __version__
from paceline._internal.netif import address_of, is_own, towards
from paceline._internal.system import out_of_memory_kills
from paceline.errors import InvalidArgumentError
from paceline.launch import variables
from paceline.launch.checks import Ports, Problem, check_command, enter, machine, own_addresses
from paceline.launch.frames import MAGIC, FrameKind, Lines, Outbox, encode
from paceline.launch.outcomes import Notes, Report
from paceline.launch.processes import Group, Starter, reap, signal_all, terminate_all
from paceline.launch.recordings import Exchange

_FULL = 1 << 20  # bytes queued for the launcher; beyond this, ranks wait
_READ = 1 << 16
_POLL_S = 0.05
_LEFTOVERS_S = 1.0  # from SIGTERM to SIGKILL: for leftover processes, and for all processes once the launcher is gone
_SERVER = (sys.executable, "-m", "paceline.job.server")
_NO_MEMORY = Report(
    "the kernel has killed processes for lack of memory", "a smaller batch, or fewer ranks on this host"
)
_GIVE_UP_S = 2.0  # after SIGKILL, for processes that survive it


class Pipe:
    """The stdout or stderr of one rank."""

    def __init__(self, rank: int, kind: FrameKind, file: IO[bytes], *, whole_lines: bool) -> None:
        """Make the file non-blocking."""
        self.rank = rank
        self.kind = kind
        self.file = file
        self.lines = Lines() if whole_lines else None
        os.set_blocking(file.fileno(), False)

    def read(self) -> tuple[bytes, bool]:
        """Return the output that can be forwarded now, and whether the pipe has ended.

        Raises BlockingIOError if it is empty.
        """
        data = os.read(self.file.fileno(), _READ)
        if self.lines is None:
            return data, not data
        return (self.lines.feed(data, time.monotonic()), False) if data else (self.lines.finish(), True)


class Agent:
    """The state of the job on this host."""

    def __init__(self) -> None:
        """Start without a job."""
        self.out = Outbox(1)
        self.selector = selectors.DefaultSelector()
        self.starter = Starter()
        self.job: dict[str, Any] = {}
        self.groups: list[Group] = []
        self.pipes: list[Pipe] = []
        self.ports: Ports | None = None
        self.exchange: Exchange | None = None
        self.notes = Notes()
        self.common: dict[str, str] = {}
        self.interface = ""
        self.started = False
        self.living = 0
        self.paused = False
        self.over = False
        self.terminate_at: float | None = None
        self.kill_at: float | None = None
        self.killed_at: float | None = None
        self.ending = False
        self.memory_kills = out_of_memory_kills()
        self._input = b""

    def run(self) -> None:
        """Run until all processes have ended and their output is forwarded."""
        receiver, sender = socket.socketpair()
        for end in (receiver, sender):
            end.setblocking(False)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.stop(0, _LEFTOVERS_S))
        os.set_blocking(0, False)
        try:
            self.selector.register(0, selectors.EVENT_READ, self._read_input)
        except PermissionError:  # epoll raises this for a file
            raise SystemExit("paceline.launch.agent is internal; paceline run starts it") from None
        self.selector.register(receiver, selectors.EVENT_READ, lambda: self._reap(receiver))
        self.out.put(MAGIC)
        while not (self.over and (not len(self.out) or self.out.broken)):
            self._watch_output()
            for key, _ in self.selector.select(self._patience()):
                key.data()
            if self.out.broken:
                self.stop(0, _LEFTOVERS_S)
            self._advance(time.monotonic())

    def stop(self, grace_s: float, kill_after_s: float) -> None:
        """Send SIGTERM after the grace period and SIGKILL later; keep earlier deadlines."""
        if not self.started:
            self.over = True
        at = time.monotonic() + grace_s
        self.terminate_at = at if self.terminate_at is None else min(at, self.terminate_at)
        kill_at = self.terminate_at + kill_after_s
        self.kill_at = kill_at if self.kill_at is None else min(kill_at, self.kill_at)

    # Input

    def _read_input(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(0, _READ)
            if not data:
                self.selector.unregister(0)
                self.stop(0, _LEFTOVERS_S)
                return
            self._input += data
        while b"\n" in self._input:
            line, _, self._input = self._input.partition(b"\n")
            self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        if self.over:  # this `go` crossed a `stop`
            return
        try:
            if "job" in order:
                self._prepare(order["job"])
            elif "go" in order:
                self._go(order["go"])
            elif "start" in order:
                self._start_worker(order["start"])
            elif "kill" in order:
                self._kill(order["kill"])
            elif "stop" in order:
                self.stop(order["stop"]["grace_s"], order["stop"]["kill_s"])
        except (Problem, InvalidArgumentError) as error:
            usage = isinstance(error, InvalidArgumentError) or error.usage
            problem = {"message": str(error), "remedy": error.remedy, "usage": usage}
            self.out.put(encode(FrameKind.PROBLEM, 0, problem))
            self.stop(0, _LEFTOVERS_S)

    def _prepare(self, job: dict[str, Any]) -> None:
        """Do everything that can fail before anything starts."""
        self.job = job
        self.common = variables.base(os.environ, job)
        self.starter.realtime = job["realtime"]
        enter(job["folder"])
        check_command(job["command"], self.common)
        if job["record"] is not None:
            self.exchange = Exchange(job["record"])
        interface = job["interface"]
        ready = {
            "version": __version__,
            "pid": os.getpid(),
            "machine": machine(),
            "interface": address_of(interface, job["interface_source"]) if interface else None,
            **own_addresses(),
        }
        if job["node"] == 0:
            self.ports = Ports(job["port"])
            ready.update(master_port=self.ports.master, port=self.ports.rendezvous)
        self.out.put(encode(FrameKind.READY, 0, ready))

    def _go(self, go: dict[str, Any]) -> None:
        if go["interface"] is None:
            go["interface"] = go["address"] if is_own(go["address"]) else towards(go["address"])
            if go["interface"] is None:
                raise Problem(
                    f"{go['address']}, where rank 0 runs, cannot be reached from here",
                    remedy="--interface 10.0.0.0/24 (the network of the hosts)",
                )
        if self.ports is not None:
            self.ports.release()
        self.started = True
        self.interface = go["interface"]
        if self.job["elastic"]:
            return  # the launcher decides when each one starts
        for local_rank in range(self.job["count"]):
            rank = self.job["first"] + local_rank
            environment = variables.of_rank(self.common, self.job, go, local_rank)
            if self.exchange is not None:
                environment = self.exchange.environment(rank, environment)
            self._start(rank, self.job["command"], environment)
        for server in self.job["servers"]:
            environment = variables.of_server(self.common, self.job, go, server)
            self._start(self.job["size"] + server, _SERVER, environment)

    def _start_worker(self, worker: dict[str, Any]) -> None:
        """Start a worker of an elastic job in a free slot."""
        environment = {**self.common, "PACELINE_INTERFACE": self.interface, **worker["environment"]}
        if not self.ending:
            self.groups = [group for group in self.groups if group.code is None or not group.empty]
            self._start(worker["slot"], self.job["command"], environment)

    def _kill(self, slot: int) -> None:
        """Kill the process in the slot, even if it is suspended."""
        for group in self.groups:
            if group.rank == slot and group.code is None:
                group.signal(signal.SIGKILL)

    def _start(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            with self.notes.pipe_for(rank, environment) as (environ, pipe):
                process = self.starter.start(command, environ, pipe, one_pipe=self.job["output"] == "files")
        except OSError as error:
            raise Problem(
                f"rank {rank} cannot be started: {error.strerror}",
                remedy=f"-- python {command[0]}" if command[0].endswith(".py") else f"file {command[0]} (what is it?)",
                usage=error.errno in Problem.USAGE,
            ) from None
        self.groups.append(Group(process, rank))
        self.living += 1
        self.selector.register(self.notes.descriptor(rank), selectors.EVENT_READ, lambda: self._take_notes(rank))
        for kind, file in ((FrameKind.STDOUT, process.stdout), (FrameKind.STDERR, process.stderr)):
            if file is not None:
                self._open(Pipe(rank, kind, file, whole_lines=self.job["output"] == "lines"))
        self.out.put(encode(FrameKind.STARTED, rank, {"pid": process.pid}))

    def _take_notes(self, rank: int) -> None:
        """Forward what a rank reports."""
        joins, end = self.notes.read(rank)
        for join in joins:
            self.out.put(encode(FrameKind.JOINING, rank, {"join": join}))
        if end:  # all processes that had it have closed it
            self._watch_notes_no_more(rank)

    def _watch_notes_no_more(self, rank: int) -> None:
        with contextlib.suppress(KeyError):
            self.selector.unregister(self.notes.descriptor(rank))

    # Output

    def _open(self, pipe: Pipe) -> None:
        self.pipes.append(pipe)
        if not self.paused:
            self.selector.register(pipe.file, selectors.EVENT_READ, self._reader(pipe))

    def _reader(self, pipe: Pipe) -> Callable[[], object]:
        return lambda: self._forward(pipe)

    def _forward(self, pipe: Pipe) -> bool:
        """Read once; return whether there was any output."""
        if pipe.file.closed:  # closed by the handler of another event in the same round
            return False
        try:
            data, end = pipe.read()
        except BlockingIOError:
            return False
        if data:
            self.out.put(encode(pipe.kind, pipe.rank, data))
        if end:
            self._close(pipe)
        return not end

    def _close(self, pipe: Pipe) -> None:
        self.pipes.remove(pipe)
        if not self.paused:
            self.selector.unregister(pipe.file)
        pipe.file.close()

    def _drain(self, pipe: Pipe) -> None:
        """Read what remains in a pipe; give up after a while if it fills faster than it is read."""
        for _ in range(_FULL // _READ):
            if not self._forward(pipe):
                break

    def _watch_output(self) -> None:
        """While output is queued, wait for the launcher to accept more; while too much is queued, pause the ranks."""
        watched = 1 in self.selector.get_map()
        if len(self.out) and not watched:
            self.selector.register(1, selectors.EVENT_WRITE, self.out.flush)
        elif watched and not len(self.out):
            self.selector.unregister(1)
        if not self.paused and len(self.out) > _FULL:
            self.paused = True
            for pipe in self.pipes:
                self.selector.unregister(pipe.file)
        elif self.paused and len(self.out) < _FULL // 4:
            self.paused = False
            for pipe in self.pipes:
                self.selector.register(pipe.file, selectors.EVENT_READ, self._reader(pipe))

    # Ends

    def _reap(self, receiver: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while receiver.recv(4096):
                pass
        self.starter.relax()
        by_pid = {group.pid: group for group in self.groups if group.code is None}
        for pid, status in reap():
            if pid not in by_pid:
                continue
            group = by_pid[pid]
            group.ended(status)
            if self.job["elastic"] and group.code:
                group.signal(signal.SIGKILL)  # Its children are orphans, and another worker takes its place.
            self.living -= 1
            for pipe in [pipe for pipe in self.pipes if pipe.rank == group.rank]:
                self._drain(pipe)
            for frame in self.exchange.frames(group.rank) if self.exchange is not None else ():
                self.out.put(frame)
            self._take_notes(group.rank)
            self._watch_notes_no_more(group.rank)
            report = self.notes.report(group.rank)
            if group.code == -signal.SIGKILL and not self.ending and out_of_memory_kills() > self.memory_kills:
                report = replace(_NO_MEMORY, follows=report.follows) if report.reason is None else report
            ended = {"code": group.code, "stopped": self.ending, "report": asdict(report)}
            self.out.put(encode(FrameKind.EXITED, group.rank, ended))

    def _awaits(self) -> bool:
        """Return whether more processes may start when none is running: until the launcher says stop."""
        return bool(self.job["elastic"]) and not self.ending

    def _patience(self) -> float | None:
        if self.ending or (self.started and not self.living and not self._awaits()):
            return 0 if self.over and not len(self.out) else _POLL_S
        if self.terminate_at is not None:
            return max(0.0, self.terminate_at - time.monotonic())
        return None

    def _advance(self, now: float) -> None:
        """Stop processes that are due, and check whether all have ended."""
        if not self.started or self.over:
            return
        if self.terminate_at is not None and now >= self.terminate_at and not self.ending:
            self.ending = True
            self.starter.relax()
            terminate_all(self.groups)
        if self.kill_at is not None and now >= self.kill_at:
            self.killed_at = self.killed_at or now
            signal_all(self.groups, signal.SIGKILL)
        hopeless = self.killed_at is not None and now > self.killed_at + _GIVE_UP_S
        if (self.living or self._awaits()) and not hopeless:
            return
        if signal_all(self.groups, 0) and not hopeless:
            self.stop(0, _LEFTOVERS_S)  # Otherwise they would outlive the job.
            return
        for pipe in list(self.pipes):
            self._drain(pipe)
            if pipe in self.pipes:
                if pipe.lines is not None and (rest := pipe.lines.finish()):
                    self.out.put(encode(pipe.kind, pipe.rank, rest))
                self._close(pipe)
        self.out.put(encode(FrameKind.DONE))
        self.over = True


def main() -> None:
    """Run until the job is over."""
    agent = Agent()
    try:
        agent.run()
    finally:
        if agent.exchange is not None:
            agent.exchange.close()


if __name__ == "__main__":
    main()
