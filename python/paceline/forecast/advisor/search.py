"""The search: the best configurations of each sharding, by branch and bound, so that few need to be simulated.

Candidates of a sharding are forecast in the order of the rate that they would have if all communication was hidden. As
soon as one that fits is faster than that bound of the next, no other can be faster. Those whose state and
activations alone exceed the memory are not forecast.

The best of a sharding is the fastest that leaves room for what is not counted. One that fits tightly and is noticeably
faster is kept, too, but comes after all that leave room.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding as shardings
from paceline.forecast.advisor.candidates import (
    Candidate,
    ModelParallel,
    Setup,
    least_bytes,
    least_seconds,
)
from paceline.forecast.advisor.job import Job
from paceline.forecast.kinds import Resource
from paceline.forecast.lowering import is_long
from paceline.forecast.remedies import has_host
from paceline.forecast.result import Result
from paceline.forecast.verdict.bottleneck import Relief, reliefs

Progress = Callable[[int, int], None]
_BUCKETS = (1 << 28, 1 << 30)
"""Sizes that are tried beside the library's: DeepSpeed's is 1 GB of 16-bit gradients."""
NEAR = 0.02
"""Share of a rate by which two configurations are as good as equal: forecasts are off by more than that."""


@dataclass(frozen=True)
class Option:
    """A configuration that fits, with its forecast."""

    candidate: Candidate
    result: Result
    help: Relief | None = None
    """None: nothing helps that can be bought without another GPU."""


@dataclass(frozen=True)
class TooLarge:
    """The configuration of a sharding that needs the least memory; it does not fit."""

    candidate: Candidate
    least_bytes: int


@dataclass
class Outcome:
    """Search results for a number of GPUs."""

    gpus: int
    capacity_bytes: int
    candidates: int = 0
    """Configurations that were considered."""
    simulated: int = 0
    does_not_fit: int = 0
    """Configurations that are known not to fit; others that do not fit would not be faster either."""
    options: list[Option] = field(default_factory=list)
    """The best of each sharding: those that leave room, fastest first, and then those that fit tightly."""
    never_fit: list[TooLarge] = field(default_factory=list)
    """Shardings that do not fit in any configuration, least memory first."""
    left_out: list[Setup] = field(default_factory=list)
    """Shardings that would take long to simulate."""
    refused: str = ""
    """Why there is nothing to search; empty if there is."""


def search(job: Job, outcome: Outcome, progress: Progress | None = None) -> None:
    """Fill `outcome`, which holds what is done if this is interrupted. Raises InvalidArgumentError."""
    every = setups(job, outcome.gpus)
    for done, setup in enumerate(every):
        outcome.options += _best(job, setup, outcome)
        outcome.options.sort(key=_rank)
        if progress is not None:
            progress(done + 1, len(every))
    outcome.never_fit.sort(key=lambda one: one.least_bytes)


def searched(job: Job, outcome: Outcome, progress: Progress | None = None) -> tuple[Job, Outcome]:
    """Search, and search more where that leaves no room; return what was searched, with its result.

    Where all fits tightly, checkpoints are offloaded, too; where nothing fits, the model is also divided.
    """
    search(job, outcome, progress)
    more = job.offloading if outcome.options else job.wider
    if more is None or outcome.left_out or not all(map(_is_tight, outcome.options)):
        return job, outcome
    wide = empty(job, outcome.gpus)
    search(more, wide, progress)
    return (job, outcome) if outcome.options and all(map(_is_tight, wide.options)) else (more, wide)


def _fastest_first(
    job: Job, outcome: Outcome, bounded: Sequence[Bounded], is_enough: Callable[[float], bool]
) -> Iterator[Option]:
    """Forecast candidates in the order of the rate that they cannot exceed, until one is as low as `is_enough` says."""
    for bound, _, one in sorted(bounded, key=lambda it: (-it.samples_per_s, it.least_bytes)):
        if is_enough(bound):
            return
        outcome.simulated += one not in job.known
        yield Option(one, job.result(one))


def _fits(option: Option) -> bool:
    own = option.result.sharded
    return own is not None and own.fits is not False and has_host(own.fit)


def _is_tight(option: Option) -> bool:
    return option.result.sharded is not None and option.result.sharded.is_tight


def _peak_bytes(job: Job, candidate: Candidate) -> int:
    sharded = job.result(candidate).sharded
    assert sharded is not None
    return sharded.memory.peak_bytes


def _least(
    job: Job, every: Sequence[Bounded], peak_bytes: Callable[[Job, Candidate], int] = _peak_bytes
) -> TooLarge | None:
    """Return the configuration with the lowest peak; where a forecast takes long, its floor counts."""
    least: TooLarge | None = None
    for one in sorted(every, key=lambda it: it.least_bytes):
        if least is not None and one.least_bytes >= least.least_bytes:
            break
        size = one.least_bytes
        if not takes_long(job, one.candidate):
            size = peak_bytes(job, one.candidate)
        if least is None or size < least.least_bytes:
            least = TooLarge(one.candidate, size)
    return least


def least(job: Job, setup: Setup, gpus: int) -> TooLarge | None:
    """Return the configuration of a sharding that needs the least memory. Raises InvalidArgumentError."""
    return _least(job, candidates(job, setup, gpus))


def least_unsimulated(job: Job, setup: Setup, gpus: int) -> TooLarge | None:
    """Return what `least` returns, from peaks as if exchanges took no time. Raises InvalidArgumentError."""
    return _least(job, candidates(job, setup, gpus), lambda own, one: own.fit(one).memory.peak_bytes)


def safer(job: Job, outcome: Outcome) -> Option | None:
    """Return the fastest configuration on these GPUs that leaves room, where all that were searched fit tightly.

    Batch and checkpointing are free, even if they were given; checkpoints are offloaded, and tensor-parallel GPUs of a
    node tried, too. None if there is none, or if something that was searched leaves room.
    """
    if not outcome.options or not all(map(_is_tight, outcome.options)):
        return None
    tensors = (ModelParallel(tensor) for tensor in (2, 4, 8))
    more = [one for one in tensors if one not in job.space.parallel and job.divides(one)]
    ways = (*job.space.parallel, *more)
    space = replace(job.space, batch=None, checkpointings=job.every_checkpointing, parallel=ways)
    freer = job.on((outcome.gpus,), space)
    try:
        tried = Outcome(outcome.gpus, outcome.capacity_bytes)
        search(freer, tried)
    except InvalidArgumentError:
        return None
    return next((one for one in tried.options if not _is_tight(one)), None)


def enough(job: Job, one: Candidate, *, roomy: bool = False, most: int = 64) -> int | None:
    """Return the fewest GPUs, in whole nodes and up to `most` times as many, on which this sharding fits.

    `roomy`: not tightly.
    """
    limit = job.roomy_bytes if roomy else job.allocatable_bytes
    node = math.lcm(job.gpus_per_node, one.parallel.group)
    first, last = one.gpus // node + 1, max(2, most * one.gpus // node)

    def fits(nodes: int) -> bool:
        own = job.on((nodes * node,))
        try:
            it = least(own, one.setup, nodes * node)
        except InvalidArgumentError:
            return False
        return it is not None and it.least_bytes <= limit

    if job.space.global_batch is not None:
        # Not all numbers of ranks divide it.
        whole = -(-one.gpus // node)
        doubled = (whole * 2**power for power in range(1, most.bit_length()))
        return next((nodes * node for nodes in doubled if fits(nodes)), None)
    if first > last or not fits(last):
        return None
    return (first + bisect.bisect_left(range(first, last), True, key=fits)) * node


def start(job: Job) -> list[Outcome]:
    """Return an empty result for each number of GPUs. Raises InvalidArgumentError if none has a configuration."""
    every, errors = [], []
    for gpus in job.gpus:
        outcome = empty(job, gpus)
        try:
            _check(job.alone(gpus), gpus)
        except InvalidArgumentError as error:
            outcome.refused = f"{error.reason} (try: {error.remedy_as('flag')})"
            errors.append(error)
        every.append(outcome)
    if len(errors) == len(every):
        raise errors[0]
    return every


def empty(job: Job, gpus: int) -> Outcome:
    """Return the result of a number of GPUs before the search."""
    return Outcome(gpus, job.capacity_bytes)


def _check(job: Job, gpus: int) -> None:
    """Raise InvalidArgumentError if no way to divide the model and the batch suits a number of GPUs."""
    errors = []
    for parallel in job.ways(gpus):
        try:
            next(job.space.sizes(gpus // parallel.gpus, parallel))
        except InvalidArgumentError as error:
            errors.append(error)
        else:
            return
    tensor = _tensor_for(job, gpus)
    if tensor is None:
        raise errors[0]
    raise InvalidArgumentError(
        errors[0].reason, remedy=f"--tensor-parallel {tensor} (GPUs share a rank), or {errors[0].remedy_as('flag')}"
    )


def _tensor_for(job: Job, gpus: int) -> int | None:
    """Return the fewest tensor-parallel GPUs with which the global batch suits, if they were not given."""
    if any(one.tensor > 1 for one in job.space.parallel):
        return None
    for tensor in (2, 4, 8):
        suits = gpus % tensor == 0 and (job.space.global_batch or 0) % (gpus // tensor) == 0
        if suits and job.divides(ModelParallel(tensor)):
            return tensor
    return None


def setups(job: Job, gpus: int) -> list[Setup]:
    """Return the shardings of all ways to divide the model. Raises InvalidArgumentError if there is none."""
    ranks = {one: (gpus // one.gpus, job.per_node(one)) for one in job.ways(gpus)}
    every_setup = [setup for one, own in ranks.items() for setup in job.space.setups(*own, one)]
    for name in job.space.shardings:
        if ":" in name:
            _check_groups(name, list(ranks.values()))
    if not every_setup:
        for name in filter(shardings.in_groups, job.space.shardings):
            _check_groups(name, list(ranks.values()))
        [(workers, per_node), *_] = ranks.values()
        if workers == 1:
            raise InvalidArgumentError(
                f"{', '.join(job.space.shardings)} needs several ranks to shard over, and there is one",
                setting="sharding",
                remedy="{gpus=8}, or drop {this}",
            )
        raise InvalidArgumentError(
            f"{', '.join(job.space.shardings)} shards nothing, or is zero3, on {workers} ranks in nodes of {per_node}",
            setting="sharding",
            remedy="{sharding=none,zero1,zero2,zero3}",
        )
    order = list(job.space.shardings)
    return sorted(dict.fromkeys(every_setup), key=lambda one: (one.local, order.index(one.sharding), one.kept))


def _check_groups(name: str, ranks: Sequence[tuple[int, int]]) -> None:
    """Raise InvalidArgumentError if groups never divide the data-parallel ranks; `ranks`: all, and those of a node."""
    if any(workers % shardings.shard_ranks(name, workers, per_node) == 0 for workers, per_node in ranks):
        return
    [(workers, per_node), *_] = ranks
    own = shardings.shard_ranks(name, workers, per_node)
    if ":" in name:
        raise InvalidArgumentError(
            f"{name}: groups of {own} do not divide {workers} ranks",
            setting="sharding",
            remedy=f"{{sharding={name.partition(':')[0]}:{workers}}}",
        )
    raise InvalidArgumentError(
        f"{name}: groups of {own}, the ranks of a node, do not divide {workers} ranks",
        setting="sharding",
        remedy=f"{{sharding={name}:{workers}}}, or zero3",
    )


def _rank(option: Option) -> tuple[bool, float, int, int]:
    """Sort key: options with room first, then the fastest; of equals, less memory, then the usual buckets."""
    assert option.result.sharded is not None
    return _is_tight(option), -rate(option), option.result.sharded.memory.peak_bytes, option.candidate.bucket_bytes or 0


def rate(option: Option) -> float:
    """Samples per second of all ranks."""
    assert option.result.samples_per_s is not None
    return option.result.samples_per_s


class Bounded(NamedTuple):
    """A configuration, with the rate of all ranks that it does not exceed, and the memory that it needs at least."""

    samples_per_s: float
    least_bytes: int
    candidate: Candidate


def candidates(job: Job, setup: Setup, gpus: int) -> list[Bounded]:
    """Return the configurations of a sharding.

    Without a global batch, batches are doubled until none fits. Raises InvalidArgumentError.
    """
    bounded: list[Bounded] = []
    for parallel in job.ways(gpus):
        workers, per_node = gpus // parallel.gpus, job.per_node(parallel)
        if setup not in job.space.setups(workers, per_node, parallel):
            continue
        try:
            sizes = job.space.sizes(workers, parallel)
            bounded += _of_sizes(job, setup, workers, parallel, sizes)
        except InvalidArgumentError:
            if len(job.space.parallel) == 1:
                raise
    return bounded


def sizes_of_buckets(job: Job, setup: Setup, workers: int) -> Sequence[int | None]:
    """Return the sizes of buckets that are tried: the given one alone, or where units are gathered, the library's."""
    if workers == 1 or shardings.kind(setup.sharding) in shardings.GATHERED:
        return (None,)
    is_given = job.values(Candidate(workers, setup, 1, 1, "none")).get("bucket_size") is not None
    return (None,) if is_given else (None, *_BUCKETS)


def _of_sizes(
    job: Job, setup: Setup, workers: int, parallel: ModelParallel, sizes: Iterator[tuple[int, int]]
) -> Iterator[Bounded]:
    per_node = job.per_node(parallel)
    for batch, passes in sizes:
        if (setup.local and passes == 1) or (passes > 1 and not job.accumulates(setup.sharding, passes)):
            continue
        own = []
        for checkpointing, bucket in product(job.space.checkpointings, sizes_of_buckets(job, setup, workers)):
            one = Candidate(workers, setup, batch, passes, checkpointing, parallel, bucket)
            workload = job.workload(one)
            size = least_bytes(workload, one, per_node, job.values(one))
            # What does not fit is not timed.
            able = size <= job.allocatable_bytes
            rate = one.global_batch / least_seconds(workload, one, per_node) if able else math.inf
            own.append(Bounded(rate, size, one))
        yield from own
        if job.space.global_batch is None and all(one.least_bytes > job.allocatable_bytes for one in own):
            return


def _best(job: Job, setup: Setup, outcome: Outcome) -> list[Option]:
    """Return the fastest configuration of a sharding that leaves room, and a tight one that is noticeably faster."""
    every = candidates(job, setup, outcome.gpus)
    able = [one for one in every if one.least_bytes <= job.allocatable_bytes]
    if able and any(takes_long(job, one.candidate) for one in able):
        outcome.left_out.append(setup)
        return []
    outcome.candidates += len(every)
    outcome.does_not_fit += len(every) - len(able)
    best: dict[bool, Option] = {}
    """By whether it is tight."""

    def forecast(some: Sequence[Bounded], is_enough: Callable[[float], bool]) -> None:
        for option in _fastest_first(job, outcome, some, is_enough):
            tight = _is_tight(option)
            if not _fits(option):
                outcome.does_not_fit += 1
            elif tight not in best or _rank(option) < _rank(best[tight]):
                best[tight] = option

    def is_beaten(bound: float) -> bool:
        return False in best and bound < rate(best[False])

    def is_no_gain(bound: float) -> bool:
        return any(bound < rate(one) * (1 if tight else 1 + NEAR) for tight, one in best.items())

    limit = job.roomy_bytes
    forecast([one for one in able if one.least_bytes <= limit], is_beaten)
    forecast([one for one in able if one.least_bytes > limit], is_no_gain)
    if False in best and True in best and rate(best[True]) < (1 + NEAR) * rate(best[False]):
        del best[True]
    # Units that stay gathered need more.
    is_known = setup.kept and any(it.candidate.setup.sharding == setup.sharding for it in outcome.never_fit)
    if not best and not is_known and (least := _least(job, every)) is not None:
        outcome.never_fit.append(least)
    return [best[tight] for tight in sorted(best)]


def takes_long(job: Job, candidate: Candidate) -> bool:
    """Whether a forecast takes more than a second: DDP's buckets go side by side, message by message."""
    if candidate.setup.sharding != shardings.NONE or candidate.accumulate > 1:
        return False
    return is_long(job.scenario(candidate))


def explain(job: Job, outcome: Outcome, most: int) -> None:
    """Add to the best options what would make each faster."""
    for place, option in enumerate(outcome.options[:most]):
        outcome.options[place] = _helped(job, option)


def _helped(job: Job, option: Option) -> Option:
    """Return it with the relief of the network, or the larger buckets, that gain most."""
    every = reliefs(job.scenario(option.candidate), option.result)
    best = max((one for one in every if one.resource is not Resource.COMPUTE), key=lambda one: one.gain, default=None)
    return option if best is None or not best.helps else replace(option, help=best)
