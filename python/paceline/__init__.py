"""Paceline runs, measures, records and forecasts synchronous data-parallel training.

`import paceline` is light: neither torch nor numpy nor matplotlib nor pandas is imported before it is needed.
`paceline.job` joins a job and exchanges arrays with its ranks; it is imported when it is first used.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from paceline._core import Cluster, InternalError, JobError, Trace, UserError, __version__
from paceline.forecast import Busy, LinkUse, PathPart, Result, simulate
from paceline.frame import to_frame
from paceline.library import all_strategies, cluster_names, load_cluster, load_trace, trace_names
from paceline.plotting import plot
from paceline.sweeps import sweep

if TYPE_CHECKING:
    from paceline import job

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
    "plot",
    "simulate",
    "sweep",
    "to_frame",
    "trace_names",
]


def __getattr__(name: str) -> ModuleType:
    if name == "job":
        return importlib.import_module("paceline.job")
    raise AttributeError(f"module 'paceline' has no attribute '{name}'")
