"""The configurations to search, of a model on a number of GPUs, each with bounds that cost no simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.catalog.models.exchanges import is_split
from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding as shardings
from paceline.forecast.footprint import floor_bytes
from paceline.forecast.remedies import has

CHECKPOINTINGS = ("none", "selective", "full")
OFFLOADED = "offload"
"""Checkpointing whose inputs of blocks are on the host: searched where nothing fits without."""
_SHARDINGS = ("none", "zero1", "zero2", "zero3", "hsdp")
_MOST_PASSES = 10_000
"""Of `--accumulate`."""
_LARGEST_BATCH = 2**20


@dataclass(frozen=True)
class ModelParallel:
    """How a model is divided among the GPUs of a data-parallel rank."""

    tensor: int = 1
    """GPUs that share every layer."""
    stages: int = 1
    """Of a pipeline."""
    virtual: int = 1
    """Parts of the model that each stage has."""
    experts: int = 1
    """GPUs that have a part each of the experts, of several ranks."""
    context: int = 1
    """Ranks that share every sample."""

    @property
    def gpus(self) -> int:
        """GPUs of a data-parallel rank."""
        return self.tensor * self.stages

    @property
    def group(self) -> int:
        """GPUs of whole ranks that have all experts, and whole samples."""
        return self.gpus * self.context * max(1, self.experts // self.tensor)

    def suits(self, gpus: int, per_node: int) -> bool:
        """Whether so many GPUs are whole ranks, and these whole groups, of which none has a part of a node."""
        if gpus % self.gpus:
            return False
        if gpus > per_node and (is_split(self.experts, per_node) or is_split(self.tensor * self.context, per_node)):
            return False
        ranks = gpus // self.gpus
        return ranks % max(1, self.experts // self.tensor) == 0 and ranks % self.context == 0

    @property
    def options(self) -> dict[str, int]:
        """Its settings that are not 1."""
        every = {
            "tensor_parallel": self.tensor,
            "pipeline_parallel": self.stages,
            "virtual_stages": self.virtual,
            "expert_parallel": self.experts,
            "context_parallel": self.context,
        }
        return {name: value for name, value in every.items() if value > 1}


@dataclass(frozen=True)
class Setup:
    """A sharding with its switches."""

    sharding: str
    kept: bool = False
    """Units stay gathered between the passes: `--reshard-after-forward no`."""
    local: bool = False
    """Gradients are exchanged after the last pass only: `--no-accumulate-sync`."""

    @property
    def options(self) -> dict[str, Any]:
        """Its settings, without the sharding."""
        return ({"reshard_after_forward": "no"} if self.kept else {}) | (
            {"accumulate_sync": False} if self.local else {}
        )


@dataclass(frozen=True)
class Candidate:
    """A configuration."""

    workers: int
    """Data-parallel ranks."""
    setup: Setup
    batch: int
    """Samples of a pass, of all ranks that share them."""
    passes: int
    """Of an iteration: accumulated, or a pipeline's microbatches."""
    checkpointing: str
    parallel: ModelParallel = ModelParallel()
    bucket_bytes: int | None = None
    """None: as large as the library's."""

    @property
    def gpus(self) -> int:
        """GPUs of all ranks."""
        return self.workers * self.parallel.gpus

    @property
    def microbatches(self) -> int | None:
        """Of a pipeline; None if there is none."""
        return self.passes if self.parallel.stages > 1 else None

    @property
    def accumulate(self) -> int:
        """Passes before the optimizer's step; those of a pipeline are one."""
        return self.passes if self.microbatches is None else 1

    @property
    def global_batch(self) -> int:
        """Samples of all ranks in an iteration."""
        return self.batch * self.passes * self.workers // self.parallel.context

    @property
    def options(self) -> dict[str, Any]:
        """Settings of its iteration that are not those of the model."""
        options = self.setup.options | ({"accumulate": self.accumulate} if self.accumulate > 1 else {})
        return options if self.bucket_bytes is None else options | {"bucket_size": self.bucket_bytes}


@dataclass(frozen=True)
class Space:
    """The search space; options that are set do not vary."""

    shardings: Sequence[str] = _SHARDINGS
    checkpointings: Sequence[str] = CHECKPOINTINGS
    batch: int | None = None
    accumulate: int | None = None
    global_batch: int | None = None
    sequences: int = 1
    """That the loss compares with each other: batches are multiples."""
    parallel: Sequence[ModelParallel] = (ModelParallel(),)
    gathers: bool = False
    """Whether even one rank gathers its units, as for parameters on the host: simulated as zero3."""
    keeps: bool = True
    """Whether units may stay gathered between the passes."""
    puts_off: bool = True
    """Whether gradients may be exchanged after the last pass only."""
    may_offload: bool = False
    """Whether no checkpointing was given, so that offloaded checkpoints may be searched, too."""
    is_divisible: bool = False
    """Whether no way to divide the model was given, so that others may be searched."""

    def without(self, lacks: Mapping[str, tuple[str, ...]], given: Mapping[str, object]) -> Space:
        """Return the space without values that a trainer lacks, but for shardings and checkpointing that were given."""
        searched = {"sharding": "shardings", "checkpointing": "checkpointings"}
        left: dict[str, Any] = {
            name: [one for one in getattr(self, name) if one not in lacks.get(setting, ())]
            for setting, name in searched.items()
            if setting not in given
        }
        keeps, puts_off = (has(lacks, one) for one in ({"reshard_after_forward": "no"}, {"accumulate_sync": False}))
        return replace(self, **left, keeps=keeps, puts_off=puts_off)

    def setups(self, workers: int, per_node: int, parallel: ModelParallel = ModelParallel()) -> list[Setup]:
        """Return the shardings that differ on so many ranks.

        One rank shards nothing; one group is no group (hsdp: zero3), and groups of one rank are none. Where gradients
        are scattered after every pass, that can be put off to the last one; zero2 then is zero1. The microbatches of a
        pipeline are one pass, for which units are gathered once. Experts are divided over groups of their own.
        """
        setups = []
        for name in self.shardings:
            ranks = shardings.shard_ranks(name, workers, per_node)
            if workers == 1 and name != ("zero3" if self.gathers else shardings.NONE):
                continue
            if shardings.in_groups(name) and (parallel.experts > 1 or ranks in (1, workers) or workers % ranks):
                continue
            may_keep = shardings.kind(name) in shardings.GATHERED and workers > 1
            kept = (may_keep,) if parallel.stages > 1 else (False, *([True] if may_keep and self.keeps else []))
            setups += [Setup(name, one) for one in kept]
        if parallel.stages > 1 or not self.puts_off:
            return setups
        gathering = [one for one in setups if shardings.kind(one.sharding) in shardings.GATHERED]
        return [*setups, *(replace(one, local=True) for one in gathering)]

    def sizes(self, workers: int, parallel: ModelParallel = ModelParallel()) -> Iterator[tuple[int, int]]:
        """Return batches with their numbers of passes, smallest batch first; without end unless something is given.

        Raises InvalidArgumentError if the global batch cannot be divided.
        """
        if self.global_batch is None:
            batch = self.batch or self.sequences
            if batch > _LARGEST_BATCH:
                raise InvalidArgumentError(
                    f"must be at most {_LARGEST_BATCH}, not {batch}",
                    setting="batch",
                    remedy=f"{{batch={_LARGEST_BATCH}}}",
                )
            while batch <= _LARGEST_BATCH:
                yield batch, self.accumulate or 1
                if self.batch is not None:
                    return
                batch *= 2
            return
        groups = workers // parallel.context
        several = f"{groups} {'groups of ranks that share samples' if parallel.context > 1 else 'data-parallel ranks'}"
        each = several.replace("data-parallel ", "")
        if self.global_batch % groups:
            near = max(1, round(self.global_batch / groups)) * groups
            raise InvalidArgumentError(
                f"--global-batch: {self.global_batch} samples are not a multiple of {several}",
                remedy=f"--global-batch {near}, or other --gpus",
            )
        own = self.global_batch // groups
        if own % self.sequences:
            near = -(-own // self.sequences) * self.sequences * groups
            raise InvalidArgumentError(
                f"--global-batch: the loss compares {self.sequences} sequences, of which the {own} of each of {each} "
                "are no multiple",
                remedy=f"--global-batch {near}, or other --gpus",
            )
        sizes = [
            (batch, own // batch)
            for batch in _divisors(own)
            if batch % self.sequences == 0
            and own // batch <= _MOST_PASSES
            and self.batch in (None, batch)
            and self.accumulate in (None, own // batch)
        ]
        if sizes and parallel.virtual > 1:
            # The interleaved schedule takes as many microbatches at a time as there are stages.
            sizes = [(batch, passes) for batch, passes in sizes if passes % parallel.stages == 0]
            if not sizes:
                raise InvalidArgumentError(
                    f"--global-batch: virtual stages need a multiple of {parallel.stages} microbatches of {own}",
                    remedy="drop {virtual_stages}, or a larger --global-batch",
                )
        if not sizes:
            given = [f"--batch {self.batch}"] * (self.batch is not None)
            given += [f"--accumulate {self.accumulate}"] * (self.accumulate is not None)
            raise InvalidArgumentError(
                f"--global-batch: {own} samples of each of {each} cannot be made with {' and '.join(given)}",
                remedy=f"drop {given[0].split()[0]}",
            )
        yield from sizes


def least_seconds(workload: Workload, candidate: Candidate, per_node: int) -> float:
    """Return seconds that no iteration is shorter than: computation, with nothing exposed."""
    ranks = shardings.shard_ranks(candidate.setup.sharding, candidate.workers, per_node)
    passes = candidate.accumulate * (workload.forward_s + workload.backward_s)
    return workload.before_s + passes + workload.optimizer_s / ranks


def least_bytes(workload: Workload, candidate: Candidate, per_node: int, values: Mapping[str, Any]) -> int:
    """Return bytes that no peak is below."""
    return floor_bytes(workload, candidate.setup.sharding, candidate.workers, per_node, values)


def _divisors(number: int) -> list[int]:
    low = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*low, *(number // one for one in low)})
