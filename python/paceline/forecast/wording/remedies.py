"""Words for changes with which a job fits that does not."""

from __future__ import annotations

from paceline._internal import units
from paceline._internal.block import Fact, Pair
from paceline.forecast.remedies import Proposals, Trial
from paceline.forecast.typed import words
from paceline.forecast.verdict.remedy import Proposed

NOTHING = "larger GPUs (list: paceline list gpus), or a smaller model"


def facts(proposed: Proposed) -> list[Fact]:
    """Return the line `Fits with`, or what comes nearest."""
    return of(proposed.proposals)


def of(proposals: Proposals) -> list[Fact]:
    """Return the line `Fits with`, or what comes nearest."""
    if proposals.fitting:
        return [Fact("Fits with", *map(_pair, proposals.fitting))]
    if (least := proposals.least) is None:
        return []
    size, flags = units.memory(least.need_bytes), " ".join(words(least.settings))
    return [Fact("Fits with", f"nothing that was tried; {size} is the least, with {flags}")]


def line(proposed: Proposed) -> str:
    """Return what to type: the command of the first change that fits."""
    if not proposed.proposals.fitting:
        return NOTHING
    return proposed.typed.changed(proposed.proposals.fitting[0].settings).line


def _pair(trial: Trial) -> Pair:
    text = " ".join(words(trial.settings))
    rate = None if trial.result is None else trial.result.tokens_per_s_per_gpu
    samples = None if trial.result is None else trial.result.samples_per_s
    if rate is not None:
        text += f": {units.digits(rate)} tokens/s per GPU"
    elif samples is not None:
        text += f": {units.digits(samples)} samples/s"
    return units.memory(trial.need_bytes), text + (", tight" if trial.is_tight else "")
