"""Changes with which a forecast that does not fit does: each is forecast before it is proposed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.errors import InvalidArgumentError
from paceline.forecast import remedies
from paceline.forecast.footprint import allocatable_bytes, context_bytes, floor_bytes
from paceline.forecast.lowering import is_long
from paceline.forecast.prepare import prepare
from paceline.forecast.remedies import Proposals, Settings, Trial
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharding import NONE
from paceline.forecast.typed import Typed


@dataclass(frozen=True)
class Proposed:
    """The proposal that was tried for a request that does not fit."""

    typed: Typed
    """The request."""
    proposals: Proposals


def proposed(typed: Typed, sweep: Sweep, scenario: Scenario, result: Result) -> Proposed | None:
    """Return what makes a scenario fit; None if it fits.

    Args:
        typed: What was typed.
        sweep: The request made of that.
        scenario: One of its scenarios.
        result: The forecast of that.
    """
    if result.sharded is None or result.sharded.fits is not False:
        return None
    own = typed.narrowed(sweep, scenario)
    families = remedies.families(scenario, lacks=sweep.file.lacks if sweep.file is not None else {})
    if sweep.get("cluster") is not None:
        # Its nodes have the GPUs that they have.
        families = replace(families, last=[family for family in families.last if "gpu" not in family[0]])
    return Proposed(own, remedies.proposals(families, lambda settings: attempt(own, settings), result.sharded.shortage))


def attempt(typed: Typed, settings: Settings) -> Trial | None:
    """Forecast a request with other settings; None if they contradict what was given."""
    return tried(settings, typed.changed(settings).request)


def tried(settings: Settings, request: Callable[[], Sweep]) -> Trial | None:
    """Forecast a request that has changed settings; None if they contradict what was given."""
    try:
        sweep = request()
        if (needed := _floor(sweep)) is not None and needed[0] > needed[1]:
            return Trial(settings, False, needed[0], needed[0] / needed[1])
        scenario = prepare(sweep).scenarios[0]
        if is_long(scenario):
            return None
        result = result_of(scenario)
    except InvalidArgumentError:
        return None
    own = result.sharded
    if own is None or own.capacity_bytes is None or not remedies.has_host(own.fit):
        return None
    tight = own.is_tight
    return Trial(settings, bool(own.fits), own.memory.peak_bytes, own.shortage, tight, result)


def _floor(sweep: Sweep) -> tuple[int, int] | None:
    """Return bytes that no peak of a model is below, and those that may be allocated; None for a recording."""
    workload = sweep.workload(sweep.trace)
    if workload is None:
        return None
    capacity = sweep.get("memory") or workload.hardware.memory_bytes
    [name, *_] = sweep.get("sharding") or [NONE]
    size = floor_bytes(workload, name, sweep.workers[0], sweep.machine().gpus_per_node, sweep.values)
    return size, max(1, allocatable_bytes(capacity, context_bytes(workload.hardware)))
