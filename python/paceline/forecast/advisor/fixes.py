"""The changes with which a model fits where nothing that was searched does: each is searched before it is proposed."""

from __future__ import annotations

from dataclasses import replace

from paceline.errors import InvalidArgumentError
from paceline.forecast import remedies
from paceline.forecast.advisor import search
from paceline.forecast.advisor.candidates import OFFLOADED, ModelParallel
from paceline.forecast.advisor.job import Job
from paceline.forecast.advisor.search import Outcome, TooLarge
from paceline.forecast.remedies import Families, Proposals, Settings, Trial
from paceline.forecast.typed import Typed
from paceline.settings.table import EACH, SETTINGS, SIMULATE

_PARALLEL = {"tensor_parallel": "tensor", "expert_parallel": "experts"}


def fixes(job: Job, outcome: Outcome, typed: Typed) -> Proposals:
    """Return changes of what was asked for with each of which something fits, where nothing does.

    Args:
        job: What was searched.
        outcome: The result of the search on a number of GPUs.
        typed: The request.
    """
    least = outcome.never_fit[0]
    scenario = job.scenario(least.candidate)
    lacks = job.sweep.file.lacks if job.sweep.file is not None else {}
    families = remedies.families(scenario, divisible=job.space.parallel == (ModelParallel(),), lacks=lacks)
    shortage = least.least_bytes / max(1, job.allocatable_bytes)
    proposals = remedies.proposals(
        _left(job, families, outcome.gpus), lambda settings: _attempt(job, settings, outcome.gpus), shortage
    )
    return proposals.answered(lambda trial: _answered(trial, typed.changed({"workers": outcome.gpus})))


def _answered(trial: Trial, typed: Typed) -> Trial:
    """Return a trial with the answer of its command, which is about the fastest that fits, and not about the least."""
    request = typed.changed(trial.settings)
    options = {name: value for name, value in request.options.items() if SIMULATE in SETTINGS[name].uses}
    try:
        job = Job.of(replace(request, options=options).request(), request.options.get("global_batch"))
        [gpus] = job.gpus
        _, outcome = search.searched(job, search.empty(job, gpus))
    except InvalidArgumentError:
        return trial
    if not outcome.options or (own := (best := outcome.options[0]).result.sharded) is None:
        return trial
    return replace(
        trial, need_bytes=own.memory.peak_bytes, shortage=own.shortage, is_tight=own.is_tight, result=best.result
    )


def _left(job: Job, families: Families, gpus: int) -> Families:
    """Leave out what was searched, and what `advise` cannot be told."""
    space = job.space
    searched = {
        *(["sharding"] if "zero3" in space.shardings else []),
        *(["checkpointing"] if "full" in space.checkpointings else []),
        *(["batch"] if space.batch is None else []),
        *(["gpu"] if job.sweep.get("cluster") is not None else []),
    }

    def is_searched(one: Settings) -> bool:
        if one.get("checkpointing") == OFFLOADED:
            return OFFLOADED in space.checkpointings
        return bool(one.keys() & searched)

    def of(variants: list[Settings]) -> list[Settings]:
        if "offload" in variants[-1]:
            # The shardings that it takes are searched.
            variants = [{name: value for name, value in one.items() if name not in searched} for one in variants]
        known = [one for one in variants if all("advise" in SETTINGS[name].uses for name in one)]
        return [] if any(map(is_searched, known)) else known

    more = [{name: value for name, value in one.items() if name not in searched} for one in families.gpus]
    if space.global_batch is not None:
        # Not all numbers of ranks divide it.
        more = [one for one in more if (int(one["workers"]) // gpus).bit_count() == 1 and one["workers"] % gpus == 0]
    return Families(
        [left for one in families.usual if (left := of(list(one)))],
        more,
        sum(int(one["workers"]) <= int(families.gpus[families.near - 1]["workers"]) for one in more)
        if families.near
        else 0,
        [left for one in families.last if (left := of(list(one)))],
        families.shorter,
    )


def _attempt(job: Job, settings: Settings, gpus: int) -> Trial | None:
    """Search what needs least with other settings; None if they contradict each other or what was given."""
    gpus = int(settings.get("workers", gpus))
    try:
        changed = _with(job, settings, gpus)
        if changed is None:
            return None
        setups = {one.sharding: one for one in reversed(search.setups(changed, gpus))}.values()
        floors = [one.least_bytes for setup in setups for one in search.candidates(changed, setup, gpus)]
        limit = changed.allocatable_bytes
        if not floors:
            return None
        if min(floors) > limit:
            return Trial(settings, False, min(floors), min(floors) / max(1, limit))
        # A sharding's variants that need more are not tried.
        every = [search.least_unsimulated(changed, setup, gpus) for setup in setups]
        return min(
            (_trial(changed, one, settings) for one in every if one is not None),
            key=lambda trial: (not trial.fits, trial.shortage),
            default=None,
        )
    except InvalidArgumentError:
        return None


def _trial(job: Job, one: TooLarge, settings: Settings) -> Trial:
    """Return whether the configuration of a sharding that needs least fits."""
    if search.takes_long(job, one.candidate):
        limit = job.allocatable_bytes
        return Trial(settings, one.least_bytes <= limit, one.least_bytes, one.least_bytes / max(1, limit))
    own = job.fit(one.candidate)
    if own.fits and (sharded := job.result(one.candidate).sharded) is not None:
        own = sharded.fit
    fits, tight = bool(own.fits) and remedies.has_host(own), own.is_tight
    return Trial(settings, fits, own.memory.peak_bytes, own.shortage, tight)


def _with(job: Job, settings: Settings, gpus: int) -> Job | None:
    """Return the job with other settings; None if the GPUs cannot be divided so. Raises InvalidArgumentError."""
    space, values = job.space, {}
    for name, value in settings.items():
        match name:
            case "sharding":
                space = replace(space, shardings=[str(value)])
            case "checkpointing":
                space = replace(space, checkpointings=(str(value),))
            case "batch":
                space = replace(space, batch=int(value))
            case "accumulate":
                space = replace(space, accumulate=int(value))
            case "workers":
                pass
            case "tensor_parallel" | "expert_parallel":
                space = replace(space, parallel=(ModelParallel(**{_PARALLEL[name]: int(value)}),))
            case _:
                checked = SETTINGS[name].check(value, None, "advise")
                values[name] = checked[0] if name in EACH else checked
    changed = job.on((gpus,), space, job.sweep.changed(values))
    own = space.parallel[0]
    changed = changed.accepted()
    if space.parallel == job.space.parallel or (own.suits(gpus, changed.gpus_per_node) and changed.divides(own)):
        return changed
    return None
