"""The section of docs/benchmarks.md, from the numbers of a run."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import allreduce
import summary
import systems

HEADING = "## The runtime against its peers"


def machine() -> dict[str, Any]:
    """Where and when."""
    names = {
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    return {
        "made": datetime.now(UTC).strftime("%B %Y"),
        "cpu": " ".join(sorted(names)),
        "cores": systems.cores(),
        "kernel": platform.release().split("-")[0],
        "load": round(os.getloadavg()[0], 2),
    }


def tables(content: dict[str, Any]) -> list[summary.Table]:
    """All that were measured."""
    return allreduce.tables(content) if "all_reduce" in content else []


def section(content: dict[str, Any]) -> str:
    """The Markdown, from its heading on."""
    return "\n\n".join([HEADING, *(table.markdown() for table in tables(content))]) + "\n"


def write(content: dict[str, Any], path: Path) -> None:
    """Put the section in the place of the last one, or at the end; the other sections stay."""
    path.write_text(replaced(path.read_text(), section(content)))


def replaced(text: str, new: str) -> str:
    """`text` with the section of the same heading replaced."""
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if line.rstrip() == HEADING), None)
    if start is None:
        return text.rstrip("\n") + "\n\n" + new
    end = next((at for at in range(start + 1, len(lines)) if lines[at].startswith("## ")), len(lines))
    return "".join(lines[:start]) + new + ("\n" if end < len(lines) else "") + "".join(lines[end:])
