"""The words of `paceline advise`: the best fit, its facts, what to type next, and notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline._internal import units
from paceline._internal.block import Fact, Pair, Tone
from paceline.forecast import sharding as shardings
from paceline.forecast.advisor import search
from paceline.forecast.advisor.answer import Answer, Row
from paceline.forecast.advisor.candidates import Candidate, ModelParallel, Setup
from paceline.forecast.advisor.goodput import Failures
from paceline.forecast.advisor.search import Outcome, TooLarge
from paceline.forecast.kinds import Measure, Resource
from paceline.forecast.remedies import least_gpus
from paceline.forecast.verdict.bottleneck import Relief
from paceline.forecast.wording import bottleneck, rows, sharding, terms
from paceline.forecast.wording import remedies as fits

_SHORT = {
    Resource.NICS: "network",
    Resource.INSIDE: "intra-node",
    Resource.INSIDE_AND_NICS: "all links",
    Resource.NICS_AND_LINKS: "all links",
    Resource.HOST_LINK: "host copies",
    Resource.CPU_STEP: "CPU step",
    Resource.DRIVE: "drive",
    Resource.LATENCY: "1/2 latency",
    Resource.STREAMS: "connections",
    Resource.CHANNEL: "RDMA",
}
"""Words for changes that help, in a column of a table."""
_CHECKPOINTING = {"none": "no", "offload": "offloaded"}


WHOLE = " *"
"""The mark of a cost for which more GPUs are rented than the job has."""


def rented_whole(rows: Sequence[Row]) -> list[str]:
    """Return the legend of that mark, with the GPUs that are paid for; empty where no row has it."""
    rented = {row.price.rented(row.gpus) for row in rows if row.price is not None and row.is_rented_whole}
    return (
        [f"{WHOLE.strip()} rented whole: {units.listed([f'{one:,}' for one in sorted(rented)])} GPUs"] if rented else []
    )


def headline(answer: Answer) -> tuple[str, Tone]:
    """Return the first line: the best of all that fits, or that nothing does."""
    best, name = answer.best, answer.job.whole.model.name
    if best is not None:
        where, which = _gpus(answer, best.gpus, best.candidate), label(best.candidate, divided=False)
        if not answer.finished:
            return f"Best so far for {name} on {where} (interrupted): {which}", ""
        if len(answer.rows) == 1:
            return f"Best fit for {name} on {where}: {which}", ""
        return f"{'Cheapest' if answer.objective == 'cost' else 'Fastest'} fit for {name}: {where}, {which}", ""
    never = _never(answer)
    if never:
        least, where = min(one.never_fit[0].least_bytes for one in never), _numbers(answer, never)
        job = answer.job
        lack = sharding.lack(least, job.allocatable_bytes, job.capacity_bytes)
        return f"{name} does not fit on {where}: at least {lack}", "bad"
    where = _numbers(answer, list(answer.outcomes))
    if not answer.finished:
        return f"Interrupted: no fit for {name} on {where} yet", ""
    slow = dict.fromkeys(_setup_name(setup) for outcome in answer.outcomes for setup in outcome.left_out)
    return f"No answer for {name} on {where}: {units.listed([*slow], 'or')} takes long to simulate", ""


def facts(answer: Answer) -> list[Fact]:
    """Return the facts of the block."""
    if answer.best is not None:
        return [*_of_best(answer, answer.best), *_searched(answer), *_too_large(answer)]
    return [*(_smallest(answer) if _never(answer) else _searched(answer)), *_goodput(answer.costs.failures)]


def remedies(answer: Answer) -> list[str]:
    """Return what to type next."""
    if answer.best is not None:
        return [answer.best.command, *([] if answer.safer is None else [answer.safer.command])]
    if not _never(answer):
        return [answer.untried] if answer.untried else []
    return [answer.remedy or fits.NOTHING]


def verdict(answer: Answer) -> list[str]:
    """Return headline, facts and what to type, as `--json` has them: a string each."""
    first, _ = headline(answer)
    return [first, *(fact.sentence for fact in facts(answer)), *(f"try: {one}" for one in remedies(answer))]


def notes(answer: Answer) -> list[str]:
    """Return what was assumed and skipped."""
    lines = []
    if answer.best is not None and answer.job.space.global_batch is None and answer.job.space.batch is None:
        lines.append("Batch size was free and large ones win; fix it with --global-batch")
    lines += [*answer.costs.notes, *answer.job.notes]
    for outcome in answer.outcomes:
        for setup in outcome.left_out:
            where = units.count(outcome.gpus, "GPU")
            lines.append(f"Skipped {_setup_name(setup)} on {where}: slow to simulate here, but paceline simulate does")
    if answer.costs.failures is not None:
        lines.append("Checkpoint interval: sqrt(2 C M) - C (Young 1974, Daly 2006)")
        if len(answer.outcomes) > 1:
            lines.append("--mtbf is of the whole job, at any number of GPUs")
    return lines


def _of_best(answer: Answer, row: Row) -> list[Fact]:
    result, own = row.option.result, row.sharded
    workload = answer.jobs[row.gpus].workload(row.candidate)
    per = f"{units.duration(result.iteration_s)} per {units.count(row.global_batch, 'sample')}"
    made = [Fact("Throughput", f"{_rate(row, answer.tokens)}, {per}")]
    name, size = costed(answer.tokens, answer.costs.tokens)
    if answer.costs.tokens is not None:
        made.append(Fact("Time", f"{how_long(row.seconds(size))} for {name}"))
    if row.price is not None and (cost := row.cost(size)) is not None:
        made.append(Fact("Cost", f"{units.digits(cost)} per {name} ({row.price.source})"))
    made += [*_goodput(answer.costs.failures), Fact("Likely", rows.interval(result))]
    assumed = answer.job.sweep.assumed_network
    if assumed and row.gpus > answer.job.sweep.machine().gpus_per_node and rows.is_waiting(result):
        made.append(Fact("Assumed", assumed))
    made.append(Fact("Memory", sharding.fit(own)))
    made += [] if own.host is None else [sharding.host_memory(own.host)]
    if own.is_tight:
        made.append(Fact("Roomier", _roomier(answer, row)))
    elif faster := answer.faster(row):
        gain = units.factor(search.rate(faster) / search.rate(row.option))
        assert faster.result.sharded is not None
        room = faster.result.sharded.room_bytes
        left = f"{units.memory(room)} left" if room else "all reserved"
        made.append(Fact("Faster", f"{label(faster.candidate, brief=True)}: {gain}, but tight ({left})"))
    if result.critical_path and (not rows.is_alone(result) or bottleneck.waits_for_host(result, workload)):
        made.append(Fact("Bottleneck", bottleneck.path(result, workload=workload), tone="limit"))
    network = [] if rows.is_alone(result) else [rows.network(result, workload)]
    setup = Fact("Setup", ", ".join(rows.computation(workload)), *network)
    name = terms.collectives(answer.jobs[row.gpus].scenario(row.candidate).cluster, workload)
    return terms.renamed([*made, *_communication(answer, row), setup], name)


def fit(row: Row) -> str:
    """Return how much memory a configuration takes, and whether it fits."""
    return sharding.fit(row.sharded)


def _roomier(answer: Answer, best: Row) -> str:
    """Return what leaves more memory than a tight fit."""
    if (row := answer.safer) is not None:
        ratio = best.kept_per_s / row.kept_per_s
        speed = f"{units.factor(ratio)} slower" if ratio >= 1 else f"{units.factor(1 / ratio)} faster"
        return f"{label(row.candidate, brief=True)}: {units.memory(row.sharded.memory.total_bytes)}, {speed}"
    ways = ["more GPUs" if answer.roomy_gpus is None else f"--gpus {answer.roomy_gpus}"]
    return ", or ".join([*ways, *(["shorter sequences (--seq)"] if answer.tokens is not None else [])])


def _communication(answer: Answer, row: Row) -> list[Fact]:
    given = row.option.help
    helps = [] if given is None else [Fact("Would help", (units.factor(given.gain), bottleneck.relief(given)))]
    if row.candidate.workers == 1:
        if given is not None and given.resource.is_offload:
            return helps
        alone = "faster compute only: a single rank exchanges no gradients"
        return [Fact("Would help", alone)] if row.candidate.gpus > 1 else []
    exposed = row.option.result.exposed_communication_s
    parts = sharding.exposed_parts(row.sharded) if exposed else []
    what = f"{units.duration(exposed)} of communication" if exposed else "no communication: all of it is hidden"
    made = [Fact("Exposed", what, *parts)]
    if helps:
        return [*made, *helps]
    # Of what Ctrl-C ended, faster networks may not have been tried.
    return [*made, *([Fact("Would help", "faster compute only; no faster network would")] if answer.finished else [])]


def _searched(answer: Answer) -> list[Fact]:
    """Return how many configurations there were, for each number of GPUs."""
    return _by_number("Searched", answer, _search)


def _search(answer: Answer, outcome: Outcome) -> str:
    if outcome.refused:
        return f"nothing: {outcome.refused}"
    if not outcome.candidates:
        return "" if outcome.left_out else "nothing yet"
    every = units.count(outcome.candidates, "configuration")
    words = [f"{outcome.candidates - outcome.does_not_fit:,} fit, {outcome.does_not_fit:,} do not"] * bool(
        outcome.does_not_fit
    )
    words += [f"{outcome.simulated:,} simulated"] * bool(outcome.options)
    is_known = bool(outcome.options) and len(answer.outcomes) == 1 and answer.finished
    best = answer.best
    if is_known and (best is None or best.sharded.is_tight or answer.faster(best) is None):
        words.append("no other is faster")
    return f"{every}: {', '.join(words)}" if words else every


def _too_large(answer: Answer) -> list[Fact]:
    return _by_number("Too large", answer, _never_fit)


def _never_fit(answer: Answer, outcome: Outcome) -> str:
    """Return the shardings that never fit, with what each needs at least."""
    fit = {option.candidate.setup.sharding for option in outcome.options}
    least: dict[str, TooLarge] = {}
    for one in outcome.never_fit:
        least.setdefault(one.candidate.setup.sharding, one)
    never = [one for name, one in least.items() if name not in fit]
    if not never:
        return ""
    first, *others = ((_name(one.candidate.setup.sharding), units.gigabytes(one.least_bytes)) for one in never)
    what = f"{first[0]} ({first[1]} GB or more)"
    return ", ".join([what, *(f"{name} ({size})" for name, size in others)])


def _by_number(name: str, answer: Answer, words: Callable[[Answer, Outcome], str]) -> list[Fact]:
    """Return a fact with a line for each number of GPUs."""
    every = [(units.count(outcome.gpus, "GPU"), words(answer, outcome)) for outcome in answer.outcomes]
    known = [(number, text) for number, text in every if text]
    if not known:
        return []
    is_one = len({text for _, text in every}) == 1
    return [Fact(name, known[0][1])] if is_one else [Fact(name, *known)]


def _never(answer: Answer) -> list[Outcome]:
    """Return the numbers of GPUs on which nothing fits; none if not all was tried."""
    if not answer.finished:
        return []
    return [outcome for outcome in answer.outcomes if outcome.never_fit and not outcome.options]


def _smallest(answer: Answer) -> list[Fact]:
    """Return the configurations that need least, and what takes most of that of the most GPUs."""
    never = _never(answer)
    if not never:
        return []
    several = len(answer.outcomes) > 1
    made = [Fact("Smallest", *(_least(outcome, several=several) for outcome in never))]
    if unsearched := [(units.count(it.gpus, "GPU"), it.refused) for it in answer.outcomes if it.refused]:
        made.append(Fact("No search", *unsearched))
    most = max(never, key=lambda outcome: outcome.gpus)
    one = most.never_fit[0].candidate
    job = answer.jobs[most.gpus]
    state = least_gpus(job.workload(one), job.capacity_bytes)
    known = job.known.get(one)
    if state > most.gpus:
        made.append(Fact("Model state", f"alone fills {state:,} GPUs"))
    elif known is not None and known.sharded is not None:
        where = [f"on each of {units.count(most.gpus, 'GPU')}:"] if several else []
        made.append(Fact("Memory", *where, *sharding.memory_parts(known.sharded)))
    return [*made, *fits.of(answer.fixes)]


def _least(outcome: Outcome, *, several: bool) -> str | Pair:
    one = outcome.never_fit[0]
    if several:
        return units.count(outcome.gpus, "GPU"), f"{units.memory(one.least_bytes)}, {label(one.candidate)}"
    return f"{label(one.candidate)} ({outcome.candidates:,} tried)"


def _gpus(answer: Answer, gpus: int, one: Candidate) -> str:
    """Return `16x H100`, or `16x H100 (TP 8 x DP 2)`."""
    way = one.parallel
    words = [f"{kind} {degree}" for kind, degree in _degrees(way).items()]
    product = [" x ".join([*words, f"DP {one.workers // way.context}"])] if words else []
    product += [f"EP {way.experts}"] * (way.experts > 1)
    return f"{gpus:,}x {answer.job.whole.hardware.label}" + (f" ({', '.join(product)})" if product else "")


def _degrees(way: ModelParallel) -> dict[str, int]:
    """Return the ways to divide the model that multiply, if their degree is not 1."""
    every = {"TP": way.tensor, "CP": way.context, "PP": way.stages}
    return {kind: degree for kind, degree in every.items() if degree > 1}


def _numbers(answer: Answer, some: list[Outcome]) -> str:
    numbers = [f"{outcome.gpus:,}" for outcome in some]
    return f"{units.listed(numbers, 'or')}x {answer.job.whole.hardware.label}"


def _rate(row: Row, tokens: int | None) -> str:
    what = "tokens/s" if tokens is not None else "images/s"
    mfu = row.option.result.mfu
    return f"{units.short(row.per_gpu(tokens), 4)} {what} per GPU" + (
        "" if mfu is None else f", MFU {units.percent(mfu)}"
    )


def label(one: Candidate, *, brief: bool = False, divided: bool = True) -> str:
    """Return a configuration for prose: `zero3 (FSDP), TP 2, batch 2, full checkpointing`.

    Args:
        one: The configuration.
        brief: Without `(FSDP)`.
        divided: With the degrees of model parallelism.
    """
    way, name = one.parallel, one.setup.sharding
    # One GPU shards nothing.
    words = [] if one.gpus == 1 else [_name(name) if brief else terms.sharding(name), *_switches(one.setup)]
    words += [f"{size} buckets" for size in _buckets(one)]
    if divided:
        words += [f"{kind} {degree}" for kind, degree in _degrees(way).items()]
        words += [f"EP {way.experts}"] * (way.experts > 1)
    words += [f"{way.virtual} virtual stages"] * (way.virtual > 1)
    words.append(f"batch {one.batch}")
    words += [f"{one.accumulate} accum steps"] * (one.accumulate > 1)
    if one.microbatches is not None:
        words.append(f"{one.microbatches} microbatch{'' if one.microbatches == 1 else 'es'}")
    words.append(f"{_CHECKPOINTING.get(one.checkpointing, one.checkpointing)} checkpointing")
    return ", ".join(words)


def _setup_name(setup: Setup) -> str:
    return ", ".join([_name(setup.sharding), *_switches(setup)])


def cell(one: Candidate) -> str:
    """Return a sharding with its switches and the size of its buckets, for a table: `hsdp, sync last`."""
    words = ["gathered"] * one.setup.kept + ["sync last"] * one.setup.local
    return ", ".join([terms.sharding_cell(one.setup.sharding), *words, *_buckets(one)])


def legend(candidates: Sequence[Candidate]) -> str:
    """Return what the words of `cell` mean that a table has; empty if it has none."""
    meanings = {"gathered: units stay gathered between the passes": any(one.setup.kept for one in candidates)}
    meanings["sync last: gradients are exchanged after the last accumulation step"] = any(
        one.setup.local for one in candidates
    )
    sizes = [size for one in candidates for size in _buckets(one)]
    meanings[f"{sizes[0] if sizes else ''}: size of buckets"] = bool(sizes)
    return "; ".join(meaning for meaning, has in meanings.items() if has)


def _name(sharding_name: str) -> str:
    return "DDP" if sharding_name == shardings.NONE else sharding_name


def _switches(setup: Setup) -> list[str]:
    return ["keep gathered"] * setup.kept + ["sync last step only"] * setup.local


def _buckets(one: Candidate) -> list[str]:
    """Return the size of the buckets, if it is not the library's."""
    if one.bucket_bytes is None:
        return []
    size = one.bucket_bytes >> 20
    return [f"{size >> 10} GiB" if size % 1024 == 0 else f"{size} MiB"]


def helps(answer: Answer, one: Relief | None) -> str:
    """Return what makes a row faster, for its last column."""
    if one is None:
        return terms.COMPUTATION if answer.finished else "-"
    if one.measure is Measure.LESS_OFFLOADED:
        return f"less offload {units.factor(one.gain)}"
    if one.measure is Measure.FUSED_STEP:
        return f"fused step {units.factor(one.gain)}"
    return f"{_SHORT.get(one.resource) or terms.RESOURCES[one.resource]} {units.factor(one.gain)}"


def costed(tokens: int | None, total: float | None = None) -> tuple[str, float]:
    """Return what a cost is given for, and how many samples that is; `total`: tokens to train on."""
    if tokens is None:
        return "million images", 1e6
    return ("billion tokens", 1e9 / tokens) if total is None else (f"{total_of(total)} tokens", total / tokens)


def total_of(tokens: float) -> str:
    """Return a number of tokens as people say it: `15T`."""
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= size:
            return f"{units.short(tokens / size, 4)}{name}"
    return units.short(tokens, 4)


def how_long(seconds: float) -> str:
    """Return days, hours or minutes."""
    return f"{units.short(seconds / 86_400)} days" if seconds >= 2 * 86_400 else _time(seconds)


def _goodput(of: Failures | None) -> list[Fact]:
    """Return what failures leave, and what was assumed of them."""
    if of is None:
        return []
    costs = f"{_time(of.checkpoint_s)} per checkpoint, {_time(of.restart_s)} to restart"
    kept = f"at most {units.percent(of.goodput)} of the throughput, with a checkpoint every {_time(of.interval_s)}"
    return [Fact("Goodput", kept, f"(failure every {_time(of.mtbf_s)}, {costs})")]


def _time(seconds: float) -> str:
    """Return hours, minutes or seconds."""
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{units.short(seconds / size)} {name}"
    return f"{units.short(seconds)} s"
