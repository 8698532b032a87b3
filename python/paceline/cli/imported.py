"""Output of the commands that make a trace from another tool's files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline._core import Trace
from paceline._internal import units
from paceline._internal.block import Fact, block, headline, notes, suggestion
from paceline._internal.console import say
from paceline._internal.files import check_distinct, check_writable, replaced


def gradients(size_bytes: int, tensors: int) -> str:
    """Format as `102 MB of gradients in 161 tensors`."""
    return f"{units.size(size_bytes)} of gradients in {units.count(tensors, 'tensor')}"


def compute(forward_s: float, backward_s: float, optimizer_s: float, note: str = "") -> Fact:
    """Return the times of a step, in seconds, as a fact."""
    times = {"forward": forward_s, "backward": backward_s, "optimizer": optimizer_s}
    return Fact("Compute", ", ".join(f"{name} {units.duration(seconds)}" for name, seconds in times.items()) + note)


def show(output: Path, about: str, facts: Sequence[Fact], remarks: Iterable[str] = ()) -> None:
    """Print what was written, facts about it, notes, and how to forecast it."""
    lines = [*headline(f"Wrote {output}: {about}"), *([""] if facts else []), *block(facts)]
    say([*lines, *suggestion(f"paceline simulate {output}"), *notes(remarks)])


def check_output(output: Path, inputs: Iterable[Path | None]) -> None:
    """Refuse a file that cannot be written to, or one of the recordings. Raises InvalidArgumentError."""
    check_writable("--output", output)
    check_distinct([("--output", output)], inputs)


def write(output: Path, trace: Trace) -> None:
    """Write a trace to a file, which is whole or not there."""
    with replaced(output) as path:
        path.write_text(trace.to_json() + "\n", encoding="utf-8")
