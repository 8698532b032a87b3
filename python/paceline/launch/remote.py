"""Command lines that start agents. Neither the job nor its secret stands on them: those go through standard input."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from paceline._core import UserError

# -P: modules of the folder that a job is started in must not replace Python's own in the agent.
_AGENT = ("-P", "-m", "paceline.launch.agent")
# The alive messages find out within a minute that a host has gone; accept-new asks about no new host's key.
DEFAULT_RSH = "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ServerAliveInterval=15"


def local_agent() -> list[str]:
    """Starts an agent here."""
    return [sys.executable, *_AGENT]


def remote_agent(rsh: Sequence[str], host: str) -> list[str]:
    """Starts an agent there: by this Python if it exists there, else by the one that the remote PATH names.

    What the remote shell gets is `exec sh -c '…'`, which all login shells understand.
    """
    path = os.environ.get("PYTHONPATH")
    script = "; ".join(
        [
            f"python={shlex.quote(sys.executable)}",
            '[ -x "$python" ] || python=python3',
            *([f"PYTHONPATH={shlex.quote(path)}${{PYTHONPATH:+:$PYTHONPATH}}", "export PYTHONPATH"] if path else []),
            f'exec "$python" {shlex.join(_AGENT)}',
        ]
    )
    return [*rsh, host, f"exec sh -c {shlex.quote(script)}"]


def parse_rsh(text: str) -> list[str]:
    """The words of `--rsh`. Raises UserError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--rsh: '{text[:80]}' has unbalanced quotes ({error})") from None
    if not words:
        raise UserError("--rsh: is empty; write for example --rsh 'ssh -p 2222'")
    return words
