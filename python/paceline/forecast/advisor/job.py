"""A model, GPUs and a network, with what may vary: configurations of it become scenarios and forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from paceline._core import parse_rate
from paceline.catalog.losses import LOSSES
from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError
from paceline.forecast.advisor.candidates import CHECKPOINTINGS, OFFLOADED, Candidate, ModelParallel, Space
from paceline.forecast.footprint import FRAGMENTED, allocatable_bytes, context_bytes
from paceline.forecast.prepare import check_sharding, prepare
from paceline.forecast.remedies import has
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.run import fit_of, result_of
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharded import Fit
from paceline.forecast.sharding import GATHERED, NONE, OPTIONS, in_groups, kind
from paceline.forecast.sharding import check as check_options

_PARALLEL = ("tensor_parallel", "pipeline_parallel", "virtual_stages", "expert_parallel", "context_parallel")
SEARCHED = ("workers", "sharding", "checkpointing", "batch", "accumulate", *_PARALLEL)
"""Settings of `advise` that are searched, or restrict the search if they are given."""
_WAYS = (1, 2, 4, 8)
"""Degrees that are searched of each way to divide a model, as many as the GPUs of most nodes."""
_LONG = 32_768
"""Tokens of a sample from which on sharing it is searched: those of Llama 3's and Qwen's longer contexts."""


class _Computed(NamedTuple):
    """The parameters of a workload."""

    parallel: ModelParallel
    batch: int
    checkpointing: str
    microbatches: int | None
    sharding: str = ""
    """Where a trainer's file may give other options under another."""

    @property
    def options(self) -> dict[str, Any]:
        """Its settings."""
        options = {"batch": self.batch, "checkpointing": self.checkpointing, **self.parallel.options}
        return options if self.microbatches is None else options | {"microbatches": self.microbatches}


@dataclass(frozen=True)
class Job:
    """A model, GPUs and a network, with what may vary."""

    sweep: Sweep
    """With the settings that do not vary."""
    space: Space
    gpus: tuple[int, ...]
    batches: Mapping[int, int] = field(default_factory=dict)
    """Global batches of a trainer's file by number of GPUs; empty if one holds for all, or none is given."""
    known: dict[Candidate, Result] = field(default_factory=dict, compare=False)
    """Forecasts made so far."""
    _fits: dict[Candidate, Fit] = field(default_factory=dict, compare=False)
    _scenarios: dict[tuple[_Computed, bool], dict[tuple[int, str], Scenario]] = field(
        default_factory=dict, compare=False
    )
    _workloads: dict[_Computed, Workload] = field(default_factory=dict, compare=False)
    _requests: dict[tuple[_Computed, tuple[str, ...]], Sweep] = field(default_factory=dict, compare=False)
    """Of a trainer's file, which is read again under other settings."""
    _per_node: dict[ModelParallel, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, sweep: Sweep, global_batch: int | None = None) -> Job:
        """Divide what was given into what is searched and what is not. Raises InvalidArgumentError."""
        values = sweep.values
        if "workers" not in values:
            raise InvalidArgumentError("advise needs the number of GPUs", remedy="--gpus 16")
        batches = {} if global_batch is not None else _batches(sweep)
        space = Space(
            **({"shardings": values["sharding"]} if "sharding" in values else {}),
            checkpointings=values.get("checkpointing", CHECKPOINTINGS),
            batch=values.get("batch"),
            accumulate=values.get("accumulate"),
            global_batch=global_batch or next(iter(batches.values()), None),
            sequences=1 if values.get("loss") is None else LOSSES[values["loss"]].sequences,
            may_offload="checkpointing" not in values,
            is_divisible=not values.keys() & set(_PARALLEL),
        )
        fixed = replace(sweep, values=fixed_values(sweep))
        workload = fixed.workload(fixed.trace)
        if workload is None:
            raise InvalidArgumentError(
                "needs a GPU type", setting="gpu", remedy="{gpu=h100} (list: paceline list gpus)"
            )
        if sweep.file is not None:
            space = space.without(sweep.file.lacks, values)
        job = cls(fixed, space, tuple(values["workers"]), batches).accepted()
        return replace(job, space=replace(job.space, parallel=_parallel(job, values)))

    def accepted(self) -> Job:
        """Return the job with the shardings that no setting contradicts. Raises InvalidArgumentError for none."""
        refusals = {name: self._refusal(name, self.space.accumulate) for name in self.space.shardings}
        accepted = [name for name, refusal in refusals.items() if refusal is None]
        if not accepted and (first := refusals[self.space.shardings[0]]) is not None:
            raise first
        gathers = _refused(partial(check_sharding, self._under(NONE)[0], [NONE], self._under(NONE)[1])) is not None
        return replace(self, space=replace(self.space, shardings=accepted, gathers=gathers))

    def on(self, gpus: tuple[int, ...], space: Space | None = None, sweep: Sweep | None = None) -> Job:
        """Return the job on other numbers of GPUs, with another space or request where one is given."""
        own = replace(self, gpus=gpus, space=space or self.space, _scenarios={}, _requests={}, _per_node={})
        return own if sweep is None else replace(own, sweep=sweep, known={}, _fits={}, _workloads={})

    def alone(self, gpus: int) -> Job:
        """Return the job on one of its numbers of GPUs, as if no other had been given."""
        own = self.on((gpus,), replace(self.space, global_batch=self.batches.get(gpus, self.space.global_batch)))
        return replace(own, known={}, _fits={}, _workloads={})

    @cached_property
    def whole(self) -> Workload:
        """The model with one sample on one GPU."""
        return self._workload(self._plain(ModelParallel()))

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node, which share its rate."""
        return self.per_node(ModelParallel())

    @property
    def bandwidth_bps(self) -> float:
        """Rate of a node, each way."""
        given = self.sweep.get("bandwidth")
        return parse_rate(given[0]) if given else self.sweep.machine().bandwidth_bps

    def per_node(self, parallel: ModelParallel) -> int:
        """Return the data-parallel ranks of a node. Raises InvalidArgumentError if they are not whole."""
        if parallel not in self._per_node:
            machine = self._with(self._plain(parallel)).machine()
            self._per_node[parallel] = machine.gpus_per_node
        return self._per_node[parallel]

    def ways(self, gpus: int) -> list[ModelParallel]:
        """Return the ways to divide the model that suit a number of GPUs. Raises InvalidArgumentError if none does."""
        suitable = [one for one in self.space.parallel if one.suits(gpus, self.gpus_per_node)]
        if not suitable:
            least = self.space.parallel[0]
            if gpus % least.gpus == 0:
                what = f"{least.experts} with a part each of the experts"
                size = least.experts
                if least.experts == 1:
                    size = least.tensor * least.context
                    what = f"{size} that share samples"
                raise InvalidArgumentError(
                    f"{gpus} GPUs in nodes of {self.gpus_per_node} cannot be divided into groups of {what}",
                    setting="context_parallel" if least.experts == 1 else "expert_parallel",
                    remedy=f"{{gpus_per_node={max(1, self.gpus_per_node // size) * size}}}, or another {{this}}",
                )
            raise InvalidArgumentError(
                f"{gpus} GPUs are not a multiple of {least.gpus}, those of a data-parallel rank (tensor x pipeline)",
                setting="tensor_parallel" if least.tensor > 1 else "pipeline_parallel",
                remedy=f"--gpus {max(1, gpus // least.gpus) * least.gpus}, or another {{this}}",
            )
        return suitable

    @property
    def is_long(self) -> bool:
        """Whether a sample has so many tokens that GPUs may well share it."""
        return self.whole.is_text and self.whole.tokens >= _LONG

    @property
    def undivided(self) -> Job:
        """The job as it was before ways to divide the model were added to it."""
        return (
            replace(self, space=replace(self.space, parallel=(ModelParallel(),))) if self.space.is_divisible else self
        )

    @cached_property
    def divided(self) -> Job | None:
        """The job with tensor, context and expert parallelism searched; None if they were given, or none can be.

        Pipelines need a global batch, and are searched where they are asked for.
        """
        if not self.space.is_divisible or len(self.space.parallel) > 1:
            return None
        experts = _WAYS if self.whole.own.has_experts else (1,)
        ways = [ModelParallel(tensor, 1, 1, *rest) for tensor, *rest in product(_WAYS, experts, _WAYS)]
        # A group of ranks that share samples has one part of all experts.
        some = [one for one in ways if one.experts == 1 or one.tensor == one.context == 1]
        suited = [one for one in some if self._suited(one) and self.divides(one)]
        return None if len(suited) < 2 else replace(self, space=replace(self.space, parallel=tuple(suited)))

    @cached_property
    def wider(self) -> Job | None:
        """The job with ways to divide the model and offloaded checkpoints searched, too; None if all is given."""
        divided = self.divided or self
        return divided.offloading or self.divided

    @property
    def offloading(self) -> Job | None:
        """The job with offloaded checkpoints searched, too; None if checkpointing is given, or the trainer has none."""
        if not self.space.may_offload or OFFLOADED not in self.every_checkpointing:
            return None
        space = replace(self.space, checkpointings=(*self.space.checkpointings, OFFLOADED), may_offload=False)
        return replace(self, space=space)

    @property
    def every_checkpointing(self) -> tuple[str, ...]:
        """All ways of checkpointing that the trainer has, whatever was given."""
        lacks = {} if self.sweep.file is None else self.sweep.file.lacks
        return tuple(one for one in (*CHECKPOINTINGS, OFFLOADED) if has(lacks, {"checkpointing": one}))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Assumptions, as notes."""
        [parallel, *more] = self.space.parallel
        shardings = [""] if self.sweep.file is None else self.space.shardings
        plain = [self._plain(ModelParallel() if more else parallel, sharding) for sharding in shardings]
        notes = list(dict.fromkeys(note for one in plain for note in self._prepared(one)[1]))
        if max(one.experts for one in self.space.parallel) > 1:
            notes = ["Groups of ranks (hsdp) are tried only without expert parallelism", *notes]
        if max(one.context for one in self.space.parallel) > 1 and more:
            notes = ["Batch is that of all CP ranks that share its samples", *notes]
        if more:
            notes = ["A DP rank is TP x PP GPUs; memory is per GPU", *notes]
        return tuple(notes)

    def workload(self, candidate: Candidate) -> Workload:
        """Return the model on the GPU. Raises InvalidArgumentError."""
        return self._workload(self._computed(candidate))

    def values(self, candidate: Candidate) -> Mapping[str, Any]:
        """Return the values of a candidate's settings."""
        return self.sweep.values if self.sweep.file is None else self._with(self._computed(candidate)).values

    @cached_property
    def capacity_bytes(self) -> int:
        """Memory of a GPU."""
        given: int | None = self.sweep.get("memory")
        return given or self.whole.hardware.memory_bytes

    @cached_property
    def allocatable_bytes(self) -> int:
        """Most that a job may allocate, if it has no communicators: a bound."""
        return allocatable_bytes(self.capacity_bytes, context_bytes(self.whole.hardware))

    @cached_property
    def roomy_bytes(self) -> int:
        """Most that a job may allocate if it is to fit with room: a bound."""
        return int((self.capacity_bytes - context_bytes(self.whole.hardware)) / FRAGMENTED)

    def scenario(self, candidate: Candidate) -> Scenario:
        """Return what is forecast for a candidate. Raises InvalidArgumentError."""
        computed, gathers = self._computed(candidate), _gathers(candidate.setup.sharding)
        key = computed, gathers
        if key not in self._scenarios:
            # A model that gathers its units computes more.
            alike = [one for one in self.space.shardings if _gathers(one) is gathers]
            self._scenarios[key] = self._prepared(computed, alike)[0]
        return self._scenarios[key][candidate.gpus, candidate.setup.sharding].changed(**candidate.options)

    def result(self, candidate: Candidate) -> Result:
        """Forecast a candidate, once. Raises InvalidArgumentError."""
        if candidate not in self.known:
            self.known[candidate] = result_of(self.scenario(candidate))
        return self.known[candidate]

    def fit(self, candidate: Candidate) -> Fit:
        """Return what a candidate needs, computed once. Raises InvalidArgumentError."""
        if candidate not in self._fits:
            self._fits[candidate] = fit_of(self.scenario(candidate))
        return self._fits[candidate]

    def accumulates(self, sharding: str, passes: int) -> bool:
        """Whether so many passes are accepted beside the settings that do not vary."""
        return self._refusal(sharding, passes) is None

    def check(self, parallel: ModelParallel) -> None:
        """Raise InvalidArgumentError if the model cannot be divided like this."""
        self._workload(self._plain(parallel))
        self.per_node(parallel)

    def divides(self, parallel: ModelParallel) -> bool:
        """Whether the model can be divided like this."""
        try:
            self.check(parallel)
        except InvalidArgumentError:
            return False
        return True

    def _computed(self, one: Candidate) -> _Computed:
        sharding = "" if self.sweep.file is None else one.setup.sharding
        return _Computed(one.parallel, one.batch, one.checkpointing, one.microbatches, sharding)

    def _plain(self, parallel: ModelParallel, sharding: str = "") -> _Computed:
        """Return the least that is computed with a way to divide the model."""
        microbatches = parallel.stages if parallel.stages > 1 else None
        return _Computed(parallel, 1, self.space.checkpointings[0], microbatches, sharding)

    def _under(self, sharding: str) -> tuple[Workload, Mapping[str, Any]]:
        """Return the model with one sample on one GPU, and the settings that do not vary, under a sharding."""
        if self.sweep.file is None:
            return self.whole, self.sweep.values
        key = self._plain(ModelParallel(), sharding)
        return self._workload(key), self._with(key).values

    def _refusal(self, sharding: str, passes: int | None) -> InvalidArgumentError | None:
        """Return why a forecast refuses a sharding with so many passes beside other settings; None if it does not."""
        workload, values = self._under(sharding)
        values = {**values, **({} if passes is None else {"accumulate": passes})}
        of_plan = {one: value for one, value in values.items() if one in OPTIONS} | {"sharding": [sharding]}
        return _refused(partial(check_options, [sharding], of_plan)) or _refused(
            partial(check_sharding, workload, [sharding], values)
        )

    def _workload(self, key: _Computed) -> Workload:
        if key not in self._workloads:
            workload = (changed := self._with(key)).workload(changed.trace)
            assert workload is not None  # checked by `of`
            self._workloads[key] = workload
        return self._workloads[key]

    def _suited(self, parallel: ModelParallel) -> list[int]:
        """Return the numbers of GPUs that a way to divide the model suits."""
        # A model that is not divided suits all nodes, and says how many GPUs they have.
        per_node = self.gpus_per_node if parallel.group > 1 else 1
        return [gpus for gpus in self.gpus if parallel.suits(gpus, per_node)]

    def _with(self, key: _Computed, shardings: Sequence[str] = ()) -> Sweep:
        suited = self._suited(key.parallel) or [key.parallel.group]
        shardings = [key.sharding] if key.sharding else list(shardings)
        own = {**key.options, "workers": suited, **({"sharding": shardings} if shardings else {})}
        if self.sweep.file is None:
            return self.sweep.changed(own)
        if (known := self._requests.get((key, tuple(shardings)))) is not None:
            return known
        # Where a way to divide the model is not this candidate's, neither the file nor what was given has it.
        alone = dict.fromkeys(_PARALLEL, 1)
        changed = self.sweep.changed({**alone, "accumulate": None, **own})
        values = {name: value for name, value in changed.values.items() if alone.get(name) != value}
        self._requests[key, tuple(shardings)] = replace(changed, values=values)
        return self._requests[key, tuple(shardings)]

    def _prepared(
        self, key: _Computed, shardings: Sequence[str] = ()
    ) -> tuple[dict[tuple[int, str], Scenario], list[str]]:
        """Return the scenarios of some shardings, by default all, and what is noted on them."""
        shardings = [key.sharding] if key.sharding else shardings or self.space.shardings
        sweep = self._with(key, shardings)
        prepared = prepare(sweep if key.sharding else replace(sweep, beside=self.space.shardings))
        order = product(self._suited(key.parallel), shardings)
        return dict(zip(order, prepared.scenarios, strict=True)), prepared.notes


def _gathers(name: str) -> bool:
    return kind(name) in GATHERED


def fixed_values(sweep: Sweep) -> dict[str, Any]:
    """Return the values of a request that are not searched."""
    return {name: value for name, value in sweep.values.items() if name not in SEARCHED}


def _batches(sweep: Sweep) -> dict[int, int]:
    """Return the samples of an iteration that a trainer's file has on each number of GPUs, where it says them."""
    batches: dict[int, int] = {}
    for gpus in () if sweep.file is None else sweep.values["workers"]:
        with suppress(InvalidArgumentError):
            own = sweep.changed({"workers": [gpus]})
            if own.file is not None and (size := own.file.global_batch(gpus, own.values)) is not None:
                batches[gpus] = size
    return batches


def _refused(check: Callable[[], None]) -> InvalidArgumentError | None:
    """Return what a check raises."""
    try:
        check()
    except InvalidArgumentError as error:
        return error
    return None


def _parallel(job: Job, values: Mapping[str, Any]) -> tuple[ModelParallel, ...]:
    """Return the ways to divide the model that were asked for. Raises InvalidArgumentError."""
    tensors, stages, parts, experts, contexts = (values.get(name, [1]) for name in _PARALLEL)
    if max(stages) > 1:
        if job.space.global_batch is None:
            raise InvalidArgumentError(
                "needs a global batch, of which the microbatches are made",
                setting="pipeline_parallel",
                remedy="--global-batch 512, or drop {this}",
            )
        if job.space.accumulate is not None:
            raise InvalidArgumentError(
                "has no effect on pipelines, whose microbatches are made of the global batch",
                setting="accumulate",
                remedy="drop {accumulate}",
            )
    elif max(parts) > 1:
        raise InvalidArgumentError(
            "needs a pipeline", setting="virtual_stages", remedy="{pipeline_parallel=2}, or drop {virtual_stages}"
        )
    for tensor in tensors:
        job.check(ModelParallel(tensor))
    for stage in stages:
        job.check(ModelParallel(stages=stage))
    for part in parts:
        _check_parts(job, part, [stage for stage in stages if stage > 1])
    for ways in experts:
        job.check(ModelParallel(experts=ways))
    for ranks in contexts:
        job.check(ModelParallel(context=ranks))
    grouped = [one for one in values.get("sharding", ()) if in_groups(one)]
    if grouped and min(experts) > 1:
        raise InvalidArgumentError(
            f"{grouped[0]} is not modeled with experts on several GPUs",
            setting="sharding",
            remedy="{sharding=zero3}, or {expert_parallel=1}",
        )
    product_of_all = product(tensors, stages, parts, experts, contexts)
    every = [ModelParallel(*one) for one in product_of_all if one[1] > 1 or one[2] == min(parts)]
    dividing = tuple(one if one.stages > 1 else replace(one, virtual=1) for one in every if job.divides(one))
    if not dividing:
        job.check(every[0])
    return dividing


def _check_parts(job: Job, part: int, stages: Sequence[int]) -> None:
    """Raise InvalidArgumentError if none of the pipelines can have so many virtual stages."""
    if part > 1 and not any(job.divides(ModelParallel(stages=stage, virtual=part)) for stage in stages):
        job.check(ModelParallel(stages=min(stages), virtual=part))


def refuse_recording(named: str) -> None:
    """Raise InvalidArgumentError for a trace; configurations, and what is neither, pass."""
    from paceline.catalog.builtin_names import COLLECTIVES
    from paceline.catalog.models.names import resolve
    from paceline.catalog.models.spec import is_recorded, split_word

    if resolve(split_word(named)[0]) is not None:
        return
    if Path(named).is_file() or is_recorded(named) or named.partition(":")[0] in COLLECTIVES:
        raise InvalidArgumentError(
            f"'{named:.80}' is no configuration of a model, and a recording's batch cannot be searched",
            remedy=f"paceline simulate {named:.80} (models: paceline list models)",
        )
