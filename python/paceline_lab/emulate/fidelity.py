"""How well an emulated network keeps its rate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline._internal.units import percent

TOLERANCE = 0.02
"""The promised error for 8 workers with up to 500 Mbit/s on an idle machine."""
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
        """Return one sentence, with a possible cause."""
        bad = self._bad()
        if not bad:
            return f"all within {TOLERANCE:.0%} of the ideal".replace("%", " %")
        sentences = [
            f"{each.name} takes {percent(abs(each.error))} {'longer' if each.error > 0 else 'less'} than the ideal"
            for each in bad
        ]
        return f"{'; '.join(sentences)}. {self._cause()}"

    def _cause(self) -> str:
        load, causes = self.load, []
        if load.steal > _STEAL:
            causes.append(f"the hypervisor gave {percent(load.steal)} of the cores' time to other machines (steal)")
        if load.others > _OTHERS:
            causes.append(f"other processes used {load.others:.1f} of {load.cores} cores: end them")
        if load.busy > _BUSY and load.others <= _OTHERS:
            causes.append("the cores were busy: this machine cannot sustain this rate; lower --bandwidth or --workers")
        if not self.realtime:
            causes.append("processes ran without SCHED_FIFO")
        return f"Perhaps because {', and '.join(causes)}." if causes else "The load of the machine does not explain it."

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements for JSON, times in seconds."""
        patterns = [{**asdict(pattern), "error": pattern.error} for pattern in self.patterns]
        return {**asdict(self), "patterns": patterns, "good": self.good, "verdict": self.verdict()}
