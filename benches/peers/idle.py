"""What doing nothing costs: the CPU time of the background threads of two ranks that wait for ten seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jobs
import summary
import systems
from environments import SkippedError
from systems import System

KINDS = {"native": "paceline", "paceline": "paceline, torch", "gloo": "gloo"}
TARGET_PERCENT = 1.0


def measure(seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Percent of a core and number of threads, of the rank that uses the most."""
    result: dict[str, Any] = {}
    for kind, title in KINDS.items():
        try:
            needed = {"native": "paceline", "paceline": "torch-paceline"}.get(kind)
            if needed:
                systems.prepare(systems.SYSTEMS[needed])
            system = System(f"idle {title}", title, "job_idle.py", "", arguments=(kind,))
            reports = jobs.run(system, 2, ["--seconds", str(seconds)], seconds + 60)
            result[kind] = max(reports, key=lambda report: report["percent"])
            say(f"idle: {title} {result[kind]['percent']:.3f} %")
        except (SkippedError, jobs.JobError) as reason:
            print(f"idle: {reason}", file=sys.stderr)
    return result


def table(measured: dict[str, Any]) -> summary.Table:
    """Percent of a core."""
    rows = [
        [KINDS[kind], str(report["threads"]), f"{report['percent']:.3f} %", f"under {TARGET_PERCENT:.0f} %"]
        for kind, report in measured.items()
    ]
    header = ["2 waiting ranks", "background threads", "share of a core", "target"]
    return summary.Table("CPU time of the background threads of an idle rank", header, rows)
