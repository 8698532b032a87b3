"""Configurations found by `paceline advise`, with their costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.forecast.advisor import search
from paceline.forecast.advisor.candidates import Candidate
from paceline.forecast.advisor.costs import Price
from paceline.forecast.advisor.goodput import Failures
from paceline.forecast.advisor.job import Job
from paceline.forecast.advisor.search import Option, Outcome
from paceline.forecast.remedies import Proposals
from paceline.forecast.sharded import Sharded

Objective = Literal["throughput", "cost"]


@dataclass(frozen=True)
class Costs:
    """Prices and failure rates, which turn a rate into money and time."""

    prices: Mapping[int, Price] = field(default_factory=dict)
    """By number of GPUs, where they are known."""
    failures: Failures | None = None
    tokens: float | None = None
    """Tokens to train on, for which costs are given; None: a billion."""
    notes: tuple[str, ...] = ()
    """Why no listed price is taken; empty if one is, or none was asked for."""


@dataclass(frozen=True)
class Row:
    """A configuration that fits, with what it costs."""

    gpus: int
    candidate: Candidate
    option: Option
    goodput: float
    """1 without failures."""
    price: Price | None
    command: str
    """The command that forecasts it."""

    @property
    def global_batch(self) -> int:
        """Samples of an iteration."""
        return self.candidate.global_batch

    @property
    def is_rented_whole(self) -> bool:
        """Whether more GPUs are paid for than it has: an instance is rented whole."""
        return self.price is not None and self.price.rented(self.gpus) > self.gpus

    @property
    def kept_per_s(self) -> float:
        """Samples per second of all GPUs that are kept, with failures."""
        assert self.option.result.samples_per_s is not None
        return self.option.result.samples_per_s * self.goodput

    @property
    def sharded(self) -> Sharded:
        """Memory and exposed communication of its forecast."""
        assert self.option.result.sharded is not None
        return self.option.result.sharded

    def cost(self, samples: float) -> float | None:
        """Return the price of so many samples, with failures."""
        if self.price is None or not self.kept_per_s:
            return None
        return samples / self.kept_per_s / 3600 * self.price.of_hour(self.gpus)

    def seconds(self, samples: float) -> float:
        """Return how long so many samples take, with failures."""
        return samples / self.kept_per_s if self.kept_per_s else math.inf

    def per_gpu(self, tokens: int | None) -> float:
        """Return tokens per second and GPU, or samples if these have no tokens."""
        assert self.option.result.samples_per_s is not None
        return self.option.result.samples_per_s / self.gpus * (tokens or 1)


@dataclass(frozen=True)
class Answer:
    """The result of a search."""

    job: Job
    """On all numbers of GPUs."""
    jobs: Mapping[int, Job]
    """By number of GPUs."""
    outcomes: tuple[Outcome, ...]
    rows: Mapping[int, Sequence[Row]]
    """By number of GPUs; those that leave room, fastest first, and then those that fit tightly."""
    objective: Objective
    costs: Costs
    finished: bool = True
    safer: Row | None = None
    """The fastest that leaves room on the GPUs of the best, where all that were searched fit tightly."""
    roomy_gpus: int | None = None
    """Where there is none: the fewest GPUs on which the sharding of the best leaves room, if it does on more."""
    fixes: Proposals = field(default_factory=Proposals)
    """Changes that make something fit on the most GPUs, where nothing does on any number of them."""
    remedy: str = ""
    """The command that searches again with the first of these changes."""
    untried: str = ""
    """The command that forecasts what would have taken long to simulate, where nothing else was found."""

    @property
    def tokens(self) -> int | None:
        """Tokens of a sample; None for images."""
        workload = self.job.whole
        return workload.tokens if workload.is_text else None

    @property
    def best(self) -> Row | None:
        """The best of all numbers of GPUs that leaves room: the most throughput, or the least cost."""
        firsts = [rows[0] for rows in self.rows.values() if rows]

        def merit(row: Row) -> float:
            if self.objective != "cost":
                return row.kept_per_s
            # Where no price is known, a GPU costs as much on any number of them.
            return row.kept_per_s / (row.gpus if row.price is None else row.price.of_hour(row.gpus))

        if self.objective == "cost":
            firsts = [row for row in firsts if row.price is not None] or firsts
        return max(firsts, key=lambda row: (not row.sharded.is_tight, merit(row)), default=None)

    def faster(self, best: Row) -> Option | None:
        """Return the fastest option that is faster than the best and fits tightly."""
        options = next(outcome.options for outcome in self.outcomes if outcome.gpus == best.gpus)
        rate = search.rate(best.option)
        return max((it for it in options if search.rate(it) > rate), key=search.rate, default=None)
