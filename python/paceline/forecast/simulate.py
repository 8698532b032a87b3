"""Forecast one configuration: `paceline.simulate(trace, cluster, strategy) -> Result`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from paceline._core import Cluster, Trace
from paceline.catalog import names
from paceline.errors import InvalidArgumentError
from paceline.forecast import longest
from paceline.forecast.anchor import anchored
from paceline.forecast.output import html  # noqa: F401 -- what notebooks show of a result
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.settings.keywords import SimulateOptions
from paceline.settings.table import SIMULATE


def simulate(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster | None = None,
    strategy: names.Strategy | None = None,
    *,
    workers: int | None = None,
    gpus: int | None = None,
    timeline: str | Path | None = None,
    **options: Unpack[SimulateOptions],
) -> Result:
    """Forecast one iteration of training. The GIL is released while it runs.

    Args:
        trace: A file, a built-in name, `allreduce:100MB`, or a `Trace`. A file may be a trainer's
            (docs/how-to/trainers-files.md), whose options count where none is given here.
        cluster: A file, a built-in name, or a `Cluster`; by default `flat`, 25 Gbps between single-GPU nodes.
        strategy: The gradient-synchronization algorithm (`paceline list strategies`). The default is the library's own:
            `native` for `ddp`.
        workers: Ranks that train, one per GPU; required, unless `gpus` is given or a trainer's file says it.
        gpus: Alias of `workers`, for models.
        timeline: A file to which the run is written as a Chrome trace.
        **options: Settings of a forecast (docs/reference/settings.md), such as `servers=2`, `bucket_size="25MB"` or
            `pull="step"`; the `library` to model (docs/reference/libraries.md); changes to the trace
            (`gpu`, `samples_per_s`, `batch`, `dtype`); and fields of the cluster, such as `bandwidth="10Gbps"`,
            `latency="10us"`, `gpus_per_node=4`, or `stragglers={13: 1.2}` for a slow GPU. Sizes are bytes, or text with
            a unit. None stands for the default.

    Returns:
        The forecast; times are seconds per iteration in the steady state.

    Raises:
        InvalidArgumentError: A name is unknown, a value invalid, or an option has no effect on this strategy.
        OSError: The timeline cannot be written.

    Example:
        >>> result = paceline.simulate("resnet-50", strategy="ring", workers=8, bandwidth="10Gbps")
        >>> result.workers, result.iteration_s > result.forward_s + result.backward_s
        (8, True)
    """
    given: dict[str, object] = {**options, "cluster": cluster, "strategy": strategy, "workers": workers, "gpus": gpus}
    if longest.asks(options):
        most = longest.longest(lambda tokens: Sweep.of(trace, {**given, "seq": tokens}, SIMULATE, one_strategy=True))
        own = simulate(trace, **{**given, "seq": most.tried, "timeline": timeline})  # type: ignore[arg-type]
        return replace(own, longest_seq=most.tokens)
    sweep = Sweep.of(trace, given, SIMULATE, one_strategy=True)
    if sweep.get("workers") is None:
        raise InvalidArgumentError("needs the number of ranks", setting="workers", remedy="{workers=8}")
    if sweep.file is not None and sweep.file.left_out:
        warnings.warn(sweep.file.left_out, stacklevel=2)
    request = anchored(sweep)
    [scenario] = request.prepared.scenarios
    result = result_of(replace(scenario, timeline=None if timeline is None else Path(timeline)))
    return request.results([result])[0]
