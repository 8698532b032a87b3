"""Facts about this machine that several packages need."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def boot() -> str:
    """Return an identifier of this boot of the machine. Raises OSError where there is none (Linux has one)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def out_of_memory_kills(counters: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the kernel has killed for lack of memory, of the machine or of a cgroup, since boot.

    0 where it does not say: `oom_kill` is in Linux from 4.13 on.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in counters.read_text(encoding="ascii").splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0


def cpu_name() -> str:
    """Return the model of this machine's CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def own_version() -> str:
    """Return the version of the installed package."""
    try:
        return importlib.metadata.version("paceline")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
