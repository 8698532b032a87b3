"""Goodput of a job that fails at random and resumes from its last checkpoint, and the interval that makes it best."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import InvalidArgumentError


@dataclass(frozen=True)
class Failures:
    """Failures of a whole job, exponentially distributed, and what they cost, in seconds."""

    mtbf_s: float
    """Mean time to failure of the job, whatever its number of GPUs."""
    checkpoint_s: float
    """Training stands still for so long while a checkpoint is written."""
    restart_s: float
    """From a failure until training goes on from the last checkpoint."""

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError where no interval makes progress."""
        if self.checkpoint_s >= 2 * self.mtbf_s:
            raise InvalidArgumentError(
                f"--checkpoint-seconds: must be less than twice --mtbf, {self.mtbf_s:g} s, not {self.checkpoint_s:g} s",
                remedy=f"--checkpoint-seconds {max(1.0, self.mtbf_s / 10):g}, or a longer --mtbf",
            )

    @property
    def interval_s(self) -> float:
        """Seconds of training between two checkpoints that lose least: sqrt(2 C M) - C.

        J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; with the cost
        of the checkpoint itself taken off, J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
        restart dumps", FGCS 22(3), 2006.
        """
        return math.sqrt(2 * self.checkpoint_s * self.mtbf_s) - self.checkpoint_s

    @property
    def goodput(self) -> float:
        """Share of the time that is training that is kept, at the optimal interval.

        Daly 2006, the complete model: a segment of t seconds takes M e^(R/M) (e^((t + C)/M) - 1) on average, with
        failures during checkpoints and restarts.
        """
        mean, kept = self.mtbf_s, self.interval_s
        exponents = self.restart_s / mean, (kept + self.checkpoint_s) / mean
        if sum(exponents) > 700:  # e^710 is beyond a double; the share is 0 to 300 digits.
            return 0.0
        return kept / (mean * math.exp(exponents[0]) * math.expm1(exponents[1]))

    def to_dict(self) -> dict[str, float]:
        """Return it as `--json` prints it."""
        return {**vars(self), "interval_s": self.interval_s, "goodput": self.goodput}
