"""Iterations whose computation varies from worker to worker: the mean of some draws."""

from __future__ import annotations

import json

from paceline.forecast import Run

# Of many workers the slowest varies little.
_DRAWS = 5
_FEW = 128


def mean_iteration_s(run: Run) -> float:
    """Seconds of an iteration; where the cluster has jitter, of several with other seeds."""
    if "jitter" not in json.loads(run.cluster.to_json()):
        return run.result().iteration_s
    seeds = range(_DRAWS if run.workers <= _FEW else 1)
    return sum(run.changed(seed=seed).result().iteration_s for seed in seeds) / len(seeds)
