"""Facts about this machine that several packages need."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def boot() -> str:
    """Return an identifier of this boot of the machine. Raises OSError where there is none (Linux has one)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
