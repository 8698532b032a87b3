"""The search: the best configuration of each sharding, by branch and bound, so that few need to be simulated.

Candidates of a sharding are forecast in the order of the rate that they would have if all communication was hidden. As
soon as one that fits is faster than that bound of the next, no other can be faster. Those whose state and
activations alone exceed the memory are not forecast.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from paceline._core import parse_rate
from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding as shardings
from paceline.forecast.advisor.candidates import (
    CHECKPOINTINGS,
    Candidate,
    Setup,
    Space,
    least_bytes,
    least_seconds,
    shard_ranks,
)
from paceline.forecast.bottleneck import NOTEWORTHY, reliefs
from paceline.forecast.options import Sweep, prepare
from paceline.forecast.simulate import LONG, Result, Scenario
from paceline.forecast.sweep import execute

Progress = Callable[[int, int], None]
_BUCKETS = (1 << 26, 1 << 28, 1 << 30)
"""Sizes that are tried instead of the library's."""
NEAR = 0.02
"""Share of a rate by which two configurations are as good as equal: forecasts are off by more than that."""
SEARCHED = ("workers", "sharding", "checkpointing", "batch", "accumulate")
"""Settings of `advise` that are searched, or restrict the search if they are given."""


@dataclass(frozen=True)
class Help:
    """What would make a configuration faster, and how many times."""

    what: str
    gain: float


@dataclass(frozen=True)
class Option:
    """A configuration that fits, with its forecast."""

    candidate: Candidate
    result: Result
    help: Help | None = None
    """None: nothing helps that can be bought without another GPU."""


@dataclass(frozen=True)
class TooLarge:
    """The configuration of a sharding that needs the least memory; it does not fit."""

    candidate: Candidate
    least_bytes: int


@dataclass
class Found:
    """What was found for a number of GPUs."""

    gpus: int
    workers: int
    capacity_bytes: int
    candidates: int = 0
    """Configurations that were considered."""
    simulated: int = 0
    too_large: int = 0
    """Configurations that are known not to fit; others that do not fit would not be faster either."""
    options: list[Option] = field(default_factory=list)
    """The best of each sharding, fastest first."""
    roomier: Option | None = None
    """If all of these fit tightly: the fastest of the first one's sharding that does not."""
    never_fit: list[TooLarge] = field(default_factory=list)
    """Shardings that do not fit in any configuration, least memory first."""
    left_out: list[str] = field(default_factory=list)
    """Shardings that would take long to simulate."""


@dataclass(frozen=True)
class Job:
    """A model, GPUs and a network, with what may vary."""

    sweep: Sweep
    """With the settings that do not vary."""
    space: Space
    gpus: tuple[int, ...]
    known: dict[Candidate, Result] = field(default_factory=dict, compare=False)
    """Forecasts made so far."""
    _scenarios: dict[tuple[int, str], dict[tuple[int, str], Scenario]] = field(default_factory=dict, compare=False)
    _workloads: dict[tuple[int, str], Workload] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, sweep: Sweep, global_batch: int | None = None) -> Job:
        """Divide what was given into what is searched and what is not. Raises InvalidArgumentError."""
        values = sweep.values
        if "workers" not in values:
            raise InvalidArgumentError("give the number of GPUs, such as --gpus 16,64")
        space = Space(
            **({"shardings": values["sharding"]} if "sharding" in values else {}),
            checkpointings=values.get("checkpointing", CHECKPOINTINGS),
            batch=values.get("batch"),
            accumulate=values.get("accumulate"),
            global_batch=global_batch,
        )
        fixed = replace(sweep, values={name: value for name, value in values.items() if name not in SEARCHED})
        if fixed.workload(fixed.trace) is None:
            raise InvalidArgumentError("name the GPU that times are computed for, such as h100", setting="gpu")
        return cls(fixed, space, tuple(values["workers"]))

    @cached_property
    def per_node(self) -> int:
        """Data-parallel ranks of a node."""
        return int(json.loads(self.sweep.machine().to_json())["gpus_per_node"])

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node, which share its rate."""
        return self.per_node * self.sweep.gpus_per_rank

    @property
    def bandwidth_bps(self) -> float:
        """Rate of a node, each way."""
        [given] = self.sweep.get("bandwidth") or [json.loads(self.sweep.machine().to_json())["bandwidth"]]
        return parse_rate(given)

    def workers(self, gpus: int) -> int:
        """Return the data-parallel ranks. Raises InvalidArgumentError if there is none."""
        [found] = replace(self.sweep, values={**self.sweep.values, "workers": [gpus]}).workers
        return found

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is assumed."""
        return tuple(self._prepared(1, self.space.checkpointings[0])[1])

    def workload(self, batch: int, checkpointing: str) -> Workload:
        """Return the model on the GPU. Raises InvalidArgumentError for a recording."""
        key = batch, checkpointing
        if key not in self._workloads:
            found = self._with(batch, checkpointing).workload(self.sweep.trace)
            assert found is not None  # checked by `of`
            self._workloads[key] = found
        return self._workloads[key]

    @cached_property
    def capacity_bytes(self) -> int:
        """Memory of a GPU."""
        given: int | None = self.sweep.get("memory")
        return given or self.workload(1, self.space.checkpointings[0]).hardware.memory_bytes

    def scenario(self, candidate: Candidate) -> Scenario:
        """Return what is forecast for a candidate. Raises InvalidArgumentError."""
        key = candidate.batch, candidate.checkpointing
        if key not in self._scenarios:
            self._scenarios[key] = self._prepared(*key)[0]
        found = self._scenarios[key][candidate.workers, candidate.setup.sharding]
        return found.changed(**candidate.options)

    def result(self, candidate: Candidate) -> Result:
        """Forecast a candidate, once. Raises InvalidArgumentError."""
        if candidate not in self.known:
            self.known[candidate] = self.scenario(candidate).result()
        return self.known[candidate]

    def _with(self, batch: int, checkpointing: str, **values: Any) -> Sweep:  # noqa: ANN401
        own = {"batch": batch, "checkpointing": checkpointing, **values}
        return replace(self.sweep, values={**self.sweep.values, **own})

    def _prepared(self, batch: int, checkpointing: str) -> tuple[dict[tuple[int, str], Scenario], list[str]]:
        values = {"workers": list(self.gpus), "sharding": list(self.space.shardings)}
        prepared = prepare(self._with(batch, checkpointing, **values))
        order = product(map(self.workers, self.gpus), self.space.shardings)
        return dict(zip(order, prepared.scenarios, strict=True)), prepared.notes


def refuse_recording(named: str) -> None:
    """Raise InvalidArgumentError for a trace; configurations, and what is neither, pass."""
    from paceline.catalog.library import COLLECTIVES
    from paceline.catalog.models.config import find_config, is_config
    from paceline.catalog.models.spec import is_recorded

    if find_config(named) is not None:
        return
    is_file = Path(named).is_file() and not is_config(Path(named))
    if is_file or is_recorded(named) or named.partition(":")[0] in COLLECTIVES:
        raise InvalidArgumentError(
            f"'{named:.80}' is no configuration of a model: batch and checkpointing of a recording cannot be searched; "
            "advise takes models from `paceline models` or a config.json, and `paceline simulate` forecasts recordings"
        )


def search(job: Job, found: Found, progress: Progress | None = None) -> None:
    """Fill `found`, which holds what is done if this is interrupted. Raises InvalidArgumentError."""
    setups = _setups(job, found.workers)
    for done, setup in enumerate(setups):
        best = _best(job, setup, found)
        if best is not None:
            found.options.append(best)
            found.options.sort(key=_rank)
        if progress is not None:
            progress(done + 1, len(setups))
    found.options = _roomy_first(found.options)
    if found.options and all(map(_is_tight, found.options)):
        found.roomier = _roomier(job, found)
    found.never_fit = [_measured(job, one) for one in found.never_fit]
    found.never_fit.sort(key=lambda one: one.least_bytes)


def _roomy_first(options: Sequence[Option]) -> list[Option]:
    """Return the options with one that is not tight first, if it is as good as equal to the fastest, which is."""
    if not options or not _is_tight(options[0]):
        return list(options)
    first = next((one for one in options if not _is_tight(one) and _is_near(one, options[0])), options[0])
    return [first, *(one for one in options if one is not first)]


def _roomier(job: Job, found: Found) -> Option | None:
    """Return the fastest configuration of the first option's sharding that leaves room."""
    setup = found.options[0].candidate.setup
    fastest: Option | None = None
    for bound, least, one in sorted(candidates(job, setup, found.workers), key=lambda it: (-it[0], it[1])):
        if fastest is not None and bound * found.workers < -_rank(fastest)[0]:
            break
        if least > shardings.TIGHT * job.capacity_bytes:
            continue
        if one not in job.known:
            found.simulated += 1
        option = Option(one, job.result(one))
        if option.result.sharded is None or option.result.sharded.fits is False or _is_tight(option):
            continue
        if fastest is None or _rank(option) < _rank(fastest):
            fastest = option
    return fastest


def _is_tight(option: Option) -> bool:
    return option.result.sharded is not None and option.result.sharded.is_tight


def _is_near(option: Option, best: Option) -> bool:
    return _rank(option)[0] <= (1 - NEAR) * _rank(best)[0]


def _measured(job: Job, one: TooLarge) -> TooLarge:
    """Return it with its peak instead of a floor, if that is quick."""
    if _is_long(job, one.candidate):
        return one
    sharded = job.result(one.candidate).sharded
    assert sharded is not None
    return replace(one, least_bytes=sharded.memory.peak_bytes)


def start(job: Job, gpus: int) -> Found:
    """Return an empty result for a number of GPUs. Raises InvalidArgumentError if the global batch does not suit it."""
    next(job.space.sizes(job.workers(gpus)))
    return Found(gpus, job.workers(gpus), job.capacity_bytes)


def _setups(job: Job, workers: int) -> list[Setup]:
    for name in job.space.shardings:
        _, _, ranks = name.partition(":")
        if ranks and workers % int(ranks):
            raise InvalidArgumentError(f"{name}: groups of {ranks} do not divide {workers} ranks", setting="sharding")
    plain = job.space.setups(workers, job.per_node)
    if not plain:
        for name in filter(shardings.in_groups, job.space.shardings):
            own = shard_ranks(name, workers, job.per_node)
            if workers % own:
                raise InvalidArgumentError(
                    f"{name}: groups of {own}, the ranks of a node, do not divide {workers} ranks; write "
                    f"{name}:RANKS, or add others",
                    setting="sharding",
                )
        words = ", ".join(job.space.shardings)
        raise InvalidArgumentError(
            f"{words} shards nothing on {workers} ranks in nodes of {job.per_node}, or is zero3 there; add others",
            setting="sharding",
        )
    # Where gradients are scattered after every pass, that can be put off to the last one; zero2 then is zero1.
    sharded = [one for one in plain if shardings.kind(one.sharding) in shardings.GATHERED]
    return [*plain, *(replace(one, local=True) for one in sharded)]


def _rank(option: Option) -> tuple[float, int]:
    """Fastest first; of equals, the one that needs less memory."""
    assert option.result.samples_per_s is not None
    assert option.result.sharded is not None
    return -option.result.samples_per_s, option.result.sharded.memory.peak_bytes


def candidates(job: Job, setup: Setup, workers: int) -> list[tuple[float, int, Candidate]]:
    """Return the configurations of a sharding: the rate that none exceeds, the least memory, and the candidate.

    Without a global batch, batches are doubled until none fits. Raises InvalidArgumentError.
    """
    found: list[tuple[float, int, Candidate]] = []
    for batch, passes in job.space.sizes(workers):
        if setup.local and passes == 1:
            continue
        own = []
        for checkpointing in job.space.checkpointings:
            one = Candidate(workers, setup, batch, passes, checkpointing)
            workload = job.workload(batch, checkpointing)
            seconds = least_seconds(workload, one, job.per_node)
            own.append((one.samples / seconds, least_bytes(workload, one, job.per_node, job.sweep.values), one))
        found += own
        if job.space.global_batch is None and all(least > job.capacity_bytes for _, least, _ in own):
            break
    return found


def _best(job: Job, setup: Setup, found: Found) -> Option | None:
    """Return the fastest configuration of a sharding that fits; instead of a tight one, one as good as equal."""
    every = candidates(job, setup, found.workers)
    able = [one for one in every if one[1] <= job.capacity_bytes]
    if able and any(_is_long(job, one) for _, _, one in able):
        found.left_out.append(setup.label)
        return None
    found.candidates += len(every)
    found.too_large += len(every) - len(able)
    best: Option | None = None
    roomy: Option | None = None
    least = [(least, one) for _, least, one in every if least > job.capacity_bytes]
    for bound, _, one in sorted(able, key=lambda it: (-it[0], it[1])):
        if best is not None and bound * found.workers < -_rank(best)[0]:
            # What follows can only be the better choice for its room.
            enough = roomy is not None and bound * found.workers < -_rank(roomy)[0]
            if not _is_tight(best) or enough or bound * found.workers < -(1 - NEAR) * _rank(best)[0]:
                break
        result = job.result(one)
        found.simulated += 1
        assert result.sharded is not None
        peak = result.sharded.memory.peak_bytes
        if peak > job.capacity_bytes:
            found.too_large += 1
            least.append((peak, one))
            continue
        option = Option(one, result)
        if best is None or _rank(option) < _rank(best):
            best = option
        if not _is_tight(option) and (roomy is None or _rank(option) < _rank(roomy)):
            roomy = option
    if best is not None and _is_tight(best) and roomy is not None and _is_near(roomy, best):
        best = roomy
    if best is None and least:
        size, one = min(least, key=lambda it: it[0])
        found.never_fit.append(TooLarge(one, size))
    return best


def _is_long(job: Job, candidate: Candidate) -> bool:
    """Whether a forecast takes more than a second: DDP's buckets go side by side, message by message."""
    if candidate.setup.sharding != shardings.NONE or candidate.accumulate > 1:
        return False
    return job.scenario(candidate).most_messages > LONG


def explain(job: Job, found: Found, most: int) -> None:
    """Add to the best options what would make each faster."""
    for place, option in enumerate(found.options[:most]):
        found.options[place] = _helped(job, option)


def _larger_buckets(job: Job, option: Option) -> dict[str, float]:
    """Return how many times faster larger buckets would make it, if it has buckets and their size was not given."""
    scenario = job.scenario(option.candidate)
    if shardings.kind(option.candidate.setup.sharding) in shardings.GATHERED or "bucket_size" in scenario.options:
        return {}
    larger = [scenario.changed(bucket_size=size) for size in _BUCKETS]
    results = execute([one for one in larger if one.most_messages <= LONG])
    fit = [one for one in results if one.sharded is None or one.sharded.fits is not False]
    best = min(fit, key=lambda one: one.iteration_s, default=None)
    if best is None or best.bucket_size is None:
        return {}
    return {f"--bucket-size {best.bucket_size >> 20}MiB": option.result.iteration_s / best.iteration_s}


def _helped(job: Job, option: Option) -> Option:
    """Return it with the relief of the network, or the larger buckets, that gain most."""
    given: dict[str, float] = {
        one.what: one.gain
        for one in reliefs(job.scenario(option.candidate), option.result)
        if one.resource != "computation"
    }
    given |= _larger_buckets(job, option)
    what = max(given, key=lambda name: given[name], default=None)
    if what is None or given[what] <= NOTEWORTHY:
        return option
    return replace(option, help=Help(what, given[what]))
