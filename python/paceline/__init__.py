"""Paceline runs, measures, records and forecasts synchronous data-parallel training.

`import paceline` is light: neither torch nor numpy nor matplotlib nor pandas is imported before it is needed.
`paceline.job` joins a job and exchanges arrays with its ranks; it is imported when it is first used, and so is
`paceline.plan_tensorflow`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from paceline._core import Cluster, InternalError, JobError, Trace, UserError, __version__
from paceline.forecast import Busy, LinkUse, PathPart, Result, simulate
from paceline.frame import to_frame
from paceline.library import all_strategies, cluster_names, load_cluster, load_trace, trace_names
from paceline.plotting import plot
from paceline.sweeps import sweep

if TYPE_CHECKING:
    from paceline import job
    from paceline.plan import plan_tensorflow

__all__ = [
    "Busy",
    "Cluster",
    "InternalError",
    "JobError",
    "LinkUse",
    "PathPart",
    "Result",
    "Trace",
    "UserError",
    "__version__",
    "all_strategies",
    "cluster_names",
    "job",
    "load_cluster",
    "load_trace",
    "plan_tensorflow",
    "plot",
    "simulate",
    "sweep",
    "to_frame",
    "trace_names",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "job":
        return importlib.import_module("paceline.job")
    if name == "plan_tensorflow":
        return importlib.import_module("paceline.plan").plan_tensorflow
    raise AttributeError(f"module 'paceline' has no attribute '{name}'")
