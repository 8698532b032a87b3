"""Speed-ups over a row of one's choice: `ps`, or `strategy=ps,servers=1`.

The baseline of a row is the row that has the named values and is otherwise the same. M. A. Chang et al., "How to Train
your DNN: The Network Operator Edition", figures 9 to 12 and tables 4 and 6, compare with a parameter server so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline._core import parse_rate, parse_time
from paceline._internal.nearest import nearest
from paceline._internal.units import shown
from paceline.errors import InvalidArgumentError
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.settings.table import SETTINGS, SIMULATE

Value = Callable[[Scenario, Result], object]

_CIRCUMSTANCES: Mapping[str, Value] = {
    "add_module": lambda _, result: result.add_module,
    "send_order": lambda _, result: result.send_order,
    "gpu": lambda _, result: result.gpu,
    "power_limit": lambda _, result: result.power_limit_w,
    "library": lambda _, result: result.library,
    "workers": lambda _, result: result.gpus,
    "bandwidth": lambda _, result: result.bandwidth_bps,
    "latency": lambda _, result: result.latency_s,
    "gpus_per_node": lambda _, result: result.gpus_per_node,
    "compute_speedup": lambda _, result: result.compute_speedup,
}
"""Values that a row and its baseline have in common, unless the baseline says otherwise."""
_CHOICES: Mapping[str, Value] = {
    "sharding": lambda _, result: None if result.sharded is None else result.sharded.sharding,
    "compression": lambda _, result: result.compression,
    "sync_every": lambda _, result: result.sync_every,
    "coordinator": lambda _, result: result.coordinator or "none",
    "servers": lambda _, result: result.servers or None,
    "bucket_size": lambda scenario, result: scenario.options.get("bucket_size", result.bucket_size),
    "chunk": lambda _, result: result.chunk,
    "placement": lambda _, result: result.placement,
    "distribution": lambda _, result: result.distribution,
    "strategy": lambda _, result: result.strategy,
}
"""Values that compete within a configuration; of several baselines the one that shares most of these counts."""
_VALUES = {**_CIRCUMSTANCES, **_CHOICES}
_OF_TEXT: Mapping[str, Callable[[Any], object]] = {"bandwidth": parse_rate, "latency": parse_time}


@dataclass(frozen=True)
class Baseline:
    """The values that the row has with which others are compared."""

    name: str
    """As tables call it."""
    wanted: Mapping[str, object]
    given: Mapping[str, str]
    """The values as they were written."""

    @classmethod
    def of(cls, text: str) -> Baseline:
        """Return the baseline that `ps` or `strategy=ps,servers=1` means. Raises InvalidArgumentError."""
        wanted: dict[str, object] = {}
        given: dict[str, str] = {}
        shown_values = []
        for word in text.split(","):
            name, equals, value = (part.strip() for part in word.partition("="))
            if not equals:
                name, value = "strategy", name
            name = {"gpus": "workers"}.get(name, name).replace("-", "_")
            if name not in _VALUES:
                near = nearest(name, list(_VALUES))
                raise InvalidArgumentError(
                    f"'{shown(name)}' is no value of a row", remedy=f"{near or 'strategy'}=… (or a strategy: ps)"
                )
            if name in wanted:
                raise InvalidArgumentError(f"gives {name} twice", remedy=f"{name} once")
            place = SIMULATE if SIMULATE in SETTINGS[name].uses else None
            try:
                checked = SETTINGS[name].check(value, None, place)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{name}: {error.reason}", remedy=error.remedy) from None
            given[name] = value
            wanted[name] = _OF_TEXT[name](checked) if name in _OF_TEXT else checked
            shown_values.append(str(checked) if name == "strategy" else f"{name.replace('_', ' ')} {value}")
        return cls(", ".join(shown_values), wanted, given)

    def requested(self, sweep: Sweep) -> Sweep:
        """Return the sweep with the baseline's strategy first, if strategies were named without it."""
        strategy, given = self.wanted.get("strategy"), sweep.get("strategy")
        if strategy is None or given is None or "all" in given:
            return sweep
        others = [name for name in given if name != strategy]
        return sweep.changed({"strategy": [strategy, *others]})

    def is_met(self, scenario: Scenario, result: Result) -> bool:
        """Whether a row has the values."""
        return all(_VALUES[name](scenario, result) == value for name, value in self.wanted.items())

    def compared(self, scenarios: Sequence[Scenario], results: Sequence[Result]) -> list[Result]:
        """Return the results with their speed-ups. Raises InvalidArgumentError if a row has no baseline."""
        rows = list(zip(scenarios, results, strict=True))
        candidates = [row for row in rows if self.is_met(*row)]
        return [replace(row[1], baseline=self.name, speedup=self._speedup(row, candidates)) for row in rows]

    def _speedup(self, row: tuple[Scenario, Result], candidates: Sequence[tuple[Scenario, Result]]) -> float | None:
        fixed = [value for name, value in _CIRCUMSTANCES.items() if name not in self.wanted]
        base = row[0].base
        same = [it for it in candidates if it[0].base == base and all(value(*it) == value(*row) for value in fixed)]
        if not same:
            raise InvalidArgumentError(
                f"no row of {row[1].trace} at {row[1].workers} workers has {self.name}",
                setting="baseline",
                remedy=f"{' and '.join(self._flags())} among the values",
            )
        shared = [value for name, value in _CHOICES.items() if name not in self.wanted]
        own = max(same, key=lambda it: sum(value(*it) == value(*row) for value in shared))[1]
        return own.iteration_s / row[1].iteration_s if row[1].iteration_s > 0 else None

    def _flags(self) -> list[str]:
        return [f"{{{name}={shown(value)}}}" for name, value in self.given.items()]
