"""What is asked of this machine in several places."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def boot() -> str:
    """This start of this machine. Raises OSError where that is not told (Linux tells it)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
