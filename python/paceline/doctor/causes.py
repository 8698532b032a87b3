"""Causes of lost time: each function finds one in the analysis and returns a diagnosis, or None.

| cause | finds |
| --- | --- |
| straggler | ranks wait for one rank, or for each other in turn |
| negotiation | all ranks are ready, but agreement takes long |
| small buckets, no overlap, network | data moves: many small operations, what backward could have hidden, the rest |
| inputs | all ranks load and prepare data |
| blocking | operations in the middle of input, forward or optimizer |
| sharding | parameters of blocks that are gathered, and gradients that are scattered, while nothing computes |
| slow steps | a few steps that take several times as long |
| compute | none of these: computation |
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from paceline._internal import units
from paceline.doctor.analysis import Analysis, Interface
from paceline.doctor.diagnosis import Diagnosis, Figure, nanoseconds, operations, percent, size
from paceline.doctor.intervals import Intervals, length, overlap, union, without
from paceline.doctor.sending import Sending, sending
from paceline.doctor.step_breakdown import NAMES, Parts, StepBreakdown, mean, median, quantile
from paceline.doctor.timeline_model import Block, Recording

SLOW_STEPS, COMPUTE_BOUND = "slow-steps", "compute-bound"
LISTED = 0.03
"""Causes that cost less than this share of a step are not listed."""


# Blocking: operations that the script waits for in the middle of input, forward or optimizer.


def find_blocking(analysis: Analysis) -> Diagnosis | None:
    """Diagnose transfers and agreement in blocking operations; waiting for stragglers in them counts as straggling."""
    waits = [
        wait
        for breakdowns in analysis.breakdowns.values()
        for breakdown in breakdowns
        for wait in breakdown.waits
        if not wait.gradients and wait.block is None
    ]
    steps = sum(len(breakdowns) for breakdowns in analysis.breakdowns.values())
    lost = sum(wait.transfer for wait in waits) / steps
    operations = sum(wait.operations for wait in waits) / steps
    if not lost:
        return None
    return Diagnosis(
        name="blocking-operations",
        seconds=lost / 1e9,
        share=lost / analysis.mean.step,
        headline="operations other than gradients",
        says=f"{units.short(operations)} operations per step start and end within input, forward pass or optimizer, "
        f"where nothing hides them: {nanoseconds(lost)}",
        evidence={"operations_per_step": operations},
        tries=[
            "sum metrics on each rank, and reduce them every hundred steps instead of every step",
            "DistributedDataParallel(broadcast_buffers=False), if ranks may keep their own buffers (batch norm)",
        ],
    )


# Sharding: FSDP2 waits for collectives of blocks.


_MOST_BLOCKS = 3
_TWICE = 1.5
"""Gathers of a block and step above which it is gathered again in the backward pass."""


def find_sharding(analysis: Analysis) -> Diagnosis | None:
    """Diagnose transfers for which a block's forward or backward pass waits; stragglers in them count as straggling."""
    lost: dict[Block, float] = defaultdict(float)
    waits: Counter[str] = Counter()
    for breakdowns in analysis.breakdowns.values():
        for breakdown in breakdowns:
            for wait in breakdown.waits:
                if wait.block is not None:
                    lost[wait.block] += wait.transfer
                    waits[wait.block.collective] += 1
    total = sum(lost.values())
    if not total:
        return None
    steps = sum(len(breakdowns) for breakdowns in analysis.breakdowns.values())
    of = {name: sum(spent for block, spent in lost.items() if block.collective == name) / steps for name in waits}
    most = sorted(lost.items(), key=lambda item: (-item[1], item[0]))[:_MOST_BLOCKS]
    listed = units.listed(
        [f"{block.collective} of {block.name}, {nanoseconds(spent / steps)}" for block, spent in most]
    )
    sums = units.listed([f"{nanoseconds(spent)} of {name}" for name, spent in sorted(of.items()) if spent])
    count = len({block.name for block in lost})
    evidence: dict[str, Figure] = {"blocks": count, "waits_per_step": sum(waits.values()) / steps}
    evidence |= {f"{name.replace('-', '_')}_s": spent / 1e9 for name, spent in sorted(of.items())}
    evidence |= {"block": most[0][0].name, "collective": most[0][0].collective, "block_s": most[0][1] / steps / 1e9}
    return Diagnosis(
        name="sharded-communication",
        seconds=total / steps / 1e9,
        share=total / steps / analysis.mean.step,
        headline="gathering parameters and scattering gradients that nothing hides",
        says=f"in a step {sums} of {units.count(count, 'block')} are not hidden; most of it: {listed}",
        evidence=evidence,
        tries=[
            *(
                ["fully_shard(…, reshard_after_forward=False) gathers once instead of twice, if memory suffices"]
                if _gathers(analysis) > _TWICE
                else []
            ),
            "a larger batch per rank: as many bytes for more computation",
            *(
                [
                    "half the bytes: fully_shard(…, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)); of "
                    "gradients, too, with reduce_dtype=torch.bfloat16"
                ]
                if element_type(analysis, "all-gather of") not in _HALVED
                else []
            ),
            "shard within a host only, by a mesh of two dimensions (HSDP), or only the optimizer's states "
            "(ZeroRedundancyOptimizer with DistributedDataParallel)",
            f"forecast these: {_record(analysis.interface)}; paceline simulate mine.json --sharding "
            f"zero1,zero3 --workers {analysis.recording.world_size}",
        ],
    )


def _gathers(analysis: Analysis) -> float:
    """Return how often a block is gathered in a step of a rank."""
    found: Counter[str] = Counter()
    for rank in analysis.recording.ranks:
        within = _steps(analysis, rank.rank)
        for operation in rank.operations:
            block = Block.of(operation.name)
            if block is not None and block.collective == "all-gather" and _is_in(operation.begin, within):
                found[block.name] += 1
    steps = sum(len(breakdowns) for breakdowns in analysis.breakdowns.values())
    return max(found.values(), default=0) / steps


# Compute: nothing else costs much.


HEALTHY = 0.10
"""While all other causes together cost less than this share, there is little to gain from them."""


def find_compute(analysis: Analysis, others: float) -> Diagnosis | None:
    """Diagnose computation if `others`, the share of all other causes, and communication are small."""
    parts, size = analysis.mean, analysis.recording.world_size
    if not parts.step or others >= HEALTHY or parts.exposed >= HEALTHY * parts.step:
        return None
    computing = parts.compute if analysis.has_steps else parts.step - parts.exposed
    exposed = parts.exposed / parts.step
    what = "computation" if analysis.has_steps else "spent outside of operations"
    says = f"communication costs {percent(exposed)} of the time: there is little to gain there"
    if size == 1:
        says = "there is only one rank, which never waits"
    return Diagnosis(
        name=COMPUTE_BOUND,
        seconds=computing / 1e9,
        share=computing / parts.step,
        headline=what,
        says=says,
        evidence={"exposed_communication_share": exposed},
        tries=[
            "compute faster: OMP_NUM_THREADS up to cores / ranks, mixed precision, a larger batch",
            f"add ranks, after forecasting the gain: {_record(analysis.interface)}; "
            f"paceline simulate mine.json --workers {','.join(str(times * size) for times in (2, 4, 8))}",
        ],
    )


# Inputs: all ranks spend time between the end of one step and the next forward pass.


def find_inputs(analysis: Analysis) -> Diagnosis | None:
    """Diagnose input time common to all ranks; the excess of one rank counts as waiting for a straggler."""
    inputs = {rank: parts.input for rank, parts in analysis.means.items()}
    lost = min(quantile(inputs.values(), 0.5), sorted(inputs.values())[(len(inputs) - 1) // 2])
    step = analysis.mean.step
    if not lost:
        return None
    longest = max(inputs, key=lambda rank: inputs[rank])
    return Diagnosis(
        name="input-pipeline",
        seconds=lost / 1e9,
        share=lost / step,
        headline="input, before the forward pass can begin",
        says=f"from the end of a step to the next forward pass {nanoseconds(lost)} go by on every rank "
        f"({nanoseconds(inputs[longest])} on rank {longest}): loading and preparing data, and whatever else the script "
        "does there",
        evidence={
            "least_s": min(inputs.values()) / 1e9,
            "most_s": inputs[longest] / 1e9,
            "rank": longest,
        },
        tries=[
            "load ahead of time: DataLoader(num_workers=2 or more, prefetch_factor=4, persistent_workers=True)",
            "move one-off work out of the loop: decoding, resizing, tokenizing",
            "look for waits in the script: printing, loss.item(), checkpoints in every step",
        ],
    )


# Negotiation: all ranks are ready, and nothing moves, because coordinators are still agreeing.


_LATE, _SLEEP, _REPORT = "late wake-up", "sleep", "report"


def find_negotiation(analysis: Analysis) -> Diagnosis | None:
    """Diagnose exposed negotiation, with the coordinators' activity in that time."""
    lost = analysis.mean.negotiation
    if not lost:
        return None
    late, asleep, reporting = (_on_any_rank(analysis, what) for what in (_LATE, _SLEEP, _REPORT))
    in_late = in_sleep = in_report = 0
    for breakdowns in analysis.breakdowns.values():
        idle = union(one for breakdown in breakdowns for wait in breakdown.waits for one in wait.idle)
        in_late += length(overlap(idle, late))
        awake = without(idle, late)
        in_sleep += length(overlap(awake, asleep))
        in_report += length(overlap(without(awake, asleep), reporting))
    steps = sum(len(breakdowns) for breakdowns in analysis.breakdowns.values())
    causes = {_LATE: in_late / steps, _SLEEP: in_sleep / steps, _REPORT: in_report / steps}
    main = max(causes, key=lambda what: causes[what])
    if causes[main] < lost / 3:
        main = "votes"
    late_spans = _counted(analysis, _LATE)
    votes = sum(_within(analysis, rank.rank, [vote.begin for vote in rank.votes]) for rank in analysis.recording.ranks)
    sleeps = [end - begin for begin, end in _counted(analysis, _SLEEP)]
    longest = max((end - begin for begin, end in late_spans), default=0)
    per = " a step" if analysis.has_steps else " in all"
    return Diagnosis(
        name="negotiation",
        seconds=lost / 1e9,
        share=lost / analysis.mean.step,
        headline="agreeing on what is ready",
        says=f"for {nanoseconds(lost)}{per} all ranks are ready, nothing moves, and coordinators agree: "
        f"{units.short(votes / steps)} operations of theirs{per}; {_words(main, causes.get(main, 0), lost, longest)}",
        evidence={
            "cause": main,
            "coordinator_operations_per_step": votes / steps,
            "late_wake_ups": len(late_spans),
            "late_wake_up_longest_s": longest / 1e9,
            "late_wake_up_s": causes[_LATE] / 1e9,
            "sleep_s": causes[_SLEEP] / 1e9,
            "sleep_median_s": median(sleeps) / 1e9 if sleeps else 0.0,
            "report_s": causes[_REPORT] / 1e9,
            "spun_s": sum(rank.spun for rank in analysis.recording.ranks) / 1e9,
        },
        tries=_negotiation_remedies(main),
    )


def _on_any_rank(analysis: Analysis, what: str) -> Intervals:
    """Return the time in which any coordinator is busy: a vote ends with the last rank, so all wait for every one."""
    return union((span.begin, span.end) for rank in analysis.recording.ranks for span in rank.coordinator.get(what, ()))


_HALVED = ("float16", "bfloat16", "half")
_ELEMENTS = re.compile(r".* (\w+)\[[^\]]*\]")
"""The name of an operation of torch.distributed ends so: `all_reduce float32[250]`."""


def element_type(analysis: Analysis, begins: str = "") -> str | None:
    """Return the element type of most bytes of the operations whose names begin so; None if they do not say it."""
    found: Counter[str | None] = Counter()
    for rank in analysis.recording.ranks:
        for operation in rank.operations:
            if operation.name.startswith(begins):
                match = _ELEMENTS.fullmatch(operation.name)
                found[match[1] if match else None] += operation.size
    return max(found, key=lambda name: found[name], default=None)


def _counted(analysis: Analysis, what: str) -> Intervals:
    """Return the spans within typical steps."""
    found: Intervals = []
    for rank in analysis.recording.ranks:
        spans = union((span.begin, span.end) for span in rank.coordinator.get(what, ()))
        found += overlap(spans, _steps(analysis, rank.rank))
    return found


def _steps(analysis: Analysis, rank: int) -> Intervals:
    return [(breakdown.begin, breakdown.end) for breakdown in analysis.breakdowns.get(rank, ())]


def _is_in(moment: int, steps: Intervals) -> bool:
    return any(begin <= moment < end for begin, end in steps)


def _within(analysis: Analysis, rank: int, moments: list[int]) -> int:
    return len(overlap([(at, at + 1) for at in sorted(set(moments))], _steps(analysis, rank)))


def _words(main: str, spent: float, lost: float, longest: float) -> str:
    share = percent(min(1.0, spent / lost))
    return {
        # S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning".
        _LATE: f"{share} of it because a coordinator was woken late (oversleep, at worst {nanoseconds(longest)}): "
        "all others waited for its vote",
        _SLEEP: f"{share} of it a coordinator sleeps, to collect what becomes ready within a cycle",
        _REPORT: f"{share} of it ranks report tensors that they have not agreed on before",
        "votes": "most of it voting",
    }[main]


def _negotiation_remedies(main: str) -> list[str]:
    plan = "--coordinator graph, if it was another one: gradients of every step are planned, not agreed on"
    general = "reduce the number of tensors to agree on: DistributedOptimizer(groups=…), backward_passes_per_step=2"
    cores = (
        "leave the coordinator a core: OMP_NUM_THREADS one lower, fewer DataLoader workers, or "
        "HOROVOD_THREAD_AFFINITY with a separate core for each local rank"
    )
    shorter = "HOROVOD_CYCLE_TIME lower than it was (milliseconds; default 1)"
    return {
        _LATE: [plan, cores, general],
        _SLEEP: [plan, shorter, general],
        _REPORT: ["give tensors the same names in every step; HOROVOD_CACHE_CAPACITY above the number of tensors"],
        "votes": [plan, shorter, general, cores],
    }[main]


# Sending: data moves, and nothing hides it.


def find_small_buckets(analysis: Analysis) -> Diagnosis | None:
    """Diagnose operations so small that their fixed cost dominates."""
    found = sending(analysis)
    if found is None or not found.small:
        return None
    return Diagnosis(
        name="small-buckets",
        seconds=found.small / 1e9,
        share=found.small / analysis.mean.step,
        headline="the fixed cost of many small operations",
        says=f"{operations(found.operations)}{_per_step(analysis)}, half of them of at most "
        f"{size(found.median_bytes)}; each takes {nanoseconds(found.fixed)} whatever its size",
        evidence=_figures(found),
        tries=[larger_buckets(analysis.interface), less_often(analysis)],
    )


def find_no_overlap(analysis: Analysis) -> Diagnosis | None:
    """Diagnose gradients sent after backward that could have been sent during it."""
    found = sending(analysis)
    if found is None or not found.overlap:
        return None
    held = found.held > found.overlap / 2
    if held:
        why = f"for {nanoseconds(found.held)} of backward gradients are ready on all ranks, and nothing moves"
    elif found.operations == 1:
        why = f"they are sent in one operation, which begins after {percent(found.late)} of backward"
    else:
        why = f"the first of {operations(found.operations)} begins after {percent(found.late)} of backward"
    remedy = smaller_buckets(analysis.interface, units.size(float(f"{found.bytes:.2g}")))
    if held and analysis.interface is Interface.HOROVOD:
        remedy = (
            "HOROVOD_CYCLE_TIME lower (milliseconds; default 1): gradients are then sent as soon as all ranks have them"
        )
    return Diagnosis(
        name="no-overlap",
        seconds=found.overlap / 1e9,
        share=found.overlap / analysis.mean.step,
        headline="sending gradients that backward could have hidden",
        says=f"{percent(found.hidden_share)} of the time in which gradients are sent is hidden behind backward; {why}",
        evidence={**_figures(found), "first_ready_share": found.late, "held_s": found.held / 1e9},
        tries=[remedy],
    )


def find_network(analysis: Analysis) -> Diagnosis | None:
    """Diagnose the rest of the exposed transfers: bytes over bandwidth."""
    found = sending(analysis)
    if found is None or not found.network:
        return None
    hot = busiest(analysis.recording)
    rate = f" at a bus bandwidth of {_rate(found.bus_bandwidth_bps)}" if found.bus_bandwidth_bps else ""
    behind = f"; {percent(found.hidden_share)} of that is hidden behind backward" if analysis.has_steps else ""
    return Diagnosis(
        name="network-bound",
        seconds=found.network / 1e9,
        share=found.network / analysis.mean.step,
        headline="moving gradients" if analysis.has_steps else "moving data",
        says=f"{size(found.bytes)}{_per_step(analysis)} in {operations(found.operations)}"
        f"{rate}{behind}{hot.words if hot else ''}",
        evidence={
            **_figures(found),
            "busiest": hot.role if hot else None,
            "busiest_times": hot.times if hot else None,
        },
        tries=_sending_remedies(analysis, hot, found.bus_bandwidth_bps),
    )


_RATES_GBPS = (10, 25, 50, 100, 200, 400, 800)


def _faster_rates(bus_bandwidth_bps: float | None) -> str:
    """Return rates to forecast, above what the run reached."""
    above = [rate for rate in _RATES_GBPS if rate * 1e9 > (bus_bandwidth_bps or 0)]
    return ",".join(f"{rate}Gbps" for rate in above[:3] or _RATES_GBPS[-1:])


def _sending_remedies(analysis: Analysis, hot: Busiest | None, reached_bps: float | None) -> list[str]:
    here = analysis.recording.is_on_one_host
    faster = "forecast a faster network: "
    if analysis.has_steps:
        faster += f"{_record(analysis.interface)}; paceline simulate mine.json"
    else:
        faster += "paceline simulate allreduce:SIZE"
    return [
        *(
            [f"--strategy ring: no rank moves more than others; or more --servers, to share {hot.role}'s load"]
            if hot
            else []
        ),
        *([fewer_bytes(analysis)] if element_type(analysis) not in _HALVED else []),
        less_often(analysis),
        # The file does not say how the job was started.
        "leave out --transport, if it was given, so that ranks share memory"
        if here
        else "ranks of one host: leave out --transport, if it was given, so that they share memory; between hosts: "
        "more --streams, and the fastest --interface",
        "leave out --strategy, if it was given, so that Paceline tunes the algorithm for each message size",
        *(
            []
            if here
            else [f"{faster} --workers {analysis.recording.world_size} --bandwidth {_faster_rates(reached_bps)}"]
        ),
    ]


def _figures(found: Sending) -> dict[str, Figure]:
    return {
        "exposed_s": found.exposed / 1e9,
        "hidden_share": found.hidden_share,
        "operations_per_step": found.operations,
        "bytes_per_step": found.bytes,
        "median_bytes": found.median_bytes,
        "fixed_s": found.fixed / 1e9,
        "bus_bandwidth_bps": found.bus_bandwidth_bps,
    }


def _per_step(analysis: Analysis) -> str:
    return " a step" if analysis.has_steps else " in all"


def _rate(bits_per_s: float) -> str:
    return units.rate(float(f"{bits_per_s:.3g}"))


# Slow steps: a few take several times as long as the others; the means leave them out.


def find_slow_steps(analysis: Analysis) -> Diagnosis | None:
    """Diagnose slow steps: their cost, and the part in which they differ."""
    slow = [breakdown for breakdowns in analysis.slow.values() for breakdown in breakdowns]
    if not slow:
        return None
    ranks, usual, parts = len(analysis.ranks), analysis.mean, mean([breakdown.parts for breakdown in slow])
    count, all_steps = len(slow) // ranks, analysis.count + len(slow) // ranks
    lost = (parts.step - usual.step) * count / all_steps
    share = lost / (usual.step + lost)
    grown = max(NAMES, key=lambda name: getattr(parts, name) - getattr(usual, name))
    return Diagnosis(
        name=SLOW_STEPS,
        seconds=lost / 1e9,
        share=share,
        headline="a few slow steps",
        says=f"{count} of {all_steps} steps took {units.short(parts.step / usual.step)} times as long as the others, "
        f"{nanoseconds(parts.step)}; the difference lies mostly in: {grown}. They cost {percent(share)} of the time, "
        "and are left out of all other figures",
        evidence={"steps": count, "of": all_steps, "step_s": parts.step / 1e9, "part": grown},
        tries=[
            "check what the script does every few steps: checkpoints, validation, a new epoch's data loader "
            "(persistent_workers=True)",
            "gc.collect() and gc.freeze() after the first steps: Python's full garbage collections take long",
        ],
    )


# Straggler: ranks wait for the slowest one, always the same or each in turn.


_PERSISTENT = 0.75
"""Share of all waiting caused by a persistent straggler; of two ranks that take turns, each causes half."""
_NOTEWORTHY = 0.01
"""Share of a step; ranks that differ by less count as equally fast."""
_COMPUTING = ("input", "forward", "backward", "optimizer")
_WORDS = {"input": "input pipeline", "forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer"}


def find_straggler(analysis: Analysis) -> Diagnosis | None:
    """Diagnose waiting for the slowest rank in a mean step.

    The cost of one slow rank is the mean wait of the others for it. Where ranks take turns, each has computed while
    others waited for it, so the cost is the mean wait of all ranks: no step can gain more.
    """
    ranks = analysis.ranks
    if len(ranks) < 2:
        return None
    blamed = [_blamed(analysis.breakdowns_of(index)) for index in range(analysis.count)]
    total = sum(blamed, Counter[int]())
    waited = sum(total.values())
    step = analysis.mean.step
    if not waited:
        return None
    noteworthy = [counter for counter in blamed if sum(counter.values()) > _NOTEWORTHY * step * (len(ranks) - 1)]
    slowest, most = min(total.items(), key=lambda item: (-item[1], item[0]))
    last_in = sum(_first(counter) == slowest for counter in noteworthy)
    per = " a step" if analysis.has_steps else " in all"
    persistent = most / waited >= _PERSISTENT
    lost = (most / (len(ranks) - 1) if persistent else waited / len(ranks)) / analysis.count
    evidence: dict[str, Figure] = {
        "rank": slowest,
        "persistent": persistent,
        "share_of_waiting": most / waited,
        "steps_last": last_in,
        "steps_waited": len(noteworthy),
        "later_s": lost / 1e9,
    }
    if not persistent:
        return Diagnosis(
            name="straggler",
            seconds=lost / 1e9,
            share=lost / step,
            headline="waiting for whichever rank is last",
            says=f"ranks take turns being last, and a rank waits {nanoseconds(lost)}{per} on average for the last one; "
            f"rank {slowest} is the cause of {percent(most / waited)} of that: noise, no single slow rank",
            evidence={**evidence, "rank": None, "cause": None, "excess_s": None},
            tries=[
                *(
                    f"start no more ranks on {host.name} than its {units.count(host.cores, 'core')}"
                    for host in analysis.recording.crowded[:1]
                ),
                "give all ranks equal work in each step: batches of equal size, sequences sorted by length",
                "leave each rank its own cores: OMP_NUM_THREADS = cores / ranks of the host, fewer DataLoader workers",
                f"{less_often(analysis)}: unequal steps then even out before ranks wait for each other",
            ],
        )
    cause, excess, own, others = _excess(slowest, analysis.means) if analysis.has_steps else (None, 0.0, 0.0, 0.0)
    because = (
        f"; its {_WORDS[cause]} takes {nanoseconds(own)}, that of the others {nanoseconds(others)}" if cause else ""
    )
    when = (
        f"in {last_in} of the {len(noteworthy)} steps in which ranks wait" if analysis.has_steps else "most of the time"
    )
    return Diagnosis(
        name="straggler",
        seconds=lost / 1e9,
        share=lost / step,
        headline=f"waiting for rank {slowest}",
        says=f"rank {slowest} is the last {when}, and the others wait {nanoseconds(lost)}{per} for it{because}",
        evidence={**evidence, "cause": cause, "excess_s": excess / 1e9 if cause else None},
        tries=_straggler_remedies(slowest, cause),
    )


def _blamed(breakdowns: dict[int, StepBreakdown]) -> Counter[int]:
    """Return the nanoseconds for which others waited, by the rank that they waited for."""
    found: Counter[int] = Counter()
    for breakdown in breakdowns.values():
        for wait in breakdown.waits:
            if wait.last is not None:
                found[wait.last] += wait.straggler
    return found


def _first(counter: Counter[int]) -> int:
    return min(counter.items(), key=lambda item: (-item[1], item[0]))[0]


def _excess(slowest: int, means: dict[int, Parts]) -> tuple[str | None, float, float, float]:
    """Return the part in which a rank takes longer than the others, by how much, its time and theirs."""
    best: tuple[str | None, float, float, float] = (None, 0.0, 0.0, 0.0)
    for name in _COMPUTING:
        own = getattr(means[slowest], name)
        others = median(getattr(parts, name) for rank, parts in means.items() if rank != slowest)
        if own - others > best[1]:
            best = (name, own - others, own, others)
    return best


def _straggler_remedies(rank: int, cause: str | None) -> list[str]:
    if cause == "input":
        return [
            f"make rank {rank}'s input pipeline as fast as the others': DataLoader(num_workers=…, prefetch_factor=…), "
            "and no work on only one rank (logging, validation, checkpoints)",
            f"check whether rank {rank} has larger samples, or slower storage",
        ]
    return [
        f"check what else runs on rank {rank}'s machine and cores: top there, OMP_NUM_THREADS, the processor's clock",
        f"check whether rank {rank} has more to compute: larger batches, longer sequences, extra work",
    ]


# Remedies, by how the script synchronizes gradients.


def _record(interface: Interface) -> str:
    """Return the command that records a script."""
    if interface is Interface.PLAIN:
        return "paceline record -o mine.json -- python SCRIPT"
    return "paceline run -np 1 --record mine.json -- python SCRIPT"


def less_often(analysis: Analysis) -> str:
    """Suggest communicating half as often as now."""
    passes = int(2 * median([step.passes for steps in analysis.breakdowns.values() for step in steps] or [1]))
    before = "the first" if passes == 2 else "all but the last"
    several = "two" if passes == 2 else str(passes)
    return {
        Interface.HOROVOD: f"half as often: DistributedOptimizer(backward_passes_per_step={passes})",
        Interface.DDP: f"half as often: accumulate gradients over {several} batches, {before} under model.no_sync()",
        Interface.PLAIN: "half as often: accumulate twice as much on each rank before it is reduced",
    }[analysis.interface]


def fewer_bytes(analysis: Analysis) -> str:
    """Suggest communicating half as much; Horovod's operations do not say their element type."""
    return {
        Interface.HOROVOD: "half the bytes, unless they are compressed already: "
        "DistributedOptimizer(compression=hvd.Compression.fp16)",
        Interface.DDP: "half the bytes: model.register_comm_hook(None, fp16_compress_hook)",
        Interface.PLAIN: "half the bytes: reduce float16 or bfloat16 instead of float32",
    }[analysis.interface]


def larger_buckets(interface: Interface) -> str:
    """Suggest fewer operations for as many bytes."""
    return {
        Interface.HOROVOD: "more tensors together: HOROVOD_FUSION_THRESHOLD higher (bytes; default 128 MiB), "
        "HOROVOD_CYCLE_TIME higher than it was (milliseconds; default 1)",
        Interface.DDP: "larger buckets: DistributedDataParallel(bucket_cap_mb=…) higher than it was (MiB; default 25)",
        Interface.PLAIN: "reduce one array that contains all the small ones",
    }[interface]


def smaller_buckets(interface: Interface, size: str) -> str:
    """Suggest sending the first gradients earlier; `size` is the current size per step."""
    return {
        Interface.HOROVOD: "send first gradients before the last ones are ready: lower HOROVOD_FUSION_THRESHOLD, to a "
        f"tenth of {size}, say",
        Interface.DDP: "smaller buckets, so that the first is sent earlier: DistributedDataParallel(bucket_cap_mb=…), "
        f"a tenth of {size}, say",
        Interface.PLAIN: "start operations with async_=True, and wait for them when their results are needed",
    }[interface]


# The role that moves most bytes: a server moves many times as much as a rank.


_MORE = 1.5


@dataclass(frozen=True, slots=True)
class Busiest:
    """A server or switch that moves more data than a rank."""

    role: str
    times: float

    @property
    def words(self) -> str:
        """Return the words to add to the figures."""
        return f"; {self.role} moves {units.short(self.times)} times as much as a rank"


def busiest(recording: Recording) -> Busiest | None:
    """Return that role, if there is one, by the larger of its outgoing and incoming bytes."""
    moved: dict[tuple[str, bool], int] = defaultdict(int)
    for rank in (*recording.ranks, *recording.servers):
        for (_, role, out), count in rank.moved.items():
            moved[role, out] += count
    most: dict[str, int] = {}
    for (role, _), count in moved.items():
        most[role] = max(most.get(role, 0), count)
    workers = [count for role, count in most.items() if role.startswith("worker")]
    helpers = {role: count for role, count in most.items() if not role.startswith("worker")}
    if not workers or not helpers or not median(workers):
        return None
    role = min(helpers, key=lambda name: (-helpers[name], name))
    times = helpers[role] / median(workers)
    return Busiest(role, times) if times >= _MORE else None


_CAUSES: tuple[Callable[[Analysis], Diagnosis | None], ...] = (
    # If two cost the same, the one with the cheaper remedy comes first.
    find_straggler,
    find_negotiation,
    find_small_buckets,
    find_no_overlap,
    find_inputs,
    find_blocking,
    find_sharding,
    find_slow_steps,
    find_network,
)


def diagnoses(analysis: Analysis) -> list[Diagnosis]:
    """Return all causes that apply, costliest first; computation if the others cost almost nothing."""
    found = [diagnosis for cause in _CAUSES if (diagnosis := cause(analysis)) and diagnosis.share >= LISTED]
    found.sort(key=lambda diagnosis: -diagnosis.share)
    healthy = find_compute(analysis, sum(it.share for it in found if it.name != SLOW_STEPS))
    return [healthy, *found] if healthy else found
