"""A request as it was typed, from which others are made with some of its options changed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from paceline._core import Trace
from paceline.forecast.remedies import Settings
from paceline.forecast.request import Sweep
from paceline.forecast.scenario import Scenario
from paceline.settings.table import EACH, SETTINGS, SWEPT, by_current_names

_OF_OUTPUT = ("measured", "baseline", "detail", "executor")
"""Settings that say nothing of the job, or no longer apply to one that was changed."""


@dataclass(frozen=True)
class Typed:
    """A workload and options, as typed."""

    command: str
    """The command: `simulate`."""
    workload: str | Path | Trace
    options: Mapping[str, Any]
    """By the settings' own names; those that were not given are absent."""
    given_by: Literal["flag", "key"] = "flag"

    @classmethod
    def of(
        cls, command: str, workload: str | Path | Trace, given: Mapping[str, Any], given_by: Literal["flag", "key"]
    ) -> Typed:
        """Take what was given, by any of the settings' names; None counts as not given."""
        named, _ = by_current_names(command, given, given_by)
        options = {name: value for name, value in named.items() if value is not None and name in SETTINGS}
        return cls(
            command, workload, {name: value for name, value in options.items() if name not in _OF_OUTPUT}, given_by
        )

    def changed(self, settings: Settings) -> Typed:
        """Return the request with other settings."""
        return replace(self, options={**self.options, **settings})

    def narrowed(self, sweep: Sweep, scenario: Scenario) -> Typed:
        """Return the request of one of the scenarios that were asked for.

        Args:
            sweep: The whole request.
            scenario: One of its scenarios.
        """
        workload, several = scenario.workload, {}
        for name in (*SWEPT, *EACH):
            values = sweep.each.get(name) or sweep.get(name)
            if isinstance(values, list | tuple) and len(values) > 1:
                several[name] = values[0]
        own = {
            "sharding": scenario.options.get("sharding"),
            "strategy": scenario.strategy.name,
            "library": scenario.library.spec,
            "compression": scenario.options.get("compression"),
            "bucket_size": scenario.options.get("bucket_size"),
            **scenario.changes,
        }
        chosen = {name: own.get(name) or value for name, value in several.items()}
        if len(sweep.workers) > 1:
            chosen["workers"] = scenario.workers * (1 if workload is None else workload.gpus)
        return replace(self, options={**self.options, **chosen})

    def request(self) -> Sweep:
        """Return the request, with the library's own strategy if none is named. Raises InvalidArgumentError."""
        return Sweep.of(self.workload, self.options, self.command, self.given_by, one_strategy=True)

    @property
    def line(self) -> str:
        """The command line."""
        named = ["--config", str(self.workload)] if isinstance(self.workload, Path) else [str(self.workload)]
        return shlex.join(["paceline", self.command, *named, *words(self.options)])


def words(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as they are typed: `--gpus 8 --dora --no-overlap`."""
    typed: list[str] = []
    for name, value in settings.items():
        setting = SETTINGS[name]
        flag = "--gpus" if name == "workers" else setting.spelling(value)
        typed += [flag] if isinstance(value, bool) else [flag, _text(value)]
    return typed


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
