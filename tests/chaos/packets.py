"""Jobs on an emulated network that corrupts, duplicates, reorders and loses packets, by `tc netem`."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Any

from paceline import InvalidArgumentError, emulate

from chaos import calls
from chaos.tally import Section

_TROUBLE = ("duplicate 5%", "corrupt 1%", "loss 1%", "delay 5ms 5ms reorder 25%", "duplicate 2% corrupt 0.5% loss 0.5%")


def run(section: Section) -> None:
    """Run until the time is over."""
    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(emulate.cluster(workers=4, bandwidth_bps=100e6, realtime=False))
        except (emulate.CannotEmulateError, emulate.ClusterError, InvalidArgumentError) as error:
            section.skipped = str(error)
            return
        number = 0
        while not section.over:
            source = section.source(number)
            trouble = source.choice(_TROUBLE)
            for host in cluster.of_kind("worker"):
                if reason := _netem(cluster, host.name, trouble):
                    section.skipped = reason
                    return
            trial: dict[str, Any] = calls.drawn(source, slow=False)
            trial["transport"], trial["mbps"] = "tcp", 100
            trial["asked"]["length"] = min(trial["asked"]["length"], 50_000)
            section.ran(trouble)
            calls.one(section, trial, number, **calls.on_hosts(cluster))
            number += 1


def _netem(cluster: emulate.Cluster, host: str, trouble: str) -> str:
    """Have a host's card make trouble; return why that is not possible here."""
    command = ["tc", "qdisc", "replace", "dev", "eth0", "root", "netem", *trouble.split()]
    try:
        process = cluster.popen(host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except (OSError, InvalidArgumentError) as error:
        return str(error)
    text, _ = process.communicate(timeout=20)
    return f"tc netem: {text.strip() or process.returncode}" if process.returncode else ""
