"""How far a sweep is: what is told of it while it runs, and what it has when Ctrl-C ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Progress = Callable[[int, int], None]
"""Is called with the number of finished scenarios and the total."""


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep. It carries what was done.

    Args:
        results: Results by the place of their scenario in the sweep.
        scenarios: The number of scenarios that were asked for.

    Example:
        >>> try:
        ...     results = paceline.sweep("resnet-50", workers=[2, 4], strategy="ring")
        ... except paceline.SweepInterrupted as interrupted:
        ...     results = list(interrupted.results.values())
    """

    def __init__(self, results: Mapping[int, Any], scenarios: int) -> None:
        """See the class."""
        super().__init__(f"interrupted after {len(results)} of {scenarios} forecasts")
        self.results = dict(sorted(results.items()))
        self.scenarios = scenarios
