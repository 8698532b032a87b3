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
from paceline.doctor.diagnosis import Diagnosis, Figure, nanoseconds, operations, percent
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
        facts=[
            f"{units.short(operations)} operations per step run within input, forward or optimizer",
            f"nothing hides them: {nanoseconds(lost)}",
        ],
        evidence={"operations_per_step": operations},
        tries=[
            "metrics summed on each rank, and reduced every 100 steps",
            *(
                ["DistributedDataParallel(broadcast_buffers=False) (if each rank may keep its own batch-norm buffers)"]
                if analysis.interface is not Interface.SERVERS
                else []
            ),
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
    listed = ", ".join(f"{block.collective} of {block.name} {nanoseconds(spent / steps)}" for block, spent in most)
    sums = ", ".join(f"{name} {nanoseconds(spent)}" for name, spent in sorted(of.items()) if spent)
    count = len({block.name for block in lost})
    evidence: dict[str, Figure] = {"blocks": count, "waits_per_step": sum(waits.values()) / steps}
    evidence |= {f"{name.replace('-', '_')}_s": spent / 1e9 for name, spent in sorted(of.items())}
    evidence |= {"block": most[0][0].name, "collective": most[0][0].collective, "block_s": most[0][1] / steps / 1e9}
    return Diagnosis(
        name="sharded-communication",
        seconds=total / steps / 1e9,
        share=total / steps / analysis.mean.step,
        headline="exposed all-gathers and reduce-scatters of blocks",
        facts=[f"exposed per step, in {units.count(count, 'block')}: {sums}", f"most of it: {listed}"],
        evidence=evidence,
        tries=[
            *(
                ["fully_shard(…, reshard_after_forward=False) (gathers once instead of twice, if memory suffices)"]
                if _gathers(analysis) > _TWICE
                else []
            ),
            "a larger batch per rank (as many bytes for more compute)",
            *(
                [
                    "fully_shard(…, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)) (half the bytes; "
                    "gradients: reduce_dtype=torch.bfloat16)"
                ]
                if element_type(analysis, "all-gather of") not in _HALVED
                else []
            ),
            "HSDP (a 2-D mesh, shards within a host), or ZeroRedundancyOptimizer with DDP (optimizer states only)",
            f"{_record(analysis.interface)} && paceline simulate mine.json --sharding zero1,zero3 "
            f"--workers {analysis.recording.world_size}",
        ],
    )


def _gathers(analysis: Analysis) -> float:
    """Return how often a block is gathered in a step of a rank."""
    counts: Counter[str] = Counter()
    for rank in analysis.recording.ranks:
        within = _steps(analysis, rank.rank)
        for operation in rank.operations:
            block = Block.of(operation.name)
            if block is not None and block.collective == "all-gather" and _is_in(operation.begin, within):
                counts[block.name] += 1
    steps = sum(len(breakdowns) for breakdowns in analysis.breakdowns.values())
    return max(counts.values(), default=0) / steps


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
    what = "compute" if analysis.has_steps else "spent outside of operations"
    fact = f"exposed communication is {percent(exposed)}: there is little to gain from it"
    if size == 1:
        fact = "there is only one rank, which never waits"
    return Diagnosis(
        name=COMPUTE_BOUND,
        seconds=computing / 1e9,
        share=computing / parts.step,
        headline=what,
        facts=[fact],
        evidence={"exposed_communication_share": exposed},
        tries=[
            "OMP_NUM_THREADS up to cores / ranks, mixed precision, or a larger batch",
            f"{_record(analysis.interface)} && paceline simulate mine.json "
            f"--workers {','.join(str(times * size) for times in (2, 4, 8))} (what more ranks gain)",
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
        headline="input",
        facts=[
            f"{nanoseconds(lost)} between a step's end and the next forward pass on every rank, "
            f"{nanoseconds(inputs[longest])} on rank {longest}",
            "loading and preparing data, or other work of the script",
        ],
        evidence={
            "least_s": min(inputs.values()) / 1e9,
            "most_s": inputs[longest] / 1e9,
            "rank": longest,
        },
        tries=[
            "DataLoader(…, num_workers=4, prefetch_factor=4, persistent_workers=True) (loads ahead)",
            "decoding, resizing and tokenizing once, before training",
            "no print, loss.item() or checkpoint in every step",
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
    per = _per_step(analysis)
    return Diagnosis(
        name="negotiation",
        seconds=lost / 1e9,
        share=lost / analysis.mean.step,
        headline="agreeing on what is ready",
        facts=[
            f"all ranks are ready and nothing moves for {nanoseconds(lost)}{per}",
            f"coordinators run {units.short(votes / steps)} operations{per}",
            _words(main, causes.get(main, 0), lost, longest),
        ],
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
    counts: Counter[str | None] = Counter()
    for rank in analysis.recording.ranks:
        for operation in rank.operations:
            if operation.name.startswith(begins):
                match = _ELEMENTS.fullmatch(operation.name)
                counts[match[1] if match else None] += operation.size
    return max(counts, key=lambda name: counts[name], default=None)


def _counted(analysis: Analysis, what: str) -> Intervals:
    """Return the spans within typical steps."""
    intervals: Intervals = []
    for rank in analysis.recording.ranks:
        spans = union((span.begin, span.end) for span in rank.coordinator.get(what, ()))
        intervals += overlap(spans, _steps(analysis, rank.rank))
    return intervals


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
        _LATE: f"{share} of it: a coordinator woke up to {nanoseconds(longest)} late, and all others waited",
        _SLEEP: f"{share} of it: a coordinator sleeps to collect what becomes ready within a cycle",
        _REPORT: f"{share} of it: ranks report tensors that they have not agreed on before",
        "votes": "most of it: voting",
    }[main]


def _negotiation_remedies(main: str) -> list[str]:
    plan = "--coordinator graph (plans the gradients of a step instead of agreeing on them)"
    general = "DistributedOptimizer(…, groups=…, backward_passes_per_step=2) (fewer tensors to agree on)"
    cores = "OMP_NUM_THREADS one lower, or HOROVOD_THREAD_AFFINITY (leaves the coordinator a core)"
    shorter = "HOROVOD_CYCLE_TIME lower than it was (milliseconds, default 1)"
    return {
        _LATE: [plan, cores, general],
        _SLEEP: [plan, shorter, general],
        _REPORT: ["the same tensor names in every step, and HOROVOD_CACHE_CAPACITY above the number of tensors"],
        "votes": [plan, shorter, general, cores],
    }[main]


# Sending: data moves, and nothing hides it.


def find_small_buckets(analysis: Analysis) -> Diagnosis | None:
    """Diagnose operations so small that their fixed cost dominates."""
    sent = sending(analysis)
    if sent is None or not sent.small:
        return None
    return Diagnosis(
        name="small-buckets",
        seconds=sent.small / 1e9,
        share=sent.small / analysis.mean.step,
        headline="the fixed cost of many small operations",
        facts=[
            f"{operations(sent.operations)}{_per_step(analysis)}, half of at most {units.size(sent.median_bytes)}",
            f"each takes {nanoseconds(sent.fixed)} whatever its size",
        ],
        evidence=_figures(sent),
        tries=[larger_buckets(analysis.interface), less_often(analysis)],
    )


def find_no_overlap(analysis: Analysis) -> Diagnosis | None:
    """Diagnose gradients sent after backward that could have been sent during it."""
    sent = sending(analysis)
    if sent is None or not sent.overlap:
        return None
    held = sent.held > sent.overlap / 2
    if held:
        why = f"all ranks have gradients ready and nothing moves for {nanoseconds(sent.held)} of backward"
    elif sent.operations == 1:
        why = f"one operation sends them all, after {percent(sent.late)} of backward"
    else:
        why = f"the first of {operations(sent.operations)} begins after {percent(sent.late)} of backward"
    remedy = smaller_buckets(analysis.interface, units.size(sent.bytes, 2))
    if held and analysis.interface is Interface.HOROVOD:
        remedy = "HOROVOD_CYCLE_TIME lower than it was (milliseconds, default 1; sends gradients sooner)"
    return Diagnosis(
        name="no-overlap",
        seconds=sent.overlap / 1e9,
        share=sent.overlap / analysis.mean.step,
        headline="sending gradients that backward could have hidden",
        facts=[f"backward hides {percent(sent.hidden_share)} of the time of sending gradients", why],
        evidence={**_figures(sent), "first_ready_share": sent.late, "held_s": sent.held / 1e9},
        tries=[remedy],
    )


def find_network(analysis: Analysis) -> Diagnosis | None:
    """Diagnose the rest of the exposed transfers: bytes over bandwidth."""
    sent = sending(analysis)
    if sent is None or not sent.network:
        return None
    hot = busiest(analysis.recording)
    rate = f", bus bandwidth {units.rate(float(f'{sent.bus_bandwidth_bps:.3g}'))}" if sent.bus_bandwidth_bps else ""
    hidden = [f"backward hides {percent(sent.hidden_share)} of it"] if analysis.has_steps else []
    return Diagnosis(
        name="network-bound",
        seconds=sent.network / 1e9,
        share=sent.network / analysis.mean.step,
        headline=_moving(analysis),
        facts=[
            f"{units.size(sent.bytes)}{_per_step(analysis)} in {operations(sent.operations)}{rate}",
            *hidden,
            *([hot.words] if hot else []),
            *(
                ["includes the servers' updates and, with --staleness N, waiting for slower workers"]
                if analysis.interface is Interface.SERVERS
                else []
            ),
        ],
        evidence={
            **_figures(sent),
            "busiest": hot.role if hot else None,
            "busiest_times": hot.times if hot else None,
        },
        tries=_sending_remedies(analysis, hot, sent.bus_bandwidth_bps),
    )


def _moving(analysis: Analysis) -> str:
    if analysis.interface is Interface.SERVERS:
        return "waiting for the servers"
    return "moving gradients" if analysis.has_steps else "moving data"


_RATES_GBPS = (10, 25, 50, 100, 200, 400, 800)


def _faster_rates(bus_bandwidth_bps: float | None) -> str:
    """Return rates to forecast, above what the run reached."""
    above = [rate for rate in _RATES_GBPS if rate * 1e9 > (bus_bandwidth_bps or 0)]
    return ",".join(f"{rate}Gbps" for rate in above[:3] or _RATES_GBPS[-1:])


def _sending_remedies(analysis: Analysis, hot: Busiest | None, reached_bps: float | None) -> list[str]:
    here = analysis.recording.is_on_one_host
    faster = "paceline simulate allreduce:SIZE"
    if analysis.has_steps:
        faster = f"{_record(analysis.interface)} && paceline simulate mine.json"
    asynchronous = analysis.interface is Interface.SERVERS
    if asynchronous:
        faster += f" --strategy async-ps --servers {max(1, len(analysis.recording.servers))}"
    faster += f" --workers {analysis.recording.world_size} --bandwidth {_faster_rates(reached_bps)}"
    if asynchronous:
        return [
            *([f"more --servers (share the load of {hot.role})"] if hot else []),
            less_often(analysis),
            fewer_bytes(analysis),
            "a larger --staleness, if one is given (workers may be further apart)",
            *([] if here else ["more --streams, the fastest --interface", faster]),
        ]
    return [
        *([f"--strategy ring, or more --servers (share the load of {hot.role})"] if hot else []),
        *([fewer_bytes(analysis)] if element_type(analysis) not in _HALVED else []),
        less_often(analysis),
        # The file does not say how the job was started.
        "no --transport (ranks of one host then share memory)"
        if here
        else "no --transport within a host (ranks share memory); between hosts more --streams, the fastest --interface",
        "no --strategy (Paceline then picks one for each message size)",
        *([] if here else [faster]),
    ]


def _figures(sent: Sending) -> dict[str, Figure]:
    return {
        "exposed_s": sent.exposed / 1e9,
        "hidden_share": sent.hidden_share,
        "operations_per_step": sent.operations,
        "bytes_per_step": sent.bytes,
        "median_bytes": sent.median_bytes,
        "fixed_s": sent.fixed / 1e9,
        "bus_bandwidth_bps": sent.bus_bandwidth_bps,
    }


def _per_step(analysis: Analysis) -> str:
    return " per step" if analysis.has_steps else " in all"


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
        facts=[
            f"{count} of {all_steps} steps took {nanoseconds(parts.step)}",
            f"that is {units.factor(parts.step / usual.step)} a usual step",
            f"the difference is mostly {grown}",
            f"they cost {percent(share)} of the time; all other figures leave them out",
        ],
        evidence={"steps": count, "of": all_steps, "step_s": parts.step / 1e9, "part": grown},
        tries=[
            "what runs every few steps: checkpoints, validation, a new epoch (DataLoader(…, persistent_workers=True))",
            "gc.collect(); gc.freeze() after the first steps (full garbage collections take long)",
        ],
    )


# Straggler: ranks wait for the slowest one, always the same or each in turn.


_PERSISTENT = 0.75
"""Share of all waiting caused by a persistent straggler; of two ranks that take turns, each causes half."""
_NOTEWORTHY = 0.01
"""Share of a step; ranks that differ by less count as equally fast."""
_COMPUTING = ("input", "forward", "backward", "optimizer")
_WORDS = {"input": "input", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}


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
    per = _per_step(analysis)
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
            facts=[
                f"ranks take turns being last; a rank waits {nanoseconds(lost)}{per} on average",
                f"rank {slowest} causes {percent(most / waited)} of it: noise, no single slow rank",
            ],
            evidence={**evidence, "rank": None, "cause": None, "excess_s": None},
            tries=[
                *(
                    f"--hosts {host.name}:{host.cores} (it has {units.count(host.cores, 'core')} for more ranks)"
                    for host in analysis.recording.crowded[:1]
                ),
                "equal work per step: batches of equal size, sequences sorted by length",
                "OMP_NUM_THREADS = cores / ranks of the host, and fewer DataLoader workers",
                less_often(analysis),
            ],
        )
    cause, excess, own, others = _excess(slowest, analysis.means) if analysis.has_steps else (None, 0.0, 0.0, 0.0)
    because = f"{_WORDS[cause]} takes {nanoseconds(own)}, on other ranks {nanoseconds(others)}" if cause else ""
    when = f"in {last_in} of {len(noteworthy)} steps in which ranks wait" if analysis.has_steps else "most of the time"
    return Diagnosis(
        name="straggler",
        seconds=lost / 1e9,
        share=lost / step,
        headline=f"waiting for rank {slowest}",
        facts=[f"last {when}", *([because] if because else [])],
        evidence={**evidence, "cause": cause, "excess_s": excess / 1e9 if cause else None},
        tries=_straggler_remedies(slowest, cause),
        subject=f"rank {slowest}",
    )


def _blamed(breakdowns: dict[int, StepBreakdown]) -> Counter[int]:
    """Return the nanoseconds for which others waited, by the rank that they waited for."""
    counts: Counter[int] = Counter()
    for breakdown in breakdowns.values():
        for wait in breakdown.waits:
            if wait.last is not None:
                counts[wait.last] += wait.straggler
    return counts


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
            "DataLoader(…, num_workers=4, prefetch_factor=4) (loads ahead)",
            f"rank {rank}'s data: sample size, storage, work that only it does (logging, validation, checkpoints)",
        ]
    return [
        f"rank {rank}'s machine: top, OMP_NUM_THREADS, CPU clock",
        f"rank {rank}'s work: batch, sequence length",
    ]


# Remedies, by how the script synchronizes gradients.


def _record(interface: Interface) -> str:
    """Return the command that records a script."""
    if interface is Interface.PLAIN:
        return "paceline record -o mine.json -- python SCRIPT"
    return "paceline run -np 1 --record mine.json -- python SCRIPT"


LARGER_BATCH = "a larger batch per rank (as many messages and bytes for more compute)"


def less_often(analysis: Analysis) -> str:
    """Suggest communicating half as often as now."""
    passes = int(2 * median([step.passes for steps in analysis.breakdowns.values() for step in steps] or [1]))
    before = "the first" if passes == 2 else "all but the last"
    several = "two" if passes == 2 else str(passes)
    return {
        Interface.HOROVOD: f"DistributedOptimizer(…, backward_passes_per_step={passes}) (half as often)",
        Interface.SERVERS: f"DistributedOptimizer(…, backward_passes_per_step={passes}) (half as often)",
        Interface.DDP: f"model.no_sync() for {before} of {several} batches (half as often)",
        Interface.PLAIN: "twice as much accumulated on each rank before it is reduced (half as often)",
    }[analysis.interface]


def fewer_bytes(analysis: Analysis) -> str:
    """Suggest communicating half as much; Horovod's operations do not say their element type."""
    return {
        Interface.HOROVOD: "DistributedOptimizer(…, compression=hvd.Compression.fp16) (half the bytes)",
        Interface.SERVERS: LARGER_BATCH,
        Interface.DDP: "model.register_comm_hook(None, fp16_compress_hook) (half the bytes)",
        Interface.PLAIN: "float16 or bfloat16 arrays instead of float32 (half the bytes)",
    }[analysis.interface]


def larger_buckets(interface: Interface) -> str:
    """Suggest fewer operations for as many bytes."""
    return {
        Interface.HOROVOD: "HOROVOD_FUSION_THRESHOLD (bytes, default 128 MiB) or HOROVOD_CYCLE_TIME (ms, default 1) "
        "higher than it was (more tensors together)",
        Interface.SERVERS: LARGER_BATCH,
        Interface.DDP: "DistributedDataParallel(…, bucket_cap_mb=…) higher than it was (MiB, default 25)",
        Interface.PLAIN: "one array that contains all the small ones",
    }[interface]


def smaller_buckets(interface: Interface, size: str) -> str:
    """Suggest sending the first gradients earlier; `size` is the current size per step."""
    return {
        Interface.HOROVOD: f"HOROVOD_FUSION_THRESHOLD of a tenth of {size} (sends the first gradients earlier)",
        Interface.SERVERS: "no optimizer.push_in_step() (backward then pushes each gradient)",
        Interface.DDP: f"DistributedDataParallel(…, bucket_cap_mb=…) of a tenth of {size} (sends gradients earlier)",
        Interface.PLAIN: "async_=True, and handle.wait() when the result is needed",
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
        """Return the fact that it moves more."""
        return f"{self.role} moves {units.factor(self.times)} as much as a rank"


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
    listed = [diagnosis for cause in _CAUSES if (diagnosis := cause(analysis)) and diagnosis.share >= LISTED]
    listed.sort(key=lambda diagnosis: -diagnosis.share)
    healthy = find_compute(analysis, sum(it.share for it in listed if it.name != SLOW_STEPS))
    return [healthy, *listed] if healthy else listed
