"""Paceline runs, measures, records and forecasts synchronous data-parallel training.

`import paceline` is cheap: names are imported when they are first used. `paceline.job` joins a job and exchanges arrays
between its ranks; `paceline.torch` and `paceline.ray` must be imported explicitly. The package `paceline_lab`, with
studies, benchmarks and pages, stands on this one.
"""

from __future__ import annotations

from paceline._internal.lazy import lazy

TYPE_CHECKING = False  # typing is slow to import, and until then nothing handles Ctrl-C
if TYPE_CHECKING:
    from paceline import job
    from paceline._core import Cluster, Trace, __version__
    from paceline.catalog.builtin import load_cluster, load_trace
    from paceline.catalog.builtin_names import cluster_names, trace_names
    from paceline.catalog.strategies import all_strategies
    from paceline.errors import InternalError, InvalidArgumentError, JobError, PacelineError
    from paceline.forecast.output.frame import to_frame
    from paceline.forecast.output.plotting import plot
    from paceline.forecast.progress import SweepInterrupted
    from paceline.forecast.result import Busy, LinkUse, PathPart, Result
    from paceline.forecast.simulate import simulate
    from paceline.forecast.sweep import sweep

    UserError = InvalidArgumentError  # its old name

__all__ = [
    "Busy",
    "Cluster",
    "InternalError",
    "InvalidArgumentError",
    "JobError",
    "LinkUse",
    "PacelineError",
    "PathPart",
    "Result",
    "SweepInterrupted",
    "Trace",
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

if not TYPE_CHECKING:  # type checkers would take `__getattr__` for a definition of every name
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "paceline.job": [],
            "paceline._core": ["Cluster", "Trace", "__version__"],
            "paceline.errors": ["InternalError", "InvalidArgumentError", "JobError", "PacelineError"],
            "paceline.catalog.builtin_names": ["cluster_names", "trace_names"],
            "paceline.catalog.builtin": ["load_cluster", "load_trace"],
            "paceline.catalog.strategies": ["all_strategies"],
            "paceline.forecast.output.frame": ["to_frame"],
            "paceline.forecast.output.plotting": ["plot"],
            "paceline.forecast.result": ["Busy", "LinkUse", "PathPart", "Result"],
            "paceline.forecast.simulate": ["simulate"],
            "paceline.forecast.progress": ["SweepInterrupted"],
            "paceline.forecast.sweep": ["sweep"],
            "paceline.plan": ["plan_tensorflow"],  # its old place
        },
        renamed={"UserError": "InvalidArgumentError"},
    )
