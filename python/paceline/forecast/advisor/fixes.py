"""The smallest changes with which a model fits where nothing does, each tried before it is proposed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from typing import Any

from paceline.catalog.gpus import all_hardware
from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding as shardings
from paceline.forecast.advisor import search
from paceline.forecast.advisor.candidates import Candidate, ModelParallel, Setup
from paceline.forecast.advisor.job import Job
from paceline.forecast.advisor.search import Found
from paceline.forecast.verdict.remedy import has_fewer_states, least_gpus

_TENSORS = [ModelParallel(tensor=ways) for ways in (2, 4, 8)]
_EXPERTS = [ModelParallel(experts=ways) for ways in (2, 4, 8, 16, 32, 64)]
_LEAST_SEQ = 1024
"""Sequences are not proposed to be shorter."""
_STATELESS = "sgd"
_QUANTIZED = "nf4"
_MOST_TIMES = 64
"""More GPUs than so many times as many are proposed only where the model's state needs them."""


@dataclass(frozen=True)
class Fix:
    """Settings to change, by name, with their values."""

    settings: tuple[tuple[str, str | int], ...]


def fixes(job: Job, found: Found) -> list[Fix]:
    """Return changes with each of which something fits on these GPUs, or on more, where nothing does.

    What was given and is not the most frugal is let go of first. If that is not enough, one more change is made: to
    weights of 4 bits beside adapters, tensor-parallel or expert-parallel GPUs, the sequence, the number of GPUs, or the
    optimizer; else to larger GPUs.
    """
    frugal = _frugal(job)
    for number in range(1, len(frugal) + 1):
        for names in combinations(frugal, number):
            some = {name: frugal[name] for name in names}
            if _fits(_with(job, some), found.gpus):
                return [Fix(tuple(some.items()))]
    freed = _with(job, frugal)
    every = [Fix((*frugal.items(), change)) for change in _changes(freed, found.gpus)]
    larger = None if every else _larger(freed, found.gpus)
    return every if larger is None else [Fix((*frugal.items(), ("gpu", larger)))]


def _frugal(job: Job) -> dict[str, str | int]:
    """Return the values that need least of settings that were given other ones."""
    space = job.space
    return {
        **({"sharding": "zero3"} if "zero3" not in space.shardings else {}),
        **({"checkpointing": "full"} if "full" not in space.checkpointings else {}),
        **({"batch": 1} if space.batch is not None and space.batch > 1 and space.global_batch is None else {}),
    }


def _with(job: Job, values: dict[str, str | int]) -> Job:
    """Return the job with other values of what is searched."""
    space = job.space
    if "sharding" in values:
        space = replace(space, shardings=[str(values["sharding"])])
    if "checkpointing" in values:
        space = replace(space, checkpointings=(str(values["checkpointing"]),))
    if "batch" in values:
        space = replace(space, batch=int(values["batch"]))
    return replace(job, space=space, known={}, _scenarios={})


def _changes(job: Job, gpus: int) -> Iterator[tuple[str, str | int]]:
    whole = job.whole
    if whole.adapter is not None and whole.quantization is None and _fits(_of(job, quantize=_QUANTIZED), gpus):
        yield "quantize", _QUANTIZED
    if least_gpus(whole, job.capacity_bytes) <= gpus:
        if job.space.parallel == (ModelParallel(),):
            for ways in (_TENSORS, _EXPERTS):
                yield from islice((one for way in ways for one in way.options.items() if _divided(job, way, gpus)), 1)
        seq = whole.tokens // 2 if whole.is_text else 0
        while seq >= _LEAST_SEQ:
            if _fits(_of(job, seq=seq), gpus):
                yield "seq", seq
                break
            seq //= 2
    more = _more_gpus(job, gpus)
    if more is not None:
        yield "gpus", more
    if has_fewer_states(whole) and _fits(_of(job, optimizer=_STATELESS), gpus):
        yield "optimizer", _STATELESS


def _divided(job: Job, way: ModelParallel, gpus: int) -> bool:
    """Whether something fits if the model is divided so."""
    divided = replace(job, space=replace(job.space, parallel=(way,)))
    return way.suits(gpus, job.gpus_per_node) and job.divides(way) and _fits(divided, gpus)


def _larger(job: Job, gpus: int) -> str | None:
    """Return the GPU with the least memory on which something fits, if its nodes are free."""
    if {"cluster", "memory"} & job.sweep.values.keys():
        return None
    more = [one for one in all_hardware() if one.memory_bytes > job.capacity_bytes]
    names = (one.name for one in sorted(more, key=lambda one: one.memory_bytes))
    return next((name for name in names if _fits(_of(job, gpu=name), gpus)), None)


def _of(job: Job, **values: Any) -> Job:  # noqa: ANN401
    """Return the job with other settings that are not searched."""
    sweep = replace(job.sweep, values={**job.sweep.values, **values})
    return replace(job, sweep=sweep, known={}, _scenarios={}, _workloads={}, _per_node={})


def _on(job: Job, gpus: int) -> Job:
    """Return the job on another number of GPUs."""
    return replace(job, gpus=(gpus,), known={}, _scenarios={})


def _more_gpus(job: Job, gpus: int) -> int | None:
    """Return the fewest GPUs on which something fits, if more of them shard more."""
    inside = (gpus << power for power in range(1, job.gpus_per_node.bit_length()))
    few = next((one for one in inside if one < job.gpus_per_node and _fits(_on(job, one), one)), None)
    if few is not None:
        return few
    most = max(_MOST_TIMES, 4 * least_gpus(job.whole, job.capacity_bytes) // gpus)
    numbers = (search.enough(job, one, most=most) for one in _sharded(job, gpus))
    return min(filter(None, numbers), default=None)


def _sharded(job: Job, gpus: int) -> Iterator[Candidate]:
    """Return a configuration of each way to divide the model and its state."""
    for way, name in product(job.space.parallel, job.space.shardings):
        kind = shardings.kind(name)
        if kind != shardings.NONE and gpus % way.gpus == 0:
            kept = kind in shardings.GATHERED and way.stages > 1
            yield Candidate(gpus // way.gpus, Setup(name, kept), 1, 1, "full", way)


def _fits(job: Job, gpus: int) -> bool:
    """Whether something does. A sharding's variants that need more are not tried."""
    try:
        of = {one.sharding: one for one in reversed(search.setups(job, gpus))}
        leasts = [search.least(job, setup, gpus) for setup in of.values()]
    except InvalidArgumentError:
        return False
    return any(one is not None and one.least_bytes <= job.allocatable_bytes for one in leasts)
