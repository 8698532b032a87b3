"""Many forecasts: the product of the values to sweep, on all cores, in the order of the values."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Unpack

from paceline._core import Cluster, Trace
from paceline.catalog import names
from paceline.errors import InvalidArgumentError, naming
from paceline.forecast.anchor import anchored
from paceline.forecast.baseline import Baseline
from paceline.forecast.execute import LOCAL, execute
from paceline.forecast.output import html  # noqa: F401 -- what notebooks show of a result
from paceline.forecast.progress import Progress
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.settings.keywords import ScenarioOptions, SweepOptions
from paceline.settings.table import SWEEP


def sweep(
    trace: str | Path | Trace | Sequence[str | Path | Trace],
    cluster: str | Path | Cluster | None = None,
    strategy: names.Strategy | Literal["all"] | Sequence[names.Strategy] = "all",
    *,
    workers: int | Sequence[int] | None = None,
    gpus: int | Sequence[int] | None = None,
    progress: Progress | None = None,
    executor: names.Executor = LOCAL,
    options: ScenarioOptions | None = None,
    strategies: names.Strategy | Literal["all"] | Sequence[names.Strategy] | None = None,
    **fields: Unpack[SweepOptions],
) -> list[Result]:
    """Forecast all combinations of the given values, on all cores.

    Args:
        trace: A file, a built-in name, `allreduce:100MB`, or a `Trace`; or a list of these.
        cluster: A file, a built-in name, or a `Cluster`; by default `flat`.
        strategy: One or several strategies; `"all"` stands for those that the cluster's switch supports, parameter
            servers last unless `servers` is given.
        workers: Numbers of ranks that train; required, unless `gpus` is given.
        gpus: Alias of `workers`, for models.
        progress: Called from time to time with the number of finished scenarios and the total.
        executor: `"local"`, or `"ray"`: as tasks of a Ray cluster (docs/how-to/ray.md), with the same results.
        options: Other settings of a forecast by name (docs/reference/settings.md); each is passed to the strategies
            that use it.
        strategies: The former name of `strategy`.
        **fields: `library`, `bandwidth`, `latency`, `bucket_size`, `servers`, `compute_speedup`, `chunk`, `placement`,
            `distribution`, `gpus_per_node`, `add_module` and `send_order`, each a value or a list of values to
            sweep; `baseline`, the row with which the others are compared (`"ps"`, `"strategy=ps,servers=1"`); changes
            to the traces and options of models, such as `batch`, `gpu` and `checkpointing`; and fields of the cluster.

    Returns:
        A result for each scenario, ordered by GPUs per node, added modules, order of distribution, trace, library,
        workers, bandwidth, latency, compute speedup, bucket size, strategy, chunk, placement, distribution and servers.

    Raises:
        InvalidArgumentError: A name is unknown, a value invalid, or an option has no effect on any of the strategies.
        JobError: The Ray cluster failed.
        SweepInterrupted: Ctrl-C; it holds the results so far.

    Example:
        >>> results = paceline.sweep("resnet-50", strategy=["ring", "ps"], workers=[2, 4], servers=2)
        >>> [(result.workers, result.strategy) for result in results]
        [(2, 'ring'), (2, 'ps'), (4, 'ring'), (4, 'ps')]
    """
    if strategies is not None:
        if strategy != "all":
            raise InvalidArgumentError("sweep(strategies=) is the former name of strategy=", remedy="strategy=")
        warnings.warn("sweep(strategies=) is now called strategy=", FutureWarning, stacklevel=2)
        strategy = strategies
    if workers is None and gpus is None:
        raise InvalidArgumentError("needs the numbers of ranks", setting="workers", remedy="workers=[2, 4]")
    given: dict[str, object] = {**(options or {}), **fields, "cluster": cluster, "strategy": strategy}
    given |= {"workers": workers, "gpus": gpus}
    request = Sweep.of(trace, given, SWEEP)
    if request.file is not None and request.file.left_out:
        warnings.warn(request.file.left_out, stacklevel=2)
    if request.get("baseline") is None:
        anchored_request = anchored(request)
        return anchored_request.results(execute(anchored_request.prepared.scenarios, progress, executor))
    with naming(request.sources):
        baseline = Baseline.of(request.get("baseline"))
    anchored_request = anchored(baseline.requested(request))
    scenarios = anchored_request.prepared.scenarios
    with naming(request.sources):
        return baseline.compared(scenarios, anchored_request.results(execute(scenarios, progress, executor)))
