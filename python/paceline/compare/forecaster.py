"""Forecasts of one request, and of the same request with changes: a step of training, or a collective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline._core import Cluster
from paceline.catalog.builtin_names import COLLECTIVES
from paceline.catalog.channels import with_channel
from paceline.catalog.gpus import Hardware, on_cpu, titled
from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError
from paceline.forecast import trainer_file
from paceline.forecast.evidence import forecast_spread, usual_spread
from paceline.forecast.likeness import QUANTILE
from paceline.forecast.nccl import request as collectives
from paceline.forecast.nccl.fabrics import Alternative, FabricName, alternatives
from paceline.forecast.prepare import Prepared, prepare
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.forecast.trainer_file import TrainerFile
from paceline.forecast.wording import terms
from paceline.forecast.wording.nccl import library
from paceline.settings.table import SIMULATE

_OF_CLUSTER = ("bandwidth", "channel", "latency", "gpus_per_node", "intra_bandwidth", "stragglers", "degraded")
"""Options that change a cluster."""
_SINGLE = "compare has one forecast"


@dataclass(frozen=True)
class Forecast:
    """A forecast to compare with."""

    seconds: float
    low_s: float
    high_s: float
    """The range of 80 % of runs whose errors are usual: beyond it, a cause is looked for."""
    spread: float
    """The standard deviation of the logarithm of measured over forecast time, of usual errors."""
    has_interval: bool
    """Whether the errors are the forecast's own; otherwise they are those of all measured steps together."""
    parts_s: Mapping[str, float]
    """By part; their sum is `seconds`."""
    result: Result | None = None
    """None for collectives of NCCL."""


class Forecaster:
    """Forecasts a request."""

    def __init__(self, words: Sequence[str], options: Mapping[str, Any]) -> None:
        """`words`: the workload; `options`: of `paceline simulate`."""
        self.words, self.options = list(words), dict(options)

    @property
    def is_collective(self) -> bool:
        """Whether the workload is a collective, of NCCL's model or of a strategy."""
        return self.words[0].partition(":")[0] in COLLECTIVES and ":" in self.words[0]

    @cached_property
    def is_of_nccl(self) -> bool:
        """Whether it is NCCL's model that forecasts it."""
        return self.is_collective and collectives.is_asked(self.words, self.options)

    @property
    def bytes(self) -> int:
        """Bytes of a collective, the largest if there are several."""
        return collectives.parse(self.words[0]).sizes[-1]

    @property
    def bus_over_bytes(self) -> float:
        """Bytes of bus bandwidth of a collective for each of its buffer, as nccl-tests counts them."""
        if self.is_of_nccl:
            one = self.answer.times[-1]
            return one.bus_bandwidth * one.seconds / one.size
        ranks = self.scenario.workers
        return 2 * (ranks - 1) / ranks

    def take(self, word: str) -> None:
        """Forecast another size of the same collective. Nothing was forecast before."""
        self.words = [word]

    def give(self, **options: str) -> None:
        """Add options that were not given. Nothing was forecast before."""
        self.options |= options

    @property
    def places(self) -> tuple[int, int]:
        """The ranks of a collective, and their nodes."""
        if self.is_of_nccl:
            group = self._answer({}).group
            return group.ranks, group.nodes
        ranks = self.scenario.workers
        return ranks, -(-ranks // self.scenario.cluster.gpus_per_node)

    def of_size(self, kind: str, size: int) -> float:
        """Return the time of the collective with another size."""
        return Forecaster([f"{kind}:{size}B"], self.options).base.seconds

    @cached_property
    def prepared(self) -> Prepared:
        """The only scenario of the request, with its notes. Raises InvalidArgumentError if there are several."""
        return self._prepared({})

    @property
    def scenario(self) -> Scenario:
        """The only scenario."""
        return self.prepared.scenarios[0]

    @cached_property
    def cluster(self) -> Cluster:
        """The nodes with their network and its channel, before tensor-parallel GPUs share them."""
        if self.is_of_nccl:
            return self.answer.nodes
        own, channel = self._sweep({}).undivided(), self.scenario.cluster.channel
        return own if channel == "none" else with_channel(own, channel)

    @cached_property
    def networks(self) -> Mapping[FabricName, Alternative]:
        """The networks that NCCL may use instead; none where its model does not know the nodes."""
        try:
            return {one.name: one for one in alternatives(self.cluster)}
        except InvalidArgumentError:
            return {}

    def seconds_on(self, cluster: Cluster) -> float:
        """Return the time on other nodes. Raises InvalidArgumentError."""
        return self.seconds({**dict.fromkeys(_OF_CLUSTER), "cluster": cluster})

    @property
    def workload(self) -> Workload | None:
        """The model, if the workload is one."""
        return None if self.is_of_nccl else self.scenario.workload

    @property
    def hardware(self) -> Hardware | None:
        """The GPU of a model."""
        return None if self.workload is None else self.workload.hardware

    @property
    def computes_on(self) -> Hardware | None:
        """The GPU of a model or of a recording, if it is a known one."""
        return self.hardware or (None if self.is_of_nccl else titled(self.scenario.trace.device))

    @property
    def library(self) -> str:
        """The library of collectives of the GPUs: NCCL, or AMD's RCCL."""
        if self.is_of_nccl:
            return library(self.answer)
        if self.computes_on is not None and self.computes_on.is_amd:
            return terms.RCCL
        return terms.collectives(self.scenario.cluster, self.scenario.workload)

    @property
    def is_on_cpu(self) -> bool:
        """Whether a CPU computes."""
        if self.is_of_nccl:
            return False
        return on_cpu(self.scenario.trace) if self.hardware is None else self.hardware.is_cpu

    @property
    def noun(self) -> str:
        """The word for ranks: GPUs or workers."""
        return "worker" if self.is_on_cpu else "GPU"

    @property
    def peak_flops(self) -> float | None:
        """Of a GPU, in the precision of its products."""
        return None if self.workload is None else self.workload.peak_flops

    @cached_property
    def base(self) -> Forecast:
        """The forecast without changes."""
        if self.is_of_nccl:
            seconds = self.seconds({})
            spread = usual_spread(None)
            return Forecast(seconds, *_around(seconds, spread), spread, False, {"communication": seconds})
        result = result_of(self.scenario)
        seconds, own = result.iteration_s, result.interval
        spread = forecast_spread(own, result.ground)
        return Forecast(seconds, *_around(seconds, spread), spread, own is not None, parts_of(result), result)

    @cached_property
    def answer(self) -> collectives.Answer:
        """The answer of NCCL's model. Raises InvalidArgumentError if there are several."""
        return self._answer({})

    def seconds(self, changes: Mapping[str, Any]) -> float:
        """Return the time with some options changed. Raises InvalidArgumentError if they cannot be."""
        if self.is_of_nccl:
            return math.fsum(it.seconds for it in self._answer(changes).times)
        return result_of(self.changed(changes)).iteration_s

    def changed(self, changes: Mapping[str, Any]) -> Scenario:
        """Return the only scenario with some options changed. Raises InvalidArgumentError if they cannot be."""
        return self._prepared(changes).scenarios[0]

    def _answer(self, changes: Mapping[str, Any]) -> collectives.Answer:
        answers = collectives.answers(self.words, {**self.options, **changes})
        if len(answers) > 1:
            raise InvalidArgumentError(
                f"{_SINGLE}, and {len(answers)} are requested", remedy="{workers=16} (one value of each)"
            )
        return answers[0]

    @property
    def file(self) -> TrainerFile | None:
        """The trainer's file that the workload is, if it is one."""
        return None if self.is_collective else self._sweep({}).file

    def _sweep(self, changes: Mapping[str, Any]) -> Sweep:
        given = {name: value for name, value in {**self.options, **changes}.items() if value is not None}
        if given.get("workers") is None and given.get("gpus") is None and trainer_file.find(self.words) is None:
            raise InvalidArgumentError("needs the number of GPUs", setting="workers", remedy="{workers=8}")
        return Sweep.of(self.words, given, SIMULATE, "flag", one_strategy=True)

    def _prepared(self, changes: Mapping[str, Any]) -> Prepared:
        prepared = prepare(self._sweep(changes))
        if len(prepared.scenarios) > 1:
            raise InvalidArgumentError(
                f"{_SINGLE}, and {len(prepared.scenarios)} are requested", remedy="one value of each option"
            )
        return prepared


def _around(seconds: float, spread: float) -> tuple[float, float]:
    width = math.exp(QUANTILE * spread)
    return seconds / width, seconds * width


def parts_of(result: Result) -> dict[str, float]:
    """Return the parts of a forecast: `computation` with what communication adds to it, exposed communication, …."""
    sharded = result.sharded
    straggling = 0.0 if sharded is None else sharded.straggling_s
    slowed = 0.0 if sharded is None else sharded.slowed_s
    computation = result.forward_s + result.backward_s + slowed
    rest = max(0.0, result.iteration_s - computation - result.optimizer_s - straggling)
    return {
        "computation": result.iteration_s - result.optimizer_s - straggling - rest,
        "optimizer": result.optimizer_s,
        "communication": rest,
        "stragglers": straggling,
    }
