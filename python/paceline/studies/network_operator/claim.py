"""A claim of the paper: what has to be simulated, and what decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.studies.network_operator.mechanisms import configured
from paceline.studies.network_operator.published import MODELS
from paceline.studies.network_operator.runs import Config, Simulations
from paceline.studies.report import ClaimResult

Times = Mapping[str, float]
Verdict = tuple[bool, dict[str, float]]


@dataclass(frozen=True)
class Claim:
    """A claim, the configurations it needs by a label of ours, and the judgement of their iteration times."""

    text: str
    configs: Mapping[str, Config]
    judge: Callable[[Times], Verdict]

    def tested(self, simulations: Simulations) -> ClaimResult:
        """With the simulated times."""
        holds, figures = self.judge({label: simulations[config] for label, config in self.configs.items()})
        return ClaimResult(self.text, holds, {name: float(f"{value:.4g}") for name, value in figures.items()})


def grid(mechanisms: tuple[str, ...], models: tuple[str, ...] = MODELS, **settings: object) -> dict[str, Config]:
    """Each mechanism on each model, labelled `mechanism/model`."""
    return {f"{name}/{model}": configured(model, name, **settings) for name in mechanisms for model in models}
