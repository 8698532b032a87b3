"""Words for changes with which a job fits that does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline._internal import block, units
from paceline._internal.block import Fact, Pair
from paceline.forecast.remedies import Proposals, Trial
from paceline.forecast.typed import Typed, words
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
    return [Fact("Fits with", f"nothing that was tried; {size} allocated is the least, with {flags}")]


def longer(typed: Typed, trials: Sequence[Trial]) -> list[str]:
    """Return the line `Longer with`, and what to type; `typed`: the request of the longest sequence."""
    if not trials:
        return []
    command = typed.changed(trials[0].settings).line
    return [*block.block([Fact("Longer with", *map(_pair, trials))]), *block.suggestion(command)]


def to_list(proposed: Proposed) -> list[dict[str, Any]]:
    """Return the changes as `--json` prints them: settings, memory, rate and the command."""
    return [
        {
            "settings": dict(trial.settings),
            **({"longest_seq": trial.seq} if trial.seq else {}),
            "allocated_bytes": trial.need_bytes,
            "tight": trial.is_tight,
            "tokens_per_s_per_gpu": None if trial.result is None else trial.result.tokens_per_s_per_gpu,
            "samples_per_s": None if trial.result is None else trial.result.samples_per_s,
            "command": proposed.typed.changed(trial.settings).line,
        }
        for trial in proposed.proposals.fitting
    ]


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
    what = f"{trial.seq:,} tokens" if trial.seq else f"{units.memory(trial.need_bytes)} allocated"
    return what, text + (", tight" if trial.is_tight else "")
