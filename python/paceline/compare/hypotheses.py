"""Causes as changes of a forecast: what it would be with each, for the values that the cause may have.

A cause changes options, and the forecast is made again; or it lengthens a part of the forecast, where no option has it.
A cause with a value (a network's rate, how slow a rank is) has a range: the values seen in public reports, all equally
likely on a logarithmic scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from paceline._internal import units
from paceline.catalog.causes import Cause, all_causes
from paceline.catalog.models.workload import Workload
from paceline.catalog.offload import STATES
from paceline.compare.forecaster import Forecast, Forecaster
from paceline.errors import InvalidArgumentError
from paceline.forecast.kinds import Part
from paceline.forecast.measured import RATES, Measured, Quantity
from paceline.forecast.nccl import Machine
from paceline.forecast.nccl.fabrics import Alternative
from paceline.forecast.nccl.model import CollectiveTime, collective_time, estimates
from paceline.forecast.nccl.request import Answer
from paceline.forecast.offload import computed_s
from paceline.forecast.result import Result
from paceline.forecast.verdict.bottleneck import bottleneck
from paceline.forecast.wording.terms import RCCL

_SOCKETS_BPS = (1e9, 100e9)
"""Rates of a node over TCP sockets in public reports: 1.9 Gbps (transformers#3274) to 40 Gbps (nccl#450, AReaL#639);
with the sockets and threads that NCCL opens by itself on clouds, up to their Ethernet cards' 100 Gbps."""
_NETWORK = (0.02, 0.8)
"""Shares of the assumed rate that a congested, oversubscribed or misconfigured network leaves."""
_THROUGH_HOST = 0.5
"""Share of what PCI Express carries through the host's memory, at least: nccl-tests#152 has a third of the NICs' rate,
where PCI Express carries half; nccl#465 has half."""
_HALF = (0.4, 0.6)
"""Shares of a rate that half of the lanes leave, or traffic between cards and GPUs that goes by the CPU."""
_BY_HOST_BPS = (24e9, 96e9)
"""Rates of a GPU's copies through the host's memory: half of the 6 GB/s of nccl-tests#115, where several GPUs share a
CPU's links, to PCI Express 3."""
_SLOW_RANK = (1.05, 2.0)
"""Times that a slow rank computes as long as the others: NVML's "HW Slowdown" halves clocks."""
_LOADED_PER_S = {"images": (10.0, 1000.0), "text": (1.0, 1000.0), "": (1.0, 1e5)}
"""Samples per second and rank that a slow input pipeline has by kind: 185 images/s (mmpretrain#1741); a tenth of what
one worker decodes, and what several on a fast disk do. Tokenizing a text takes milliseconds, reading one from a network
disk up to a second."""
_CAPPED, _USUALLY_CAPPED = (1.05, 2.0), 2 ** (1 / 3)
"""Times that computation takes as long at a lower clock: boards draw at least half of their power at half the clock.
With half of its power, a board has 0.79 of its clock, the cube root (`h100-96gb-500w` has 0.89); less is rarer."""
_OF_EACH = (0.8, 4.0)
"""Times that a step takes as long as forecast where a rate of each GPU was given without saying so: from as fast as
usual errors allow to the median of the public complaints."""
_RETRIES = (1.05, 4.0)
"""Times that a step takes as long while the allocator frees and allocates memory anew."""
_NVLS = ("nvls", "nvls-tree")
"""Algorithms of NCCL in which NVLink's switches reduce."""
_NEARLY_FULL = 0.85
"""Share of a GPU's memory from which that is possible: jobs' peaks vary, and blocks are in pieces
(docs/explanation/memory.md). A forecast that exceeds the memory by as much is of another run."""
_HALF_FULL = 0.5
"""Share of a GPU's memory from which unsharded states may have been offloaded. Sharding libraries have an option for
it, which recipes set whether memory is short or not."""
_SLOW_HOST = (1.0, 4.0)
"""Times that a host takes as long to launch an operator as the one that forecasts assume: busy cores, low clocks, and
waits for results."""
_SLOW_MEMORY = (1.0, 8.0)
"""Times that a host takes as long for offloaded states as forecasts assume: DeepSpeed#3901 and #6695 have 6 and 8."""
_NOTICED = 1.1
"""Times as long from which it is said."""
_HIDDEN = 0.1
"""Share of communication beside computation below which there is no overlap to speak of."""
_AGAINST = 0.05
"""Likelihood of overlap without a cause for it, or of none: kernels that happen to meet, or a profile of few steps."""
_PADDED = (0.2, 0.95)
"""Shares of real tokens."""
_BATCHES = (2, 4, 8)
_FULL = "full"
_MUCH = 1.2
"""Times that a forecast over TCP takes as long as over RDMA, from which it is said; and as the measured time, to which
it speaks for sockets."""


@dataclass(frozen=True)
class Variable:
    """The value of a cause."""

    low: float
    high: float
    words: Callable[[float], str]
    """A value for people: `1.9 Gbps per node`."""
    is_whole: bool = False
    """Whether only `values` are possible."""
    values: tuple[float, ...] = ()
    usual: float | None = None
    """The mean of the logarithm, from which larger values are exponentially rarer; None: all are as likely."""


@dataclass(frozen=True)
class Hypothesis:
    """A cause and the forecasts with it."""

    cause: Cause
    seconds: Callable[[float], float]
    """The forecast with a value of the cause, or with any if there is only one. Raises InvalidArgumentError."""
    variable: Variable | None = None
    words: str = ""
    """The change, if it has no value: `fp32 instead of bf16`."""
    is_simulated: bool = True
    """Whether the forecast is made again, which takes a while."""
    facts: tuple[str, ...] = ()
    """Facts that speak for it before anything is measured."""
    is_other_reading: bool = False
    """Whether the measurement may as well mean this, so that it is as common as all other causes together."""
    is_of_bottleneck: bool = False
    """Whether most of the step waits for what it is about: likewise."""


@dataclass(frozen=True)
class Question:
    """The forecast and what was measured of it."""

    forecaster: Forecaster
    forecast: Forecast
    measured: Measured
    seconds: float
    """The measured time of a step or a collective."""
    without: str = ""
    """The address of an issue that does not count in how common its cause is."""
    part: str | None = None
    """The part of a step in which the gap is, if it is of one only."""
    measured_parts: tuple[str, ...] = ()
    """The parts that the measurement tells apart."""

    @property
    def is_slower(self) -> bool:
        """Whether the measured time is longer than the forecast."""
        return self.seconds > self.forecast.seconds

    @property
    def hidden_share(self) -> float | None:
        """The share of measured communication that is beside computation; None if the measurement does not tell it."""
        hidden_s, exposed_s = self.measured.hidden_s, self.measured.parts_s.get("communication", 0.0)
        return None if hidden_s is None or hidden_s + exposed_s == 0 else hidden_s / (hidden_s + exposed_s)

    @property
    def several_nodes(self) -> bool:
        """Whether messages cross between nodes."""
        if self.forecaster.is_of_nccl:
            return self.forecaster.answer.group.nodes > 1
        return self.forecaster.scenario.spans_nodes

    @property
    def runs(self) -> tuple[str, ...]:
        """The kinds of runs that it is one of, as the catalog of causes names them."""
        workload = self.forecaster.workload
        kinds = ("images", "text") if workload is None else ("text" if workload.is_text else "images",)
        return ("several nodes" if self.several_nodes else "one node", *kinds)

    @property
    def is_over_tcp(self) -> bool:
        """Whether the forecast sends over TCP between nodes."""
        if self.forecaster.is_of_nccl:
            return self.forecaster.answer.nodes.channel == "tcp"
        result = self.forecast.result
        return result is not None and result.channel == "tcp" and self.several_nodes

    @property
    def rate_bps(self) -> float:
        """The rate of a node's network."""
        if self.forecaster.is_of_nccl:
            return self.forecaster.answer.bandwidth_bps
        return self.forecaster.scenario.cluster.bandwidth_bps


_SEEN_AS = {"launches": "computation", "stragglers": "communication", "input": "computation"}
"""The part in which one shows that a measurement does not tell apart."""


def hypotheses(question: Question) -> list[Hypothesis]:
    """Return the causes that the forecast can have, in the direction of the gap and in its part."""
    if not question.is_slower:
        causes = list(_faster(question))
    else:
        causes = [*_networks(question), *_inside(question)]
        if not question.forecaster.is_of_nccl and question.forecast.result is not None:
            causes += [*_of_ranks(question), *_of_models(question), *_of_gradients(question), *_of_units(question)]
    causes = [one for one in causes if one.cause.name != "unit" or _is_nearer(question, one)]
    if question.forecaster.is_on_cpu:
        causes = [*_without_gpus(causes)]
    elif question.forecaster.library == RCCL:
        causes = [replace(one, cause=one.cause.on_amd) for one in causes]
    if question.part is None:
        return causes
    return [one for one in causes if question.part == _seen_in(one.cause, question.measured_parts)]


def _without_gpus(causes: Sequence[Hypothesis]) -> Iterator[Hypothesis]:
    """Yield causes without the checks that ask a GPU; those without any other are a GPU's own."""
    for one in causes:
        checks = [check for check in one.cause.check.split("; ") if "nvidia-smi" not in check]
        if checks:
            yield replace(one, cause=replace(one.cause, check="; ".join(checks)))


def _is_nearer(question: Question, unit: Hypothesis) -> bool:
    """Return whether a measurement in another unit is nearer to the forecast than in the one that was given."""
    values = (1.0,) if unit.variable is None else (unit.variable.low, unit.variable.high)
    readings = [unit.seconds(value) for value in values]
    if readings[0] <= question.seconds <= readings[-1]:
        return True
    off = min(abs(math.log(question.seconds / seconds)) for seconds in readings)
    return off < abs(math.log(question.seconds / question.forecast.seconds))


def _seen_in(cause: Cause, parts: tuple[str, ...]) -> str:
    return cause.part if cause.part in parts else _SEEN_AS.get(cause.part, cause.part)


def sockets_in_forecast(question: Question) -> Hypothesis | None:
    """Return sockets, where the forecast has them and they take much of its time."""
    if not question.several_nodes or not question.is_over_tcp:
        return None
    rdma_s = _seconds(question, channel="rdma")
    if rdma_s is None or _MUCH * rdma_s > question.forecast.seconds:
        return None
    words = f"in the forecast already; with RDMA it would be {units.duration(rdma_s)}"
    return Hypothesis(_cause("sockets"), lambda _: question.forecast.seconds, words=words)


def _seconds(question: Question, **changes: Any) -> float | None:  # noqa: ANN401
    """Return the forecast with changes; None if the run cannot have them."""
    try:
        return question.forecaster.seconds(changes)
    except InvalidArgumentError:
        return None


def _cause(name: str) -> Cause:
    return all_causes()[name]


def _of_options(question: Question, **changes: Any) -> Callable[[float], float]:  # noqa: ANN401
    return lambda _: question.forecaster.seconds(changes)


def _of_products(question: Question, precision: str) -> Callable[[float], float]:
    """Return the forecast with products of another precision.

    What is offloaded keeps its types: they are those of the trainer's settings, not of the kernels.
    """
    result = question.forecast.result
    if result is None or result.offload_s is None:
        return _of_options(question, dtype=precision, precision=None)

    def seconds(_: float) -> float:
        own, other = (
            question.forecaster.scenario.trace,
            question.forecaster.changed({"dtype": precision, "precision": None}).trace,
        )
        return _computing(question, forward=other.forward_s / own.forward_s, backward=other.backward_s / own.backward_s)

    return seconds


def _rate(bps: float) -> str:
    return f"{units.rate(float(f'{bps:.3g}'))} per node"


def _instead(question: Question) -> Callable[[float], str]:
    """Return the words for a rate, beside the forecast's."""
    return lambda bps: f"{_rate(bps)} instead of {units.rate(question.rate_bps)}"


def _with_rate(question: Question) -> Callable[[float], float]:
    """Return the forecast on a network of another rate."""

    def seconds(bps: float) -> float:
        rate = f"{bps / 1e9:.9g}Gbps"
        return question.forecaster.seconds({"bandwidth": rate})

    return seconds


def _networks(question: Question) -> Iterator[Hypothesis]:
    """Yield slower networks between nodes: those that NCCL may use instead of its own, and one of another rate."""
    if not question.several_nodes:
        return
    rate, networks = question.rate_bps, question.forecaster.networks
    sockets = networks.get("no-plugin") or networks.get("sockets")
    yield from _sockets(question, sockets)
    yield Hypothesis(
        _cause("slow-network"),
        _with_rate(question),
        Variable(_NETWORK[0] * rate, _NETWORK[1] * rate, _instead(question)),
    )
    if (through_host := networks.get("gpudirect-off")) is not None:
        most = through_host.rate_bps
        variable = Variable(_THROUGH_HOST * most, most, _instead(question))
        yield Hypothesis(_cause("gpudirect-off"), _on_network(question, through_host), variable)
    if (redirected := networks.get("acs")) is not None:
        variable = Variable(_HALF[0] * rate, _HALF[1] * rate, _instead(question))
        yield Hypothesis(_cause("acs"), _on_network(question, redirected), variable)
    if (one_nic := networks.get("one-rail")) is not None:
        nics = Machine.of(question.forecaster.cluster).nics

        def on(count: float) -> float:
            own = one_nic.cluster
            several = own.replace(bandwidth_bps=count * own.bandwidth_bps, nics_per_node=round(count))
            return question.forecaster.seconds_on(several)

        counts = tuple(float(1 << power) for power in range(nics.bit_length()) if 1 << power < nics)
        variable = Variable(
            counts[0], counts[-1], lambda count: f"{count:.0f} of {nics} NICs", is_whole=True, values=counts
        )
        yield Hypothesis(_cause("one-rail"), on, variable)
    if (half := networks.get("nic-pcie")) is not None:
        words = "network cards with half of their PCI Express lanes"
        yield Hypothesis(_cause("nic-pcie"), lambda _: question.forecaster.seconds_on(half.cluster), words=words)


def _sockets(question: Question, instead: Alternative | None) -> Iterator[Hypothesis]:
    """Yield sockets in the place of another network, or slower ones than the forecast's."""
    high = min(_SOCKETS_BPS[1], 0.95 * question.rate_bps)
    if high <= _SOCKETS_BPS[0]:
        return
    variable = Variable(min(_SOCKETS_BPS[0], high / 4), high, _instead(question))
    facts = _assumed(question)
    if instead is None:
        cause = _slow_sockets() if question.is_over_tcp else _cause("sockets")
        yield Hypothesis(cause, _with_rate(question), variable, facts=tuple(facts))
        return
    usual_s = None
    with suppress(InvalidArgumentError):
        usual_s = question.forecaster.seconds_on(instead.cluster)
    if usual_s is not None and _NOTICED * question.forecast.seconds < usual_s < _MUCH * question.seconds:
        facts.append(f"over sockets of one interface the forecast is {units.duration(usual_s)}")
    if instead.name == "no-plugin":
        facts.append(
            f"{question.forecaster.library} uses the nodes' RDMA by the plugin "
            f"{question.forecaster.cluster.nccl_plugin} only"
        )
    yield Hypothesis(_cause(instead.name), _on_network(question, instead), variable, facts=tuple(facts))


def _slow_sockets() -> Cause:
    """Return that sockets are slower than the forecast's, which public issues do not tell from sockets at all."""
    sockets = _cause("sockets")
    return replace(_cause("slow-sockets"), name=sockets.name, issues=sockets.issues)


def _assumed(question: Question) -> list[str]:
    """Return what of the network between nodes nobody gave, if anything."""
    options = question.forecaster.options
    if options.get("cluster") is not None:
        return []
    if options.get("bandwidth") is None:
        return ["the network's rate is assumed, not given"]
    if options.get("channel") is None and not question.is_over_tcp:
        return ["RDMA is assumed, not given"]
    return []


def _on_network(question: Question, network: Alternative) -> Callable[[float], float]:
    """Return the forecast on a network that NCCL may use, of another rate of a node."""
    return lambda bps: question.forecaster.seconds_on(network.carrying(bps))


def _inside(question: Question) -> Iterator[Hypothesis]:
    """Yield slower links between the GPUs of a node."""
    if question.forecaster.is_of_nccl:
        answer = question.forecaster.answer
        several, rate = answer.group.per_node_used > 1, 8 * answer.machine.link
        within_s, result = 0.0, None
    else:
        scenario, result = question.forecaster.scenario, question.forecast.result
        assert result is not None
        within_s = sum(
            one or 0.0 for one in (result.tensor_parallel_s, result.expert_parallel_s, result.context_parallel_s)
        )
        several = scenario.cluster.gpus_per_node > 1 and scenario.workers > 1
        rate = scenario.cluster.intra_bandwidth_bps
    if not several and within_s == 0:
        return
    yield from _without_nvls(question)

    def seconds(share: float) -> float:
        longer_s = (1 / share - 1) * within_s
        if within_s and result is not None and result.offload_s:
            # Copies to the host hide some of it.
            factor = 1 + longer_s / result.gpu_s
            longer_s = _computing(question, forward=factor, backward=factor) - question.forecast.seconds
        if not several:
            return question.forecast.seconds + longer_s
        return question.forecaster.seconds({"intra_bandwidth": f"{share * rate / 1e9:.9g}Gbps"}) + longer_s

    def words(share: float) -> str:
        return f"{units.rate(float(f'{share * rate:.3g}'))} per GPU inside the node"

    is_pcie = question.forecaster.hardware is not None and question.forecaster.hardware.bus_bandwidth is None
    if is_pcie:
        yield Hypothesis(_cause("pcie"), seconds, Variable(*_HALF, words))
    if _has_peer_access(question) and _BY_HOST_BPS[0] < rate / 2:
        by_host = Variable(_BY_HOST_BPS[0] / rate, min(0.5, _BY_HOST_BPS[1] / rate), words)
        yield Hypothesis(_cause("peer-access-off"), seconds, by_host)


def _without_nvls(question: Question) -> Iterator[Hypothesis]:
    """Yield that NCCL takes its next choice where a collective is forecast with reductions in NVLink's switches."""
    if not question.forecaster.is_of_nccl:
        return
    answer = question.forecaster.answer
    if not any(one.algorithm in _NVLS for one in answer.times):
        return
    times = [_time_without_nvls(answer, one) for one in answer.times]
    last, before = times[-1], answer.times[-1]
    yield Hypothesis(
        _cause("nvls-off"),
        lambda _: math.fsum(one.seconds for one in times),
        words=f"a {last.algorithm} instead of {before.algorithm.upper()}, {last.bus_bandwidth / 1e9:.0f} GB/s of bus "
        f"bandwidth instead of {before.bus_bandwidth / 1e9:.0f}",
        is_simulated=False,
    )


def _time_without_nvls(answer: Answer, one: CollectiveTime) -> CollectiveTime:
    """Return the time of a collective with what NCCL chooses besides NVLS."""
    if one.algorithm not in _NVLS:
        return one
    rest = [it for it in estimates(answer.kind, one.size, answer.group, answer.machine) if it.algorithm not in _NVLS]
    return collective_time(
        answer.kind,
        one.size,
        answer.group,
        answer.machine,
        algorithm=rest[0].algorithm,
        protocol=rest[0].protocol,
        caller="nccl-tests",
    )


def _has_peer_access(question: Question) -> bool:
    """Whether the forecast has copies from GPU to GPU, not through the host's memory."""
    return question.forecaster.is_of_nccl or question.forecaster.scenario.cluster.peer_access


def _lengthened(question: Question, part_s: float) -> Callable[[float], float]:
    """Return the forecast with a part of it that takes a factor as long."""
    return lambda factor: question.forecast.seconds + (factor - 1) * part_s


def _on_slower_gpu(question: Question) -> Callable[[float], float]:
    """Return the forecast on a GPU that takes a factor as long; the host takes as long as before."""
    return lambda factor: _computing(question, forward=factor, backward=factor, step=factor)


def _on_slower_host(question: Question) -> Callable[[float], float]:
    """Return the forecast on a host that takes a factor as long for what is offloaded."""
    return lambda factor: _computing(question, host=factor)


def _computing(question: Question, **factors: float) -> float:
    """Return the forecast whose GPU takes factors as long for a part, by the names of `computed_s`."""
    scenario, result = question.forecaster.scenario, question.forecast.result
    assert result is not None
    return question.forecast.seconds + computed_s(scenario, result, **factors) - result.compute_s


def _of_ranks(question: Question) -> Iterator[Hypothesis]:
    """Yield what lengthens a step of any workload that computes."""
    forecast, result = question.forecast, question.forecast.result
    assert result is not None
    if result.compute_s == 0:
        return
    if result.workers > 1:
        yield Hypothesis(
            _cause("straggler"),
            _on_slower_gpu(question),
            Variable(*_SLOW_RANK, lambda factor: f"a rank that computes {units.factor(factor)} as long"),
            is_simulated=False,
        )
    if result.samples_per_s is not None:
        samples = result.samples_per_s * forecast.seconds / result.workers
        kind = "" if question.forecaster.workload is None else question.runs[-1]
        low, high = _LOADED_PER_S[kind]
        if (most := min(high, 0.95 * samples / forecast.seconds)) > low:
            yield Hypothesis(
                _cause("input-pipeline"),
                lambda rate: max(forecast.seconds, samples / rate),
                Variable(low, most, lambda rate: f"{units.short(rate)} samples/s per rank from the data loader"),
                is_simulated=False,
            )
    yield Hypothesis(
        _cause("power-cap"),
        _on_slower_gpu(question),
        Variable(*_CAPPED, lambda factor: f"a clock at {units.percent(1 / factor, 0)}", usual=_USUALLY_CAPPED),
        is_simulated=False,
    )
    if _NEARLY_FULL < (_memory_share(question) or 0.0) < 1 / _NEARLY_FULL:
        sharded = result.sharded
        assert sharded is not None and sharded.memory is not None and sharded.capacity_bytes is not None
        full = (
            f"the forecast takes {units.memory(sharded.memory.total_bytes)} of {units.memory(sharded.capacity_bytes)}"
        )
        yield Hypothesis(
            _cause("memory-pressure"),
            _lengthened(question, forecast.seconds),
            Variable(*_RETRIES, lambda factor: f"steps {units.factor(factor)} as long while it retries"),
            is_simulated=False,
            facts=(full,),
        )


def _memory_share(question: Question) -> float | None:
    """Return the share of a GPU's memory that the forecast takes; None where that is not known."""
    result = question.forecast.result
    sharded = None if result is None else result.sharded
    if sharded is None or sharded.memory is None or not sharded.capacity_bytes:
        return None
    return sharded.memory.total_bytes / sharded.capacity_bytes


def _of_models(question: Question) -> Iterator[Hypothesis]:
    """Yield changes of how a model is computed."""
    workload, result = question.forecaster.workload, question.forecast.result
    if workload is None or question.forecaster.options.get("samples_per_s") is not None:
        return
    assert result is not None
    for precision in _from(workload, _NARROWEST_FIRST):
        yield Hypothesis(
            _cause("precision"),
            _of_products(question, precision),
            words=f"{precision} instead of {workload.precision}",
        )
    if workload.attention != "unfused" and any(layer.attention is not None for layer in workload.model.layers):
        yield Hypothesis(_cause("unfused-attention"), _of_options(question, attention="unfused"), words="unfused")
        if workload.attention != "efficient" and workload.kernels == "eager":
            # transformers' models have masks of padding.
            yield Hypothesis(
                _cause("attention-mask"),
                _of_options(question, attention="efficient"),
                words="torch's efficient attention",
            )
    if workload.checkpointing != _FULL:
        words = f"full checkpointing instead of {workload.checkpointing}"
        yield Hypothesis(_cause("recomputation"), _of_options(question, checkpointing=_FULL), words=words)
    else:
        again_s = _computing(question, backward=1 + workload.forward_s / workload.backward_s)
        yield Hypothesis(
            _cause("recomputation"), lambda _: again_s, words="blocks computed twice again", is_simulated=False
        )
    if workload.kernels != "eager":
        words = f"eager instead of {workload.kernels}"
        yield Hypothesis(_cause("eager-kernels"), _of_options(question, kernels="eager"), words=words)
    host_s = _passes(question) * replace(workload, kernels="eager").host_s
    beside_s = question.forecast.seconds - result.forward_s - result.backward_s
    yield Hypothesis(
        _cause("launches"),
        lambda factor: beside_s + max(result.forward_s + result.backward_s, factor * host_s),
        Variable(*_SLOW_HOST, lambda factor: f"launches that take {units.factor(factor)} as long as usual"),
        is_simulated=False,
    )
    yield from _offload(question, workload)
    if workload.optimizer_impl != "loop":
        yield Hypothesis(_cause("optimizer-loop"), _of_options(question, optimizer_impl="loop"), words="a loop")


def _slow_offload(workload: Workload) -> Cause:
    """Return that offloading is slower than the forecast's, which public issues do not tell from offloading at all."""
    offload, own = _cause("offload"), workload.offload
    of_step = own is not None and (not own.named or STATES in own.named)
    part = offload.part if of_step else "computation"
    return replace(_cause("slow-offload"), name=offload.name, issues=offload.issues, part=part)


def _waits_for_offload(result: Result) -> bool:
    """Whether most of a step is what is offloaded."""
    return bool(result.critical_path) and bottleneck(result).is_offload


def _offload(question: Question, workload: Workload) -> Iterator[Hypothesis]:
    """Yield a slower host for what the forecast offloads, and states that are offloaded where it has them on GPUs.

    Their hosts are as fast as the forecast assumes, or slower.
    """
    own = workload.offload
    if question.forecast.result is not None and question.forecast.result.offload_s is not None:
        yield Hypothesis(
            _slow_offload(workload),
            _on_slower_host(question),
            Variable(*_SLOW_MEMORY, lambda factor: f"{units.factor(factor)} as slow as usual"),
            is_simulated=False,
            is_of_bottleneck=_waits_for_offload(question.forecast.result),
        )
    if own is not None and (not own.named or STATES in own.named):
        return
    base_s, used = question.forecast.seconds, _memory_share(question)
    is_sharded = question.forecaster.scenario.options.get("sharding", "none") != "none"
    if not is_sharded and used is not None and used < _HALF_FULL:
        return
    try:
        moved = "cpu" if own is None else replace(own, named=(*own.named, STATES)).text
        longer_s = question.forecaster.seconds({"offload": moved}) - base_s
    except InvalidArgumentError:
        return
    if longer_s <= 0:
        return

    def words(factor: float) -> str:
        slower = "" if factor < _NOTICED else f", {units.factor(factor)} as slow as usual"
        return f"optimizer states in the host's memory{slower}"

    yield Hypothesis(
        _cause("offload"),
        lambda factor: base_s + factor * longer_s,
        Variable(*_SLOW_MEMORY, words),
        is_simulated=False,
    )


_NARROWEST_FIRST = ("fp8", "bf16", "tf32", "fp32")


def _from(workload: Workload, order: Sequence[str]) -> list[str]:
    """Return the precisions of products that the GPU has and that come after the workload's in an order."""
    own = order.index("bf16" if workload.precision == "fp16" else workload.precision)
    return [name for name in order[own + 1 :] if name in workload.hardware.peak_flops]


def _passes(question: Question) -> int:
    """Return how often a step runs a model's pass."""
    workload = question.forecaster.workload
    microbatches = 1 if workload is None else workload.microbatches
    return microbatches * int(question.forecaster.scenario.options.get("accumulate", 1))


def _of_gradients(question: Question) -> Iterator[Hypothesis]:
    """Yield changes of what is exchanged, and when."""
    result, scenario = question.forecast.result, question.forecaster.scenario
    assert result is not None
    if result.workers < 2 or result.compute_s == 0:
        return
    sharding = scenario.options.get("sharding", "none")
    gathers = str(sharding).startswith(("zero3", "hsdp"))
    if scenario.options.get("overlap", True):
        words, share = "nothing is sent while anything is computed", question.hidden_share
        facts = () if share is None else (f"{units.percent(share, 0)} of communication is beside computation",)
        yield Hypothesis(
            _cause("no-overlap"),
            _of_options(question, overlap=False),
            words=words,
            facts=facts,
        )
    if not gathers and result.bucket_size is not None:
        yield Hypothesis(_cause("small-buckets"), _of_options(question, bucket_size="none"), words="a tensor each")
    if gathers and scenario.workload is not None and scenario.workload.recipe.gathered != "float32":
        changes = {"param_dtype": "float32", "reduce_dtype": "float32"}
        facts = ("the profile's all-gathers are in float32",) if _is_wide(question) else ()
        words = "4 bytes per parameter"
        yield Hypothesis(_cause("wide-gathers"), _of_options(question, **changes), words=words, facts=facts)
    if int(scenario.options.get("accumulate", 1)) > 1 and not scenario.options.get("accumulate_sync"):
        words = f"{scenario.options['accumulate']} times per step"
        yield Hypothesis(_cause("every-pass-synced"), _of_options(question, accumulate_sync=True), words=words)


def _of_units(question: Question) -> Iterator[Hypothesis]:
    """Yield readings of the measurement other than the one that was given."""
    measured, seconds = question.measured, question.forecast.seconds
    result = question.forecast.result
    assert result is not None
    gpus, workload = result.gpus, question.forecaster.workload
    is_time = measured.quantity in (Quantity.STEP, Quantity.STEPS)
    if measured.quantity in RATES and measured.is_assumed_of_all and gpus > 1:

        def of_each(factor: float) -> str:
            step, times = units.duration(factor * seconds), units.factor(factor)
            return f"{measured.text} is of each GPU: {step} per step, {times} as long as forecast"

        yield Hypothesis(
            _unit(_of_each_or_all(measured)),
            lambda factor: gpus * factor * seconds,
            Variable(*_OF_EACH, of_each),
            is_simulated=False,
            is_other_reading=True,
        )
    if workload is not None and is_time:

        def times(factor: float) -> float:
            return question.forecaster.seconds({"batch": round(factor * workload.batch)})

        yield Hypothesis(
            _cause("other-batch"),
            times,
            Variable(
                _BATCHES[0],
                _BATCHES[-1],
                lambda factor: f"{units.short(factor)}x the batch",
                is_whole=True,
                values=tuple(map(float, _BATCHES)),
            ),
        )
    if workload is not None and not is_time and (fewer := _fewer(workload.batch)):

        def as_many(batch: float) -> float:
            # The same samples as of a step with the assumed batch.
            return workload.batch / batch * question.forecaster.seconds({"batch": round(batch)})

        values = Variable(
            fewer[0],
            fewer[-1],
            lambda batch: f"batch {batch:.0f} instead of {workload.batch}",
            is_whole=True,
            values=fewer,
        )
        yield Hypothesis(_cause("smaller-batch"), as_many, values)
    if measured.quantity is Quantity.MFU:
        yield Hypothesis(
            _unit(f"--measured {50 * measured.value:.4g}%MFU (of the dense peak)"),
            lambda _: 2 * seconds,
            words="MFU of the peak with sparsity, twice the dense one",
            is_simulated=False,
        )
    if measured.quantity is Quantity.TOKENS:
        yield Hypothesis(
            _cause("padding"),
            lambda share: seconds / share,
            Variable(*_PADDED, lambda share: f"{units.percent(share, 0)} real tokens"),
            is_simulated=False,
        )


def _unit(remedy: str) -> Cause:
    """Return that a measurement is of another unit, with that measurement as it would be given."""
    return replace(_cause("unit"), remedy=remedy)


def _of_each_or_all(measured: Measured) -> str:
    """Return how a rate is given of each GPU, and of all."""
    rate = f"{measured.value:.10g}{measured.quantity.value}"
    return f"--measured {rate}/GPU (of each GPU), {rate}/all (of all)"


def evidence(question: Question, cause: Cause) -> float:
    """Return how likely what a profile shows of communication is with a cause, over how likely it is at best."""
    if cause.part != "communication":
        return 1.0
    likelihood, share = 1.0, question.hidden_share
    if share is not None and (share < _HIDDEN) != (cause.name == "no-overlap"):
        likelihood *= _AGAINST
    if question.measured.gathered and _is_wide(question) != (cause.name == "wide-gathers"):
        likelihood *= _AGAINST
    return likelihood


def _is_wide(question: Question) -> bool:
    """Whether a profile has all-gathers in a wider type than the forecast."""
    workload = question.forecaster.workload
    return workload is not None and question.measured.gathered == "float32" != workload.recipe.gathered


def _fewer(batch: int) -> tuple[float, ...]:
    """Return smaller batches: half of it, and so on."""
    return tuple(float(batch // 2**times) for times in range(batch.bit_length() - 1, 0, -1))


def _faster(question: Question) -> Iterator[Hypothesis]:
    """Yield what makes a run faster than its forecast."""
    forecaster, result = question.forecaster, question.forecast.result
    if question.several_nodes:
        rate = question.rate_bps
        yield Hypothesis(
            _cause("faster-network"), _with_rate(question), Variable(1.1 * rate, 16 * rate, _instead(question))
        )
    if result is None or result.compute_s == 0:
        return
    measured, seconds = question.measured, question.forecast.seconds
    yield Hypothesis(
        _cause("less-work"),
        lambda share: share * seconds,
        Variable(0.05, 0.95, lambda share: f"{units.percent(share, 0)} of the work"),
        is_simulated=False,
    )
    workload = forecaster.workload
    if workload is None:
        return
    if any(one.part in (Part.CPU_STEP, Part.DRIVE) for one in result.critical_path):
        yield Hypothesis(
            _cause("faster-offload"),
            _on_slower_host(question),
            Variable(
                1 / _SLOW_MEMORY[1], 1 / _NOTICED, lambda factor: f"{units.factor(1 / factor)} as fast as assumed"
            ),
            is_simulated=False,
        )
    for precision in _from(workload, _NARROWEST_FIRST[::-1]):
        words = f"{precision} instead of {workload.precision}"
        yield Hypothesis(_cause("lower-precision"), _of_products(question, precision), words=words)
    if workload.checkpointing != "none":
        words = f"none instead of {workload.checkpointing} checkpointing"
        yield Hypothesis(_cause("less-recomputation"), _of_options(question, checkpointing="none"), words=words)
    better = {"eager": "fused", "fused": "compiled"}.get(workload.kernels)
    if better is not None:
        words = f"{better} instead of {workload.kernels}"
        yield Hypothesis(_cause("compiled-kernels"), _of_options(question, kernels=better), words=words)
    if workload.attention in ("unfused", "efficient"):
        words = f"flash instead of {workload.attention}"
        yield Hypothesis(_cause("flash-attention"), _of_options(question, attention="flash"), words=words)
    if measured.quantity in (Quantity.STEP, Quantity.STEPS) and (passes := _passes(question)) > 1:
        unit = _unit(f"--measured {passes * question.seconds:.6g}s ({passes} passes are a step)")
        yield Hypothesis(unit, lambda _: seconds / passes, words="a pass, not a step", is_simulated=False)
