"""A claim of the paper: the simulations that it needs, and the test that decides it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline_lab.studies.network_operator.mechanisms import configured
from paceline_lab.studies.network_operator.published import MODELS
from paceline_lab.studies.network_operator.runs import Config, Simulations
from paceline_lab.studies.report import ClaimResult

Times = Mapping[str, float]
Verdict = tuple[bool, dict[str, float]]


@dataclass(frozen=True)
class Claim:
    """A claim, the configurations that it needs by label, and the test of their iteration times."""

    text: str
    configs: Mapping[str, Config]
    judge: Callable[[Times], Verdict]

    def tested(self, simulations: Simulations) -> ClaimResult:
        """Return the result for the simulated times."""
        holds, figures = self.judge({label: simulations[config] for label, config in self.configs.items()})
        return ClaimResult(self.text, holds, {name: float(f"{value:.4g}") for name, value in figures.items()})


def grid(mechanisms: tuple[str, ...], models: tuple[str, ...] = MODELS, **settings: object) -> dict[str, Config]:
    """Return each mechanism on each model, labelled `mechanism/model`."""
    return {f"{name}/{model}": configured(model, name, **settings) for name in mechanisms for model in models}
