"""How well an emulated network keeps its rate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline._internal.units import percent

TOLERANCE = 0.02
"""The promised error for 8 workers with up to 500 Mbit/s on an idle machine."""
_WAYS = {True: "longer than the ideal", False: "shorter than the ideal"}
_STEAL, _OTHERS, _BUSY = 0.02, 0.25, 0.95


@dataclass(frozen=True)
class Pattern:
    """One kind of transfer."""

    name: str
    flows: int
    bytes_per_flow: int
    ideal_s: float
    """Bytes through the busiest NIC divided by its rate."""
    measured_s: float
    """Median time."""
    times_s: tuple[float, ...]

    @property
    def error(self) -> float:
        """Measured divided by ideal, minus 1."""
        return self.measured_s / self.ideal_s - 1


@dataclass(frozen=True)
class Load:
    """Load of the cores during the measurement."""

    cores: int
    busy: float
    """Share of all cores' time."""
    steal: float
    """Share of time that the hypervisor gave to other machines."""
    others: float
    """Cores that other processes of this machine used."""


@dataclass(frozen=True)
class Fidelity:
    """The measurements."""

    workers: int
    bandwidth_bps: float
    realtime: bool
    patterns: tuple[Pattern, ...]
    load: Load

    @property
    def good(self) -> bool:
        """Whether all patterns are within the tolerance."""
        return not self._bad()

    def _bad(self) -> list[Pattern]:
        return [pattern for pattern in self.patterns if abs(pattern.error) > TOLERANCE]

    def verdict(self) -> str:
        """Return which patterns are off, or that none is."""
        bad = self._bad()
        if not bad:
            return f"all within {percent(TOLERANCE, 0)} of the ideal"
        return ", ".join(f"{each.name} {percent(abs(each.error))} {_WAYS[each.error > 0]}" for each in bad)

    def causes(self) -> list[str]:
        """Return what may be why patterns are off; empty if none is."""
        load = self.load
        if self.good:
            return []
        causes = {
            f"hypervisor gave {percent(load.steal)} of the cores' time to other machines (steal)": load.steal > _STEAL,
            f"other processes used {load.others:.1f} of {load.cores} cores (end them)": load.others > _OTHERS,
            "cores are busy: too slow for this rate (lower --bandwidth or --workers)": load.busy > _BUSY
            and load.others <= _OTHERS,
            "processes ran without SCHED_FIFO": not self.realtime,
        }
        return [cause for cause, is_so in causes.items() if is_so] or ["the load of this machine does not explain it"]

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements for JSON, times in seconds."""
        patterns = [{**asdict(pattern), "error": pattern.error} for pattern in self.patterns]
        verdict = "; ".join([self.verdict(), *self.causes()])
        return {**asdict(self), "patterns": patterns, "good": self.good, "verdict": verdict}
