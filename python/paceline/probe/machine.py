"""How late a thread wakes up, and how much time is taken from a busy thread."""

from __future__ import annotations

import time
from typing import Any

from paceline._internal.clock import Clock
from paceline._internal.load import load
from paceline._internal.system import cores

PERIOD_NS = 2_000_000
"""From one wake-up to the next."""
GAP_NS = 100_000
"""A loop that only reads the clock takes tenths of a microsecond per turn, so a longer gap was taken from it."""


def look(seconds: float) -> dict[str, Any]:
    """Sleep for `seconds`, then run a busy loop for as long; both on this thread."""
    clock = Clock()
    begin = clock.now()
    for turn in range(1, max(1, round(seconds * 1e9) // PERIOD_NS) + 1):
        clock.sleep_until(begin + turn * PERIOD_NS)
    late = clock.lateness()
    before = load()
    lost, longest, took = _gaps(round(seconds * 1e9))
    after = load().since(before)
    return {
        "wake_ups": late.count,
        "late_median_s": late.median_s,
        "late_p99_s": late.p99_s,
        "late_worst_s": late.worst_s,
        "busy_s": took,
        "taken_share": lost / took,
        "longest_gap_s": longest,
        "involuntary_switches": after.involuntary_switches,
        "steal_s": after.steal_s,
        "cores": cores(),
    }


def _gaps(span_ns: int) -> tuple[float, float, float]:
    """Return time in gaps, the longest gap, and the duration of the loop, in seconds."""
    clock = time.monotonic_ns
    begin = last = clock()
    lost = longest = 0
    while last - begin < span_ns:
        now = clock()
        if now - last > GAP_NS:
            lost += now - last
            longest = max(longest, now - last)
        last = now
    return lost * 1e-9, longest * 1e-9, (last - begin) * 1e-9
