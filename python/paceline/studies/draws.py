"""Iteration times where computation times vary between workers: means over several seeds."""

from __future__ import annotations

import json

from paceline.forecast.simulate import Scenario
from paceline.forecast.sweep import execute

# With many workers the slowest one varies little.
_DRAWS = 5
_FEW = 128


def mean_iteration_s(scenario: Scenario) -> float:
    """Return the iteration time in seconds; on a cluster with jitter, the mean over several seeds."""
    draws = [scenario]
    if "jitter" in json.loads(scenario.cluster.to_json()):
        draws = [scenario.changed(seed=seed) for seed in range(_DRAWS if scenario.workers <= _FEW else 1)]
    # execute() uses all cores, and Ctrl-C does not wait for the rest.
    results = execute(draws)
    return sum(result.iteration_s for result in results) / len(results)
