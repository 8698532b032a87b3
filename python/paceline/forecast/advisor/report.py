"""What `paceline advise` prints: a verdict, a table for each number of GPUs, and the same as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline.forecast import sharding as shardings
from paceline.forecast.advisor import search
from paceline.forecast.advisor.candidates import Candidate, ModelParallel
from paceline.forecast.advisor.goodput import Failures
from paceline.forecast.advisor.job import Job
from paceline.forecast.advisor.search import Found, Help, Option
from paceline.forecast.output.table import rate_of, sharing_of
from paceline.forecast.sharded import TIGHT, Sharded
from paceline.forecast.verdict import sharding_words
from paceline.settings.table import SETTINGS

Objective = Literal["throughput", "cost"]


@dataclass(frozen=True)
class Costs:
    """What turns a rate into money and time."""

    price: float | None = None
    """Of a GPU for an hour, in any currency."""
    failures: Failures | None = None


@dataclass(frozen=True)
class Row:
    """A configuration that fits, with what it costs."""

    gpus: int
    candidate: Candidate
    option: Option
    goodput: float
    """1 without failures."""
    price: float | None
    """Of a GPU for an hour."""
    command: str
    """The command that forecasts it."""

    @property
    def global_batch(self) -> int:
        """Samples of an iteration."""
        return self.candidate.global_batch

    @property
    def kept_per_s(self) -> float:
        """Samples per second of all GPUs that are kept, with failures."""
        assert self.option.result.samples_per_s is not None
        return self.option.result.samples_per_s * self.goodput

    @property
    def sharded(self) -> Sharded:
        """What its forecast says of memory and exposed communication."""
        assert self.option.result.sharded is not None
        return self.option.result.sharded

    def cost(self, samples: float) -> float | None:
        """Return the price of so many samples, with failures."""
        if self.price is None or not self.kept_per_s:
            return None
        return samples / self.kept_per_s / 3600 * self.gpus * self.price

    def to_dict(self, tokens: int | None) -> dict[str, Any]:
        """Return it as `--json` prints it; `tokens`: of a sample, None for images."""
        one, result, own = self.candidate, self.option.result, self.sharded
        found: dict[str, Any] = {
            "sharding": own.sharding,
            "reshard_after_forward": not one.setup.kept if shardings.kind(own.sharding) in shardings.GATHERED else None,
            "accumulate_sync": not one.setup.local if one.accumulate > 1 else None,
            **_how(one),
            "global_batch": self.global_batch,
            "iteration_s": result.iteration_s,
            "samples_per_s": result.samples_per_s,
            "tokens_per_s_per_gpu": result.tokens_per_s_per_gpu,
            "mfu": result.mfu,
            "exposed_communication_s": result.exposed_communication_s,
            "exposed": vars(own.exposed),
            "straggling_s": own.straggling_s,
            "slowed_s": own.slowed_s,
            "calls_s": own.calls_s,
            "memory": vars(own.memory),
            "capacity_bytes": own.capacity_bytes,
            "tight": own.is_tight,
            "faster_with": None if self.option.help is None else vars(self.option.help),
            "interval": None if result.interval is None else vars(result.interval),
            "evidence": result.evidence,
            "command": self.command,
        }
        if self.price is not None:
            name, size = _costed(tokens)
            found[f"cost_per_{name.replace(' ', '_')}"] = self.cost(size)
        return found


def _costed(tokens: int | None) -> tuple[str, float]:
    """Return what a cost is given for, and how many samples that is."""
    return ("million images", 1e6) if tokens is None else ("billion tokens", 1e9 / tokens)


@dataclass(frozen=True)
class Answer:
    """All that was found."""

    job: Job
    found: tuple[Found, ...]
    rows: Mapping[int, Sequence[Row]]
    """By number of GPUs; those that leave room, fastest first, and then those that fit tightly."""
    objective: Objective
    costs: Costs
    finished: bool = True
    safer: Row | None = None
    """The fastest that leaves room on the GPUs of the best, where all that were searched fit tightly."""

    @property
    def tokens(self) -> int | None:
        """Tokens of a sample; None for images."""
        workload = self.job.whole
        return workload.tokens if workload.is_text else None

    @property
    def best(self) -> Row | None:
        """The best of all numbers of GPUs that leaves room: the most throughput, or the least cost."""
        firsts = [rows[0] for rows in self.rows.values() if rows]
        per = (lambda row: row.gpus) if self.objective == "cost" else (lambda _: 1)
        return max(firsts, key=lambda row: (not row.sharded.is_tight, row.kept_per_s / per(row)), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        tokens, best = self.tokens, self.best
        found = {
            "schema_version": 1,
            "model": self.job.whole.model.name,
            "gpu": self.job.whole.hardware.name,
            "objective": self.objective,
            "verdict": self.verdict(),
            "best": None if best is None else {"gpus": best.gpus, **best.to_dict(tokens)},
            **({} if self.safer is None else {"safer": {"gpus": self.safer.gpus, **self.safer.to_dict(tokens)}}),
            "bandwidth_bps": self.job.bandwidth_bps,
            "gpus_per_node": self.job.gpus_per_node,
            "failures": None if self.costs.failures is None else self.costs.failures.to_dict(),
            "gpus": [
                {
                    "gpus": one.gpus,
                    "capacity_bytes": one.capacity_bytes,
                    "configurations": one.candidates,
                    "do_not_fit": one.too_large,
                    "simulated": one.simulated,
                    "left_out": one.left_out,
                    "refused": one.refused or None,
                    "never_fit": [
                        {"sharding": it.candidate.label, **_how(it.candidate), "least_bytes": it.least_bytes}
                        for it in one.never_fit
                    ],
                    "rows": [row.to_dict(tokens) for row in self.rows.get(one.gpus, ())],
                }
                for one in self.found
            ],
            "notes": list(self.job.notes),
        }
        return found if self.finished else found | {"incomplete": True}

    def verdict(self) -> list[str]:
        """Return sentences: the best, what would make it faster, and what does not fit."""
        best = self.best
        lines = [] if best is None else self._of_best(best)
        for found in self.found:
            if not self.rows.get(found.gpus) and found.never_fit:
                lines.append(nothing_fits(found, self.job))
        if self.costs.failures is not None:
            lines.append(self.costs.failures.sentence())
            if len(self.found) > 1:
                lines.append("That is of the job, whatever its number of GPUs; give one number for its own --mtbf.")
        return lines

    def _of_best(self, row: Row) -> list[str]:
        workload = self.job.whole
        result, own = row.option.result, row.sharded
        kind = "" if len(self.rows) == 1 else "cheapest" if self.objective == "cost" else "fastest"
        what = f"{workload.model.name} on {row.gpus} {workload.hardware.title}"
        per_gpu = _rate(row, self.tokens)
        lines = [
            f"{what}{f' is {kind}' if kind else ''}: {row.candidate.words} with {_in_words(row.candidate)}: "
            f"{per_gpu}, {units.duration(result.iteration_s)} an iteration of {units.count(row.global_batch, 'sample')}"
            f"{self._money(row)}; {units.size(own.memory.peak_bytes)} of the {units.size(self.job.capacity_bytes)} "
            "of a GPU."
        ]
        exposed = result.exposed_communication_s
        waits = (
            f"{units.duration(exposed)} of communication are exposed, which is an iteration's time beyond computation "
            f"alone: {sharding_words.exposed_parts(own)}"
            if exposed
            else "All communication is hidden"
        )
        if row.candidate.workers == 1:
            lines.append("Nothing is communicated between ranks.")
        elif row.option.help is not None:
            lines.append(f"{waits}; {_helps(row.option.help)}.")
        else:
            lines.append(f"{waits}; no faster network would help, only faster computation.")
        return lines

    def _money(self, row: Row) -> str:
        name, size = _costed(self.tokens)
        cost = row.cost(size)
        return "" if cost is None else f", {units.short(cost, 4)} per {name} in the currency of --price"

    def table(self) -> list[str]:
        """Return the table, with an empty line between numbers of GPUs."""
        name, size = _costed(self.tokens)
        throughput = "tokens/s\nper GPU" if self.tokens is not None else "images/s\nper GPU"
        shown = self._shown()
        columns = [
            Column("GPUs"),
            Column("sharding", left=True),
            *(Column(heading) for heading in shown),
            Column("global\nbatch"),
            Column("check-\npointing", left=True),
            Column(throughput),
            Column("MFU"),
            Column("iteration\ns"),
            Column("exposed\ns"),
            Column("memory\nGB"),
            *([Column(f"cost per\n{name}")] if self.costs.price is not None else []),
            Column("faster with", left=True),
        ]
        groups = [[self._cells(row, size, shown) for row in rows] for rows in self.rows.values() if rows]
        if not groups:
            return []
        tight = any(row.sharded.is_tight for rows in self.rows.values() for row in rows)
        marks = [f"~: {sharding_words.tight_words()}"] if tight else []
        return [*self._title(), "", *render(columns, groups, highlight_first=True), *marks]

    def _shown(self) -> dict[str, Callable[[Candidate], int]]:
        """Return the columns of settings that are not 1 in every row, and the batch."""
        columns: dict[str, Callable[[Candidate], int]] = {
            "tensor-\nparallel": lambda one: one.parallel.tensor,
            "stages": lambda one: one.parallel.stages,
            "virtual\nstages": lambda one: one.parallel.virtual,
            "expert-\nparallel": lambda one: one.parallel.experts,
            "context-\nparallel": lambda one: one.parallel.context,
            "batch\nper rank": lambda one: one.batch,
            "passes": lambda one: one.passes,
        }
        every = [row.candidate for rows in self.rows.values() for row in rows]
        if any(one.microbatches is not None for one in every):
            columns["passes or\nmicrobatches"] = columns.pop("passes")
        varied = [name for name, value in columns.items() if any(value(one) > 1 for one in every)]
        return {name: value for name, value in columns.items() if name in varied or name.startswith("batch")}

    def _title(self) -> list[str]:
        """Return the network that rows are of: a reader may take a node's rate for a GPU's."""
        one = next(row for rows in self.rows.values() for row in rows)
        workload = self.job.workload(one.candidate)
        latency = one.option.result.latency_s
        where = [
            workload.model.name,
            workload.hardware.title,
            rate_of(one.option.result, workload),
            *([sharing_of(one.option.result, self.job.gpus_per_node)] if self.job.gpus_per_node > 1 else []),
            *([f"latency {units.duration(latency)}"] if latency else []),
        ]
        return [", ".join(where)]

    def _cells(self, row: Row, size: float, shown: Mapping[str, Callable[[Candidate], int]]) -> list[str]:
        one, result, own = row.candidate, row.option.result, row.sharded
        cost = row.cost(size)
        return [
            str(row.gpus),
            one.label,
            *(str(value(one)) for value in shown.values()),
            str(row.global_batch),
            one.checkpointing,
            units.digits(_per_gpu(row, self.tokens)),
            "-" if result.mfu is None else units.percent(result.mfu),
            units.digits(result.iteration_s),
            units.digits(result.exposed_communication_s, 3),
            units.digits(own.memory.peak_bytes / 1e9, 3) + (" ~" if own.is_tight else ""),
            *([] if self.costs.price is None else ["-" if cost is None else units.digits(cost)]),
            "computation" if row.option.help is None else f"{row.option.help.what}: {row.option.help.gain:.2f}x",
        ]

    def _faster(self, best: Row) -> Option | None:
        """Return the fastest option that is faster than the best and fits tightly."""
        options = next(found.options for found in self.found if found.gpus == best.gpus)
        rate = search.rate(best.option)
        return max((it for it in options if search.rate(it) > rate), key=search.rate, default=None)

    def remarks(self) -> list[str]:
        """Return what was searched and left out, and the command of the best."""
        lines = []
        for found in self.found:
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
            searched = (
                f", {found.simulated} had to be simulated to tell, no other can be faster" if found.options else ""
            )
            lines.append(f"{where}: of {tried}, {large}{searched}.")
            if self.rows.get(found.gpus):
                lines += [_never(found)] if _never(found) else []
            for label in found.left_out:
                lines.append(
                    f"{where}: --sharding {label} was left out, as its messages take long to simulate; "
                    "`paceline simulate` forecasts it."
                )
        best = self.best
        if best is not None:
            if best.sharded.is_tight:
                lines += _tight(self.job, best, self.safer, self.tokens)
            elif faster := self._faster(best):
                lines.append(_too_tight(best, faster))
            if self.job.space.global_batch is None and self.job.space.batch is None:
                lines.append("The batch was free, and large ones are fast; --global-batch fixes it.")
            lines.append(f"note: {best.option.result.evidence}." if best.option.result.interval is None else "")
            lines.append(f"The best in detail: {best.command}")
        return [*(f"note: {note}" for note in self.job.notes), *filter(None, lines)]


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
            f"Safer on {units.count(safer.gpus, 'GPU')}: {safer.candidate.words} with {_in_words(safer.candidate)}: "
            f"{_rate(safer, tokens)}, {units.size(own.memory.peak_bytes)} of the "
            f"{units.size(job.capacity_bytes)} of a GPU: {safer.command}",
        ]
    is_sharded = shardings.kind(best.candidate.setup.sharding) != shardings.NONE
    gpus = search.enough(job, best.candidate, TIGHT) if is_sharded else None
    ways = ["shorter sequences (--seq)"] * (tokens is not None)
    more = "more GPUs" if gpus is None else f"{gpus} GPUs, on which {best.candidate.setup.words} leaves that much"
    return [*lines, f"What would leave more: {units.listed([*ways, more], 'or')}."]


def _too_tight(best: Row, faster: Option) -> str:
    """Return why a faster option is not the best."""
    times = units.short(search.rate(faster) / search.rate(best.option))
    own = faster.result.sharded
    assert own is not None
    return (
        f"note: {faster.candidate.words} with {_in_words(faster.candidate)} is {times} times as fast, but leaves "
        f"{units.size(own.room_bytes)} of the memory, and may not fit: what leaves room comes first."
    )


def _never(found: Found) -> str:
    """Return which shardings never fit, with the least that they need."""
    fit = {option.candidate.setup.sharding for option in found.options}
    least: dict[str, int] = {}
    for one in found.never_fit:
        least.setdefault(one.candidate.setup.sharding, one.least_bytes)
    words = [
        f"{sharding_words.spoken(name)} (the least is {units.size(size)})"
        for name, size in least.items()
        if name not in fit
    ]
    return f"{units.count(found.gpus, 'GPU')}: no configuration fits with {units.listed(words, 'or')}." if words else ""


def nothing_fits(found: Found, job: Job) -> str:
    """Return what the least configuration needs, and the remedy."""
    least = found.never_fit[0]
    one = least.candidate
    result = job.known.get(one)
    where = units.count(found.gpus, "GPU")
    remedy = _remedy(job, one, None if result is None else result.sharded)
    return (
        f"Nothing fits in {units.size(found.capacity_bytes)} on {where}: the least is {one.words} with "
        f"{_in_words(one)}, {units.size(least.least_bytes)}; {remedy}."
    )


def _remedy(job: Job, one: Candidate, own: Sharded | None) -> str:
    # Of those that were given, what leaves out the one that needs least.
    frugal = (("sharding", "zero3"), ("checkpointing", "full"))
    given = [f"--{name}" for name, least in frugal if least not in getattr(job.space, f"{name}s")]
    workload = job.workload(one)
    if sharding_words.least_gpus(workload, job.capacity_bytes) > one.workers * workload.gpus:
        return sharding_words.more_gpus(workload, job.capacity_bytes) + _enough(job, one)
    if one.batch > 1:
        given += [f"--{name.replace('_', '-')}" for name in ("batch", "global_batch") if getattr(job.space, name)]
    if given:
        return f"it may with more freedom: leave out {units.listed(given)}" + _enough(job, one)
    activations = own.memory.activations_bytes if own is not None else None
    if own is not None and activations and activations > own.memory.peak_bytes / 2:
        return "most of it is activations: shorter sequences (--seq), --context-parallel or --tensor-parallel"
    ways = ["more GPUs"] + ["--tensor-parallel"] * (job.space.parallel == (ModelParallel(),))
    ways += ["GPUs with more memory"]
    ways += ["an optimizer with fewer states (--optimizer)"] * (workload.optimizer != "sgd")
    return units.listed(ways, "or") + _enough(job, one)


def _enough(job: Job, one: Candidate) -> str:
    """Return on how many GPUs the configuration fits, where it does on more."""
    gpus = search.enough(job, one) if shardings.kind(one.setup.sharding) != shardings.NONE else None
    return "" if gpus is None else f"; it fits on {gpus} GPUs"


def _rate(row: Row, tokens: int | None) -> str:
    what = "tokens/s" if tokens is not None else "images/s"
    mfu = row.option.result.mfu
    return f"{units.digits(_per_gpu(row, tokens))} {what} per GPU" + (
        "" if mfu is None else f", MFU {units.percent(mfu)}"
    )


def _per_gpu(row: Row, tokens: int | None) -> float:
    assert row.option.result.samples_per_s is not None
    return row.option.result.samples_per_s / row.gpus * (tokens or 1)


def _helps(help_: Help) -> str:
    return f"{help_.what} would make it {units.short(help_.gain)} times faster"


def _how(one: Candidate) -> dict[str, Any]:
    parallel = one.parallel
    return {
        "batch": one.batch,
        "accumulate": one.accumulate,
        "checkpointing": one.checkpointing,
        "tensor_parallel": parallel.tensor,
        "pipeline_parallel": parallel.stages,
        "virtual_stages": parallel.virtual,
        "expert_parallel": parallel.experts,
        "context_parallel": parallel.context,
        "microbatches": one.microbatches,
        "bucket_size": one.bucket_bytes,
    }


def _in_words(one: Candidate) -> str:
    words = [*one.parallel.words, f"batch {one.batch}"] + [f"{one.accumulate} passes"] * (one.accumulate > 1)
    words += (
        [] if one.microbatches is None else [f"{one.microbatches} microbatch{'' if one.microbatches == 1 else 'es'}"]
    )
    words.append("no checkpointing" if one.checkpointing == "none" else f"{one.checkpointing} checkpointing")
    return units.listed(words)


def row_of(job: Job, gpus: int, option: Option, costs: Costs, given: Mapping[str, object]) -> Row:
    """Return a row of the table; `given` are the options that were typed and do not vary."""
    goodput = 1.0 if costs.failures is None else costs.failures.goodput
    return Row(gpus, option.candidate, option, goodput, costs.price, command(job, given, gpus, option.candidate))


def command(job: Job, given: Mapping[str, object], gpus: int, one: Candidate) -> str:
    """Return the command that forecasts a candidate; `given` are the options that were typed and do not vary."""
    trace = job.sweep.trace
    words = ["paceline", "simulate", *(["--config", str(trace)] if isinstance(trace, Path) else [str(trace)])]
    gathers = shardings.kind(one.setup.sharding) in shardings.GATHERED
    for name, value in given.items():
        if name == "bucket_size" and gathers:  # It exchanges units.
            continue
        words += [SETTINGS[name].flag, str(value)]
    words += ["--gpus", str(gpus), "--sharding", one.setup.sharding, "--batch", str(one.batch)]
    for name, value in one.parallel.options.items():
        words += [SETTINGS[name].flag, str(value)]
    words += [] if one.microbatches is None else ["--microbatches", str(one.microbatches)]
    words += ["--checkpointing", one.checkpointing] if one.checkpointing != "none" else []
    words += ["--accumulate", str(one.accumulate)] if one.accumulate > 1 else []
    words += [] if one.bucket_bytes is None else ["--bucket-size", f"{one.bucket_bytes >> 20}MiB"]
    words += ["--reshard-after-forward", "no"] if one.setup.kept else []
    words += ["--no-accumulate-sync"] if one.setup.local else []
    return shlex.join(words)
