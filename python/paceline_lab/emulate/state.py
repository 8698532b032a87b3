"""Which clusters exist: a small file for each, in a folder that only its user may access.

A holder writes its cluster's file when the cluster is up, and removes it at the end. A file without a living holder was
left behind by one that was killed: its namespaces live only as long as processes in them.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline._internal.system import boot
from paceline.errors import InvalidArgumentError

from paceline_lab.emulate import enter
from paceline_lab.emulate.plan import Host
from paceline_lab.emulate.processes import MARK, start_of

DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class State:
    """A cluster, as other processes see it."""

    name: str
    token: str
    """Unique to this cluster."""
    pid: int
    """The holder's pid."""
    start: int
    boot: str
    user: bool
    """Whether it is in a user namespace."""
    realtime: bool
    """Whether processes on the hosts can run under SCHED_FIFO."""
    bandwidth_bps: float
    hosts: tuple[Host, ...]
    namespaces: Mapping[str, tuple[int, int]]
    """The holder's descriptors of every host's network and name."""
    networks: Mapping[str, int]
    """The inode number of every host's network."""

    @property
    def alive(self) -> bool:
        """Whether its holder is alive."""
        return self.boot == boot() and start_of(self.pid) == self.start

    @property
    def by_network(self) -> dict[int, str]:
        """The host of each inode number."""
        return {inode: name for name, inode in self.networks.items()}

    def entering(self, host: str, *settings: str, realtime: int | None = None) -> list[str]:
        """Return the words to put before a command that is to run on the host; `settings`: NAME=VALUE."""
        net, uts = self.namespaces[host]
        folder = f"/proc/{self.pid}"
        script = [sys.executable, "-I", "-S", enter.__file__]
        user = ["--user", f"{folder}/ns/user"] if self.user else []
        places = ["--net", f"{folder}/fd/{net}", "--uts", f"{folder}/fd/{uts}"]
        priority = ["--realtime", str(realtime)] if realtime is not None else []
        marks = [f"{MARK}={self.token}", *settings]
        return [*script, *user, *places, *priority, *(word for mark in marks for word in ("--set", mark)), "--"]


def check_name(name: str) -> str:
    """Refuse text that cannot be a file name. Raises InvalidArgumentError."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"--name: '{name[:80]}' must be letters, digits, '-', '_' and '.', at most 40", remedy="--name test"
        )
    return name


def folder() -> Path:
    """Return the folder, created if necessary. Raises InvalidArgumentError if others may access it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    private = base is not None and Path(base).is_dir() and os.access(base, os.W_OK)
    path = Path(str(base)) / "paceline-emulate" if private else Path(f"/tmp/paceline-emulate-{os.geteuid()}")
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.lstat()
    except OSError as error:
        raise InvalidArgumentError(
            f"{path}: {error.strerror}", remedy="XDG_RUNTIME_DIR=~/.run (a folder of your own)"
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise InvalidArgumentError(
            f"{path}: is not a folder for you alone", remedy=f"rm -r {path}, or XDG_RUNTIME_DIR=~/.run"
        )
    return path


def write(place: Path, state: State) -> None:
    """Write a cluster's file. Raises FileExistsError if another cluster has the name."""
    new = place / f".{state.name}.{state.token}"
    text = json.dumps({"format": _FORMAT, **asdict(state)}, indent=1)
    try:
        new.write_text(text, encoding="utf-8")
        os.link(new, place / f"{state.name}.json")
    finally:
        new.unlink(missing_ok=True)


def read(name: str) -> State | None:
    """Read a cluster's file; None if there is none. Raises InvalidArgumentError for a file not written by a holder."""
    path = folder() / f"{check_name(name)}.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("format") != _FORMAT:
            raise ValueError("of another version")
        fields["hosts"] = tuple(Host(**host) for host in fields["hosts"])
        return State(**fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgumentError(f"{path}: is not the state of a cluster ({error})", remedy=f"rm {path}") from None


def every() -> list[State]:
    """Return all clusters whose files can be read."""
    states = []
    for path in sorted(folder().glob("[!.]*.json")):
        with suppress(InvalidArgumentError):
            state = read(path.stem)
            states += [state] if state is not None else []
    return states


def forget(state: State) -> None:
    """Remove a cluster's file if it still belongs to that cluster."""
    with suppress(InvalidArgumentError, OSError):
        now = read(state.name)
        if now is not None and now.token == state.token:
            (folder() / f"{state.name}.json").unlink()
