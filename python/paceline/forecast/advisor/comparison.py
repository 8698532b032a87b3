"""Several machines for one model: the best configuration of each, in one table by rate, time and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render
from paceline.errors import InvalidArgumentError
from paceline.forecast.advisor import report, search
from paceline.forecast.advisor.answer import Answer, Costs, Objective, Row
from paceline.forecast.advisor.costs import Prices
from paceline.forecast.advisor.goodput import Failures
from paceline.forecast.advisor.job import Job
from paceline.forecast.request import Sweep
from paceline.forecast.typed import Typed
from paceline.forecast.wording import advise
from paceline.forecast.wording.sharding import TIGHT_LEGEND

Watch = Callable[[str], AbstractContextManager[search.Progress]]
"""Shows the progress of what the text names."""


@dataclass(frozen=True)
class Question:
    """A model on machines, and what is wanted of them."""

    machines: Sequence[Sweep]
    global_batch: int | None
    objective: Objective
    prices: Prices
    failures: Failures | None
    tokens: float | None
    """To train on; None: costs are for a billion."""
    top: int
    """Rows for a number of GPUs."""
    given: Mapping[str, object]
    """Options as typed; None where they were not."""
    typed: Typed
    """All that was typed."""


@dataclass(frozen=True)
class Machine:
    """An answer for one machine, or why there is none."""

    sweep: Sweep
    answer: Answer | None = None
    error: InvalidArgumentError | None = None

    @property
    def gpu(self) -> str:
        """The GPU's name in the catalog, or as it was typed."""
        return self.answer.job.whole.hardware.name if self.answer is not None else str(self.sweep.get("gpu") or "-")

    @property
    def cluster(self) -> str:
        """The cluster as it was typed; empty if it was not."""
        return str(self.sweep.get("cluster") or "")


@dataclass(frozen=True)
class Comparison:
    """Answers for all machines, in the order in which they were given."""

    machines: Sequence[Machine]
    objective: Objective
    finished: bool = True

    @property
    def answered(self) -> list[Answer]:
        """Answers of the machines that have one."""
        return [one.answer for one in self.machines if one.answer is not None]

    @property
    def leading(self) -> Line:
        """The machine and the number of GPUs of the headline; of what fits nowhere, the first."""
        return _best(self) or next(_lines(self))


@dataclass(frozen=True)
class Line:
    """The best of a machine and a number of GPUs; no row: nothing fits."""

    machine: Machine
    answer: Answer
    gpus: int
    row: Row | None
    least_bytes: int = 0
    """Memory that the most frugal configuration needs, where nothing fits."""
    reason: str = ""
    """Why nothing was searched."""

    @property
    def rate(self) -> float:
        """Tokens per second of all GPUs, or samples where they have no tokens."""
        return 0.0 if self.row is None else self.row.kept_per_s * (self.answer.tokens or 1)

    @property
    def cost(self) -> float | None:
        """Of the tokens to train on, or of a billion; None without a price."""
        return None if self.row is None else self.row.cost(_costed(self.answer)[1])

    @property
    def label(self) -> str:
        """`16x H100-80GB`, with the cluster where one was given."""
        where = f" ({self.machine.cluster})" if self.machine.cluster else ""
        return f"{self.gpus:,}x {self.answer.job.whole.hardware.label}{where}"


def answers(question: Question, watch: Watch) -> Comparison:
    """Search for every machine; Ctrl-C leaves what is done. Raises InvalidArgumentError if none can be searched."""
    machines: list[Machine] = []
    for sweep in question.machines:
        try:
            machines.append(Machine(sweep, _answer(question, sweep, watch)))
        except InvalidArgumentError as error:
            machines.append(Machine(sweep, error=error))
        if machines[-1].answer is not None and not machines[-1].answer.finished:
            return Comparison(machines, question.objective, finished=False)
    errors = [one.error for one in machines if one.error is not None]
    if len(errors) == len(machines):
        raise errors[0]
    return Comparison(machines, question.objective)


def _answer(question: Question, sweep: Sweep, watch: Watch) -> Answer:
    job = Job.of(sweep, question.global_batch)
    if question.tokens is not None and not job.whole.is_text:
        raise InvalidArgumentError("has no effect on a model of images", setting="tokens", remedy="drop {this}")
    if job.is_long and job.divided is not None:
        job = job.divided
    # What is searched on a number of GPUs does not depend on the others.
    jobs = {gpus: job.alone(gpus) for gpus in job.gpus}
    every = search.start(job)
    finished = True
    try:
        for place, one in enumerate(every):
            if not one.refused:
                with watch(f"searching for {one.gpus}x {job.whole.hardware.label}") as progress:
                    jobs[one.gpus], every[place] = search.searched(jobs[one.gpus], one, progress)
                    search.explain(jobs[one.gpus], every[place], question.top)
    except KeyboardInterrupt:
        finished = False
    ways = {way for own in jobs.values() for way in own.space.parallel}
    if job.divided is not None and not ways <= {*job.space.parallel}:
        job = job.divided
    prices = {one.gpus: price for one in every if (price := question.prices.price(sweep, one.gpus)) is not None}
    notes = dict.fromkeys(question.prices.note(sweep, one.gpus) for one in every)
    costs = Costs(prices, question.failures, question.tokens, tuple(filter(None, notes)))
    typed = {name: value for name, value in question.given.items() if value is not None and name in job.sweep.values}
    typed |= {name: sweep.get(name) for name in ("gpu", "cluster") if name in typed}
    rows = {
        one.gpus: [report.row_of(jobs[one.gpus], one.gpus, it, costs, typed) for it in one.options[: question.top]]
        for one in every
    }
    request = question.typed.changed({name: str(value) for name, value in typed.items() if name in ("gpu", "cluster")})
    return report.completed(Answer(job, jobs, tuple(every), rows, question.objective, costs, finished), typed, request)


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Return it as `--json` prints it: the answers of all machines, and the best of them."""
    best = _best(comparison)
    return {
        "schema_version": 1,
        "objective": comparison.objective,
        "verdict": [_headline(comparison), *(fact.sentence for fact in _facts(comparison))],
        "best": None if best is None else {**_named(best.machine), "gpus": best.gpus, "command": _command(best)},
        "machines": [
            {
                **_named(one),
                **(
                    {"error": str(one.error)}
                    if one.answer is None
                    else {"price_per_gpu_hour": _price(one.answer), "answer": report.to_dict(one.answer)}
                ),
            }
            for one in comparison.machines
        ],
        **({} if comparison.finished else {"incomplete": True}),
    }


def _price(answer: Answer) -> float | None:
    """Return the price on which the best is; None if it is not known."""
    return None if answer.best is None or answer.best.price is None else answer.best.price.amount


def _named(machine: Machine) -> dict[str, str | None]:
    return {"gpu": machine.gpu, "cluster": machine.cluster or None}


def lines(comparison: Comparison) -> list[str]:
    """Return the comparison for people."""
    every = list(_lines(comparison))
    best, cheapest = _best(comparison), _cheapest(comparison)
    commands = list(dict.fromkeys(_command(one) for one in (best, cheapest) if one is not None))
    tries = [line for command in commands for line in block.suggestion(command)]
    marks = [f"~ {TIGHT_LEGEND}"] if any(one.row is not None and one.row.sharded.is_tight for one in every) else []
    return [
        *block.headline(_headline(comparison), "" if best is not None else "bad"),
        "",
        *block.block(_facts(comparison)),
        *tries,
        "",
        *_table(comparison, every),
        *marks,
        *block.notes(_notes(comparison)),
    ]


def _lines(comparison: Comparison) -> Iterator[Line]:
    for machine in comparison.machines:
        if machine.answer is None:
            continue
        for one in machine.answer.outcomes:
            rows = machine.answer.rows.get(one.gpus, ())
            least = min((it.least_bytes for it in one.never_fit), default=0)
            yield Line(machine, machine.answer, one.gpus, rows[0] if rows else None, least, one.refused)


def _fitting(comparison: Comparison) -> list[Line]:
    """Return the lines that fit; those that leave room alone if there are any."""
    some = [one for one in _lines(comparison) if one.row is not None]
    roomy = [one for one in some if one.row is not None and not one.row.sharded.is_tight]
    return roomy or some


def _best(comparison: Comparison) -> Line | None:
    if comparison.objective == "cost":
        return _cheapest(comparison)
    return max(_fitting(comparison), key=lambda one: one.rate, default=None)


def _cheapest(comparison: Comparison) -> Line | None:
    return min(
        (one for one in _fitting(comparison) if one.cost is not None), key=lambda one: one.cost or 0, default=None
    )


def _headline(comparison: Comparison) -> str:
    best, name = _best(comparison), comparison.answered[0].job.whole.model.name
    if best is None or best.row is None:
        return f"{name} fits on none of these machines"
    word = "Cheapest" if comparison.objective == "cost" else "Fastest"
    so_far = "" if comparison.finished else " so far (interrupted)"
    return f"{word} for {name}{so_far}: {best.label}, {advise.label(best.row.candidate)}"


def _facts(comparison: Comparison) -> list[Fact]:
    best, cheapest = _best(comparison), _cheapest(comparison)
    some = [one for one in _fitting(comparison) if one.row is not None]
    made = []
    if best is not None and best.row is not None:
        made.append(Fact("Throughput", f"{units.digits(best.rate)} {_what(best.answer)}/s in all" + _finish(best)))
        made.append(Fact("Memory", advise.fit(best.row)))
    if cheapest is not None and cheapest.cost is not None and cheapest.row is not None and cheapest.row.price:
        name = _costed(cheapest.answer)[0]
        source = cheapest.row.price.source
        made.append(Fact("Cheapest", f"{cheapest.label}: {units.digits(cheapest.cost)} per {name} ({source})"))
    efficient = max(some, key=lambda one: one.rate / one.gpus, default=None)
    if efficient is not None and efficient is not best:
        rate = f"{units.digits(efficient.rate / efficient.gpus)} {_what(efficient.answer)}/s per GPU"
        made.append(Fact("Per GPU", f"most on {efficient.label}: {rate}"))
    for machine in comparison.machines:
        if machine.error is not None:
            where = " on ".join(name for name in (machine.gpu, machine.cluster) if name)
            made.append(Fact("Not searched", f"{where}: {machine.error.reason}"))
    refused = [one for one in _lines(comparison) if one.reason]
    return [*made, *(Fact("Not searched", f"{one.label}: {one.reason}") for one in refused)]


def _finish(line: Line) -> str:
    """Return how long the tokens to train on take."""
    if line.answer.costs.tokens is None or line.row is None:
        return ""
    name, samples = _costed(line.answer)
    return f", {advise.how_long(line.row.seconds(samples))} for {name}"


def _what(answer: Answer) -> str:
    return "images" if answer.tokens is None else "tokens"


def _costed(answer: Answer) -> tuple[str, float]:
    return advise.costed(answer.tokens, answer.costs.tokens)


def _table(comparison: Comparison, every: Sequence[Line]) -> list[str]:
    first = comparison.answered[0]
    gpus, clusters = {one.gpu for one in comparison.machines}, {one.cluster for one in comparison.machines}
    what = "tok" if first.tokens is not None else "img"
    has_cost, has_total = any(one.cost is not None for one in every), first.costs.tokens is not None
    columns = [
        *([Column("GPU", left=True)] if len(gpus) > 1 else []),
        *([Column("cluster", left=True)] if len(clusters) > 1 or not len(gpus) > 1 else []),
        Column("GPUs"),
        Column("configuration", left=True),
        Column(f"{what}/s/GPU"),
        Column(f"{what}/s"),
        Column("GB"),
        *([Column("time")] if has_total else []),
        *([Column(f"cost per {_costed(first)[0]}")] if has_cost else []),
    ]

    def cells(line: Line) -> list[str]:
        made = [line.machine.gpu] if len(gpus) > 1 else []
        made += [line.machine.cluster or "-"] if len(clusters) > 1 or not len(gpus) > 1 else []
        made.append(f"{line.gpus:,}")
        row = line.row
        if row is None:
            needed = units.gigabytes(line.least_bytes) + " !" if line.least_bytes else "-"
            return [*made, "-" if line.reason else "does not fit", "-", "-", needed, *["-"] * (has_total + has_cost)]
        cost = line.cost
        return [
            *made,
            advise.label(row.candidate, brief=True).replace(" checkpointing", " ckpt"),
            units.digits(line.rate / line.gpus),
            units.digits(line.rate),
            units.gigabytes(row.sharded.memory.total_bytes) + (" ~" if row.sharded.is_tight else ""),
            *([advise.how_long(row.seconds(_costed(line.answer)[1]))] if has_total else []),
            *(["-" if cost is None else units.digits(cost) + advise.WHOLE * row.is_rented_whole] if has_cost else []),
        ]

    def order(line: Line) -> tuple[bool, float]:
        by_cost = comparison.objective == "cost" and line.cost is not None
        return line.row is None, (line.cost or 0) if by_cost else -line.rate

    marks = (
        ["! does not fit: needs more than can be allocated of a GPU's memory"]
        if any(one.row is None and one.least_bytes for one in every)
        else []
    )
    marks += advise.rented_whole([one.row for one in every if one.row is not None])
    return [*render(columns, [[cells(line) for line in sorted(every, key=order)]]), *marks]


def _command(line: Line) -> str:
    assert line.row is not None
    return line.row.command


def _notes(comparison: Comparison) -> list[str]:
    """Return the notes of all answers; one of some machines alone names them."""
    by_note: dict[str, list[str]] = {}
    for one in comparison.machines:
        for note in [] if one.answer is None else advise.notes(one.answer):
            by_note.setdefault(note, []).append(one.gpu)
    several = len(comparison.answered)
    made = []
    for note, names in by_note.items():
        who = "" if len(names) == several else f"{', '.join(dict.fromkeys(names))}: "
        made.append(f"{who}{note}")
    priced = {price.source for one in comparison.answered for price in one.costs.prices.values()}
    if len(priced) > 1 or any("GPU-hour" in source for source in priced):
        made.append("Prices are on demand, as listed on their day (paceline list instances); yours: --price")
    unpriced = [
        one.gpu
        for one in comparison.machines
        if one.answer is not None and not one.answer.costs.prices and not one.answer.costs.notes
    ]
    if priced and unpriced:
        made.append(
            f"No price is known of {', '.join(dict.fromkeys(unpriced))}; give it with --price {unpriced[0]}:2.50"
        )
    return made
