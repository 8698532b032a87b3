"""Taking down a running cluster, and cleaning up after clusters that were killed."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

from paceline._internal.system import boot
from paceline._internal.units import listed
from paceline.errors import InvalidArgumentError

from paceline_lab.emulate import processes, state
from paceline_lab.emulate.state import DEFAULT, State

_END_S = 10.0


def living(name: str) -> State:
    """Return the cluster of this name. Raises InvalidArgumentError if it is not up."""
    known = state.read(name)
    if known is None:
        raise InvalidArgumentError(_missing(name), remedy="paceline emulate up --workers 4 --bandwidth 500Mbps")
    if not known.alive:
        option = "" if name == DEFAULT else f" --name {name}"
        raise InvalidArgumentError(f"cluster '{known.name}' was killed", remedy=f"paceline emulate down{option}")
    return known


def take_down(name: str) -> list[str]:
    """Take down the cluster of this name, and clean up after killed clusters; return what was done.

    Raises InvalidArgumentError.
    """
    known = state.read(name)
    killed = [other for other in state.every() if not other.alive and (known is None or other.name != known.name)]
    if known is None and (name != DEFAULT or not killed):
        raise InvalidArgumentError(_missing(name), remedy="paceline emulate up --workers 4 --bandwidth 500Mbps")
    report: list[str] = []
    for each in [*([known] if known is not None else []), *killed]:
        alive = each.alive
        report += [f"ended {words}" for words in _end(each, alive)]
        outcome = "is down" if alive else "had been killed; it has been cleaned up"
        report.append(f"cluster '{each.name}' {outcome}")
    return report


def _end(known: State, alive: bool) -> list[str]:
    """Stop the processes on its hosts, and its holder. The inode numbers are its own only while there is a holder."""
    ended: list[str] = []
    if known.boot == boot():
        ended = processes.end(known.by_network, None if alive else known.token)
    if alive:
        _end_holder(known)
    state.forget(known)
    return ended


def _end_holder(known: State) -> None:
    with suppress(ProcessLookupError):
        holder = os.pidfd_open(known.pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if known.alive:
                    signal.pidfd_send_signal(holder, number)
                    select.select([holder], [], [], _END_S)
        finally:
            os.close(holder)


def _missing(name: str) -> str:
    others = [f"'{other.name}'" for other in state.every() if other.alive and other.name != name]
    up = f"; running: {listed(others)}; choose one with --name" if others else ""
    return f"no cluster '{name}' is up{up or '; paceline emulate up brings one up'}"
