"""Iterations whose computation varies from worker to worker: the mean of some draws."""

from __future__ import annotations

import json

from paceline.forecast.simulate import Scenario
from paceline.forecast.sweep import execute

# Of many workers the slowest varies little.
_DRAWS = 5
_FEW = 128


def mean_iteration_s(run: Scenario) -> float:
    """Seconds of an iteration; where the cluster has jitter, of several with other seeds."""
    draws = [run]
    if "jitter" in json.loads(run.cluster.to_json()):
        draws = [run.changed(seed=seed) for seed in range(_DRAWS if run.workers <= _FEW else 1)]
    # On all cores; and Ctrl-C need not wait for them.
    results = execute(draws)
    return sum(result.iteration_s for result in results) / len(results)
