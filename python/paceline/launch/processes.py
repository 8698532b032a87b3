"""Process groups on this host: starts ranks, detects their end, and stops them with their children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform.startswith("linux")


def _prctl() -> Callable[[int, int], int] | None:
    if not _LINUX:
        return None
    function = ctypes.CDLL(None, use_errno=True).prctl
    return lambda option, value: int(function(option, value, 0, 0, 0))


class Group:
    """A rank or server: the process group that it leads."""

    def __init__(self, process: subprocess.Popen[bytes], rank: int) -> None:
        """Take a started process that leads its own group."""
        self.rank = rank
        self.pid = process.pid
        self.process = process
        self.code: int | None = None
        self.empty = False  # Another process may have its number then, so it is not signaled.

    def ended(self, status: int) -> None:
        """Record that the leader was waited for."""
        self.code = os.waitstatus_to_exitcode(status)
        self.process.returncode = self.code  # It has been waited for, so Popen must not wait.
        self.signal(0)

    def signal(self, number: int) -> None:
        """Send a signal to the group, if any process is left."""
        if not self.empty:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                self.empty = True
            except PermissionError:  # Processes of another user; on macOS, only zombies.
                pass


class Starter:
    """Starts ranks that die with this process, and adopts processes that they leave behind (Linux)."""

    def __init__(self) -> None:
        """Raise this process's limit of open files as far as possible: every rank needs two pipes."""
        self.realtime: int | None = None
        """SCHED_FIFO priority of ranks; this process has a higher one."""
        self._relaxed = False
        self._prctl = _prctl()
        if self._prctl is not None:
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._parent = os.getpid()
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._files[1], self._files[1]))

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], inherited: int, *, one_pipe: bool
    ) -> subprocess.Popen[bytes]:
        """Start a command as the leader of a new process group; stdout and stderr are pipes. Raises OSError.

        `inherited` is a descriptor that it keeps open under the same number.
        """
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if one_pipe else subprocess.PIPE,
            bufsize=0,
            pass_fds=(inherited,),
            process_group=0,
            preexec_fn=self._in_child,  # noqa: PLW1509  # safe: this process has one thread
        )

    def relax(self) -> None:
        """Return to normal scheduling: all ranks are started, and this process waits for their end.

        Under SCHED_FIFO that wait might never finish: a process that waits for a child spins in the kernel until
        another process has released the child's entry under /proc, and that process would get no core.
        """
        if self.realtime is not None and not self._relaxed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            self._relaxed = True

    def _in_child(self) -> None:
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._parent:
                os._exit(1)
        if self.realtime is not None:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(self.realtime))
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, self._files)


def reap() -> list[tuple[int, int]]:
    """Return ended processes as (pid, status): ranks, and adopted processes."""
    ended: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def descendants() -> dict[int, int]:
    """Return every living descendant of this process: pid → process group. Linux only; empty elsewhere."""
    if not _LINUX:
        return {}
    groups: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # proc(5): pid (comm) state ppid pgrp …, and comm may contain anything
            state, parent, group = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            groups[int(folder.name)] = int(group)
            children.setdefault(int(parent), []).append(int(folder.name))
    below: dict[int, int] = {}
    todo = [os.getpid()]
    while todo:
        for child in children.get(todo.pop(), ()):
            below[child] = groups[child]
            todo.append(child)
    return below


def terminate_all(groups: Sequence[Group]) -> None:
    """Send SIGTERM to all, which they get at the same time: none lives to report that another one has gone."""
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
        signal_all(groups, number)


def signal_all(groups: Sequence[Group], number: int) -> bool:
    """Send a signal to the groups and to processes that left them; return whether any was left."""
    others = descendants()
    for group in groups:
        group.signal(number)
    led = {group.pid for group in groups if not group.empty}
    for pid, group_of in others.items():
        if group_of not in led:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
    return bool(others) or any(not group.empty for group in groups)
