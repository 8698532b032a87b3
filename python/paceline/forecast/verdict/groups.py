"""Rows that compete: forecasts of one configuration.

What competes within a configuration is what a user chooses: strategy, number of servers, bucket size. Everything else
that varies (trace, workers, network, compute speedup) makes another configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.catalog.strategies import EXTRAS, find_strategy
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario


@dataclass(frozen=True)
class Group:
    """The scenarios of one configuration in the requested order; the others are compared with the first.

    `requested_extras`: which of `EXTRAS` were asked for.
    """

    scenarios: list[Scenario]
    results: list[Result]
    requested_extras: frozenset[str] = frozenset(EXTRAS)
    noun: str = "GPU"
    """A rank as the user calls it: `GPU` or `worker`."""

    def scenario(self, result: Result) -> Scenario:
        """Return the scenario of a result."""
        return self.scenarios[self.results.index(result)]

    @property
    def has_several(self) -> bool:
        """Whether rows differ in what a user chooses."""
        return len({(one.strategy, one.servers, one.bucket_size, *_ways(one)) for one in self.results}) > 1

    @property
    def has_one_strategy(self) -> bool:
        """Whether all have the same."""
        return len({result.strategy for result in self.results}) == 1

    @property
    def is_of_model(self) -> bool:
        """Whether its trace was made from a configuration."""
        return self.scenarios[0].workload is not None

    @property
    def differs_in_strategy(self) -> bool:
        """Whether each row has a strategy of its own."""
        return len({one.strategy for one in self.results}) == len(self.results)

    def fastest_first(self) -> list[Result]:
        """Return results by iteration time, those that do not fit last.

        Those that look equal in the table stay in the requested order.
        """
        return sorted(self.results, key=lambda result: (is_too_large(result), float(f"{result.iteration_s:.3e}")))

    def ranked(self) -> list[Result]:
        """Return results, fastest first, without those that need what was not asked for, unless all do."""
        ranked = self.fastest_first()
        return [result for result in ranked if find_strategy(result.strategy).extras <= self.requested_extras] or ranked

    def library_default(self) -> Result | None:
        """Return the fastest forecast of what the library runs by itself; None for bare schedules, or without one.

        One that fits comes before all that do not.
        """
        pairs = zip(self.scenarios, self.results, strict=True)
        runs = [result for it, result in pairs if not it.library.is_bare and result.strategy == it.library.strategy]
        return min(runs, key=lambda result: (is_too_large(result), result.iteration_s), default=None)

    def with_interval(self) -> Result:
        """Return the fastest forecast that has an interval; if none has one, the fastest, which says why."""
        ranked = self.ranked()
        return next((result for result in ranked if result.interval is not None), ranked[0])

    def headline_result(self) -> Result:
        """Return the forecast that a verdict is about: what the library runs by itself, or else the fastest."""
        runs = self.library_default()
        return self.ranked()[0] if runs is None or runs.workers == 1 else runs


def is_too_large(result: Result) -> bool:
    """Whether it needs more memory than a GPU has."""
    return result.sharded is not None and result.sharded.fits is False


def _ways(result: Result) -> tuple[str | int | None, ...]:
    knobs = (result.chunk, result.placement, result.distribution)
    return None if result.sharded is None else result.sharded.sharding, result.compression, result.sync_every, *knobs


def grouped(
    scenarios: Sequence[Scenario],
    results: Sequence[Result],
    *,
    requested_extras: frozenset[str] = frozenset(EXTRAS),
    noun: str = "GPU",
) -> list[Group]:
    """One group per trace, library, workers, bandwidth, latency, speedup, GPUs per node and change, in order."""
    groups: dict[tuple[object, ...], Group] = {}
    for scenario, result in zip(scenarios, results, strict=True):
        circumstances = (result.workers, result.bandwidth_bps, result.latency_s, result.compute_speedup)
        changes = (result.gpus_per_node, result.add_module, result.send_order, result.gpu, result.power_limit_w)
        # Not by the trace itself: where units are gathered, a model computes more.
        key = (scenario.base, scenario.trace.name, result.library, *circumstances, *changes)
        group = groups.setdefault(key, Group([], []))
        group.scenarios.append(scenario)
        group.results.append(result)
    return [replace(group, requested_extras=requested_extras, noun=noun) for group in groups.values()]


def largest(groups: Sequence[Group]) -> list[Group]:
    """Return the group with the most workers of each trace and library."""
    of: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        scenario, result = group.scenarios[0], group.results[0]
        key = (scenario.base, scenario.trace.name, result.library, result.gpu, result.power_limit_w)
        of.setdefault(key, []).append(group)
    return [max(own, key=lambda it: it.results[0].workers) for own in of.values()]
