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
    found = state.read(name)
    if found is None:
        raise InvalidArgumentError(_missing(name), remedy="paceline emulate up --workers 4 --bandwidth 500Mbps")
    if not found.alive:
        option = "" if name == DEFAULT else f" --name {name}"
        raise InvalidArgumentError(f"cluster '{found.name}' was killed", remedy=f"paceline emulate down{option}")
    return found


def take_down(name: str) -> list[str]:
    """Take down the cluster of this name, and clean up after killed clusters; return what was done.

    Raises InvalidArgumentError.
    """
    found = state.read(name)
    killed = [other for other in state.every() if not other.alive and (found is None or other.name != found.name)]
    if found is None and (name != DEFAULT or not killed):
        raise InvalidArgumentError(_missing(name), remedy="paceline emulate up --workers 4 --bandwidth 500Mbps")
    report: list[str] = []
    for each in [*([found] if found is not None else []), *killed]:
        alive = each.alive
        report += [f"ended {words}" for words in _end(each, alive)]
        outcome = "is down" if alive else "had been killed; it has been cleaned up"
        report.append(f"cluster '{each.name}' {outcome}")
    return report


def _end(found: State, alive: bool) -> list[str]:
    """Stop the processes on its hosts, and its holder. The inode numbers are its own only while there is a holder."""
    ended: list[str] = []
    if found.boot == boot():
        ended = processes.end(found.by_network, None if alive else found.token)
    if alive:
        _end_holder(found)
    state.forget(found)
    return ended


def _end_holder(found: State) -> None:
    with suppress(ProcessLookupError):
        holder = os.pidfd_open(found.pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if found.alive:
                    signal.pidfd_send_signal(holder, number)
                    select.select([holder], [], [], _END_S)
        finally:
            os.close(holder)


def _missing(name: str) -> str:
    others = [f"'{other.name}'" for other in state.every() if other.alive and other.name != name]
    up = f"; running: {listed(others)}; choose one with --name" if others else ""
    return f"no cluster '{name}' is up{up or '; paceline emulate up brings one up'}"
