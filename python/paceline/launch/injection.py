"""Recording an unmodified Python process, and what that process reports when it ends.

`paceline record -- …` and `paceline run --record` put a folder with a `sitecustomize` first on PYTHONPATH, and their
options into an environment variable. The first child process that trains writes to a folder of the parent's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline._internal.recording import write_json
from paceline._internal.units import count

SETTINGS = "PACELINE_RECORD_SETTINGS"
"""The environment variable with a `Recording` as JSON."""

RESULT = "result.json"
"""File in the exchange folder with the report of the recorded process to its parent."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The recording of the script's process."""

    output: str
    exchange: str
    """A private folder for `RESULT` and the claim file."""
    warmup: int
    steps: int
    name: str | None = None
    batch: int | None = None
    stop: bool = False
    """Whether to end the script once recording is complete."""
    rank: bool = False
    """Whether this is a rank of `paceline run`: every rank records, and the launcher reports."""
    gpu: str | None = None
    """The GPU to compute times for, without running on one."""
    power_limit: float | None = None
    """With `gpu`: the watts that limit it."""
    dtype: str | None = None
    """With `gpu`: what operators run in, by its name in `paceline.torch.simulated.mode.DTYPES`."""

    def claim(self, rank: int) -> bool:
        """Return whether this process records: the first one of the command, and rank 0 of several ranks."""
        if rank != 0 and not self.rank:
            return False
        try:
            (Path(self.exchange) / "claim").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def report(self, result: dict[str, Any], *, final: bool) -> None:
        """Write what the parent process prints; a report that is not `final` replaces no other."""
        path = Path(self.exchange) / RESULT
        if path.parent.is_dir() and (final or not path.exists()):
            write_json(path, result)


def rank_here() -> int:
    """Return the rank that a launcher gave this process, 0 without one."""
    return int(os.environ.get("RANK", "0") or 0)


def recorded_message(*, steps: int, model: str, parameters: int, optimizer: str, batch: int, output: str) -> str:
    """Return the line that the recorded process prints at its end."""
    return (
        f"paceline: recorded {count(steps, 'step')} of {model} ({parameters:,} parameters) with {optimizer}, "
        f"batch {batch}, to {output}"
    )


_INJECT = Path(__file__).parent / "inject"


def injected(environ: Mapping[str, str], recording: Recording) -> dict[str, str]:
    """Return the environment of a command whose Python processes are to be recorded."""
    before = environ.get("PYTHONPATH")
    path = str(_INJECT) + (os.pathsep + before if before else "")
    return {**environ, SETTINGS: json.dumps(asdict(recording)), "PYTHONPATH": path}


def problem(result: Mapping[str, Any] | None) -> tuple[str | None, str | None]:
    """Return why there is no trace, and the remedy; None if there is one.

    Args:
        result: The report of the process, if any.
    """
    if result is None:
        return "no optimizer step was seen (0 steps)", (
            "a script that trains with torch.optim or keras.optimizers and ends by itself, without python -I, -E or -S"
        )
    if "summary" in result:
        return None, None
    if result["error"]:
        return str(result["error"]), result.get("remedy")
    seen = count(result["steps_seen"], "optimizer step")
    return f"{seen} seen, which is too few", "more steps: two find the model, then the warm-up, then one to record"
