"""What `paceline advise` says of what it has found."""

from __future__ import annotations

from paceline._internal import units
from paceline.forecast import sharding as shardings
from paceline.forecast.advisor import search
from paceline.forecast.advisor.answer import Answer, Row
from paceline.forecast.advisor.candidates import Candidate, ModelParallel, Setup
from paceline.forecast.advisor.goodput import Failures
from paceline.forecast.advisor.job import Job
from paceline.forecast.advisor.search import Found, Option
from paceline.forecast.sharded import TIGHT, Sharded
from paceline.forecast.verdict.bottleneck import Relief
from paceline.forecast.verdict.remedy import Cure, Remedy, has_fewer_states, least_gpus
from paceline.forecast.wording import bottleneck, sharding, terms


def sentences(answer: Answer) -> list[str]:
    """Return sentences: the best, what would make it faster, and what does not fit."""
    best = answer.best
    lines = [] if best is None else _of_best(answer, best)
    for found in answer.found:
        if not answer.rows.get(found.gpus) and found.never_fit:
            lines.append(_nothing_fits(found, answer.job))
    if answer.costs.failures is not None:
        lines.append(_failures(answer.costs.failures))
        if len(answer.found) > 1:
            lines.append("That is of the job, whatever its number of GPUs; give one number for its own --mtbf.")
    return lines


def _of_best(answer: Answer, row: Row) -> list[str]:
    workload = answer.job.whole
    result, own = row.option.result, row.sharded
    kind = "" if len(answer.rows) == 1 else "cheapest" if answer.objective == "cost" else "fastest"
    what = f"{workload.model.name} on {row.gpus} {workload.hardware.title}"
    per_gpu = _rate(row, answer.tokens)
    lines = [
        f"{what}{f' is {kind}' if kind else ''}: {_words(row.candidate)} with {_in_words(row.candidate)}: "
        f"{per_gpu}, {units.duration(result.iteration_s)} an iteration of {units.count(row.global_batch, 'sample')}"
        f"{_money(answer, row)}; {units.size(own.memory.peak_bytes)} of the {units.size(answer.job.capacity_bytes)} "
        "of a GPU."
    ]
    exposed = result.exposed_communication_s
    waits = (
        f"{units.duration(exposed)} of communication are exposed, which is an iteration's time beyond computation "
        f"alone: {sharding.exposed_parts(own)}"
        if exposed
        else "All communication is hidden"
    )
    if row.candidate.workers == 1:
        lines.append("Nothing is communicated between ranks.")
    elif row.option.help is not None:
        lines.append(f"{waits}; {bottleneck.gain(row.option.help)}.")
    else:
        lines.append(f"{waits}; no faster network would help, only faster computation.")
    return lines


def _money(answer: Answer, row: Row) -> str:
    name, size = costed(answer.tokens)
    cost = row.cost(size)
    return "" if cost is None else f", {units.short(cost, 4)} per {name} in the currency of --price"


def remarks(answer: Answer) -> list[str]:
    """Return what was searched and left out, and the command of the best."""
    lines = []
    for found in answer.found:
        where = units.count(found.gpus, "GPU")
        if found.refused:
            lines.append(f"{where}: not searched: {found.refused}.")
            continue
        if not found.candidates and not found.left_out:
            lines.append(f"{where}: not searched.")
            continue
        tried = units.count(found.candidates, "configuration")
        verb = "does" if found.too_large == 1 else "do"
        large = f"{found.too_large} {verb} not fit in {units.size(found.capacity_bytes)}"
        searched = f", {found.simulated} had to be simulated to tell, no other can be faster" if found.options else ""
        lines.append(f"{where}: of {tried}, {large}{searched}.")
        if answer.rows.get(found.gpus):
            lines += [_never(found)] if _never(found) else []
        for setup in found.left_out:
            lines.append(
                f"{where}: --sharding {setup_label(setup)} was left out, as its messages take long to simulate; "
                "`paceline simulate` forecasts it."
            )
    best = answer.best
    if best is not None:
        if best.sharded.is_tight:
            lines += _tight(answer.job, best, answer.safer, answer.tokens)
        elif faster := answer.faster(best):
            lines.append(_too_tight(best, faster))
        if answer.job.space.global_batch is None and answer.job.space.batch is None:
            lines.append("The batch was free, and large ones are fast; --global-batch fixes it.")
        lines.append(f"note: {best.option.result.evidence}." if best.option.result.interval is None else "")
        lines.append(f"The best in detail: {best.command}")
    return [*(f"note: {note}" for note in answer.job.notes), *filter(None, lines)]


def _tight(job: Job, best: Row, safer: Row | None, tokens: int | None) -> list[str]:
    """Return that the best, as all that fit, leaves little room for what is not counted, and what leaves more."""
    lines = [
        f"note: the best leaves {units.size(best.sharded.room_bytes)} for what is not counted, such as what the "
        "allocator reserves beyond what is allocated: it may not fit; none of the others leaves "
        f"{100 * (1 - TIGHT):.0f} %."
    ]
    if safer is not None:
        own = safer.sharded
        return [
            *lines,
            f"Safer on {units.count(safer.gpus, 'GPU')}: {_words(safer.candidate)} with {_in_words(safer.candidate)}: "
            f"{_rate(safer, tokens)}, {units.size(own.memory.peak_bytes)} of the "
            f"{units.size(job.capacity_bytes)} of a GPU: {safer.command}",
        ]
    is_sharded = shardings.kind(best.candidate.setup.sharding) != shardings.NONE
    gpus = search.enough(job, best.candidate, TIGHT) if is_sharded else None
    ways = ["shorter sequences (--seq)"] * (tokens is not None)
    more = (
        "more GPUs" if gpus is None else f"{gpus} GPUs, on which {_setup_words(best.candidate.setup)} leaves that much"
    )
    return [*lines, f"What would leave more: {units.listed([*ways, more], 'or')}."]


def _too_tight(best: Row, faster: Option) -> str:
    """Return why a faster option is not the best."""
    times = units.short(search.rate(faster) / search.rate(best.option))
    own = faster.result.sharded
    assert own is not None
    return (
        f"note: {_words(faster.candidate)} with {_in_words(faster.candidate)} is {times} times as fast, but leaves "
        f"{units.size(own.room_bytes)} of the memory, and may not fit: what leaves room comes first."
    )


def _never(found: Found) -> str:
    """Return which shardings never fit, with the least that they need."""
    fit = {option.candidate.setup.sharding for option in found.options}
    least: dict[str, int] = {}
    for one in found.never_fit:
        least.setdefault(one.candidate.setup.sharding, one.least_bytes)
    words = [
        f"{terms.sharding(name)} (the least is {units.size(size)})" for name, size in least.items() if name not in fit
    ]
    return f"{units.count(found.gpus, 'GPU')}: no configuration fits with {units.listed(words, 'or')}." if words else ""


def _nothing_fits(found: Found, job: Job) -> str:
    """Return what the least configuration needs, and the remedy."""
    least = found.never_fit[0]
    one = least.candidate
    result = job.known.get(one)
    where = units.count(found.gpus, "GPU")
    remedy = _remedy(job, one, None if result is None else result.sharded)
    return (
        f"Nothing fits in {units.size(found.capacity_bytes)} on {where}: the least is {_words(one)} with "
        f"{_in_words(one)}, {units.size(least.least_bytes)}; {remedy}."
    )


def _remedy(job: Job, one: Candidate, own: Sharded | None) -> str:
    # Of those that were given, what leaves out the one that needs least.
    frugal = (("sharding", "zero3"), ("checkpointing", "full"))
    given = [f"--{name}" for name, least in frugal if least not in getattr(job.space, f"{name}s")]
    workload = job.workload(one)
    if (least := least_gpus(workload, job.capacity_bytes)) > one.workers * workload.gpus:
        more = Remedy(Cure.MORE_GPUS, gpus=least, fewer_states=has_fewer_states(workload))
        return sharding.cure(more) + _enough(job, one)
    if one.batch > 1:
        given += [f"--{name.replace('_', '-')}" for name in ("batch", "global_batch") if getattr(job.space, name)]
    if given:
        return f"it may with more freedom: leave out {units.listed(given)}" + _enough(job, one)
    activations = own.memory.activations_bytes if own is not None else None
    if own is not None and activations and activations > own.memory.peak_bytes / 2:
        return "most of it is activations: shorter sequences (--seq), --context-parallel or --tensor-parallel"
    ways = ["more GPUs"] + ["--tensor-parallel"] * (job.space.parallel == (ModelParallel(),))
    ways += ["GPUs with more memory"]
    ways += ["an optimizer with fewer states (--optimizer)"] * has_fewer_states(workload)
    return units.listed(ways, "or") + _enough(job, one)


def _enough(job: Job, one: Candidate) -> str:
    """Return on how many GPUs the configuration fits, where it does on more."""
    gpus = search.enough(job, one) if shardings.kind(one.setup.sharding) != shardings.NONE else None
    return "" if gpus is None else f"; it fits on {gpus} GPUs"


def _rate(row: Row, tokens: int | None) -> str:
    what = "tokens/s" if tokens is not None else "images/s"
    mfu = row.option.result.mfu
    return f"{units.digits(row.per_gpu(tokens))} {what} per GPU" + (
        "" if mfu is None else f", MFU {units.percent(mfu)}"
    )


def _in_words(one: Candidate) -> str:
    words = [*_parallel(one.parallel), f"batch {one.batch}"] + [f"{one.accumulate} passes"] * (one.accumulate > 1)
    words += (
        [] if one.microbatches is None else [f"{one.microbatches} microbatch{'' if one.microbatches == 1 else 'es'}"]
    )
    words.append("no checkpointing" if one.checkpointing == "none" else f"{one.checkpointing} checkpointing")
    return units.listed(words)


def _parallel(one: ModelParallel) -> list[str]:
    return (
        [f"{one.tensor} tensor-parallel GPUs"] * (one.tensor > 1)
        + [f"{one.stages} stages"] * (one.stages > 1)
        + [f"{one.virtual} virtual stages"] * (one.virtual > 1)
        + [f"experts on {one.experts} GPUs"] * (one.experts > 1)
        + [f"samples shared by {one.context} ranks"] * (one.context > 1)
    )


def _words(one: Candidate) -> str:
    """Return the sharding of a candidate for sentences, with the size of its buckets."""
    return _setup_words(one.setup) + _buckets(one)


def label(one: Candidate) -> str:
    """Return the same for tables."""
    return setup_label(one.setup) + _buckets(one)


def _setup_words(setup: Setup) -> str:
    return terms.sharding(setup.sharding) + _switches(setup)


def setup_label(setup: Setup) -> str:
    """Return a sharding with its switches, for tables."""
    return setup.sharding + _switches(setup)


def _switches(setup: Setup) -> str:
    return (", no reshard" if setup.kept else "") + (", last sync" if setup.local else "")


def _buckets(one: Candidate) -> str:
    if one.bucket_bytes is None:
        return ""
    size = one.bucket_bytes >> 20
    return f", {size >> 10} GiB buckets" if size % 1024 == 0 else f", {size} MiB buckets"


def faster_with(one: Relief | None) -> str:
    """Return what makes a row faster, for its last column."""
    return terms.COMPUTATION if one is None else f"{bottleneck.relief(one)}: {one.gain:.2f}x"


def costed(tokens: int | None) -> tuple[str, float]:
    """Return what a cost is given for, and how many samples that is."""
    return ("million images", 1e6) if tokens is None else ("billion tokens", 1e9 / tokens)


def _failures(of: Failures) -> str:
    """Return what was assumed and what follows."""
    return (
        f"With a failure of the job every {_time(of.mtbf_s)} on average, checkpoints of "
        f"{_time(of.checkpoint_s)} and {_time(of.restart_s)} to restart, goodput is at most "
        f"{units.percent(of.goodput)}, with a checkpoint every {_time(of.interval_s)} of training "
        "(sqrt(2 C M) - C: Young 1974, Daly 2006)."
    )


def _time(seconds: float) -> str:
    """Return hours, minutes or seconds."""
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{units.short(seconds / size)} {name}"
    return f"{units.short(seconds)} s"
